"""Options of commands, derived from the signatures and docstrings of the functions they call.

A parameter's name, default and choices become those of an option; its documentation, shortened,
becomes the help. Only imports what a command calls, when its options are asked for.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import click

import spore_dask
from spore_dask.cli.config import DocumentType
from spore_dask.params import RANGES, Params

RENAMED = {"client": "scheduler", "n_workers": "workers"}
"""Options that are called differently from the parameters of the API."""
METAVARS = {"client": "ADDRESS", "memory_limit": "SIZE", "cache_limit": "SIZE", "graph": "PATH"}
NEIGHBORS = "Neighbours"
PARAMETERS = "Parameters of SPORE"
WHERE = "Where it runs"
SHOWN = "What is shown"
GENERAL = "Options"
HEADINGS = (GENERAL, NEIGHBORS, PARAMETERS, WHERE, SHOWN)
SECTIONS = {
    **dict.fromkeys(
        ("k", "graph", "knn", "knn_index", "recall_target", "n_partitions", "metric", "scale"),
        NEIGHBORS,
    ),
    **dict.fromkeys(("memory_limit", "cache_limit", "client", "n_workers"), WHERE),
}


class Option(click.Option):
    """An option that knows under which heading of the help it belongs."""

    def __init__(self, *args: Any, section: str = GENERAL, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class ListType(click.ParamType):  # type: ignore[type-arg]
    """Names with commas between them."""

    name = "NAME,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        """Return a list of names."""
        parts = value.split(",") if isinstance(value, str) else value
        return [str(part).strip() for part in parts]


def options_of(names: Iterable[str], leave_out: Iterable[str] = ()) -> list[Option]:
    """Return an option for each keyword of some public functions or classes, each name once.

    Parameters
    ----------
    names
        Public names of spore_dask, such as "fit" and "Params".
    leave_out
        Parameters that are no options.
    """
    seen = {*leave_out, "progress"}
    options = []
    for name in names:
        owner = getattr(spore_dask, name)
        for parameter in inspect.signature(owner).parameters.values():
            if parameter.name not in seen and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                seen.add(parameter.name)
                options.append(_option(owner, parameter))
    return options


def _option(owner: Any, parameter: inspect.Parameter) -> Option:
    """Return the option for one parameter."""
    name = parameter.name
    kind, text = documented(owner).get(name, ("", ""))
    words = RANGES[name].choices if owner is Params else _choices(kind)
    flag = "--" + RENAMED.get(name, name).replace("_", "-")
    settings: dict[str, Any] = {"help": _shortened(text), "show_default": True}
    if isinstance(parameter.default, bool):
        flag += f"/--no-{flag.removeprefix('--')}"
    else:
        settings["type"] = click.Choice(words) if words else _type(str(parameter.annotation))
    section = PARAMETERS if owner is Params else SECTIONS.get(name, GENERAL)
    return Option(
        [flag, name],
        default=parameter.default,
        metavar=METAVARS.get(name),
        section=section,
        **settings,
    )


def _choices(kind: str) -> tuple[str, ...]:
    """Return the words that a documented type such as `{"a", "b"}` allows."""
    braces = re.search(r"\{(.+?)\}", kind)
    words = ast.literal_eval(f"[{braces[1]}]") if braces else []
    return tuple(word for word in words if word is not None)


def _type(annotation: str) -> Any:
    """Return the type of an option as it is annotated."""
    parts = {part.strip() for part in annotation.split("|")} - {"None"}
    if any(part.startswith("Sequence[str]") for part in parts):
        return ListType()
    if any(part.startswith("Mapping") for part in parts):
        return DocumentType()
    if parts == {"int"}:
        return click.INT
    return click.FLOAT if parts <= {"int", "float"} else click.STRING


def documented(owner: Any) -> dict[str, tuple[str, str]]:
    """Return type and description of each parameter that a docstring documents.

    Of `Params`, the descriptions are the strings below its fields. "As in `name`" leads on.
    """
    if owner is Params:
        return {name: ("", text) for name, text in _field_texts(owner).items()}
    found = {}
    for name, (kind, text) in _numpydoc(inspect.getdoc(owner) or "").items():
        other = re.match(r"As in `(\w+)`", text)
        if other and hasattr(spore_dask, other[1]):
            kind, text = documented(getattr(spore_dask, other[1])).get(name, (kind, ""))
        found[name] = kind, text
    return found


def _numpydoc(doc: str) -> dict[str, tuple[str, str]]:
    """Return what the section "Parameters" of a docstring says."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", doc, re.M | re.S)
    found = {}
    for entry in re.split(r"^(?=\S)", section[1] if section else "", flags=re.M):
        head, _, body = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        for name in names.split(","):
            found[name.strip()] = kind, " ".join(body.split())
    return found


def _field_texts(owner: Any) -> Mapping[str, str]:
    """Return the strings below the fields of a dataclass."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except OSError:  # without its source
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def _shortened(text: str) -> str:
    """Return the first sentence of a description, and the one that tells the default."""
    sentences = re.split(r"(?<=\.) (?=[A-Z\"])", text)
    kept = sentences[:1] + [each for each in sentences[1:] if each.startswith("Default")]
    return " ".join(kept).replace("`", "")
