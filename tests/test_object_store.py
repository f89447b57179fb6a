"""Runs in an object store: a real S3 server of this process, whose answers can be spoiled."""

import dataclasses
import errno
import json
import logging
import pickle
import subprocess
import sys
import time
import uuid
from types import SimpleNamespace

import boto3
import distributed.protocol.pickle
import numpy as np
import pytest
import s3fs
import zarr

import spore_dask
from spore_dask import memory, patience
from spore_dask.cli.running import exit_code
from spore_dask.errors import (
    DamagedError,
    DeniedError,
    InputError,
    LimitError,
    SporeError,
    StoreError,
)
from spore_dask.inputs import find_input
from spore_dask.patience import patiently
from spore_dask.store import Folder, address, open_source
from spore_dask.store.checksums import file_checksum
from spore_dask.store.files import find_files
from spore_dask.store.zarrs import PatientStore
from tests import object_store, paper
from tests.object_store import FaultyStore

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIARECOGNISABLE0001",
    "AWS_SECRET_ACCESS_KEY": "recognisable/secret+of+40+characters/000",
    "AWS_SESSION_TOKEN": "recognisable-token-000000000001",
}


@pytest.fixture(scope="module")
def server():
    """The store, with what every process needs to reach it in the environment."""
    with FaultyStore() as faulty, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", faulty.url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield faulty
    find_files.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3(server):
    server.calm()
    yield server
    server.calm()


@pytest.fixture
def folder(s3):
    """A folder of its own in the bucket."""
    return Folder(f"s3://bucket/{uuid.uuid4().hex}")


