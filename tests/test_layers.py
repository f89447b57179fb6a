"""Imports go downwards only."""

import ast
import subprocess
import sys
from pathlib import Path

import spore_dask

PACKAGE = Path(spore_dask.__file__).parent
LAYERS = [
    {"errors", "cgroups"},
    {"params", "datasets", "threads", "memory", "recall", "caches", "processes"},
    {"progress", "patience", "kernels", "costs", "telling"},
    {"coordinates", "exact", "partitions", "percentiles", "probing", "clusters", "choosing"},
    {"store", "engine", "pilot", "approximate", "spaces", "paces"},
    {"tasks", "points", "shards", "orders", "pages", "checkpoints", "formats", "locks"},
    {"searching", "fragments", "importing", "tracking", "preflight", "truths"},
    {"runs", "extending"},
    {"meeting", "healing"},
    {"inputs", "stages", "search", "clustering", "voting"},
    {"opening", "plan", "voters", "predictions", "shares"},
    {"graph", "prediction_plan", "reference"},
    {"jobs", "comparing"},
    {"fitting", "predicting"},
    {"trials", "tunings", "sample_fits"},
    {"excerpts"},
    {"tuning"},
    {"api"},
    {"estimator", "estimates", "exporting", "reporting"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
STORE = [
    {"files", "checksums", "limits"},
    {"disks", "objects", "zarrs"},
    {"npy", "plain"},
    {"rows"},
    {"folders"},
    {"owners", "sources"},
    {"__init__"},
]
PURE = [
    "errors",
    "params",
    "memory",
    "costs",
    "paces",
    "kernels",
    "exact",
    "partitions",
    "percentiles",
    "pilot",
    "spaces",
    "choosing",
    "telling",
]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top != "__init__":
            yield path, top


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            if node.module == "spore_dask":
                yield from (f"spore_dask.{alias.name}" for alias in node.names)


def test_every_module_has_a_layer():
    assert {top for _, top in modules()} == set(LEVEL)


def test_imports_go_downwards():
    for path, top in modules():
        for name in imported_names(path):
            package, _, rest = name.partition(".")
            below = rest.split(".")[0]
            if package == "spore_dask" and below in LEVEL and below != top:
                assert LEVEL[below] < LEVEL[top], f"{path.name} imports {name}"


def test_imports_inside_the_store_go_downwards():
    level = {name: number for number, names in enumerate(STORE) for name in names}
    paths = sorted((PACKAGE / "store").glob("*.py"))
    assert {path.stem for path in paths} == set(level)
    for path in paths:
        for name in imported_names(path):
            if name.startswith("spore_dask.store"):
                below = name.removeprefix("spore_dask.store").lstrip(".") or "__init__"
                assert level[below] < level[path.stem], f"{path.name} imports {name}"


def test_pure_modules_know_no_io():
    for path, top in modules():
        if top in PURE:
            used = {name.split(".")[0] for name in imported_names(path)}
            assert not used & {"dask", "distributed", "zarr", "os", "io", "pathlib"}


def test_every_module_says_what_it_is():
    for path, _ in modules():
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_public_name_brings_dask_arrays():
    names = ", ".join(f"spore_dask.{name}" for name in spore_dask.__all__)
    code = f"import sys, spore_dask; {names}; assert 'dask.array' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
