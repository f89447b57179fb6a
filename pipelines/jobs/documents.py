"""What a job is asked for: a YAML file, read safely, and every name and value in it checked.

Reads one small file. Nothing is begun before all of it is known to make sense.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from dask.utils import parse_bytes

import spore_dask
from pipelines.jobs.places import address, without_secrets
from spore_dask.cli import PROGRESS, Option, options_of

FIT, TUNE, REFRESH = "fit", "tune", "refresh"
KINDS = (FIT, TUNE, REFRESH)
API = {FIT: ("fit", "Params"), TUNE: ("tune", "fit", "Params"), REFRESH: ("fit", "Params")}
"""Public names of spore_dask whose keywords are a job's parameters."""
NOT_PARAMETERS = ("source", "out", "component", "client", "memory_limit", "keep", "resume")
"""Their keywords that a job has elsewhere, or that would make it no longer continue itself."""
NOT_ASKED = ("n_workers", "cache_limit")
"""Parameters that do not change what is found."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{4})?")
NAME_IN_BRACES = re.compile(r"\{(\w*)\}")
LEAST_OVERLAP = 0.3
ID_LENGTH = 12


@dataclasses.dataclass(frozen=True)
class Job:
    """What one file asks for, on one date."""

    kind: str
    """One of `KINDS`."""
    date: str
    """What stands for `{date}`."""
    input: str
    output: str
    component: str | None = None
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keywords of `fit` or `tune`."""
    cluster: Any = None
    """What `connect` takes; None for local workers."""
    memory_limit: int | str | None = None
    progress: str = "log"
    report: bool | str = False
    keep: str = "predict"
    limits: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of a refresh: beyond them nothing is published."""
    keep_runs: int | None = None
    """Of a refresh: published runs that stay; None for all."""
    least_overlap: float = LEAST_OVERLAP
    """Of a refresh: share of the points of two clusters that they have in common if they match."""
    undated: dict[str, str] = dataclasses.field(default_factory=dict)
    """The texts that may have `{date}` in them as the file has them, by key."""

    @property
    def id(self) -> str:
        """A name for what is asked: the same input and parameters, the same name."""
        asked = {name: value for name, value in self.parameters.items() if name not in NOT_ASKED}
        parts = [self.kind, address(self.input), self.component, asked]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @property
    def run_name(self) -> str:
        """The name of a run among those of other dates."""
        return f"{self.date}-{self.id}"

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of `fit` or `tune`, but for where it runs."""
        asked = {name: value for name, value in self.parameters.items() if name != "n_workers"}
        return {**asked, "component": self.component, "keep": self.keep}

    @property
    def workers(self) -> dict[str, Any]:
        """Keywords that say where it runs, if that is on this machine."""
        given = {"memory_limit": self.memory_limit, "n_workers": self.parameters.get("n_workers")}
        return {name: value for name, value in given.items() if value is not None}

    def asked(self) -> dict[str, Any]:
        """Return what is asked in plain values, fit to be kept: of the cluster, only the kind."""
        kind = self.cluster.get("kind") if isinstance(self.cluster, Mapping) else None
        return {
            "job": self.kind,
            "date": self.date,
            "input": address(self.input),
            "component": self.component,
            "output": address(self.output),
            "parameters": _plain(self.parameters),
            "cluster": kind or ("address" if self.cluster else "local"),
            "memory_limit": self.memory_limit,
            "keep": self.keep,
        }


