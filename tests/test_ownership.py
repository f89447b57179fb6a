"""Only what is ours is ever removed: files of users survive every call, wherever they are."""

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import spore_dask
from spore_dask import InputError, ParameterError, SporeError, open_run
from spore_dask.store import OWNER, Folder
from tests import paper
from tests.test_paths import DATA, tree, write_source

HEX = "0123456789abcdef"
LIKE_OURS = [
    *("movie.mkv.partial", "thesis.partial/ch1/text.tex", "lock-mine.json", "done.json"),
    *("graph-notes/x.txt", "result-final/summary.json", "scan-old/done.json", "run.json.bak"),
    *("input-data/data/c/0", "progress-report.json", "source-code.json", "report-2024.html"),
    *("tuning-fork/a.wav", "preflight/driver", "job-offer.json", "receipts-2024/1.json"),
    *(
        f"movie.{HEX * 2}.partial",
        f"lock-{HEX * 2}.json",
        f"lock-{HEX}.json",
        f"lock-{HEX * 2}.json.orig",
    ),
    *(f"graph-{HEX}/x", f"scan-{HEX[:12]}x/done.json", "predictions/mine", "work/notes.txt"),
    *("summary.json", "labels/zarr.json", "c/0/0", ".zgroup.bak", f"x.zarr.{HEX * 2}.partial-old"),
]
"""Names of users' files that look like those of a run."""
EXACTLY_OURS = ["run.json", f"graph-{HEX[:12]}/notes.txt", "latest.json", "prediction.json"]
"""Names that a run has too: a folder with one of them, but without our mark, is refused."""
names = st.one_of(
    st.sampled_from(LIKE_OURS),
    st.text("abc.-_ 0:#", min_size=1, max_size=8).filter(lambda name: name.strip(".")),
)


def without_errors(call):
    with contextlib.suppress(SporeError):
        call()


def calls(base, out):
    """Return all that a user may call on a folder, done or refused."""
    fit = functools.partial(paper.fit, base / "x.zarr", out, n_workers=0, n_partitions=2)
    bad = np.where(np.arange(800).reshape(400, 2) == 300, np.nan, DATA)
    return {
        "fit": fit,
        "fit again": functools.partial(fit, z_percentile=70, keep="all"),
        "fit anew": functools.partial(fit, resume=False),
        "fit an array": functools.partial(paper.fit, DATA, out, n_workers=0),
        "fit bad data": functools.partial(paper.fit, bad, out, n_workers=0),
        "fit too much": functools.partial(fit, memory_limit="1MB"),
        "fit badly": functools.partial(fit, min_cluster_size=-1),
        "interrupted": functools.partial(interrupt, fit, "neighbors"),
        "interrupted early": functools.partial(interrupt, fit, "scan"),
        "build_graph": lambda: spore_dask.build_graph(base / "x.zarr", out, n_workers=0),
        "tune": lambda: spore_dask.tune(base / "x.zarr", out, n_trials=3, n_workers=0),
        "predict": lambda: spore_dask.predict(base / "fitted", DATA, out, n_workers=0),
        "clean": lambda: spore_dask.clean(out),
        "verify": lambda: spore_dask.verify(out),
        "report": lambda: spore_dask.report(out),
        "damage": lambda: damage(out),
        "export": lambda: spore_dask.export_labels(out, out / "labels.npy"),
        "import": lambda: spore_dask.import_data(base / "x.npy", out, overwrite=True),
        "hold": lambda: spore_dask.hold(out).__enter__().check(),
        "remove_run": lambda: spore_dask.remove_run(out),
    }


def interrupt(call, stage):
    def stop(event):
        if event.stage == stage:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        call(progress=stop)


def damage(out):
    """Damage a stage of the run, and have it noticed."""
    graph = Path(open_run(out).path, open_run(out).graph[1])
    for path in graph.rglob("0"):  # none, if the run has only its labels left
        if path.is_file():
            path.write_bytes(b"\xff" * path.stat().st_size)
    paper.fit(out.parent / "x.zarr", out, n_workers=0, n_partitions=2, z_percentile=60)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    write_source(base / "x.zarr")
    np.save(base / "x.npy", DATA)
    paper.fit(DATA, base / "fitted", n_workers=0)
    return base


def write_tree(folder, files):
    """Write files of a user; leave out those that would be inside another."""
    for number, name in enumerate(files):
        with contextlib.suppress(OSError):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "x") as file:
                file.write(f"{name} {number}")


