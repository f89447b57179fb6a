"""The page: facts and figures in one HTML file that needs nothing else.

Reads the template, style and script beside this file, and Bokeh's library; everything that a run
says is escaped by the template.
"""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import jinja2
from bokeh.resources import Resources


def render(machine: dict[str, Any], figures: list[Any], **shown: Any) -> str:
    """Return the page.

    Parameters
    ----------
    machine : dict
        Numbers for machines, as JSON in the element `numbers`.
    figures : list
        What Bokeh's library draws.
    **shown
        What the template shows.
    """
    folder = importlib.resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html").read_text("utf-8"))
    return template.render(
        style=folder.joinpath("page.css").read_text("utf-8"),
        script=_script(folder.joinpath("page.js").read_text("utf-8")),
        library=_script("\n".join(_library())) if figures else "",
        machine=_json(machine),
        figures=_json(figures),
        **shown,
    )


def _library() -> list[str]:
    """Return the text of Bokeh's library: figures only, without tables and formulas."""
    raw: list[str] = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    return raw


def _script(text: str) -> str:
    """Return a script that cannot end its element."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(value: Any) -> str:
    """Return JSON that cannot end its element, and that every parser takes."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