def _plain(value: Any) -> Any:
    """Return parameters without what addresses may hide."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class Key:
    """What one key of a file may hold."""

    text: str
    """The allowed values, for the reader."""
    allows: Callable[[Any], bool]
    kinds: tuple[str, ...] = KINDS
    """Jobs that have it."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and low <= value <= high


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_size(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    try:
        return int(parse_bytes(value)) > 0
    except ValueError:
        return False


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


KEYS = {
    "input": Key("a path or URL of a Zarr array", _is_text),
    "output": Key("a path or URL of a folder", _is_text),
    "component": Key("the path of an array in a group", _is_text),
    "parameters": Key("names and values", _is_mapping),
    "cluster": Key(
        "an address, or names and values such as 'kind: local'",
        lambda value: _is_text(value) or (_is_mapping(value) and bool(value)),
    ),
    "memory_limit": Key("a size such as 2GiB", _is_size),
    "progress": Key(f"one of {', '.join(PROGRESS)}", lambda value: value in PROGRESS),
    "report": Key(
        "true, false or the path of a file", lambda v: isinstance(v, bool) or _is_text(v)
    ),
    "keep": Key("one of labels, predict, all", lambda v: v in ("labels", "predict", "all")),
    "limits": Key("names and values such as 'drift: 0.3'", _is_mapping, (REFRESH,)),
    "keep_runs": Key("a whole number from 1 on", _is_count, (REFRESH,)),
    "least_overlap": Key(
        "a number in [0.1, 1]", lambda value: _is_number(value, 0.1, 1), (REFRESH,)
    ),
}
LIMITS = {"drift": Key("a number in [0, 1]", lambda value: _is_number(value, 0, 1))}
NEEDED = ("input", "output")
WITH_DATE = ("input", "output", "component", "report")
"""Keys whose texts may have `{date}` in them."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses a key that is there twice; what `<<` brings may be replaced."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return the node of a mapping, as it is written."""
        node = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice[0]!r} is there twice", problem_mark=node.start_mark
            )
        return node


def read_job(path: str, kind: str, date: str | None = None, *, import_class: bool = True) -> Job:
    """Read the file of a job.

    Parameters
    ----------
    path : str
        A YAML file.
    kind : str
        What it is read for, one of `KINDS`.
    date : str, optional
        What stands for `{date}`: 2026-11-16, or 2026-11-16T0930. Default: today, in UTC.
    import_class : bool, default True
        Whether to import the class of clusters that the file may name.

    Raises
    ------
    ParameterError
        If a name is not known, a value is not allowed, or something is missing.
    """
    found = _read(path)
    known = {name: key for name, key in KEYS.items() if kind in key.kinds}
    _check(path, "", found, known)
    for name in NEEDED:
        if found.get(name) is None:
            raise _bad(path, f"{name} is missing, but it must be {KEYS[name].text}")
    given = {name: value for name, value in found.items() if value is not None}
    limits = given.get("limits", {})
    _check(path, "limits.", limits, LIMITS)
    given["limits"] = {name: value for name, value in limits.items() if value is not None}
    given["parameters"] = _parameters(path, kind, given.get("parameters", {}))
    if "cluster" in given and "n_workers" in given["parameters"]:
        raise _bad(path, "parameters.n_workers goes with local workers, and cluster is given too")
    if kind == REFRESH and given.get("keep") == "labels":
        raise _bad(path, "keep is 'labels', but tomorrow's clusters are matched by predictions")
    date = checked_date(date)
    undated = {name: given[name] for name in WITH_DATE if isinstance(given.get(name), str)}
    dated = {name: _with_date(path, name, text, date) for name, text in undated.items()}
    _check_places(path, dated)
    _check_cluster(path, given.get("cluster"), import_class)
    return Job(kind, date, **{**given, **dated}, undated=undated)


def _check_places(path: str, places: dict[str, str]) -> None:
    """Refuse addresses with secrets, and an output that would be written into the input."""
    found = {}
    for name in sorted(set(places) - {"component"}):
        try:
            found[name] = address(places[name])
        except spore_dask.InputError as error:
            raise spore_dask.ParameterError(f"{path}: {name}: {error}") from None
    if f"{found['output']}/".startswith(f"{found['input']}/"):
        raise _bad(
            path, f"output is {places['output']!r}, but that is the input, or in it: give another"
        )


def _check_cluster(path: str, cluster: Any, import_class: bool) -> None:
    """Refuse a cluster that cannot be made, before anything begins."""
    try:
        spore_dask.check_cluster(cluster, import_class=import_class)
    except spore_dask.ParameterError as error:
        raise spore_dask.ParameterError(f"{path}: cluster: {error}") from None


