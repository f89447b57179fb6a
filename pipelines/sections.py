"""Replace the part of a page that a command writes, between two marks; the rest stays as it is.

Reads and writes the page, whole or not at all. Beside it, what such parts are made of.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from spore_dask import InputError


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks of a section, `<!-- name: begin -->` and `<!-- name: end -->`.

    A page without the marks gets them, and the text, at its end; a page that is not there is made.

    Parameters
    ----------
    path : Path
        The page.
    name : str
        Name of the section.
    text : str
        What stands between the marks, in Markdown; a blank line comes before and after it.

    Raises
    ------
    InputError
        If the page has one of the two marks and not the other, more than one, or the end first.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text() if path.exists() else ""
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    counts = page.count(begin), page.count(end)
    if counts == (0, 0):
        page = f"{page.rstrip()}\n\n{section}\n".lstrip()
    elif counts == (1, 1) and page.index(begin) < page.index(end):
        page = page[: page.index(begin)] + section + page[page.index(end) + len(end) :]
    else:
        raise InputError(
            f"{path.name} has {counts[0]} of {begin!r} and {counts[1]} of {end!r}, but must have "
            f"one of each, in this order: mend the page."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(page)
    os.replace(part, path)


def picture(name: str, words: str) -> str:
    """Embed a picture, NAME.light.png and NAME.dark.png, for light and for dark pages."""
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{name}.dark.png">\n'
        f'  <img alt="{words}" src="{name}.light.png">\n'
        "</picture>"
    )


def listed(words: Iterable[str]) -> str:
    """Join words with commas and a last "and"."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last
