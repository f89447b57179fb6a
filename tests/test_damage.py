"""What is on disk is checked when it is read; what is damaged, or found no room, is made anew."""

import contextlib
import itertools
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import (
    DamagedError,
    FullDiskError,
    InputError,
    LimitError,
    build_graph,
    clean,
    export_labels,
    open_run,
    predict,
    report,
    tune,
    verify,
)
from spore_dask.kernels.checks import block_checksums
from spore_dask.store import Folder, RowFiles
from spore_dask.tracking import read_records
from tests import naive
from tests.paper import fit

N_POINTS = 3000
OPTIONS = {"n_workers": 0, "n_partitions": 3, "keep": "all"}


def crowd(n_points=N_POINTS):
    """Clusters with copies, so that a run has rows of every kind."""
    rng = np.random.default_rng(7)
    centres = rng.uniform(0, 40, (6, 2))
    points = centres[rng.integers(0, 6, n_points)] + rng.normal(0, 1, (n_points, 2))
    points[: n_points // 10] = points[0]
    points[n_points // 10 : n_points // 5] = np.round(points[n_points // 10 : n_points // 5])
    return rng.permutation(points.astype(np.float32))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def blank(path):
    path.write_bytes(bytes(path.stat().st_size))


HARMS = {"flipped": flip, "cut": cut, "blanked": blank, "gone": Path.unlink}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(str(path), data=crowd(), chunks=(600, 2))
    return path


@pytest.fixture(scope="module")
def labels(source, tmp_path_factory):
    return fit(source, tmp_path_factory.mktemp("whole") / "out", **OPTIONS).labels[...]


@given(
    content=st.binary(min_size=0, max_size=200),
    cuts=st.lists(st.integers(0, 200), max_size=3),
    block_nbytes=st.integers(1, 40),
)
def test_block_checksums_equal_the_definition(content, cuts, block_nbytes):
    data = np.frombuffer(content, np.uint8)
    pieces = np.diff([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)])
    wanted = naive.block_checksums(content, pieces.tolist(), block_nbytes)
    found = np.empty(len(wanted), np.uint32)
    block_checksums(data, pieces, block_nbytes, found)
    assert found.tolist() == wanted


@given(content=st.binary(min_size=1, max_size=99), place=st.integers(0), bit=st.integers(0, 7))
def test_any_flipped_bit_changes_a_checksum(content, place, bit):
    damaged = bytearray(content)
    damaged[place % len(content)] ^= 1 << bit
    assert naive.block_checksums(content, [len(content)], 99) != naive.block_checksums(
        damaged, [len(content)], 99
    )


@pytest.mark.parametrize("row_shape", [(), (3,), (9,)])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", ["data", "checks"])
def test_rows_are_checked_wherever_they_are_read(tmp_path, row_shape, harm, which):
    folder, sizes = Folder(str(tmp_path)), [700, 0, 37, 1]
    starts = np.append(0, np.cumsum(sizes))
    rows = np.random.default_rng(0).integers(1, 99, (starts[-1], *row_shape)).astype(np.float32)
    for i, (first, last) in enumerate(itertools.pairwise(starts)):
        folder.write_rows(str(i), rows[first:last])
    files = RowFiles(folder, ("0", "1", "2", "3"), starts, row_shape, rows.dtype)
    firsts, lasts = np.array([3, 690, 730, 5, 0]), np.array([4, 703, 738, 5, 738])
    wanted = np.concatenate([rows[a:b] for a, b in zip(firsts, lasts, strict=True)])
    np.testing.assert_array_equal(files.read_ranges(firsts, lasts), wanted)
    HARMS[harm](tmp_path / ("0" if which == "data" else "checks/0"))
    with pytest.raises(DamagedError, match=r"The file '(checks/)?0' in .* is damaged") as caught:
        files.read_ranges(firsts, lasts)
    assert caught.value.place in (f"{folder.url}/0", f"{folder.url}/checks/0")
    assert files.read(730, 738).tolist() == rows[730:].tolist()


@pytest.mark.parametrize("harm", ["flipped", "cut", "blanked"])
def test_documents_are_checked(tmp_path, harm):
    folder = Folder(str(tmp_path))
    value = {"numbers": [1.5, 7, 1e-300, float("inf")], "text": "\u00e9", "none": None, "in": {}}
    folder.write_json("x.json", value)
    assert folder.read_json("x.json") == value
    HARMS[harm](tmp_path / "x.json")
    with pytest.raises(DamagedError, match=r"'x.json' in .* is damaged") as caught:
        folder.read_json("x.json")
    assert caught.value.place == f"{folder.url}/x.json"


def test_a_digit_that_changed_is_noticed(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write_json("x.json", {"sum": "12345"})
    path = tmp_path / "x.json"
    path.write_text(path.read_text().replace("12345", "12945"))
    with pytest.raises(DamagedError, match="its checksum is wrong"):
        folder.read_json("x.json")


def test_errors_travel_with_all_that_is_known():
    error = DamagedError("a is damaged", "/out/graph-1/a", "call again")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.place) == ("a is damaged: call again.", "/out/graph-1/a")
    full = pickle.loads(pickle.dumps(FullDiskError("no room")))
    assert isinstance(full, LimitError)
    assert str(full) == "no room"


PLACES = [
    "scan-*/sample.npy",
    "scan-*/receipts-scan/0.json",
    "scan-*/done.json",
    "points-*/partitions/1/columns.npy",
    "points-*/copies/c/0",
    "points-*/boxes.npy",
    "graph-*/neighbors/c/1/0",
    "graph-*/distances/c/2/0",
    "graph-*/rows/c/0",
    "graph-*/rows/checks/c/0",
    "graph-*/longer/0.distances",
    "graph-*/longer/0.points",
    "graph-*/graph.json",
    "graph-*/done.json",
    "density-*/order/0.npy",
    "density-*/reach/1.npy",
    "density-*/done.json",
    "expand-*/skeletons/c/0",
    "expand-*/skeletons/rows.json",
    "expand-*/clusters/0.npy",
    "fragments-*/rows/0.neighbors",
    "fragments-*/done.json",
    "reassign-*/labels/c/0",
    "reassign-*/rounds/c/0",
    "reassign-*/clusters.npy",
]


@pytest.fixture(scope="module")
def finished(source, labels, tmp_path_factory):
    """A run of which everything but the result is there."""
    out = tmp_path_factory.mktemp("finished") / "out"
    run = fit(source, out, **OPTIONS)
    shutil.rmtree(run.result.url)
    (out / "run.json").unlink()
    return out


def remove_what_is_named(error):
    """Do what `verify` says."""
    folders = str(error).rpartition(": remove ")[2].partition(" and fit again")[0]
    for folder in folders.split(" and "):
        shutil.rmtree(folder.strip("'"))


def fit_until_done(source, out, labels, **options):
    """Fit until it ends well; return what was said before."""
    said = []
    for _ in range(4):
        try:
            run = fit(source, out, **{**OPTIONS, **options})
        except DamagedError as error:
            with pytest.raises(InputError, match="no finished run"):
                open_run(out)
            said.append(str(error))
            continue
        np.testing.assert_array_equal(run.labels[...], labels)
        try:
            verify(run)
        except DamagedError as error:  # of what is kept, but was not read again
            remove_what_is_named(error)
            continue
        return said
    raise AssertionError(said)


@pytest.mark.parametrize("place", PLACES)
def test_a_damaged_stage_is_made_anew(source, labels, finished, tmp_path, place):
    """Whatever is damaged, and however: either nobody reads it, or it is noticed and made anew."""
    harm = list(HARMS)[PLACES.index(place) % len(HARMS)]
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (path,) = out.glob(place)
    HARMS[harm](path)
    # what comes after is read only if it is not there
    later = ("density-*", "expand-*", "fragments-*", "reassign-*")
    for stage in later if place.startswith(("scan", "points", "graph", "source")) else later[3:]:
        if not place.startswith(stage[:5]):
            shutil.rmtree(next(out.glob(stage)))
    said = fit_until_done(source, out, labels)
    assert len(said) <= 1
    for text in said:
        assert text.endswith("is removed; call again to make it anew.")


def test_damage_in_an_exchange_is_noticed(source, labels, tmp_path, monkeypatch):
    """Files that live only while a stage runs, or are mapped then, harmed in the middle of it."""
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: True)
    readers = {
        "points-*/buckets/0.points": "partition",
        "density-*/densities/0.npy": "ranges",
        "density-*/buckets/1.keys": "order",
        "density-*/places": "order",
        "graph-*/distances/c/1/0": "expand",
        "fragments-*/buckets/0.neighbors": "gather",
        "fragments-*/rows/0.neighbors": "reassign",
    }
    for name, gathering in readers.items():
        out = tmp_path / name.partition("-")[0] / name.partition("/")[2].replace("/", "-")
        hit = []

        def harm(event, out=out, name=name, stage=gathering, hit=hit):
            if event.kind == "stage-start" and event.stage == stage and not hit:
                hit.extend(out.glob(name))
                flip(hit[0])

        said = fit_until_done(source, out, labels, progress=harm)
        assert len(hit) == 1
        assert len(said) == 1
        assert hit[0].name in said[0]


