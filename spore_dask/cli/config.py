"""Files of options, in YAML or TOML: the command line wins over them.

Reads one small file.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import click
import yaml


def read_document(path: str) -> dict[str, Any]:
    """Read a YAML or TOML file of names and values."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.endswith(".toml") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise click.UsageError(f"{path!r} cannot be read as YAML or TOML ({reason}).") from None
    if found is not None and not isinstance(found, dict):
        raise click.UsageError(
            f"{path!r} holds a {type(found).__name__}, but it must hold lines such as 'seed: 7'."
        )
    return {str(name): value for name, value in (found or {}).items()}


class DocumentType(click.ParamType):  # type: ignore[type-arg]
    """A YAML or TOML file of names and values."""

    name = "FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, Any]:
        """Return what the file says."""
        return value if isinstance(value, dict) else read_document(value)


def use_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Take the values of a file as the defaults of a command."""
    if path is None:
        return
    known = _known_names(ctx)
    values = {}
    for name, value in read_document(path).items():
        plain = name.replace("-", "_")
        if plain not in known:
            near = difflib.get_close_matches(plain, known, 1)
            hint = f"did you mean {near[0].replace('_', '-')!r}?" if near else "see --help."
            raise click.UsageError(f"There is no option {name!r}, which {path!r} has; {hint}")
        if value is not None:
            values[known[plain]] = value
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _known_names(ctx: click.Context) -> dict[str, str]:
    """Return the parameters of a command by each name that a file may use."""
    known = {}
    for parameter in ctx.command.get_params(ctx):
        if {"--config", "--help"} & set(parameter.opts):
            continue
        name = str(parameter.name)
        known[name] = name
        if isinstance(parameter, click.Option):
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            known |= {flag.removeprefix("--").replace("-", "_"): name for flag in flags}
    return known
