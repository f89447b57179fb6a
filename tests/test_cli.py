import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import spore_dask
from spore_dask import cli


def test_version_of_the_installed_command():
    command = Path(sys.executable).with_name("spore-dask")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
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


def test_where_nothing_may_be_written_kernels_are_not_cached():
    program = (
        "import numpy, spore_dask.kernels.sums as s; print(s.exact_sum(numpy.ones(3)) >> 1074)"
    )
    no_place = os.environ | {"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    plain = "import numba; numba.njit(cache=True)(lambda: 1)"
    command = [sys.executable, "-c"]
    refused = subprocess.run([*command, plain], env=no_place, capture_output=True, check=False)
    assert b"cannot cache" in refused.stderr
    done = subprocess.run([*command, program], env=no_place, capture_output=True, check=True)
    assert done.stdout.strip() == b"3"