def checked_date(date: str | None) -> str:
    """Return a date as it is written in names; today in UTC by default."""
    if date is None:
        return datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        if not DATE.fullmatch(date):
            raise ValueError
        datetime.datetime.fromisoformat(date)
    except ValueError:
        raise spore_dask.ParameterError(
            f"The date is {date!r}, but it must be one such as 2026-11-16, or 2026-11-16T0930."
        ) from None
    return date


def _read(path: str) -> dict[str, Any]:
    """Read a file of names and values."""
    try:
        found = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise _bad(path, f"the file cannot be read as YAML ({reason})") from None
    if not _is_mapping(found):
        raise _bad(path, "the file must hold lines such as 'input: x.zarr'")
    return dict(found)


def _bad(path: str, what: str) -> spore_dask.ParameterError:
    return spore_dask.ParameterError(f"{path}: {what}.")


def _unknown(path: str, within: str, name: str, known: Iterable[str]) -> Exception:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}."
    return spore_dask.ParameterError(f"{path}: there is no key {within + name!r}; {hint}")


def _check(path: str, within: str, found: dict[str, Any], known: Mapping[str, Key]) -> None:
    """Refuse names that are not known, and values that are not allowed."""
    for name, value in found.items():
        if name not in known:
            raise _unknown(path, within, name, known)
        if value is not None and not known[name].allows(value):
            text = known[name].text
            raise _bad(path, f"{within}{name} is {value!r}, but it must be {text}")


@functools.cache
def parameter_options(kind: str) -> dict[str, Option]:
    """Return what may be among the parameters of a job, from the signatures of the API."""
    # A tune always chooses; the graph of one day's data does not fit another's.
    own = {FIT: (), TUNE: ("params",), REFRESH: ("graph",)}[kind]
    options = options_of(API[kind], (*NOT_PARAMETERS, *own))
    return {str(option.name): option for option in options}


def _parameters(path: str, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """Check parameters; return those that are given."""
    options = parameter_options(kind)
    given = {}
    for name, value in found.items():
        if name in NOT_PARAMETERS and name in KEYS:
            raise _bad(path, f"parameters.{name} belongs beside parameters, not among them")
        if name not in options:
            raise _unknown(path, "parameters.", name, options)
        if value is not None:
            given[name] = _converted(path, options[name], value)
    fields = {field.name for field in dataclasses.fields(spore_dask.Params)} & given.keys()
    try:
        spore_dask.Params(**{name: given[name] for name in fields})
    except spore_dask.ParameterError as error:
        raise spore_dask.ParameterError(f"{path}: parameters: {error}") from None
    return given


def _converted(path: str, option: Option, value: Any) -> Any:
    """Return the value of a parameter, of the type that the API takes."""
    kind = option.type
    text = {click.INT: "a whole number", click.FLOAT: "a number", click.STRING: "a text"}.get(kind)
    name = f"parameters.{option.name}"
    if isinstance(kind, click.Choice):
        text = f"one of {', '.join(kind.choices)}"
    numbers = kind in (click.INT, click.FLOAT)
    fits = isinstance(value, str if not numbers else int | float | str)
    if option.metavar == "SIZE":
        text, fits = "a size such as 100MB", _is_size(value)
    elif option.name == "space":
        text, fits = "names, each with a list of values", _is_mapping(value)
    if isinstance(value, bool) or not fits:
        raise _bad(path, f"{name} is {value!r}, but it must be {text}")
    if option.metavar == "SIZE" or option.name == "space":
        return value
    try:
        converted = kind.convert(value, option, None)
    except click.BadParameter:
        converted = None
    if converted is None or (kind is click.INT and converted != float(value)):
        raise _bad(path, f"{name} is {value!r}, but it must be {text}")
    return value if numbers and not isinstance(value, str) else converted


def _with_date(path: str, name: str, text: str, date: str) -> str:
    """Put the date where a text has `{date}`."""
    for found in NAME_IN_BRACES.findall(text):
        if found != "date":
            raise _bad(path, f"{name} has {{{found}}} in it, but only {{date}} is known")
    return text.replace("{date}", date)
