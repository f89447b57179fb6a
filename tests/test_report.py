"""The report: its numbers, its map against plain counts, what is missing, and a real browser."""

import dataclasses
import gc
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

import spore_dask
from spore_dask import Graph, InputError, clean, open_run, report, tune
from spore_dask.datasets import blobs_and_shapes
from spore_dask.reporting import colors, distances, facts, maps, recipes, samples
from spore_dask.reporting.samples import PointRows, SourceRows
from spore_dask.runs import SUMMARY
from spore_dask.store import open_source
from tests.clusters import wait_until
from tests.paper import fit

HOSTILE = """<img src=x onerror="hacked=1">&amp;'</script><script>hacked=1</script>"""


def write_zarr(path, x, chunk_rows=1000):
    array = zarr.create_array(
        str(path), shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, x.shape[1]), overwrite=True
    )
    array[...] = x
    return str(path)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """The folder of a run of 25,000 points in two columns, with copies among them."""
    folder = tmp_path_factory.mktemp("town")
    x, _ = blobs_and_shapes(25_000, 2, seed=3, dtype=np.float32)
    x[::17] = x[5]
    source = write_zarr(folder / "town.zarr", x)
    fit(source, n_workers=0, min_cluster_size=60, memory_limit="2GiB")
    return folder


