"""A few runs of the chaos benchmark, on little data."""

import random
import re
import subprocess

import pytest

from pipelines import chaos


class Halting(subprocess.Popen):
    """A process that soon waits when nobody listens, so that it is not done before it is killed."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, pipesize=4096, **options)


def test_runs_that_are_hit_end_with_the_same_labels(capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Halting)
    options = ["--seed", "25", "--fault", "driver", "--fault", "chunk"]
    code = chaos.main(["--runs", "2", "--points", "4000", "--partitions", "3", *options])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "2 of 2 ended with the labels of the undisturbed run" in said
    assert re.search(r"\w+ +driver killed; exit codes -9, 0; labels equal, verified", said)


@pytest.mark.parametrize("seed", range(8))
def test_files_are_harmed(tmp_path, seed):
    path = tmp_path / "stage-1" / "a"
    path.parent.mkdir()
    path.write_bytes(bytes(range(200)))
    assert chaos.files_of(tmp_path) == [path]
    assert chaos.damage(path, random.Random(seed), tmp_path).startswith("stage-1/a ")
    assert not path.exists() or path.read_bytes() != bytes(range(200))


def test_what_verify_names_is_removed(tmp_path):
    for name in ("graph-1", "result-2", "other"):
        (tmp_path / name).mkdir()
    sentence = f"'{tmp_path}/other/x' is bad: remove '{tmp_path}/graph-1' and '{tmp_path}/result-2'"
    chaos.remove_what_is_named(sentence + " and fit again.")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
