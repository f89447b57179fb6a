import subprocess
import sys

import pytest
from click.testing import CliRunner

import spore_dask
from spore_dask import cli


def test_version_of_the_installed_command():
    command = [sys.executable, "-c", "from spore_dask.cli import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"spore-dask, version {spore_dask.__version__}"


def test_demo_finds_what_it_generated():
    result = CliRunner().invoke(cli.commands, ["demo", "--points", "5000"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Generated 5,000 points in 2 columns" in result.output
    agreement = float(result.output.split("(ARI): ")[1].split()[0])
    assert agreement > 0.5


def test_an_expected_error_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spore-dask", "demo", "--columns", "0"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("spore-dask: ")
    assert "Traceback" not in printed
