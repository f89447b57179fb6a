"""Paths of this machine are paths, whatever is in their names: no call reads one as a URL."""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import spore_dask
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import InputError
from spore_dask.store import address
from tests import paper

DATA = blobs_and_shapes(400)[0]
NAMES = [
    "exp::run",
    "memory::run",
    "a#b?c=d%2e [ab]*'\"\\",
    "Größe-Ω-日本\nline",
    "-rf",
    "s3:",
    "~",
]


def write_source(path):
    store = zarr.storage.LocalStore(path)
    zarr.create_array(store, shape=DATA.shape, dtype=DATA.dtype, chunks=(150, 2))[:] = DATA
    return os.fspath(path)


def tree(folder):
    """Return the content of each file in a folder."""
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found}


def write_everything(place):
    """Make every call that writes, each to a path that `place` makes of a suffix."""
    source = write_source(os.path.abspath(os.path.expanduser(place(".zarr"))))
    run = paper.fit(place(".zarr"), place(".run"), n_workers=0)
    assert run.path == os.path.abspath(os.path.expanduser(place(".run")))
    assert run.summary["source"] == source
    again = paper.fit(zarr.open_array(Path(source)), place(".run"), n_workers=0)
    assert again.id == run.id
    paper.fit(place(".zarr"), place(".run"), n_workers=0, resume=False)
    assert paper.fit(place(".zarr"), n_workers=0).path == source.replace(".zarr", ".spore")
    graph = spore_dask.build_graph(place(".zarr"), place(".graph"), n_workers=0)
    paper.fit(place(".zarr"), place(".of-graph"), graph=place(".graph"), n_workers=0)
    assert graph.path == os.path.abspath(os.path.expanduser(place(".graph")))
    spore_dask.tune(place(".zarr"), place(".tuned"), n_trials=3, n_workers=0)
    found = spore_dask.predict(place(".run"), place(".zarr"), place(".p"), n_workers=0)
    np.testing.assert_array_equal(found.labels[...], run.labels[...])
    spore_dask.predict(place(".run"), DATA, place(".p"), n_workers=0)
    for suffix in (".csv", ".parquet", ".npy"):
        spore_dask.export_labels(place(".run"), place(suffix))
        assert os.path.isfile(os.path.expanduser(place(suffix)))
    np.testing.assert_array_equal(np.load(os.path.expanduser(place(".npy"))), run.labels[...])
    spore_dask.export_labels(place(".p"), place(".ids.parquet"), ids=place(".npy"))
    spore_dask.report(place(".run"), place(".html"))
    np.save(os.path.expanduser(place(".data.npy")), DATA)
    for overwrite in (False, True):
        spore_dask.import_data(place(".data.npy"), place(".in.zarr"), overwrite=overwrite)
    imported = zarr.open_array(Path(os.path.expanduser(place(".in.zarr"))), mode="r")
    np.testing.assert_array_equal(imported[...], DATA)
    with spore_dask.hold(place(".held")):
        pass
    assert spore_dask.verify(place(".run"))
    assert spore_dask.clean(place(".run")) > 0
    spore_dask.remove_run(place(".tuned"))
    assert not os.path.exists(os.path.expanduser(place(".tuned")))
    assert str(spore_dask.open_run(place(".run")).labels.store_path)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_path(tmp_path, name):
    bystanders = {
        part for part in (*name.split("::"), "exp", "run", ".run") if part not in ("", name)
    }
    for part in bystanders:
        (tmp_path / part).mkdir()
        (tmp_path / part / "mine.txt").write_text(part)
    before = tree(tmp_path)
    write_everything(lambda suffix: f"{tmp_path}/{name}{suffix}")
    assert before.items() <= tree(tmp_path).items()
    ours = {path.name for path in tmp_path.iterdir()} - bystanders
    assert all(entry.startswith(name) for entry in ours)


def test_relative_paths_and_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_everything(lambda suffix: f"./a::b{suffix}{'/' * (suffix in ('.zarr', '.run', '.p'))}")
    assert all(path.name.startswith("a::b") for path in tmp_path.iterdir())


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_everything(lambda suffix: f"~/x::y{suffix}")
    assert all(path.name.startswith("x::y") for path in tmp_path.iterdir())


def test_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mine.txt").write_text("mine")
    (tmp_path / "link::to").symlink_to(tmp_path / "real")
    write_everything(lambda suffix: f"{tmp_path}/link::to/x{suffix}")
    (tmp_path / "out").symlink_to(tmp_path / "real" / "empty")
    (tmp_path / "real" / "empty").mkdir()
    paper.fit(DATA, tmp_path / "out", n_workers=0)
    spore_dask.remove_run(tmp_path / "out")
    assert (tmp_path / "real" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "out").is_symlink()


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("/d/exp::run", "/d/exp::run"),
        ("file:///d/exp::run", "/d/exp::run"),
        ("local:///d/a?b#c", "/d/a?b#c"),
        (Path("s3://bucket/x"), f"{os.getcwd()}/s3:/bucket/x"),
        ("/d/s3://x", "/d/s3:/x"),
        ("s3://bucket/x/", "s3://bucket/x"),
    ],
)
def test_what_is_a_url(given, known):
    assert address(given) == known


@pytest.mark.parametrize("url", ["simplecache::s3://bucket/x", "zip://::s3://x.zip", "s3://b/a::c"])
def test_chains_of_urls_are_refused(url):
    with pytest.raises(InputError, match="chain of URLs"):
        address(url)


def test_an_open_array_is_where_zarr_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    x = np.random.default_rng(0).normal(size=(200, 2)).astype("f4")
    for place, values in ((tmp_path / "home" / "x.zarr", -x), (tmp_path / "~" / "x.zarr", x)):
        zarr.create_array(str(place), shape=x.shape, dtype="f4", chunks=(100, 2))[...] = values
    run = paper.fit(zarr.open_array(Path("~/x.zarr")), tmp_path / "out", n_workers=0)
    assert run.summary["source"] == str(tmp_path / "~" / "x.zarr")
