import json
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from spore_dask import DamagedError, InputError
from spore_dask.store import Folder, RowFiles, disks, hash_of, open_source


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "run"))


def test_documents(folder):
    assert folder.read_json("a.json") is None
    assert folder.names() == []
    folder.child("deep/er").write_json("a.json", {"x": [1, 2.5]})
    assert folder.read_json("deep/er/a.json") == {"x": [1, 2.5]}
    assert folder.names() == ["deep"]
    assert folder.child("deep/er").name == "er"


def test_files_appear_whole_or_not_at_all(folder, tmp_path, monkeypatch):
    folder.write_bytes("a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folder.write_bytes("a", b"new and longer")
    assert folder.read_bytes("a") == b"old"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]
    (tmp_path / "run" / f"a.{'1' * 32}.partial").write_bytes(b"new")  # as a kill leaves it
    folder.sweep()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]


def test_ranges_of_files(folder):
    folder.write_bytes("a", np.arange(10, dtype=np.uint8).data)
    assert folder.read_bytes("a", 3, 6) == bytes([3, 4, 5])


@pytest.mark.parametrize("shape", [(7,), (0,), (4, 3), (0, 5)])
def test_arrays_in_one_chunk(folder, shape):
    array = np.random.default_rng(0).random(shape).astype(np.float32)
    folder.write_array("x", array)
    folder.write_array("x", array)
    found = folder.read_array("x")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


def test_chunks_of_rows_are_written_apart_and_created_once(folder):
    folder.create_rows("g", (100, 3), np.uint32, 32).write(32, np.full((32, 3), 1))
    folder.create_rows("g", (100, 3), np.uint32, 32).write(96, np.full((4, 3), 2))
    found = folder.open_array("g")[...]
    assert found.dtype == np.uint32
    assert (found == np.repeat([0, 1, 0, 2], [32, 32, 32, 4])[:, None]).all()
    for first, n_rows in ((16, 32), (32, 31), (96, 3)):
        with pytest.raises(ValueError, match="one whole chunk"):
            folder.open_rows("g").write(first, np.zeros((n_rows, 3)))


@pytest.mark.parametrize("shape", [(100,), (100, 3)])
@pytest.mark.parametrize("url", ["", "memory://rows"])
def test_ranges_of_rows_are_what_zarr_reads(folder, url, shape):
    folder = Folder(url) if url else folder
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rows = folder.create_rows(f"g{len(shape)}", shape, np.float32, 32)
    for first in range(0, 100, 32):
        rows.write(first, values[first : first + 32])
    rows = folder.open_rows(f"g{len(shape)}")
    np.testing.assert_array_equal(folder.open_array(f"g{len(shape)}")[...], values)
    np.testing.assert_array_equal(rows.read(5, 99), values[5:99])
    firsts, lasts = np.array([90, 0, 31, 7]), np.array([100, 1, 70, 7])
    wanted = np.concatenate([values[a:b] for a, b in zip(firsts, lasts, strict=True)])
    np.testing.assert_array_equal(rows.read_ranges(firsts, lasts), wanted)


def write_parts(folder, shape, cuts):
    """Write rows in files that end at some cuts; return them, and what reads them."""
    values = np.random.default_rng(0).integers(0, 1 << 30, shape, dtype=np.uint32)
    starts = np.array([0, *cuts, shape[0]])
    names = tuple(f"{i}.rows" for i in range(len(starts) - 1))
    for name, first, last in zip(names, starts, starts[1:], strict=False):
        folder.write_rows(name, values[first:last], n_missing=3)
    return values, RowFiles(folder, names, starts, shape[1:], values.dtype)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("shape", [(5000,), (5000, 3), (0, 3)])
@pytest.mark.parametrize("cuts", [[], [0, 7, 7, 4096], [1024, 5000]])
def test_all_rows_at_hand(folder, monkeypatch, maps, shape, cuts):
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: maps)
    values, files = write_parts(folder, shape, [min(cut, shape[0]) for cut in cuts])
    found = files.all_at_hand()
    found.check()
    assert found.is_mapped == maps
    np.testing.assert_array_equal(found.rows[found.places()], values)
    if len(values):
        found.rows[found.begins[-1] :] = 0  # changes nothing on disk
        np.testing.assert_array_equal(files.read(0, len(values)), values)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("width", [1, 3, 40])
