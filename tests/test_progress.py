import io
import json
import logging
from pathlib import Path

import pytest

from spore_dask.errors import ParameterError
from spore_dask.progress import (
    KINDS,
    Bar,
    Event,
    FileLog,
    as_consumer,
    describe,
    ignore,
    log_events,
)

STORY = [
    Event("stage-start", "scan", 0, 4, 0.0),
    *(Event("task-done", "scan", n, 4, 0.5 * n, process="a:1", peak_nbytes=9) for n in (1, 2, 3)),
    Event("worker-lost", "scan", 3, 4, 1.6, text="Worker process 7 was ended by signal 9."),
    Event("task-done", "scan", 4, 4, 2.0),
    Event("stage-end", "scan", 4, 4, 2.0),
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def seen_on(stream, every=0.0):
    bar = Bar(stream, every)
    for event in STORY:
        bar(event)
    return stream.getvalue()


def as_a_terminal_shows(text):
    """Apply carriage returns and erasures; return the lines that stay."""
    lines = [""]
    for part in text.replace("\x1b[K", "").split("\n"):
        lines[-1] = part.split("\r")[-1]
        lines.append("")
    return [line for line in lines if line]


def test_bar_rewrites_one_line_of_a_terminal():
    text = seen_on(Terminal())
    assert "\r" in text
    assert " 50%  2/4  2.0 tasks/s  1.0 s left" in text
    assert as_a_terminal_shows(text) == [
        "scan: Worker process 7 was ended by signal 9.",
        "scan: done, 4 tasks in 2.0 s",
    ]


def test_bar_leaves_no_half_a_line():
    stream = Terminal()
    bar = Bar(stream, 0.0)
    bar(STORY[1])
    bar.clear()
    bar.clear()
    assert as_a_terminal_shows(stream.getvalue()) == []


def test_bar_writes_plain_lines_elsewhere():
    lines = seen_on(io.StringIO()).splitlines()
    assert lines[0] == "scan: 4 tasks"
    assert lines[-1] == "scan: done, 4 tasks in 2.0 s"
    assert len(lines) == len(STORY)
    assert not any("\r" in line or "\x1b" in line for line in lines)


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_bar_does_not_write_more_often_than_asked(stream):
    text = seen_on(stream(), every=1000.0)
    assert "tasks/s" not in text
    assert "signal 9" in text
    assert "done, 4 tasks" in text


def test_bar_writes_to_the_current_standard_error(capsys):
    as_consumer(True)(STORY[-1])
    assert capsys.readouterr().err == "scan: done, 4 tasks in 2.0 s\n"


def test_file_has_one_line_of_json_for_each_event(tmp_path):
    log = FileLog(tmp_path / "events.jsonl")
    for n, event in enumerate(STORY, 1):
        log(event)
        assert len(log.path.read_text().splitlines()) == n
    records = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [record.pop("time") > 1e9 for record in records] == [True] * len(STORY)
    assert [Event(**record) for record in records] == STORY


def test_log_has_levels(caplog):
    caplog.set_level(logging.DEBUG)
    consumer = log_events(logging.getLogger("somewhere"))
    for event in STORY:
        consumer(event)
    assert [record.levelno for record in caplog.records] == [
        logging.INFO,
        *[logging.DEBUG] * 3,
        logging.WARNING,
        logging.DEBUG,
        logging.INFO,
    ]
    assert {record.name for record in caplog.records} == {"somewhere"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_tasks", [0, 3])
def test_every_event_can_be_described(kind, n_tasks):
    text = describe(Event(kind, "scan", 0, n_tasks, text="so it is"))
    assert text.startswith("scan: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.9, "59.9 s"), (61, "1 min 1 s"), (3599.7, "1 h 0 min"), (7260, "2 h 1 min")],
)
def test_durations(seconds, text):
    assert describe(Event("stage-end", "scan", 1, 1, seconds)).endswith(f"in {text}")


def test_slow_stages_are_told_in_seconds_a_task():
    event = Event("task-done", "scan", 2, 4, 20.0)
    assert describe(event) == "scan:  50%  2/4  10.0 s/task  20.0 s left"


def test_what_progress_may_be(tmp_path, caplog):
    caplog.set_level(logging.INFO, "spore_dask")
    heard = []
    path = tmp_path / "events.jsonl"
    assert as_consumer(None) is ignore
    assert as_consumer(False) is ignore
    assert as_consumer(heard.append) == heard.append
    assert isinstance(as_consumer("bar"), Bar)
    as_consumer([heard.append, ("log", Path(path)), None])(STORY[0])
    assert heard == STORY[:1]
    assert caplog.messages == ["scan: 4 tasks"]
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("progress", ["bra", 1, 2.5, object(), ["bar", "bra"], b"log"])
def test_what_progress_may_not_be(progress):
    with pytest.raises(ParameterError, match=r"progress is .*, but it must be None, True, 'bar'"):
        as_consumer(progress)


def test_a_log_that_finds_no_room_does_not_stop_a_run():
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    FileLog("/dev/full")(Event("stage-start", "scan"))
    with pytest.raises(FileNotFoundError):
        FileLog("/no/such/folder/log")(Event("stage-start", "scan"))