@pytest.fixture
def hasty(monkeypatch):
    """Patience that is soon at its end."""
    monkeypatch.setattr(patience, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(patience, "N_TRIES", 3)


def blobs(n_points=3000, n_columns=2):
    rng = np.random.default_rng(5)
    centers = 4 * rng.normal(size=(6, n_columns))[rng.integers(6, size=n_points)]
    return (centers + rng.normal(size=(n_points, n_columns))).astype(np.float32)


def wide():
    x = np.random.default_rng(0).random((3000, 40)).astype(np.float32)
    x[:300] += 3
    return x


def assert_same(run, wanted):
    for name in ("labels", "provenance"):
        np.testing.assert_array_equal(getattr(run, name)[...], getattr(wanted, name)[...])
    assert len(np.unique(wanted.labels[...])) > 1


def objects(prefix=""):
    """Return the content of everything in the bucket."""
    client = boto3.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    return {name: client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in names}


def in_bucket(folder):
    return folder.url.removeprefix("s3://bucket/")


class TestRuns:
    @pytest.mark.parametrize(
        ("data", "options"),
        [(blobs, {}), (wide, {"knn": "approximate", "n_partitions": 3})],
        ids=["exact", "approximate"],
    )
    def test_have_the_labels_of_local_ones(self, folder, s3, tmp_path, data, options):
        folder.write_zarr("x.zarr", data(), 500)
        wanted = paper.fit(data(), tmp_path / "out", n_workers=0, **options)
        s3.rate = 0.04
        run = paper.fit(f"{folder.url}/x.zarr", n_workers=2, **options)
        assert {*s3.spoiled} == {"error", "busy", "reset", "truncate", "slow"}
        s3.calm()
        assert run.path == f"{folder.url}/x.spore"
        assert_same(run, wanted)
        assert run.summary["recall"] == wanted.summary["recall"]

    def test_do_all_that_local_ones_do(self, folder, tmp_path):
        x = blobs()
        folder.write_zarr("x.zarr", x, 500)
        source, out = f"{folder.url}/x.zarr", f"{folder.url}/out"
        options = {"n_workers": 0, "keep": "all"}
        run = paper.fit(source, out, **options)
        local = paper.fit(x, tmp_path / "out", **options)
        assert_same(spore_dask.open_run(out), local)
        checked, known = spore_dask.verify(out), spore_dask.verify(local)
        assert checked == known
        graph = spore_dask.build_graph(source, f"{folder.url}/graph", 12, n_workers=0)
        assert graph.neighbors.shape == (3000, 13)
        assert_same(paper.fit(source, f"{folder.url}/given", graph=run, n_workers=0), local)
        options = {"n_trials": 3, "n_workers": 0}
        tuned = spore_dask.tune(source, f"{folder.url}/tuned", **options)
        known = spore_dask.tune(x, tmp_path / "tuned", **options)
        assert tuned.best_params == known.best_params
        assert_same(tuned.run, known.run)
        predicted = spore_dask.predict(out, x[::7].copy(), f"{folder.url}/new", n_workers=0)
        known = spore_dask.predict(local, x[::7].copy(), tmp_path / "new", n_workers=0)
        np.testing.assert_array_equal(predicted.labels[...], known.labels[...])
        exported = spore_dask.export_labels(out, tmp_path / "labels.npy")
        np.testing.assert_array_equal(np.load(exported), local.labels[...])
        assert spore_dask.report(out, tmp_path / "page.html") == str(tmp_path / "page.html")
        assert "There is no map" not in (tmp_path / "page.html").read_text()
        page = spore_dask.report(out)
        assert objects()[page.removeprefix("s3://bucket/")].startswith(b"<!")
        assert spore_dask.clean(out) > 0
        assert_same(spore_dask.open_run(out), local)
        assert {name.split("-")[0] for name in run.folder.names()} == {
            "result",
            "report",
            "run.json",
            "spore_dask.json",
        }

    def test_keep_no_credentials_anywhere(self, folder, tmp_path, monkeypatch, caplog, capfd):
        caplog.set_level(logging.INFO)
        folder.write_zarr("x.zarr", blobs(), 500)
        events, sent, dumps = [], [], distributed.protocol.pickle.dumps

        def spy(value, *args, **options):
            sent.append(dumps(value, *args, **options))
            return sent[-1]

        monkeypatch.setattr(distributed.protocol.pickle, "dumps", spy)
        log = tmp_path / "events"
        run = paper.fit(f"{folder.url}/x.zarr", n_workers=1, progress=[events.append, "log", log])
        spore_dask.report(run, tmp_path / "page.html")
        written = objects(in_bucket(folder))
        assert any(name.endswith("summary.json") for name in written)
        assert sum(folder.url.encode() in content for content in sent) > 5
        places = {
            **written,
            "tasks": b"".join(sent),
            "run": pickle.dumps((run.folder, open_source(f"{folder.url}/x.zarr"), run.labels)),
            "events": repr(events).encode() + log.read_bytes(),
            "page": (tmp_path / "page.html").read_bytes(),
            "log": caplog.text.encode(),
            "printed": "".join(capfd.readouterr()).encode(),
        }
        assert all(len(content) for name, content in places.items() if name != "printed")
        for value in SECRETS.values():
            assert [name for name, content in places.items() if value.encode() in content] == []

    def test_end_with_a_sentence_and_continue(self, folder, s3, tmp_path, hasty):
        folder.write_zarr("x.zarr", blobs(), 500)
        source, out = f"{folder.url}/x.zarr", f"{folder.url}/out"
        wanted = paper.fit(blobs(), tmp_path / "out", n_workers=0)
        n_stops = 0
        for part in ("/points-", "/expand-", "/summary.json"):

            def stop(method, path, part=part):
                s3.is_down |= method == "PUT" and part in path

            s3.hook = stop
            with pytest.raises(StoreError, match=r"still fails .* continues") as told:
                paper.fit(source, out, n_workers=0)
            assert exit_code(told.value) == 6
            assert folder.url in str(told.value)
            s3.calm()
            n_stops += 1
            with pytest.raises(InputError, match="no finished run"):
                spore_dask.open_run(out)
        assert n_stops == 3
        run = paper.fit(source, out, n_workers=0)
        assert_same(run, wanted)
        spore_dask.verify(run)

    def test_need_memory_for_the_way_to_the_store(self, folder, tmp_path):
        folder.write_zarr("x.zarr", blobs(), 500)
        local = spore_dask.plan_graph(blobs(), tmp_path / "out").memory()
        for source, out in (
            (f"{folder.url}/x.zarr", tmp_path / "out"),
            (blobs(), f"{folder.url}/out"),
        ):
            far = spore_dask.plan_graph(source, out).memory()
            assert {far[stage] - local[stage] for stage in local} == {memory.STORE_NBYTES}
            with pytest.raises(LimitError):
                spore_dask.plan_graph(source, out, memory_limit=max(local.values()))

    def test_notice_that_the_data_has_changed(self, folder):
        folder.write_zarr("x.zarr", blobs(), 500)
        source = f"{folder.url}/x.zarr"
        paper.fit(source, n_workers=0)
        before = open_source(source).identity
        assert open_source(source).identity == before
        folder.write_zarr("x.zarr", blobs() + np.float32(1), 500)
        assert open_source(source).identity != before
        with pytest.raises(InputError, match="has changed since"):
            paper.fit(source, n_workers=0)

    def test_take_open_arrays_by_their_address(self, folder, s3):
        folder.write_zarr("x.zarr", blobs(), 500)
        source, secret = f"{folder.url}/x.zarr", "given-by-hand"
        files = s3fs.S3FileSystem(key="AKIAGIVEN", secret=secret, endpoint_url=s3.url)
        place = PatientStore(files, path=source.removeprefix("s3://"))
        array = zarr.open_array(place, mode="r")
        found = find_input(array, None, folder.child("out"))
        assert found == find_input(source, None, folder.child("out"))
        assert secret.encode() not in pickle.dumps(found)

    def test_ask_for_little(self, folder, s3):
        folder.write_zarr("x.zarr", blobs(), 500)
        s3.calm()
        paper.fit(f"{folder.url}/x.zarr", n_workers=0)
        assert len(s3.requests) < 600, len(s3.requests)


class TestFolders:
    def test_are_never_remembered(self, folder):
        assert folder.names() == []
        assert not folder.exists("a")
        client, place = boto3.client("s3"), in_bucket(folder)
        client.put_object(Bucket="bucket", Key=f"{place}/a", Body=b"12345")
        assert folder.names() == ["a"]
        assert folder.exists("a")
        assert folder.nbytes() == 5
        client.delete_object(Bucket="bucket", Key=f"{place}/a")
        assert folder.names() == []
        assert not folder.exists("a")
        assert folder.nbytes() == 0

    def test_are_removed_whole(self, folder):
        for name in ("a/b", "a/c/d", "ab/c"):
            folder.write_bytes(name, b"1")
        folder.remove("a")
        folder.remove("a")
        assert folder.names() == ["ab"]
        folder.remove()
        assert not folder.exists()

    def test_large_files_go_in_parts(self, folder, s3, monkeypatch):
        monkeypatch.setattr("spore_dask.store.objects.PART_NBYTES", 5 << 20)
        array = np.random.default_rng(0).random((1700, 1000))
        s3.calm()
        folder.write_array("x", array)
        assert sum("uploadId=" in path and method == "PUT" for method, path in s3.requests) >= 2
        np.testing.assert_array_equal(folder.read_array("x"), array)
        rows = folder.create_rows("rows", array.shape, array.dtype, 1700)
        rows.write(0, array)
        np.testing.assert_array_equal(rows.read(0, 1700), array)
        s3.calm()
        firsts = np.array([1500, 0, 8, 16])
        found = rows.read_ranges(firsts, firsts + 2)
        np.testing.assert_array_equal(found, array[(firsts[:, None] + [0, 1]).ravel()])
        assert len(s3.requests) == 4  # near ones are read together, and so are their checksums

    def test_a_large_file_that_fails_does_not_appear(self, folder, s3, monkeypatch, hasty):
        monkeypatch.setattr("spore_dask.store.objects.PART_NBYTES", 5 << 20)

        def stop(method, path):
            s3.is_down |= "partNumber=2" in path

        s3.hook = stop
        with pytest.raises(StoreError):
            folder.write_bytes("x", bytes(11 << 20))
        s3.calm()
        assert folder.names() == []

    def test_short_files_are_noticed_at_once(self, folder, s3):
        rows = folder.create_rows("rows", (100, 4), np.int64, 50)
        rows.write(0, np.ones((50, 4)))
        folder.write_bytes("rows/c/1/0", b"short")
        s3.calm()
        with pytest.raises(DamagedError, match="1595 bytes too early"):
            rows.read(0, 100)
        assert folder.read_bytes("rows/c/1/0", 2, 2) == b""
        with pytest.raises(DamagedError, match="3 bytes too early"):
            folder.read_bytes("rows/c/1/0", 3, 8)
        with pytest.raises(DamagedError, match="1 bytes too early"):
            folder.read_bytes("rows/c/1/0", 100, 101)
        folder.write_array("x", np.arange(1000))
        content = folder.read_bytes("x.npy")
        folder.write_bytes("x.npy", content[:-10])
        with pytest.raises(DamagedError, match="10 bytes too early"):
            folder.read_array("x")
        folder.write_bytes("x.npy", b"")
        with pytest.raises(DamagedError):
            folder.read_array("x")
        assert len(s3.requests) < 30

    def test_without_a_bucket_there_is_a_sentence(self, s3):
        with pytest.raises(InputError, match=r"create its bucket"):
            paper.fit(blobs(), "s3://nobucket/out", n_workers=0)
        with pytest.raises(InputError, match="no Zarr array"):
            paper.fit("s3://nobucket/x.zarr", n_workers=0)


class TestPatience:
    def test_tries_again_after_what_passes(self, hasty):
        tries = iter([ConnectionResetError(), TimeoutError(), None])

        def act():
            error = next(tries)
            if error:
                raise error
            return 7

        assert patiently(act, "s3://bucket/x") == 7

    @pytest.mark.parametrize(
        "error",
        [
            FileNotFoundError("x"),
            OSError(errno.ENOSPC, "no space"),
            OSError(errno.EINVAL, "bad request"),
            ValueError("x"),
            SporeError("x"),
        ],
        ids=repr,
    )
    def test_ends_at_once_where_it_would_not_help(self, error):
        tries = []

        def act():
            tries.append(1)
            raise error

        with pytest.raises(type(error)) as told:
            patiently(act, "s3://bucket/x")
        assert told.value is error
        assert len(tries) == 1

    def test_is_limited(self, monkeypatch):
        slept = []
        clock = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
        monkeypatch.setattr(patience, "time", clock)  # its own: other threads sleep as well

        def act():
            raise OSError(errno.EREMOTEIO, "We encountered an internal error. Please try again.")

        with pytest.raises(StoreError, match=r"'s3://bucket/x' still fails .*internal error"):
            patiently(act, "s3://bucket/x")
        assert len(slept) == patience.N_TRIES - 1
        assert 12 < sum(slept) < 31
        assert slept == sorted(slept)

    def test_statuses_tell_more_than_classes(self, folder, s3, monkeypatch, hasty):
        s3.rate, s3.faults = 1.0, ("error",)
        with pytest.raises(StoreError, match="internal error"):
            folder.read_json("a.json")
        s3.calm()
        monkeypatch.setattr(s3, "is_down", True)
        with pytest.raises(StoreError):
            folder.exists("a.json")

    def test_a_store_that_hangs_has_failed(self, folder, s3, monkeypatch, hasty):
        find_files.cache_clear()
        monkeypatch.setattr("spore_dask.store.files.TIMEOUT_SECONDS", 0.05)
        monkeypatch.setattr(object_store, "SLOW_SECONDS", 10.0)
        s3.rate, s3.faults = 1.0, ("slow",)
        with pytest.raises(StoreError, match="imeout"):
            folder.read_json("a.json")
        find_files.cache_clear()

    def test_refusals_are_told_at_once(self, s3, folder, monkeypatch):
        monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=time.monotonic))

        class NoCredentialsError(Exception):
            pass

        for error in (PermissionError("Access Denied"), NoCredentialsError("none")):

            def act(error=error):
                raise error

            with pytest.raises(DeniedError, match="'s3://bucket/x' was refused") as told:
                patiently(act, "s3://bucket/x")
            assert exit_code(told.value) == 3
            with pytest.raises(type(error)):
                patiently(act, "/local/x")

    def test_local_disks_have_it_too(self, tmp_path, monkeypatch, hasty):
        import os

        replace, failures = os.replace, [errno.ESTALE, errno.EIO]

        def fail(*names):
            if failures:
                raise OSError(failures.pop(), "disk")
            replace(*names)

        monkeypatch.setattr(os, "replace", fail)
        folder = Folder(str(tmp_path / "run"))
        folder.write_bytes("a", b"1")
        assert folder.read_bytes("a") == b"1"
        assert not failures


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "s3://AKIAKEY:sesame@bucket/x.zarr",
            "s3://AKIAKEY:se/sa/sesame@bucket/x.zarr",
            "sftp://me:se/sesame@host/x.zarr",
            "https://host/x y?sesame",
            "s3://sesame@bucket/x.zarr",
            "https://me:sesame@host/x.zarr",
            "sftp://me:sesame@host/x.zarr",
            "simplecache::s3://AKIAKEY:sesame@bucket/x.zarr",
            "https://host/x.zarr?X-Amz-Signature=sesame",
            "https://host/x.zarr#token=sesame",
            "abfs://container@account.net/x.zarr?sig=sesame",
        ],
    )
    def test_with_secrets_are_refused(self, url, tmp_path):
        for call in (
            lambda: paper.fit(url, tmp_path / "out", n_workers=0),
            lambda: paper.fit(blobs(), url, n_workers=0),
            lambda: spore_dask.open_run(url),
        ):
            with pytest.raises(InputError, match="environment of every process") as told:
                call()
            assert "sesame" not in str(told.value)
            assert "KEY:" not in str(told.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "url",
        [
            "s3://bucket/a/b.zarr",
            "abfs://container@account.net/x",
            "http://[::1]:80/x",
            "memory://x",
        ],
    )
    def test_without_them_are_not(self, url):
        assert address(url) == url
        assert address(url + "/") == url

    def test_a_missing_library_is_named(self):
        code = (
            "import sys; sys.modules['s3fs'] = None\n"
            "import spore_dask\n"
            "spore_dask.open_run('s3://bucket/x')\n"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "InputError: 's3://bucket/x' needs" in ended.stderr
        assert "pip install 'spore-dask[s3]'" in ended.stderr


ESCAPES = [
    "../precious",
    "a/../../precious",
    "/precious",
    "a//b",
    ".",
    "..",
    "a\0",
    5,
    None,
]


class TestNames:
    @pytest.mark.parametrize("name", ESCAPES, ids=repr)
    @pytest.mark.parametrize("url", ["", "memory://run"])
    def test_cannot_leave_their_folder(self, tmp_path, url, name):
        folder = Folder(url or str(tmp_path / "run"))
        (tmp_path / "precious").write_text("here")
        for call in (
            folder.child,
            folder.remove,
            folder.exists,
            folder.read_json,
            folder.read_bytes,
            lambda name: folder.write_bytes(name, b"x"),
        ):
            with pytest.raises(DamagedError, match="inside a run's folder"):
                call(name)
        assert (tmp_path / "precious").read_text() == "here"

    def test_of_chains_are_refused_in_stores_only(self, tmp_path):
        with pytest.raises(DamagedError, match="inside a run's folder"):
            Folder("memory://run").child("x::y")
        assert Folder(str(tmp_path)).child("x::y").url == f"{tmp_path}/x::y"

    def test_of_stages_that_lead_out_are_refused(self, tmp_path):
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "graph.json").write_text("{}")
        run = paper.fit(blobs(), tmp_path / "deep" / "out", n_workers=0, keep="all")
        path = tmp_path / "deep" / "out" / f"result-{run.id}" / "summary.json"
        summary = run.result.read_json("summary.json")
        summary["stages"]["scan"]["name"] = "../../precious"
        path.write_text(json.dumps(summary))
        with pytest.raises(DamagedError, match="precious"):
            spore_dask.clean(run.path)
        with pytest.raises(DamagedError, match="precious"):
            spore_dask.verify(run.path)
        assert [file.name for file in precious.iterdir()] == ["graph.json"]
        for id in ("../../precious", "x/../../../precious"):
            with pytest.raises(DamagedError, match="precious"):
                spore_dask.open_run(run.path, id)
            with pytest.raises(DamagedError, match="precious"):
                spore_dask.Graph(run.path, id)
        (tmp_path / "deep" / "out" / "run.json").write_text('{"id": "/../../../precious"}')
        with pytest.raises(DamagedError, match="precious"):
            spore_dask.open_run(run.path)

    def test_with_signs_remove_nothing_in_a_store(self, folder):
        folder.write_bytes("a/b", b"1")
        for name in ("*", "a/[b]", "?"):
            with pytest.raises(DamagedError, match="nothing is removed"):
                folder.remove(name)
        with pytest.raises(DamagedError, match="nothing is removed"):
            Folder("s3://bucket").remove()
        assert folder.names() == ["a"]

    def test_a_given_graph_stays_when_a_run_is_cleaned(self, tmp_path):
        graph = spore_dask.build_graph(blobs(), tmp_path / "graph", 40, n_workers=0)
        before = sorted(str(path) for path in (tmp_path / "graph").rglob("*"))
        run = paper.fit(blobs(), tmp_path / "out", graph=graph, n_workers=0, expansion_neighbors=8)
        spore_dask.clean(run)
        assert sorted(str(path) for path in (tmp_path / "graph").rglob("*")) == before


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was read')",)