@given(data=st.data())
@settings(max_examples=40)
def test_some_rows_at_hand(tmp_path_factory, maps, width, data):
    folder = Folder(str(tmp_path_factory.mktemp("some")))
    cuts = sorted(data.draw(st.lists(st.integers(0, 5000), max_size=3)))
    values, files = write_parts(folder, (5000, width), cuts)
    bounds = sorted(data.draw(st.lists(st.integers(0, 5000), max_size=8)))
    firsts, lasts = np.array(bounds[: len(bounds) // 2 * 2], np.int64).reshape(-1, 2).T
    with (
        mock.patch("spore_dask.store.plain.can_map", return_value=maps),
        mock.patch("spore_dask.store.rows.PART_NBYTES", 1000),
    ):
        found = files.at_hand(firsts, lasts)
        found.check()
    wanted = [values[first:last] for first, last in zip(firsts, lasts, strict=True)]
    wanted = np.concatenate([values[:0], *wanted])
    np.testing.assert_array_equal(found.rows[found.places()], wanted)
    assert maps or not found.is_mapped
    blocks = 2 * 256 * (len(firsts) + len(cuts))  # at both ends of a range in a file
    assert len(found.rows) <= 2 * (len(wanted) + blocks) + 1024 * (len(firsts) + len(cuts))


def test_long_ranges_are_mapped_and_short_ones_are_read(folder, monkeypatch):
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: True)
    values, files = write_parts(folder, (5000, 3), [2500])
    for firsts, lasts, is_mapped in (([1100, 3000], [2300, 4500], True), ([1100], [1120], False)):
        found = files.at_hand(np.array(firsts), np.array(lasts))
        assert found.is_mapped == is_mapped
        wanted = np.concatenate([values[a:b] for a, b in zip(firsts, lasts, strict=True)])
        np.testing.assert_array_equal(found.rows[found.places()], wanted)


def test_rows_in_another_order_survive_a_failed_attempt(folder, monkeypatch):
    rows, places = np.arange(8000, dtype=np.float32).reshape(-1, 2), np.arange(3999, -1, -1)
    write, failed = disks.write_file, []

    def fail_once(target, parts, nbytes):
        if not failed:
            failed.append(next(iter(parts)))
            raise InterruptedError
        write(target, parts, nbytes)

    monkeypatch.setattr("spore_dask.store.rows.STEP_NBYTES", 1000)
    monkeypatch.setattr("spore_dask.store.plain.write_file", fail_once)
    monkeypatch.setattr("spore_dask.store.plain.patiently", lambda attempt, url: twice(attempt))
    folder.write_some_rows("some", rows, places)
    files = RowFiles(folder, ("some",), np.array([0, 4000]), (2,), rows.dtype)
    np.testing.assert_array_equal(files.read(0, 4000), rows[::-1])
    assert failed


def twice(attempt):
    """Try once more."""
    try:
        return attempt()
    except InterruptedError:
        return attempt()


@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("n_places", [0, 1, 4096, 9000])
def test_rows_written_in_another_order(folder, monkeypatch, width, n_places):
    monkeypatch.setattr("spore_dask.store.rows.STEP_NBYTES", 10_000)
    rng = np.random.default_rng(n_places)
    rows = rng.random((5000, width)).astype(np.float32)
    places = rng.integers(0, len(rows), n_places)
    folder.write_some_rows("some", rows, places)
    starts = np.array([0, n_places])
    files = RowFiles(folder, ("some",), starts, (width,), rows.dtype)
    np.testing.assert_array_equal(files.read(0, n_places), rows[places])
    folder.write_rows("plain", rows[places])
    for name in ("{}", "checks/{}"):
        some, plain = (folder.read_bytes(name.format(each)) for each in ("some", "plain"))
        assert some == plain


def test_no_files_are_at_hand_at_once(folder):
    files = RowFiles(folder.child("nothing"), (), np.array([0]), (3,), np.dtype(np.uint32))
    assert files.all_at_hand().rows.shape == (0, 3)


def test_mapped_files_that_change_are_noticed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: True)
    _, files = write_parts(folder, (5000, 3), [2000])
    found = files.all_at_hand()
    path = tmp_path / "run" / "1.rows"
    with path.open("r+b") as file:
        file.seek(9000)
        file.write(b"\x01\x02\x03\x04\x05")
    for check in (found.check, files.all_at_hand):
        with pytest.raises(DamagedError, match=r"'1.rows' .*a checksum is wrong"):
            check()
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DamagedError, match=r"'1.rows' .*ends"):
        files.all_at_hand()
    path.unlink()
    with pytest.raises(DamagedError, match=r"'1.rows' .*not there"):
        files.all_at_hand()


@pytest.mark.parametrize("reason", ["too many", "refused"])
def test_files_that_cannot_be_mapped_are_read(folder, monkeypatch, reason):
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: True)
    if reason == "too many":
        monkeypatch.setattr("spore_dask.store.rows.MOST_MAPPED", 1)
    else:  # as where there is no more room for mappings
        monkeypatch.setattr("spore_dask.store.disks.POPULATE_READ", 12345)
    values, files = write_parts(folder, (5000, 3), [2000])
    found = files.all_at_hand()
    assert not found.is_mapped
    np.testing.assert_array_equal(found.rows, values)


def test_files_elsewhere_are_not_mapped(folder):
    assert not folder.can_map  # there is none yet
    assert not Folder("memory://rows").can_map


def test_damage_is_noticed(folder, tmp_path):
    folder.write_array("x", np.arange(1000))
    path = tmp_path / "run" / "x.npy"
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"'x.npy' .* is damaged"):
        folder.read_array("x")


def test_remove_and_size(folder):
    assert folder.nbytes() == 0
    folder.write_bytes("a/b", b"12345")
    folder.write_bytes("a/c", b"678")
    assert folder.nbytes() == 8
    folder.remove("a")
    folder.remove("a")
    assert not folder.exists("a")


def test_identity_is_that_of_the_files_when_a_source_is_opened(tmp_path):
    path = str(tmp_path / "x.zarr")
    array = zarr.create_array(path, shape=(10, 2), dtype="f4", chunks=(5, 2))
    array[...] = 1
    source = open_source(path)
    assert open_source(path).identity == source.identity
    source.confirm()
    array[7] = 3
    assert open_source(path).identity != source.identity
    with pytest.raises(InputError, match="changed while this call worked on it"):
        source.confirm()


def test_names_are_hashes_of_what_they_depend_on():
    assert hash_of(1, "a", None) == hash_of(1, "a", None)
    assert hash_of(1, "a", None) != hash_of(1, "a", 0)
    assert json.dumps(hash_of({"b": 1, "a": 2})) == json.dumps(hash_of({"a": 2, "b": 1}))