@pytest.fixture
def run(town, tmp_path):
    """A copy of that run, to change."""
    shutil.copytree(town / "town.spore", tmp_path / "town.spore")
    return open_run(tmp_path / "town.spore")


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text)."""

    VOID = ("meta", "link", "img", "br", "input", "base")

    def __init__(self, path):
        super().__init__()
        self.text = Path(path).read_text()
        self.elements, self._open = [], []
        self.feed(self.text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append([tag, dict(attributes), ""])
        if tag not in self.VOID:
            self._open.append(self.elements[-1])

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def named(self, name):
        return [(a, text) for _, a, text in self.elements if a.get("data-name") == name]

    def by_id(self, id):
        return next(text for _, a, text in self.elements if a.get("id") == id)

    def figures(self):
        return [item["target_id"] for item in json.loads(self.by_id("figures"))]


@pytest.fixture(scope="module")
def page(town):
    return Page(report(town / "town.spore"))


def test_default_place_and_another(run, tmp_path):
    assert report(run) == f"{run.path}/report-{run.id}.html"
    assert report(run.path, tmp_path / "new" / "my.html") == str(tmp_path / "new" / "my.html")
    assert (tmp_path / "new" / "my.html").read_bytes() == Path(report(run)).read_bytes()


@pytest.mark.parametrize("out", ["", "inside/"])
def test_a_folder_is_refused(run, tmp_path, out):
    (tmp_path / "inside").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="is a folder"):
        report(run, f"{tmp_path}/{out}")
    assert sorted(tmp_path.rglob("*")) == before


def test_where_there_is_no_run(tmp_path):
    with pytest.raises(InputError, match="no finished run"):
        report(tmp_path / "nothing", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_numbers_are_those_of_the_summary(town, page):
    run = open_run(town / "town.spore")
    summary, known = run.summary, json.loads(page.by_id("numbers"))
    assert known["summary"] == summary
    assert known["id"] == run.id
    expected = {name: summary[name] for name in ("n_points", "n_columns", "n_clusters", "n_noise")}
    expected["recall"] = summary["recall"]["sampled"]
    expected["peak_nbytes"] = max(summary["peak_nbytes"].values())
    expected["seconds"] = sum(stage["seconds"] for stage in summary["stages"].values())
    for name, value in expected.items():
        ((attributes, text),) = page.named(name)
        assert float(attributes["data-value"]) == value
        assert text
    assert page.named("n_points")[0][1] == "25,000"
    assert page.named("n_noise")[0][1] == f"{summary['n_noise'] / 25_000:.1%}"
    stages = {a["data-key"]: float(a["data-value"]) for a, _ in page.named("stage")}
    assert stages == {name: stage["seconds"] for name, stage in summary["stages"].items()}
    peaks = {a["data-key"]: int(a["data-value"]) for a, _ in page.named("process")}
    assert peaks == summary["peak_nbytes"]
    used = {a["data-key"]: text for a, text in page.named("used")}
    assert used["min_cluster_size"] == f"{summary['params']['min_cluster_size']}"
    assert used["k"] == f"{summary['params']['k']}"


def test_shares_and_clusters_are_those_of_the_arrays(town, page):
    run = open_run(town / "town.spore")
    values, counts = np.unique(run.provenance[...], return_counts=True)
    shown = {int(a["data-key"]): int(a["data-value"]) for a, _ in page.named("provenance")}
    assert shown == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert {0, 1} < set(shown)
    top = facts.largest(run, np.zeros(run.n_clusters, np.uint8))
    table = run.clusters
    order = sorted(range(len(table)), key=lambda i: (-table["size"][i], i))[: len(top)]
    assert [cluster.label for cluster in top] == order
    assert [cluster.size for cluster in top] == table["size"][order].tolist()
    assert [cluster.seed_row for cluster in top] == table["seed_row"][order].tolist()


def test_recall_has_its_error(run):
    run.summary["recall"] = {"certified": 0.25, "sampled": 0.943, "error": 0.0012}
    (fact,) = [fact for fact in facts.headline(run) if fact.name == "recall"]
    assert fact.value == 0.943
    assert fact.text == "94.3% ± 0.1%"
    assert fact.note == "below the target 0.97; standard error 0.12%; 25% certified"


def test_nothing_is_fetched(page):
    for tag, attributes, text in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert not {"src", "href", "srcset", "action", "data", "background"} & attributes.keys()
        if tag == "style":
            assert "@import" not in text
            assert "url(" not in text
    policy = next(a["content"] for _, a, _ in page.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "eval" not in policy


def test_everything_shown_is_escaped(run, town, tmp_path):
    summary = run.summary
    summary["source"] = f"/data/{HOSTILE}.zarr"
    summary["finished"] = summary["versions"]["numpy"] = HOSTILE
    summary["peak_nbytes"] = {HOSTILE: 1 << 20}
    summary["asked"]["scale"] = HOSTILE
    summary["stages"][HOSTILE] = {"name": HOSTILE, "seconds": 1.0, "nbytes": 1}
    run.result.write_json(SUMMARY, summary)
    folder = tmp_path / f"{HOSTILE}.spore"
    folder.parent.mkdir(parents=True)
    shutil.move(run.path, folder)
    hostile, plain = Page(report(folder)), Page(report(town / "town.spore", tmp_path / "x.html"))
    kinds = [[tag for tag, _, _ in page.elements] for page in (hostile, plain)]
    assert set(kinds[0]) == set(kinds[1])
    assert kinds[0].count("script") == kinds[1].count("script")
    assert hostile.text.count("</script") == kinds[0].count("script")
    assert json.loads(hostile.by_id("numbers"))["summary"] == summary
    assert HOSTILE in hostile.by_id("python").replace("\\", "")
    words = shlex.split(hostile.by_id("command").replace("\\\n", ""))
    assert words[:4] == ["spore-dask", "fit", summary["source"], str(folder)]


def test_the_calls_give_the_same_run(town):
    run = open_run(town / "town.spore")
    found = {}
    exec(recipes.python_call(run), found)
    assert found["run"].id == run.id
    words = shlex.split(recipes.command_line(run).replace("\\\n", ""))
    given = ["--params", "paper", "--min-cluster-size", "60"]
    assert words == ["spore-dask", "fit", str(town / "town.zarr"), run.path, *given]


def test_the_call_of_a_tuned_run_names_its_graph(tmp_path):
    x = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)
    source = write_zarr(tmp_path / "x.zarr", x)
    run = tune(source, n_trials=4, n_workers=0).run
    call = recipes.python_call(run)
    assert f"graph={run.path!r}" in call
    found = {}
    exec(call.replace(f"    {run.path!r},", f"    {str(tmp_path / 'again')!r},", 1), found)
    assert found["run"].graph == run.graph
    np.testing.assert_array_equal(found["run"].labels[...], run.labels[...])


def test_the_call_with_a_graph_and_options(run, tmp_path):
    x = np.random.default_rng(0).normal(size=(500, 3))
    source = write_zarr(tmp_path / "x.zarr", x)
    asked = {"metric": "cosine", "scale": "standard", "seed": 7, "z": -0.5, "n_workers": 0}
    first = fit(source, tmp_path / "first", keep="all", **asked)
    second = fit(source, tmp_path / "second", graph=first, **asked)
    call = recipes.python_call(second)
    for word in (
        "metric='cosine'",
        "scale='standard'",
        "seed=7",
        "z=-0.5",
        f"graph={first.path!r}",
    ):
        assert word in call
    assert Page(report(second)).figures() == ["map", "sizes", "reach"]


def test_the_same_run_gives_the_same_bytes(town, tmp_path):
    first = Path(report(town / "town.spore", tmp_path / "first.html")).read_bytes()
    program = (
        "import sys, spore_dask.fitting; assert 'bokeh' not in sys.modules; "
        "import spore_dask; spore_dask.report(*sys.argv[1:])"
    )
    arguments = [str(town / "town.spore"), str(tmp_path / "other.html")]
    env = os.environ | {"PYTHONHASHSEED": "5", "BOKEH_SIMPLE_IDS": "no"}
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, env=env)
    assert (tmp_path / "other.html").read_bytes() == first


# The map and the distances, against plain counts.


def test_points_and_source_give_the_same_map(run):
    kept = maps.draw_map(run)
    assert isinstance(samples.find_coordinates(run), PointRows)
    clean(run, "labels")
    assert isinstance(samples.find_coordinates(run), SourceRows)
    again = maps.draw_map(run)
    for field in dataclasses.fields(maps.Map):
        one, other = getattr(kept, field.name), getattr(again, field.name)
        assert np.array_equal(one, other), field.name


def test_dots_are_rows_of_the_source(town):
    run, x = open_run(town / "town.spore"), zarr.open_array(town / "town.zarr")[...]
    drawn = maps.draw_map(run)
    assert len(drawn.rows) == maps.N_DOTS
    assert len(np.unique(drawn.rows)) == len(drawn.rows)
    assert np.array_equal(x[drawn.rows], np.column_stack([drawn.x, drawn.y]))
    assert np.array_equal(run.labels[...][drawn.rows], drawn.labels)
    assert np.array_equal(run.provenance[...][drawn.rows], drawn.provenance)
    assert set(np.unique(drawn.labels)) == set(np.unique(run.labels[...]))


@pytest.mark.parametrize(
    ("scale", "metric"), [("standard", "euclidean"), ("clip-minmax", "cosine")]
)
def test_a_map_from_the_source_is_scaled(tmp_path, scale, metric):
    x = np.random.default_rng(1).normal(size=(3000, 4)) * [1, 10, 100, 1000] + 5
    source = write_zarr(tmp_path / "x.zarr", x)
    run = fit(source, n_workers=0, scale=scale, metric=metric)
    kept = maps.draw_map(run)
    clean(run, "labels")
    again = maps.draw_map(run)
    assert again.remark == f"with the scale {scale!r} measured on a sample"
    assert np.allclose(kept.x, again.x, atol=1e-5)
    assert np.allclose(kept.y, again.y, atol=1e-5)


def test_axes_are_principal_components(tmp_path):
    x = np.random.default_rng(2).normal(size=(2000, 5)) @ np.diag([9, 5, 1, 0.5, 0.1])
    run = fit(x, tmp_path / "run", n_workers=0)
    drawn = maps.draw_map(run)
    centred = x - x.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ axes[:2].T
    for found, wanted in zip((drawn.x, drawn.y), expected.T, strict=True):
        assert np.allclose(found, wanted, atol=1e-4) or np.allclose(found, -wanted, atol=1e-4)
    share = expected.var(axis=0) / centred.var(axis=0).sum()
    assert f"{share[0]:.0%}" in drawn.axes[0]


def test_a_pixel_has_the_colour_of_most_of_its_points():
    rng = np.random.default_rng(3)
    pixel, labels = rng.integers(0, 60, 1000), rng.integers(-1, 4, 1000).astype(np.int32)
    pixels, most, totals = maps._most_frequent(pixel, labels, 4)
    assert np.array_equal(pixels, np.unique(pixel))
    for place, label, total in zip(pixels, most, totals, strict=True):
        here = labels[pixel == place].tolist()
        counts = {known: here.count(known) for known in set(here)}
        assert total == len(here)
        assert counts[label] == max(counts.values())
        assert label >= 0 or list(counts.values()).count(counts[-1]) == 1 or len(counts) == 1


def test_the_picture_shows_points_where_they_are():
    xy = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]])
    labels = np.array([0, 1, -1], np.int32)
    image = maps._picture(xy, labels, np.array([0, 1], np.uint8), (0.0, 1.0, 0.0, 1.0))
    pixels = np.asarray(Image.open(io.BytesIO(image)))
    wanted = [*colors.PALETTE_RGB[:2], *colors.NOISE_RGB]
    for (x, y), color in zip(xy, wanted, strict=True):
        place = int((1 - y) * maps.HEIGHT), int(x * maps.WIDTH)
        assert np.array_equal(pixels[place][:3], color)
        assert pixels[place][3] >= 255 * maps.FAINTEST - 1
    assert (pixels[..., 3] > 0).sum() == 3 * 9


def test_far_points_do_not_take_the_view():
    xy = np.random.default_rng(4).normal(size=(10_000, 2))
    xy[0] = 1e6, -1e6
    left, right, bottom, top = maps._view(xy)
    assert right - left < 100
    assert top - bottom < 100
    inside = maps._inside(xy, (left, right, bottom, top))
    assert not inside[0]
    assert inside.mean() > 0.99


def test_colours_differ_between_neighbours():
    centers = np.stack(np.meshgrid(np.arange(25), np.arange(20)), axis=-1).reshape(-1, 2) / 25
    sizes = np.random.default_rng(5).integers(50, 5000, 500)
    given = colors.spread_colors(centers, sizes)
    largest = np.argsort(-sizes, kind="stable")[: len(colors.PALETTE)]
    assert len(set(given[largest])) == len(colors.PALETTE)
    apart = np.linalg.norm(centers[:, None] - centers[None], axis=2)
    near = (apart > 0) & (apart < 1.5 / 25)
    assert (given[:, None] == given[None])[near].mean() < 0.01


def test_reach_and_thresholds_are_those_of_the_graph(town):
    run = open_run(town / "town.spore")
    graph = Graph(*run.graph)
    reach = np.asarray(graph.distances[:, run.summary["params"]["expansion_neighbors"]])
    counted = distances.count_reach(run)
    assert counted.n_zero == (reach == 0).sum() > 0
    assert np.array_equal(counted.counts, np.histogram(reach[reach > 0], counted.edges)[0])
    assert counted.counts.sum() + counted.n_zero == 25_000
    marks = {mark.name: mark.value for mark in distances.marks_of(run)}
    reach = reach.astype(np.float64)
    upper = reach[reach >= reach.mean()]
    assert marks["mean"] == pytest.approx(reach.mean())
    assert marks["z"] == pytest.approx(np.percentile(upper, 50))
    assert marks["max_z"] == pytest.approx(upper.max())
    found = run.thresholds
    assert marks["start"] == pytest.approx(found.start_mean + found.z * found.start_std)


# What may be missing, and odd runs.


def test_stages_removed(run):
    clean(run, "labels")
    page = Page(report(run))
    assert page.figures() == ["map", "sizes"]
    assert "The stages points and density of this run were removed" in page.text
    assert "the density stage was not kept" in page.text


def test_source_gone(run, town, tmp_path):
    clean(run, "labels")
    run.summary["source"] = str(tmp_path / "moved.zarr")
    page = Page(report(run))
    assert page.figures() == ["sizes"]
    assert "There is no map: the run&#39;s points were not kept, and the data is no" in page.text


def test_source_changed(town, tmp_path):
    source = shutil.copytree(town / "town.zarr", tmp_path / "town.zarr")
    run = fit(str(source), n_workers=0, keep="labels", min_cluster_size=60)
    assert Page(report(run)).figures() == ["map", "sizes"]
    zarr.open_array(source, mode="r+")[0] = 7
    page = Page(report(run))
    assert page.figures() == ["sizes"]
    assert "has changed since the run" in page.text


def test_source_unreadable(run):
    (part,) = Path(run.path).glob("points-*/partitions/0/rows.npy")
    part.write_bytes(part.read_bytes()[:-9])
    page = Page(report(run))
    assert page.figures() == ["sizes", "reach"]
    assert "There is no map: the data could not be read" in page.text


def test_data_in_memory(tmp_path):
    run = fit(np.random.default_rng(6).normal(size=(400, 2)), tmp_path / "r", n_workers=0)
    page = Page(report(run))
    assert "map" in page.figures()
    assert "An array in memory" in page.text
    clean(run, "labels")
    assert "the data was given in memory" in Page(report(run)).text


@pytest.mark.parametrize(
    ("name", "figures"),
    [("same", ["map", "sizes"]), ("noise", ["map", "reach"]), ("one column", None), ("wide", None)],
)
def test_odd_runs(tmp_path, name, figures):
    rng = np.random.default_rng(7)
    x, asked = {
        "same": (np.ones((300, 3)), {}),
        "noise": (
            rng.uniform(size=(500, 2)),
            {"z": -5, "min_cluster_size": 400, "max_scr_rounds": 0},
        ),
        "one column": (rng.normal(size=(2000, 1)), {}),
        "wide": (rng.normal(size=(60, 400)), {}),
    }[name]
    run = fit(x, tmp_path / "run", n_workers=0, **asked)
    page = Page(report(run))
    assert page.figures() == (figures or ["map", "sizes", "reach"])
    assert ("every point is noise" in page.text) == (name == "noise")
    json.loads(page.by_id("numbers"), parse_constant=pytest.fail)


# Memory.


def peak_of(work):
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_map_of_the_source_takes_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "N_ROWS", 5000)
    x = np.random.default_rng(8).normal(size=(200_000, 32)).astype(np.float32)
    source = open_source(write_zarr(tmp_path / "x.zarr", x, 5000))
    nbytes = x.nbytes
    del x
    reader = SourceRows(source, None, "euclidean")
    rows = reader.rows(source.shape[0])
    maps._project(SourceRows(source, None, "euclidean"), rows[:100])  # imports
    assert peak_of(lambda: maps._project(reader, rows)) < nbytes / 4


def test_a_map_of_points_takes_one_partition(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "N_ROWS", 2000)
    x, _ = blobs_and_shapes(60_000, 3, seed=1, dtype=np.float64)
    run = fit(x, tmp_path / "run", n_workers=0, n_partitions=30)
    reader = samples.find_coordinates(run)
    rows = reader.rows(len(x))
    maps._project(reader, rows[:100])
    assert peak_of(lambda: maps._project(reader, rows)) < x.nbytes / 3


def test_too_much_to_read_is_thinned(run, monkeypatch):
    clean(run, "labels")
    monkeypatch.setattr(samples, "READ_NBYTES", 25_000 * 2 * 4 // 5)
    drawn = maps.draw_map(run)
    assert drawn.remark == "from one in 5 chunks of the source"
    assert set(np.unique(drawn.rows // 1000).tolist()) == {0, 5, 10, 15, 20}


# A real browser.


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (make system-packages)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


def open_page(browser, path, **options):
    """Open a report; return the page, and a list of all that it should not do."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
    page.set_default_timeout(120_000)
    wrong = []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    address = Path(path).absolute().as_uri()
    page.on(
        "request",
        lambda request: (
            None
            if request.url == address or request.url.startswith(("data:", "blob:"))
            else wrong.append(request.url)
        ),
    )
    page.goto(address)
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]")
        wait_until(lambda: page.evaluate("Bokeh.documents.every((one) => one.is_idle)"))
    return page, wrong