class TestPickles:
    def test_in_files_are_refused(self, tmp_path):
        folder = Folder(str(tmp_path))
        np.save(tmp_path / "x.npy", np.array([Bomb()]), allow_pickle=True)
        content = (tmp_path / "x.npy").read_bytes()
        (tmp_path / "x.npy").write_bytes(content + file_checksum(content))
        with pytest.raises(DamagedError, match="not one of numbers"):
            folder.read_array("x")

    @pytest.mark.parametrize(
        "hidden",
        [
            {"filters": [{"id": "pickle", "protocol": 5}]},
            {"filters": None, "compressor": {"id": "pickle", "protocol": 5}},
            {
                "dtype": "|O",
                "fill_value": "",
                "filters": [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}],
            },
        ],
        ids=["filter", "compressor", "behind"],
    )
    def test_in_zarr_are_refused(self, tmp_path, hidden):
        path = tmp_path / "x.zarr"
        array = zarr.create_array(path, shape=(4, 2), dtype="f4", chunks=(4, 2), zarr_format=2)
        array[...] = 1
        about = json.loads((path / ".zarray").read_text())
        (path / ".zarray").write_text(json.dumps({**about, "compressor": None, **hidden}))
        (path / "0.0").write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(InputError, match=r"Zarr array at .*x.zarr"):
            paper.fit(path, n_workers=0)
        with pytest.raises(InputError, match=r"Zarr array at .*x.zarr"):
            spore_dask.tune(blobs(8), tmp_path / "out", y=str(path), n_workers=0)


def test_tasks_hold_addresses_only(folder):
    folder.write_zarr("x.zarr", blobs(100), 50)
    source = open_source(f"{folder.url}/x.zarr")
    assert {type(value) for value in dataclasses.astuple(source)} <= {str, int, tuple, bool}
    assert dataclasses.astuple(folder) == (folder.url,)
