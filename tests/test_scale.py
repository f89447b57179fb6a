"""Ours beside its peers: generated data, processes under a cap, cells, the page, the command."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr

from pipelines.benchmark.records import DONE, FAILED, OVER_MEMORY, OVER_TIME
from pipelines.scale import measuring, running
from pipelines.scale.cells import (
    ABSENT,
    NOT_TRIED,
    Result,
    read_result,
    read_results,
    write_machine,
    write_result,
)
from pipelines.scale.contestants import CONTESTANTS, FINISHED, LABELS
from pipelines.scale.generating import (
    BACKGROUND,
    FAMILIES,
    UNIT,
    clouds,
    generated,
    mixture,
    tail_sizes,
    write_labels,
    write_npy,
    write_zarr,
)
from pipelines.scale.measuring import Limits, Watched, limited_environment, watch
from pipelines.scale.page import findings, introduction, parted, write_page
from pipelines.scale.running import (
    Settings,
    check_earlier,
    check_space,
    clusters_found,
    limit_of,
    line_of,
    run_cells,
)
from spore_dask import InputError, LimitError
from tests.clusters import wait_until

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


@pytest.mark.parametrize("n_columns", [2, 8, 64, 384])
def test_rows_do_not_depend_on_blocks(n_columns):
    drawn = mixture(n_columns)
    points, labels = drawn.rows(0, UNIT + 500)
    assert points.shape == (UNIT + 500, n_columns)
    assert points.dtype == np.float32
    parts = [mixture(n_columns).rows(*at) for at in ((0, 7), (7, UNIT + 1), (UNIT + 1, UNIT + 500))]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), points)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)
    assert not np.array_equal(mixture(n_columns, seed=1).rows(0, 10)[0], points[:10])


@pytest.mark.parametrize("n_columns", [2, 8, 64, 384])
def test_clusters_vary_in_size_and_density(n_columns):
    drawn = mixture(n_columns)
    points, labels = drawn.rows(0, 2 * UNIT)
    assert 20 <= drawn.n_clusters <= 50
    assert np.mean(labels == BACKGROUND) == pytest.approx(0.03, abs=0.01)
    counts = np.bincount(labels[labels >= 0], minlength=drawn.n_clusters)
    assert counts.max() > 10 * counts.min() > 0
    volumes = [points[labels == label].std(axis=0).sum() for label in range(drawn.n_clusters)]
    assert max(volumes) > 3 * min(volumes)
    assert np.isfinite(points).all()


@pytest.mark.parametrize("n_columns", [64, 384])
def test_many_columns_have_few_dimensions(n_columns):
    points, labels = mixture(n_columns).rows(0, UNIT)
    one = points[labels == np.bincount(labels[labels >= 0]).argmax()]
    variances = np.linalg.svd(one - one.mean(axis=0), compute_uv=False) ** 2
    assert variances[:16].sum() > 0.95 * variances.sum()
    assert variances[:3].sum() < 0.95 * variances.sum()


@pytest.mark.parametrize("n_columns", [2, 8, 32, 384])
@pytest.mark.parametrize("family", ["tails", "clouds"])
def test_rows_of_other_families_do_not_depend_on_blocks(family, n_columns):
    n_points = UNIT + 500
    drawn = generated(family, n_columns, n_points, background=0.2)
    points, labels = drawn.rows(0, n_points)
    assert points.shape == (n_points, n_columns)
    assert (points.dtype, labels.dtype) == (np.float32, np.int32)
    assert np.isfinite(points).all()
    again = generated(family, n_columns, n_points, background=0.2)
    parts = [again.rows(*at) for at in ((0, 7), (7, UNIT + 1), (UNIT + 1, n_points))]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), points)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)
    counts = np.bincount(labels + 1)
    np.testing.assert_array_equal(counts, np.roll(drawn.sizes, 1))
    assert counts[0] == round(0.2 * n_points)
    other = generated(family, n_columns, n_points, seed=1)
    assert not np.array_equal(other.rows(0, 10)[0], points[:10])


def test_sizes_of_a_tail_follow_a_power_law():
    sizes = tail_sizes(1_000_000, 100_000)
    assert sizes.sum() == 1_000_000
    assert 1800 <= len(sizes) <= 2000
    assert sizes.min() == 60
    assert 50_000 < sizes.max() <= 100_000
    low, high = (np.mean(sizes < edge) for edge in (100, 1000))
    assert 0.3 < low < 0.45
    assert 0.9 < high < 0.96


@pytest.mark.parametrize(("n_columns", "n_latent"), [(2, 2), (8, 8), (32, 32), (384, 16)])
def test_clusters_of_a_tail_keep_apart(n_columns, n_latent):
    drawn = generated("tails", n_columns, 1_000_000)
    assert drawn.centres.shape == (drawn.n_clusters, n_latent)
    assert drawn.n_clusters > 1500
    squares = (drawn.centres**2).sum(axis=1)
    distances = np.add.outer(squares, squares) - 2 * drawn.centres @ drawn.centres.T
    np.fill_diagonal(distances, np.inf)
    radius = drawn.spreads.max() * (np.sqrt(n_latent) + 2)
    assert np.sqrt(distances.min()) > 2 * radius


def test_clouds_overlap():
    drawn = clouds(2, 40_000, 0.0, 0, 5, 3.0)
    distances = np.linalg.norm(drawn.centres[:, None] - drawn.centres, axis=2)
    nearest = np.sort(distances, axis=1)[:, 1]
    assert drawn.n_clusters == 5
    assert (nearest >= 3.0).all()
    assert (nearest <= 3.0 * 1.3).all()


def test_the_background_of_shapes_may_be_left_out():
    labels = generated("shapes", 2, 1000, background=0.0).rows(0, 1000)[1]
    assert labels.min() == 0
    np.testing.assert_array_equal(
        generated("shapes", 2, 1000).rows(0, 1000)[0], mixture(2).rows(0, 1000)[0]
    )


def naive_found(truth, labels):
    """Count by sets of rows."""
    rows = {name: set(np.flatnonzero(truth == name)) for name in set(truth) - {-1}}
    others = [set(np.flatnonzero(labels == name)) for name in set(labels) - {-1}]
    hit = {a: any(2 * len(x & y) >= len(x | y) for y in others) for a, x in rows.items()}
    small = [a for a in rows if len(rows[a]) < 100]
    large = [a for a in rows if len(rows[a]) >= 100]
    named = {"< 100": small, "< 1,000": large}
    return {name: (sum(hit[a] for a in of), len(of)) for name, of in named.items() if of}


@pytest.mark.parametrize("seed", range(5))
def test_clusters_that_are_found(seed):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(-1, 12), rng.integers(20, 180, 13)).astype(np.int32)
    labels = np.where(rng.random(len(truth)) < 0.2, rng.integers(-1, 12, len(truth)), truth)
    labels[truth == 3] = 4
    labels[(truth == 5) & (rng.random(len(truth)) < 0.5)] = 40
    assert clusters_found(truth, labels) == naive_found(truth, labels)
    nothing = np.full_like(truth, -1)
    assert all(n_found == 0 for n_found, _ in clusters_found(truth, nothing).values())
    assert clusters_found(nothing, labels) == {}


def test_files_have_the_same_rows(tmp_path):
    drawn = mixture(8)
    write_zarr(tmp_path / "x.zarr", drawn, 12_345, block=1000)
    write_npy(tmp_path / "x.npy", drawn, 12_345, block=777)
    write_labels(tmp_path / "y.npy", drawn, 12_345, block=5000)
    points, labels = drawn.rows(0, 12_345)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], points)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), points)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), labels)


def test_density_finds_what_kmeans_does_not():
    from sklearn.cluster import HDBSCAN, KMeans
    from sklearn.metrics import adjusted_rand_score

    drawn = mixture(2)
    points, labels = drawn.rows(0, UNIT)
    inside = labels != BACKGROUND
    found = HDBSCAN(min_cluster_size=30, min_samples=8, copy=True).fit_predict(points)
    means = KMeans(drawn.n_clusters, random_state=0).fit_predict(points)
    assert adjusted_rand_score(labels[inside], found[inside]) > 0.9
    assert adjusted_rand_score(labels[inside], means[inside]) < 0.8


GREEDY = """
import pathlib, subprocess, sys, time
pathlib.Path(sys.argv[1]).touch()
child = '''
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
x = bytearray(b"x" * (300 << 20))
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", child, sys.argv[2]], start_new_session=True)
time.sleep(600)
"""


def watched(folder, code, limits, *arguments):
    mark = folder / "started"
    return watch([sys.executable, "-c", code, str(mark), *arguments], folder, mark, limits)


def test_the_cap_ends_a_whole_family_and_nobody_else(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        pid = tmp_path / "pid"
        found = watched(tmp_path, GREEDY, Limits(200 * MIB, 300), str(pid))
        assert found.outcome == OVER_MEMORY
        assert 200 * MIB < found.peak_nbytes < 1000 * MIB
        assert found.n_processes >= 2
        assert found.wall_seconds < 600
        worker = int(pid.read_text())
        assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


MAPPED = """
import pathlib, sys
import numpy as np
pathlib.Path(sys.argv[1]).touch()
x = np.load(sys.argv[2], mmap_mode="r")
print(int(x.sum()))
"""


def test_pages_of_a_mapped_file_do_not_count(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(300 * MIB, np.uint8))
    found = watched(tmp_path, MAPPED, Limits(200 * MIB, 300), str(tmp_path / "x.npy"))
    assert found.outcome == DONE
    assert (tmp_path / "out.txt").read_text().strip() == str(300 * MIB)
    assert found.peak_nbytes < 200 * MIB


def test_a_time_limit_counts_from_the_mark(tmp_path):
    code = "import pathlib, sys, time; time.sleep(1); pathlib.Path(sys.argv[1]).touch(); "
    found = watched(tmp_path, code + "time.sleep(600)", Limits(1 << 30, 0.4))
    assert found.outcome == OVER_TIME
    assert found.reason == "after 0 s"
    assert found.seconds >= 0.4
    assert 1.4 <= found.wall_seconds < 600


SPINNING = """
import pathlib, sys, time
for seconds, path in ((1, sys.argv[1]), (0.5, sys.argv[2])):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    pathlib.Path(path).touch()
    while not pathlib.Path(path + ".seen").exists():
        time.sleep(0.01)
"""


def test_processor_time_counts_from_the_mark(tmp_path, monkeypatch):
    marks = [tmp_path / "started", tmp_path / "ended"]
    look = measuring.Family.cpu_seconds

    def look_and_let_go(family):
        there = [mark for mark in marks if mark.exists()]
        spent = look(family)
        for mark in there:
            mark.with_suffix(".seen").touch()
        return spent

    monkeypatch.setattr(measuring.Family, "cpu_seconds", look_and_let_go)
    found = watched(tmp_path, SPINNING, Limits(1 << 30, 300), str(marks[1]))
    assert found.outcome == DONE
    assert 0.2 <= found.cpu_seconds <= 0.8


def test_compilation_that_does_not_end_is_over_time(tmp_path):
    found = watched(tmp_path, "import time; time.sleep(600)", Limits(1 << 30, 60, 0.4))
    assert (found.outcome, found.reason) == (OVER_TIME, "before it began to cluster")


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("raise ValueError('bad /some/folder/file')", FAILED, "ValueError: bad file"),
        ("raise MemoryError('no room')", OVER_MEMORY, "MemoryError: no room"),
        ("import os; os.kill(os.getpid(), 9)", FAILED, "it ended with code -9"),
    ],
)
def test_a_crash_has_a_reason(tmp_path, code, outcome, reason):
    found = watched(tmp_path, code, Limits(1 << 30, 30))
    assert (found.outcome, found.reason) == (outcome, reason)


def test_threads_and_imports_of_a_process():
    environment = limited_environment(2, ROOT)
    assert environment["OMP_NUM_THREADS"] == environment["NUMBA_NUM_THREADS"] == "2"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


@pytest.fixture
def settings(tmp_path):
    return Settings(
        out=tmp_path / "out",
        contestants=("spore_dask", "hdbscan", "kmeans"),
        memory_limit=1 << 30,
        limit_seconds=500.0,
        work=tmp_path / "work",
        say=lambda line: None,
    )


@pytest.fixture
def watches(monkeypatch):
    """Let contestants be done at once with the true labels, but for hdbscan at 2,000 points."""
    seen = []

    def fake(command, folder, mark, limits, environment):
        job = json.loads((folder / "job.json").read_text())
        seen.append((job["contestant"], job["n_points"], limits.seconds, Path(job["source"]).name))
        assert os.path.exists(job["source"])
        if (job["contestant"], job["n_points"]) == ("hdbscan", 2000):
            return Watched(OVER_MEMORY, "a process had 1100 MiB", 1.0, 2.0, 1100 * MIB, 1)
        np.save(folder / LABELS, np.load(folder.parent / "truth.npy"))
        facts = {"seconds": 30.0, "resident_nbytes": 1, "version": "1"}
        (folder / FINISHED).write_text(json.dumps(facts))
        return Watched(DONE, "", 31.0, 32.0, 100 * MIB, 3)

    monkeypatch.setattr(running, "watch", fake)
    monkeypatch.setattr(running, "is_there", lambda settings, contestant: True)
    return seen


def test_cells_run_ours_first_and_do_not_repeat(settings, watches):
    run_cells(settings, [(2, 3000), (2, 2000)])
    assert watches == [
        ("spore_dask", 2000, 500.0, "x.zarr"),
        ("hdbscan", 2000, 90.0, "x.npy"),
        ("kmeans", 2000, 90.0, "x.npy"),
        ("spore_dask", 3000, 500.0, "x.zarr"),
        ("kmeans", 3000, 90.0, "x.npy"),
    ]
    result = read_result(settings.out, 2, 3000, "kmeans")
    assert (result.outcome, result.ari, result.seconds) == (DONE, 1.0, 30.0)
    assert result.noise == pytest.approx(0.03, abs=0.02)
    assert result.n_true == result.n_clusters == mixture(2).n_clusters
    assert all(n_found == n_true for n_found, n_true in result.found.values())
    skipped = read_result(settings.out, 2, 3000, "hdbscan")
    assert (skipped.outcome, skipped.reason) == (NOT_TRIED, "over memory at 2,000 points")
    assert list(settings.work.iterdir()) == []
    n_before = len(watches)
    run_cells(settings, [(2, 2000), (2, 3000)])
    assert len(watches) == n_before
    (settings.out / "cells" / "2x2000" / "kmeans.json").unlink()
    run_cells(settings, [(2, 2000), (2, 3000)])
    assert [seen[:2] for seen in watches[n_before:]] == [("kmeans", 2000)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "has the seed 0, but 1 is asked for"),
        ({"factor": 2.0}, "factor 3.0, but 2.0"),
        ({"memory_limit": 5}, "memory_limit 1073741824, but 5"),
        ({"family": "tails"}, "family shapes, but tails"),
        ({"background": 0.2}, "background 0.03, but 0.2"),
    ],
)
def test_results_measured_in_another_way_are_refused(settings, watches, change, words):
    run_cells(settings, [(2, 2000)])
    check_earlier(settings)
    with pytest.raises(InputError, match=words):
        check_earlier(dataclasses.replace(settings, **change))


def test_a_contestant_ends_with_the_process_that_started_it(tmp_path):
    child = "import os, time; from pipelines.scale.contestants import end_with; end_with({})"
    code = (
        "import os, subprocess, sys, time\n"
        f"code = {child!r}.format(os.getpid())\n"
        "process = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(3)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    wait_until(lambda: not psutil.pid_exists(int(said.stdout)))


def test_what_fails_in_one_dimension_is_tried_in_another(settings, watches):
    run_cells(settings, [(2, 2000), (8, 3000)])
    assert ("hdbscan", 3000) in [seen[:2] for seen in watches]


@pytest.mark.parametrize(("ours", "limit"), [(1.0, 60.0), (30.0, 90.0), (400.0, 500.0)])
def test_limits_of_peers_follow_ours(settings, ours, limit):
    write_result(settings.out, result("spore_dask", 2000, 2, seconds=ours))
    drawn = mixture(2)
    job = running.cell_job(settings, drawn, 2000, "x", settings.out)
    assert limit_of(settings, CONTESTANTS["kmeans"], job) == limit
    assert limit_of(settings, CONTESTANTS["spore_dask"], job) == 500.0


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_run_alike(settings, watches, family):
    settings = dataclasses.replace(settings, family=family, background=0.1)
    run_cells(settings, [(8, 3000)])
    found = read_result(settings.out, 8, 3000, "spore_dask")
    assert (found.family, found.background, found.ari) == (family, 0.1, 1.0)
    assert found.noise == pytest.approx(0.1, abs=0.02)
    check_earlier(settings)
    drawn = generated(family, 8, 10**6)
    job = running.cell_job(settings, drawn, 10**6, "x", settings.out)
    assert job.min_cluster_size == (30 if family == "tails" else 501)


def test_a_line_says_what_was_chosen_and_found():
    choice = {"params": {"z_percentile": 80.0, "retention_rate": None}, "score": 0.3125}
    made = result(
        "spore_dask", 10**5, 2, n_true=50, choice=choice, stage_seconds={"trials": 4.0},
        found={"< 100": (9, 10), "< 1,000": (40, 40)},
    )  # fmt: skip
    line = line_of(made)
    assert "40 of 50 clusters, 10.0% noise; chosen in 4.0 s, score 0.312: z_percentile 80" in line
    assert line.endswith("; found < 100: 0.900 of 10, < 1,000: 1.000 of 40")


def test_an_absent_package_is_said_and_tried_again(settings, watches, monkeypatch):
    settings = dataclasses.replace(settings, contestants=("spore_dask", "spore_clustering"))
    there = running.is_there
    monkeypatch.setattr(running, "is_there", lambda settings, contestant: not contestant.peer)
    run_cells(settings, [(2, 2000)])
    absent = read_result(settings.out, 2, 2000, "spore_clustering")
    assert (absent.outcome, absent.reason) == (ABSENT, "spore-clustering is not installed")
    monkeypatch.setattr(running, "is_there", there)
    run_cells(settings, [(2, 2000)])
    assert read_result(settings.out, 2, 2000, "spore_clustering").outcome == DONE


def test_whether_a_package_is_there(settings):
    assert running.is_there(settings, CONTESTANTS["kmeans"])
    assert not running.is_there(settings, CONTESTANTS["spore_clustering"])
    missing = dataclasses.replace(settings, peer_python="/no/such/python")
    assert not running.is_there(missing, CONTESTANTS["spore_clustering"])
    unknown = dataclasses.replace(CONTESTANTS["kmeans"], module="no_such_module")
    assert not running.is_there(settings, unknown)


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10**9})
    monkeypatch.setattr(running.shutil, "disk_usage", lambda path: usage)
    check_space(tmp_path, 2, 100_000, ours=True)
    with pytest.raises(
        LimitError, match=r"10,000,000 x 384 needs \d\d\.\d GB of disk, but 1\.0 GB"
    ):
        check_space(tmp_path, 384, 10_000_000, ours=True)


def result(name, n_points, n_columns, **changes):
    """Make a result by hand."""
    contestant = CONTESTANTS[name]
    given = {"outcome": DONE, "seconds": 10.0, "peak_nbytes": 512 * MIB, "ari": 0.9, "noise": 0.1}
    given |= {"n_clusters": 40, "memory_limit": 2 << 30, "factor": 3.0, "version": "9.9"}
    given |= changes
    head = name, contestant.title, contestant.kind, contestant.ours
    return Result(*head, n_points, n_columns, **given)


LOST = {"seconds": None, "ari": None, "n_clusters": None, "noise": None}


def test_the_page_says_who_wins_and_who_loses(tmp_path):
    stages = {"neighbors": 9.0, "expand": 1.0}
    for made in (
        result("spore_dask", 10**5, 2, seconds=12.0, cpu_seconds=18.0, stage_seconds=stages),
        result("fast_hdbscan", 10**5, 2, seconds=4.0, ari=0.97, n_clusters=36, noise=0.031),
        result("spore_dask_paper", 10**5, 2, seconds=6.0, ari=0.85, n_clusters=57),
        result("kmeans", 10**5, 2, seconds=1.0, ari=0.6),
        result("spore_dask", 10**6, 2, seconds=20.0, peak_nbytes=1 << 30),
        result("fast_hdbscan", 10**6, 2, seconds=50.0),
        result("hdbscan", 10**6, 2, outcome=OVER_MEMORY, stopped_seconds=7.0, **LOST),
        result("hdbscan_sample", 10**6, 2, seconds=15.0, ari=0.7),
        result("spore_dask", 10**6, 64, seconds=30.0),
        result("hdbscan", 10**6, 64, outcome=OVER_TIME, reason="after 90 s", **LOST),
        result("kmeans", 10**6, 64, outcome=ABSENT, reason="scikit-learn is not installed", **LOST),
    ):
        write_result(tmp_path / "out", made)
    write_machine(tmp_path / "out", ["run", "--out", "/some/where/out"])
    (tmp_path / "results.md").write_text("# Results\n\n## Other\n\nkept\n")
    for _ in range(2):
        write_page(tmp_path / "out", tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert page.startswith("# Results\n\n## Other\n\nkept\n\n<!-- scale: begin -->\n\n## Beside")
    assert page.count("## Beside its peers") == 1
    for words in (
        "Ours finished 3 of 3 cells; its largest process had 1 GiB of private memory.",
        "ours is the fastest in 2 columns at 10^6 points, in 64 columns at 10^6 points, 2.5 times "
        "as fast as the next.",
        "the only one of them that finished within these limits in 64 columns at 10^6 points.",
        "2 columns, 10^5 points: ours (12.0 s, ARI 0.900) is slower than fast_hdbscan (4.0 s, ARI "
        "0.970): its stage 'neighbors' took 9.0 s, and starting workers, pilots and the way "
        "between stages 2.0 s.",
        "with nearest neighbours, is faster than ours in 2 columns at 10^6 points; its ARI less "
        "ours is -0.200 there.",
        "K-means, in one of its variants, is faster than ours in 2 columns at 10^5 points; its ARI "
        "is 0.600, ours 0.900.",
        "2 columns, 10^5 points: fast_hdbscan has the highest ARI, 0.970, ours 0.900: it has 40 "
        "clusters and 10.0% noise where fast_hdbscan has 36 and 3.1%; "
        "with the paper's parameters it has 0.850 with 57 clusters, in 6.0 s.",
        "hdbscan: over memory in 2 columns at 10^6 points.",
        "| spore_dask | 12.0 s x 1.5 · 512 MiB · 0.900 | **20.0 s** · 1 GiB · 0.900 |",
        "| hdbscan |  | over memory after 7.0 s |",
        "| hdbscan | over time after 90 s |",
        "| KMeans | absent: scikit-learn is not installed |",
        "`python -m pipelines.scale run --out out`",
        "the others then have 3 times as long",
    ):
        assert words in page, words
    assert "/some/where" not in page
    for name in ("scale_time", "scale_memory"):
        for theme in ("light", "dark"):
            assert f"{name}.{theme}.png" in page
            assert (tmp_path / f"{name}.{theme}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("others", "claims"),
    [
        ([], 0),
        ([result("hdbscan", 2000, 2, outcome=ABSENT, **LOST)], 0),
        ([result("spore_dask_paper", 2000, 2, seconds=20.0)], 0),
        ([result("hdbscan", 2000, 2, outcome=OVER_TIME, **LOST)], 2),
        ([result("hdbscan", 2000, 2, outcome=NOT_TRIED, **LOST)], 2),
        ([result("hdbscan", 2000, 2, seconds=11.0)], 1),
    ],
)
def test_nobody_is_the_fastest_of_one(others, claims):
    said = findings([result("spore_dask", 2000, 2), *others])
    told = [line for line in said if "is the fastest" in line or "is the only one" in line]
    assert len(told) == claims, said


@pytest.mark.parametrize("rival", ["hdbscan_sample", "kmeans"])
def test_times_are_compared_only_where_both_are_done(rival):
    ours, other = result("spore_dask", 2000, 2), result(rival, 2000, 2, seconds=11.0)
    late = result("spore_dask", 2000, 2, outcome=OVER_TIME, **LOST)
    absent = result(rival, 2000, 2, outcome=ABSENT, **LOST)
    for results in ([ours], [late, other], [ours, absent], [ours, result(rival, 3000, 2)]):
        assert not any("faster than ours" in line for line in findings(results)), results
    [line] = [line for line in findings([ours, other]) if "faster than ours" in line]
    assert "is nowhere faster than ours." in line


def test_the_memory_of_what_did_not_finish_counts():
    late = result("spore_dask", 3000, 2, outcome=OVER_TIME, **LOST | {"peak_nbytes": 700 * MIB})
    first = "Ours finished {} cells; its largest process had 700 MiB of private memory."
    assert findings([late])[0] == first.format("0 of 1")
    assert findings([result("spore_dask", 2000, 2), late])[0] == first.format("1 of 2")
    gone = result("spore_dask", 2000, 2, outcome=ABSENT, **LOST | {"peak_nbytes": None})
    assert findings([gone])[0] == "Ours finished 0 of 1 cells."


def test_clusters_are_counted_beside_the_true_ones():
    ours, best = (result(name, 2000, 8, n_true=35) for name in ("spore_dask", "hdbscan"))
    best = dataclasses.replace(best, n_clusters=60, noise=0.02)
    assert parted(ours, best) == (
        "it has 40 clusters and 10.0% noise where hdbscan has 60 and 2.0%, and the data 35 and 3.0%"
    )


def test_the_page_of_another_family_is_a_section_of_its_own(tmp_path):
    made = result(
        "spore_dask", 10**5, 2, family="tails", background=0.2, choice={"score": 0.5},
        found={"< 100": (97, 100), ">= 10,000": (1, 2)},
    )  # fmt: skip
    write_result(tmp_path / "out", made)
    gone = dataclasses.replace(made, contestant="spore_dask_wide")
    write_result(tmp_path / "out", gone)
    write_machine(tmp_path / "out", ["run"])
    write_page(tmp_path / "out", tmp_path)
    page = (tmp_path / "results.md").read_text()
    for words in (
        "<!-- scale_tails: begin -->",
        "## Beside its peers, with many small clusters",
        "HDBSCAN gets a minimum cluster size of 30, and",
        "leaves out the 20 % of rows that are background",
        "scale_tails_time.dark.png",
        "| 2 columns, 10^5 points | spore_dask | 0.970 of 100 |  |  | 0.500 of 2 | 0.500 |",
    ):
        assert words in page, words
    assert "wide" not in page


def test_the_page_says_what_caps_the_time_of_peers(tmp_path):
    write_machine(tmp_path, ["run"])
    machine = json.loads((tmp_path / "machine.json").read_text())
    peer = result("kmeans", 2000, 2, limit_seconds=60.0)
    words = "the others then have 3 times as long, a minute at least"
    ours = result("spore_dask", 2000, 2, limit_seconds=3600.0)
    assert f"{words}, but like ours never more than 3600 s, which" in introduction(
        machine, [ours, peer]
    )
    assert f"{words}; who runs" in introduction(machine, [result("spore_dask", 2000, 2), peer])


def test_commands_name_no_folders(tmp_path):
    given = ["run", "--work=/a/b", "--out", "/c/d", "/e=f/g", "--cap=2GiB", "--points", "1e5"]
    write_machine(tmp_path, [*given, "--peer-python=x/y"])
    [command] = json.loads((tmp_path / "machine.json").read_text())["commands"]
    said = "run --work=b --out d g --cap=2GiB --points 1e5 --peer-python=x/y"
    assert command == f"python -m pipelines.scale {said}"


def test_a_page_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="no result of ours"):
        write_page(tmp_path, tmp_path)


def test_a_small_run_from_the_command_line(tmp_path):
    pytest.importorskip("hdbscan")
    command = [sys.executable, "-m", "pipelines.scale", "run", "--out", str(tmp_path / "out")]
    command += ["--points", "2e3", "--columns", "2", "--cap", "1GiB", "--work", str(tmp_path / "w")]
    for name in ("spore_dask", "kmeans", "hdbscan"):
        command += ["--only", name]
    environment = limited_environment(2, ROOT)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = {result.contestant: result for result in read_results(tmp_path / "out")}
    assert set(results) == {"spore_dask", "kmeans", "hdbscan"}
    for found in results.values():
        assert found.outcome == DONE, found.reason
        assert found.ari > 0.6
        assert 30 * MIB < found.peak_nbytes < 1 << 30
        assert 0 < found.seconds < found.wall_seconds
    assert results["spore_dask"].n_processes >= 3
    assert results["spore_dask"].recall == 1
    assert results["spore_dask"].choice["n_trials"] == 39
    assert results["spore_dask"].stage_seconds["trials"] > 0
    assert results["spore_dask"].cpu_seconds > 0.1
    assert list((tmp_path / "w").iterdir()) == []
    machine = (tmp_path / "out" / "machine.json").read_text()
    assert str(tmp_path) not in machine
    before = when_written(tmp_path / "out" / "cells")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert when_written(tmp_path / "out" / "cells") == before


def when_written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