def test_damage_is_noticed_by_workers(source, labels, tmp_path, finished):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    for stage in ("density-*", "expand-*", "fragments-*", "reassign-*"):
        shutil.rmtree(next(out.glob(stage)))
    cut(next(out.glob("graph-*/distances/c/1/0")))
    said = fit_until_done(source, out, labels, n_workers=1)
    assert len(said) == 1
    assert "'c/1/0' in" in said[0]
    assert "bytes too early" in said[0]


def test_a_graph_of_another_run_is_not_removed(source, labels, finished, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    (name,) = (path.name for path in other.glob("graph-*"))
    (other / "graph.json").write_text(f'{{"name": "{name}"}}')
    flip(other / name / "neighbors/c/0/0")
    with pytest.raises(DamagedError, match=r"remove its stage's folder") as caught:
        fit(source, tmp_path / "out", graph=other, **OPTIONS)
    assert caught.value.place.startswith(str(other / name))
    assert (other / name / "done.json").exists()


@pytest.mark.parametrize(
    "place",
    ["result-*/labels/c/0", "result-*/clusters.npy", "graph-*/rows/c/0", "expand-*/skeletons/c/0"],
)
def test_verify_says_how_to_make_a_result_anew(source, labels, tmp_path, place):
    run = fit(source, tmp_path / "out", **OPTIONS)
    flip(next((tmp_path / "out").glob(place)))
    with pytest.raises(DamagedError, match=r"remove '.*' and fit again") as caught:
        verify(run)
    remove_what_is_named(caught.value)
    assert fit_until_done(source, tmp_path / "out", labels) == []


def test_a_damaged_summary_is_made_anew(source, labels, tmp_path):
    run = fit(source, tmp_path / "out", **OPTIONS)
    flip(Path(run.result.url, "summary.json"))
    with pytest.raises(DamagedError, match=r"'result-.*' is removed; call again"):
        fit(source, tmp_path / "out", **OPTIONS)
    assert fit_until_done(source, tmp_path / "out", labels) == []


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_readers_of_a_result_notice(source, tmp_path, harm):
    run = fit(source, tmp_path / "out", **OPTIONS)
    chunk = Path(run.result.url, "labels", "c", "0")
    chunk.unlink() if harm == "remove" else flip(chunk)
    with pytest.raises(DamagedError, match=r"labels' is damaged .*: remove the folder"):
        export_labels(run, tmp_path / "labels.csv")
    assert "labels&#39; is damaged" in Path(report(run, tmp_path / "page.html")).read_text()
    if harm == "flip":
        with pytest.raises(ValueError, match="checksum"):  # whoever reads it with Zarr
            run.labels[...]


def test_a_damaged_prediction_is_made_anew(source, tmp_path):
    run = fit(source, tmp_path / "out", **OPTIONS)
    first = predict(run, source, tmp_path / "new", n_workers=0)
    flip(next((tmp_path / "new").glob("prediction-*/summary.json")))
    with pytest.raises(DamagedError, match=r"'prediction-.*' is removed; call again"):
        predict(run, source, tmp_path / "new", n_workers=0)
    again = predict(run, source, tmp_path / "new", n_workers=0)
    np.testing.assert_array_equal(again.labels[...], first.labels[...])


def test_a_damaged_choice_is_made_anew(source, tmp_path):
    options = {"n_trials": 3, "n_workers": 0}
    first = tune(source, tmp_path / "out", **options)
    flip(next((tmp_path / "out").glob("tuning-*/chosen-*.json")))
    with pytest.raises(DamagedError, match=r"'tuning-.*' is removed; call again"):
        tune(source, tmp_path / "out", **options)
    assert tune(source, tmp_path / "out", **options).best_params == first.best_params


def test_a_damaged_record_says_nothing(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write_bytes("progress-fit-a.json", b"{")
    assert read_records(folder) == []


def test_what_a_link_leads_to_stays(source, tmp_path):
    run = fit(source, tmp_path / "out", **OPTIONS)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "done.json").write_text("{}")
    (tmp_path / "out" / f"scan-{4:012x}").symlink_to(precious)
    summary = run.result.read_json("summary.json")
    summary["stages"]["scan"]["name"] = f"scan-{4:012x}"
    run.result.write_json("summary.json", summary)
    clean(open_run(run.path), keep="labels")
    assert (precious / "done.json").exists()
    assert not (tmp_path / "out" / f"scan-{4:012x}").exists()


def test_results_of_others_are_not_removed(source, tmp_path):
    first = fit(source, tmp_path / "out", **OPTIONS)
    flip(Path(first.result.url, "summary.json"))
    with pytest.raises(DamagedError, match=r"summary.json.*remove its stage's folder"):
        fit(source, tmp_path / "out", expansion_neighbors=9, **OPTIONS)
    assert Path(first.result.url, "labels").exists()


class TestSource:
    @pytest.mark.parametrize("options", [{}, {"compressors": None}, {"shards": (1200, 2)}])
    def test_a_chunk_that_cannot_be_decoded(self, tmp_path, labels, options):
        path = tmp_path / "x.zarr"
        zarr.create_array(str(path), data=crowd(), chunks=(600, 2), **options)
        chunk, kept = path / "c/1/0", tmp_path / "kept"
        shutil.copy2(chunk, kept)
        cut(chunk)
        with pytest.raises(InputError, match=r"Rows \d+ to \d+ of .* cannot be decoded .*cp -p"):
            fit(path, tmp_path / "out", **OPTIONS)
        shutil.copy2(kept, chunk)
        np.testing.assert_array_equal(fit(path, tmp_path / "out", **OPTIONS).labels[...], labels)

    @pytest.mark.parametrize("harm", ["gone", "flipped"])
    def test_a_chunk_that_changes_while_a_run_reads_it(self, tmp_path, labels, harm):
        path = tmp_path / "x.zarr"
        zarr.create_array(str(path), data=crowd(), chunks=(600, 2), compressors=None)
        chunk, kept = path / "c/4/0", tmp_path / "kept"
        shutil.copy2(chunk, kept)

        def harm_it(event):
            if event.kind == "stage-start" and event.stage == "exchange":
                HARMS[harm](chunk)

        with pytest.raises(InputError, match=r"are no longer what they were .*cp -p"):
            fit(path, tmp_path / "out", progress=harm_it, **OPTIONS)
        assert next((tmp_path / "out").glob("scan-*/done.json")).exists()
        shutil.copy2(kept, chunk)
        np.testing.assert_array_equal(fit(path, tmp_path / "out", **OPTIONS).labels[...], labels)

    @pytest.mark.parametrize(
        ("options", "told"),
        [({}, "2 of the 4"), ({"zarr_format": 2}, "2 of the 4"), ({"shards": (5000, 2)}, "1 of")],
    )
    def test_chunks_that_are_not_there_are_told(self, tmp_path, options, told):
        path = tmp_path / "x.zarr"
        zeros = np.zeros((5000, 2), np.float32)
        zarr.create_array(
            str(path), data=np.concatenate([crowd(5000), zeros]), chunks=(2500, 2), **options
        )
        with pytest.warns(UserWarning, match=f"{told}.* chunks of .* are not stored"):
            build_graph(path, tmp_path / "out", 5, n_workers=0)

    def test_a_copy_is_checked(self, tmp_path):
        x, hit = crowd(), []

        def harm(event):
            if event.kind == "stage-start" and event.stage == "exchange" and not hit:
                hit.extend((tmp_path / "out").glob("input-*/data/c/0/0"))
                flip(hit[0])

        with pytest.raises(DamagedError, match=r"'input-.*' is removed; call again"):
            build_graph(x, tmp_path / "out", 5, n_workers=0, progress=harm)
        graph = build_graph(x, tmp_path / "out", 5, n_workers=0)
        whole = build_graph(x, tmp_path / "whole", 5, n_workers=0)
        np.testing.assert_array_equal(graph.to_memory()[0], whole.to_memory()[0])
        assert len(hit) == 1


def test_trials_are_made_anew(source, tmp_path):
    hit = []

    def harm(event):
        if event.kind == "stage-start" and event.stage == "trials" and not hit:
            hit.extend((tmp_path / "out").glob("graph-*/distances/c/0/0"))
            flip(hit[0])

    asked = {"n_trials": 3, "n_workers": 0, "n_partitions": 3}
    with pytest.raises(DamagedError, match=r"'graph-.*' is removed; call again"):
        tune(source, tmp_path / "out", progress=harm, **asked)
    found = tune(source, tmp_path / "out", **asked)
    whole = tune(source, tmp_path / "whole", **asked)
    np.testing.assert_array_equal(found.run.labels[...], whole.run.labels[...])


@contextlib.contextmanager
def small_disk(path, nbytes):
    """Mount a file system of a few bytes."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path, left_nbytes):
    """Fill a disk but for some bytes."""
    free = os.statvfs(path)
    free_nbytes = free.f_bavail * free.f_frsize
    with open(path / "filler", "wb") as file:
        file.write(bytes(max(0, free_nbytes - left_nbytes)))


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_full_disk(source, labels, tmp_path, n_workers):
    """At any stage: a sentence, nothing half-written, and the same labels when there is room."""
    disk, ended = tmp_path / "disk", []
    with small_disk(disk, 32 << 20):
        stages = (
            "scan",
            "exchange",
            "neighbors",
            "order",
            "expand",
            "fragments",
            "gather",
            "publish",
        )
        stages = stages if n_workers == 0 else stages[2:3]
        for number, stage in enumerate(stages):
            hit = []

            def harm(event, stage=stage, hit=hit):
                if event.kind == "stage-start" and event.stage == stage and not hit:
                    hit.append(event)
                    fill(disk, 4096)

            options = {**OPTIONS, "n_workers": n_workers, "cache_limit": 0, "progress": harm}
            with pytest.raises(FullDiskError, match=r"no room to write .* bytes are free\): free"):
                fit(source, disk / "out", **options)
            ended.append(stage)
            if n_workers == 0:
                assert not list((disk / "out").rglob("*.partial*"))
            with pytest.raises(InputError, match="no finished run"):
                open_run(disk / "out")
            (disk / "filler").unlink()
            assert len(ended) == number + 1
        run = fit(source, disk / "out", **{**OPTIONS, "n_workers": n_workers})
        # Workers are killed when the run ends: what they were writing goes with the next call.
        assert not list((disk / "out").rglob("*.partial*"))
        np.testing.assert_array_equal(run.labels[...], labels)
        verify(run)
        del run
