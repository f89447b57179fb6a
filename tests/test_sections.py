"""Sections of a page that commands write."""

import pytest

from pipelines.sections import replace_section
from spore_dask import InputError


def test_only_what_is_between_the_marks_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- a: begin -->\nold\n<!-- a: end -->\n\nmore\n")
    replace_section(page, "a", "new\n")
    assert page.read_text() == "# Page\n\n<!-- a: begin -->\n\nnew\n\n<!-- a: end -->\n\nmore\n"
    replace_section(page, "b", "other")
    replace_section(page, "a", "newer")
    assert page.read_text() == (
        "# Page\n\n<!-- a: begin -->\n\nnewer\n\n<!-- a: end -->\n\nmore\n"
        "\n<!-- b: begin -->\n\nother\n\n<!-- b: end -->\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_a_page_that_is_not_there_is_made(tmp_path):
    replace_section(tmp_path / "page.md", "a", "text")
    assert (tmp_path / "page.md").read_text() == ("<!-- a: begin -->\n\ntext\n\n<!-- a: end -->\n")


@pytest.mark.parametrize(
    "page",
    ["<!-- a: begin -->", "<!-- a: end --><!-- a: begin -->", "<!-- a: begin -->" * 2],
)
def test_broken_marks_are_an_error(tmp_path, page):
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(InputError, match=r"one of each, in this order: mend the page"):
        replace_section(path, "a", "text")
    assert path.read_text() == page