@settings(max_examples=max(12, int(os.environ.get("SPORE_EXAMPLES", "0")) // 10))
@given(
    beside=st.lists(names, max_size=6),
    inside=st.lists(names, max_size=12),
    ours=st.sampled_from([None, None, None, *EXACTLY_OURS]),
    chosen=st.lists(st.sampled_from(list(calls(Path(), Path()))), min_size=3, max_size=8),
)
def test_files_of_users_survive(base, beside, inside, ours, chosen):
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        shutil.copytree(base / "x.zarr", work / "x.zarr")
        (work / "fitted").symlink_to(base / "fitted")
        shutil.copy(base / "x.npy", work / "x.npy")
        out = work / "out"
        write_tree(work, beside)
        write_tree(out, [*inside, *([ours] if ours else [])])
        out.mkdir(exist_ok=True)
        before = tree(work)
        todo = calls(work, out)
        for name in ["fit", *chosen]:
            without_errors(todo[name])
            now = tree(work)
            lost = [path for path, content in before.items() if now.get(path) != content]
            assert not lost, f"{name} has destroyed {lost}"
        if ours:
            assert not (out / OWNER).exists()


def test_a_folder_of_a_user_may_hold_a_run(tmp_path):
    write_tree(tmp_path, LIKE_OURS)
    run = paper.fit(DATA, tmp_path, n_workers=0)
    assert paper.fit(DATA, tmp_path, n_workers=0).id == run.id
    spore_dask.remove_run(tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tree(tmp_path)}
    assert found == set(LIKE_OURS)


@pytest.mark.parametrize("name", EXACTLY_OURS)
def test_a_folder_that_looks_like_ours_is_refused(tmp_path, name):
    write_tree(tmp_path, [name])
    for call in (
        lambda: paper.fit(DATA, tmp_path, n_workers=0),
        lambda: spore_dask.hold(tmp_path).__enter__(),
        lambda: spore_dask.remove_run(tmp_path),
    ):
        with pytest.raises(InputError, match=r"holds .* but not 'spore_dask.json'"):
            call()
    assert [str(path.relative_to(tmp_path)) for path in tree(tmp_path)] == [name]


def test_documents_do_not_say_what_is_removed(tmp_path):
    run = paper.fit(DATA, tmp_path / "out", n_workers=0)
    (tmp_path / "out" / "mine").mkdir()
    (tmp_path / "out" / "mine" / "text").write_text("mine")
    summary = run.result.read_json("summary.json")
    summary["stages"]["density"]["name"] = "mine"
    run.result.write_json("summary.json", summary)
    spore_dask.clean(open_run(tmp_path / "out"))
    assert (tmp_path / "out" / "mine" / "text").read_text() == "mine"


def test_import_replaces_arrays_only(tmp_path):
    np.save(tmp_path / "x.npy", DATA)
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("other", data=np.arange(3))
    with pytest.raises(InputError, match="is not a Zarr array"):
        spore_dask.import_data(tmp_path / "x.npy", overwrite=True)
    shutil.rmtree(tmp_path / "x.zarr")
    spore_dask.import_data(tmp_path / "x.npy")
    (tmp_path / "x.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes.txt'"):
        spore_dask.import_data(tmp_path / "x.npy", overwrite=True)
    assert (tmp_path / "x.zarr" / "notes.txt").read_text() == "mine"
    (tmp_path / "x.zarr" / "notes.txt").rename(tmp_path / "x.zarr" / "c" / "mine.txt")
    with pytest.raises(InputError, match=r"holds 'c/mine.txt'"):
        spore_dask.import_data(tmp_path / "x.npy", overwrite=True)


def test_a_report_replaces_reports_only(tmp_path):
    run = paper.fit(DATA, tmp_path / "out", n_workers=0)
    (tmp_path / "thesis.html").write_text("mine")
    with pytest.raises(InputError, match="not a report"):
        spore_dask.report(run, tmp_path / "thesis.html")
    assert (tmp_path / "thesis.html").read_text() == "mine"
    for _ in range(2):
        spore_dask.report(run, tmp_path / "report.html")


def test_no_run_is_inside_a_stage_of_another(tmp_path):
    run = paper.fit(DATA, tmp_path / "out", n_workers=0)
    with pytest.raises(ParameterError, match="inside a stage of another run"):
        paper.fit(DATA, Path(run.path) / run.graph[1] / "inner", n_workers=0)
    (tmp_path / "link").symlink_to(Path(run.path) / run.graph[1])
    np.save(tmp_path / "x.npy", DATA)
    for place in (Path(run.path) / run.graph[1] / "deep", tmp_path / "link"):
        place.mkdir(exist_ok=True)
        for write in (
            lambda place: paper.fit(DATA, place / "inner", n_workers=0),
            lambda place: spore_dask.export_labels(run, place / "labels.npy"),
            lambda place: spore_dask.import_data(tmp_path / "x.npy", place / "x.zarr"),
        ):
            with pytest.raises(ParameterError, match="inside a stage of another run"):
                write(place)


def test_a_folder_is_claimed_when_a_call_is_not_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SporeError):
        paper.fit(DATA, tmp_path, n_workers=0, memory_limit="1MB")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    paper.fit(DATA, tmp_path, n_workers=0)
    assert Folder(str(tmp_path)).exists(OWNER)