def pixels_of(page, selector):
    image = Image.open(io.BytesIO(page.locator(selector).screenshot())).convert("RGB")
    return np.asarray(image).reshape(-1, 3).astype(int)


def wait_for_map(page, test):
    """Wait until what is drawn passes a test of its pixels."""
    wait_until(lambda: test(pixels_of(page, "#map")))


def wait_for_plot(page, plot, theme, n_colors):
    """Wait until a plot is drawn in a theme, in so many colours at least."""

    def is_drawn():
        found = pixels_of(page, plot)
        bright = (found.min(axis=1) > 200).mean()
        vivid = found[np.ptp(found, axis=1) > 40]
        in_theme = bright > 0.5 if theme == "light" else bright < 0.02
        return in_theme and len(np.unique(vivid // 32, axis=0)) >= n_colors

    wait_until(is_drawn)


@pytest.fixture(scope="module")
def written(town):
    return report(town / "town.spore", town / "browser.html")


DOT = """() => {
  const view = [...Bokeh.index.roots].find((view) => view.model.name === "map");
  const dots = view.model.renderers.find((renderer) => renderer.name === "dots");
  const data = dots.data_source.data;
  const column = (name) => (data.get ? data.get(name) : data[name]);
  const box = view.canvas_view.el.getBoundingClientRect();
  const last = column("x").length - 1;
  return {
    x: box.x + view.frame.x_scale.compute(column("x")[last]),
    y: box.y + view.frame.y_scale.compute(column("y")[last]),
    alpha: dots.glyph.fill_alpha.value,
  };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_map_is_drawn_in_both_themes(browser, written, town, theme):
    page, wrong = open_page(browser, written, color_scheme=theme)
    for plot, least in (("#map", 12), ("#sizes", 12), ("#reach", 4)):
        wait_for_plot(page, plot, theme, least)
    shown = open_run(town / "town.spore").summary["n_points"]
    assert page.inner_text("[data-name=n_points]") == f"{shown:,}"
    assert wrong == []
    page.close()


def test_the_switch_changes_the_theme(browser, written):
    page, wrong = open_page(browser, written, color_scheme="light")
    wait_for_plot(page, "#map", "light", 12)
    first = pixels_of(page, "#map").mean()
    page.click("#theme")
    wait_for_map(page, lambda found: found.mean() < first / 2)
    assert page.inner_text("#theme") == "Light theme"
    page.click("#theme")
    page.emulate_media(color_scheme="dark")  # what was chosen stays
    wait_for_map(page, lambda found: found.mean() == pytest.approx(first, rel=0.05))
    assert wrong == []
    page.close()


def test_pointing_and_zooming(browser, written, town):
    page, wrong = open_page(browser, written)
    dot = page.evaluate(DOT)
    assert dot["alpha"] == 0
    page.mouse.move(dot["x"] - 60, dot["y"] - 40)
    page.mouse.move(dot["x"], dot["y"])
    page.wait_for_selector(".bk-Tooltip .bk-tooltip-row-value")
    shown, cluster, origin = page.locator(".bk-Tooltip .bk-tooltip-row-value").all_inner_texts()
    run = open_run(town / "town.spore")
    row = int(shown.replace(",", ""))
    label = int(run.labels[row])
    assert cluster.strip() == ("noise" if label < 0 else str(label))
    assert origin.strip() == facts.provenance_text(int(run.provenance[row]))
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, -200)
        page.wait_for_timeout(100)
    page.keyboard.up("Control")
    wait_until(lambda: page.evaluate(f"({DOT})().alpha > 0.3"))
    assert wrong == []
    page.close()


def test_the_table_can_be_sorted(browser, written, town):
    page, wrong = open_page(browser, written)
    page.click("#clusters th:nth-child(7) button")
    cells = page.locator("#clusters tbody td:nth-child(7)").all_inner_texts()
    rows = [int(cell.replace(",", "")) for cell in cells]
    assert rows == sorted(rows, reverse=True)
    assert wrong == []
    page.close()


def test_without_scripts_the_numbers_are_there(browser, written):
    page, wrong = open_page(browser, written, java_script_enabled=False)
    assert page.inner_text("[data-name=n_points]") == "25,000"
    assert page.locator("#clusters tbody tr").count() > 5
    assert page.locator("noscript").is_visible()
    assert wrong == []
    page.close()


def test_a_small_window_is_not_overrun(browser, written):
    page, wrong = open_page(browser, written)
    page.set_viewport_size({"width": 420, "height": 800})
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth <= 420"))
    assert wrong == []
    page.close()


def test_hostile_text_does_nothing(browser, run, tmp_path):
    run.summary["source"] = f"/data/{HOSTILE}"
    run.summary["versions"]["numpy"] = HOSTILE
    page, wrong = open_page(browser, report(run, tmp_path / "x.html"))
    assert page.evaluate("typeof hacked") == "undefined"
    assert HOSTILE in page.inner_text("header")
    assert wrong == []
    page.close()


def test_public_name():
    assert spore_dask.report is report
    assert callable(spore_dask.report)
