"""README is true: its code runs when saved to a file, its commands and pictures exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spore_dask.cli.running import EXIT_CODES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_code_runs_when_saved_to_a_file(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_exit_codes_are_those_of_the_command():
    rows = re.findall(
        r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE
    )
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_link_to_what_exists(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    links += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for link in links:
        assert (page.parent / link).exists(), link


def test_commands_and_links_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= commands <= targets
    for link in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / link).exists(), link
    for picture in re.findall(r'(?:src|srcset)="([^"]+)"', README):
        assert (ROOT / picture).exists(), picture
