"""How a command ends: errors and signals become one sentence, and an exit code to act on.

Writes to standard error, and with `--json` one document to standard output.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any

import click

from spore_dask.errors import (
    BusyError,
    ClusterError,
    DamagedError,
    DeniedError,
    InputError,
    LimitError,
    ParameterError,
    SporeError,
    StoreError,
)

PROGRAM = "spore-dask"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S "
"""How lines of a log begin."""
EXIT_CODES = {
    0: "done",
    1: "unexpected error: see --debug",
    2: "bad usage, or a parameter outside its range",
    3: "bad input: not there, not readable, changed since, or not to be clustered",
    4: "too big: for the memory limit, or for the disk",
    5: "damaged: what is on disk is not what was written",
    6: "the cluster or the store failed: it died, or does not answer; trying again may help",
    7: "busy: another process is at work on the same output",
    129: "stopped by SIGHUP; the same command continues",
    130: "stopped by Ctrl-C (SIGINT); the same command continues",
    141: "nobody read what was printed (SIGPIPE); a run that was begun is done",
    143: "stopped by SIGTERM; the same command continues",
}
CODES: list[tuple[type[BaseException], int]] = [
    (LimitError, 4),  # before its base, ParameterError, and before ClusterError: no use to retry
    (MemoryError, 4),
    (BusyError, 7),  # before its base
    (ClusterError, 6),
    (StoreError, 6),
    (DeniedError, 3),
    (DamagedError, 5),
    (InputError, 3),
    (ParameterError, 2),
]
NOT_THERE = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RESUMABLE = {"fit", "graph", "tune", "predict"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = {128 + number for number in SIGNALS}
IMPATIENT_SECONDS = 1.0
"""Time after a signal from which on another one ends the process at once."""


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Session:
    """One call of the command: its arguments, and how it is to speak."""

    def __init__(
        self,
        args: Sequence[str],
        program: str = PROGRAM,
        resumable: Collection[str] = RESUMABLE,
        stamped: bool = False,
    ) -> None:
        self.args = list(args)
        self.program = program
        self.resumable = resumable
        self.stamped = stamped
        self.json = "--json" in args
        self.debug = "--debug" in args

    def tell(self, text: str) -> None:
        """Write a sentence to standard error."""
        when = time.strftime(TIME_FORMAT) if self.stamped else ""
        click.echo(f"{when}{self.program}: {text}", err=True)

    def end(self, error: BaseException) -> int:
        """Tell about an error; return the exit code."""
        code, text = exit_code(error), sentence(error)
        if code in STOPPED:
            warnings.simplefilter("ignore")
        document: dict[str, Any] = {"error": text, "exit_code": code}
        if isinstance(error, KeyboardInterrupt) and self.args and self.args[0] in self.resumable:
            again = [arg for arg in self.args if arg != "--no-resume"]
            document["resume"] = f"{self.program} {shlex.join(again)}"
            text = f"{text.rstrip('.')}; continue with: {document['resume']}"
        if self.debug:
            traceback.print_exception(error)
        elif code == 1:
            text += " (--debug shows where)"
        with contextlib.suppress(OSError):  # nobody reads any more
            self.tell(text)
            if self.json:
                click.echo(json.dumps(document))
        return code


def exit_code(error: BaseException) -> int:
    """Return the exit code that an error leads to, one of `EXIT_CODES`."""
    if isinstance(error, Stopped | click.ClickException):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError):
        return 3 if error.errno in NOT_THERE else 4 if error.errno in NO_ROOM else 1
    return 1


def sentence(error: BaseException) -> str:
    """Return what to tell a user about an error, on one line."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f" See {error.ctx.command_path} --help."
    elif isinstance(error, SporeError):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text = str(error) or "stopped by SIGINT"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename!r}" if error.filename else "")
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())


class Commands(click.Group):
    """Commands with one way to end."""

    program = PROGRAM
    """What a user types before the name of a command."""
    resumable: Collection[str] = RESUMABLE
    """Commands that continue what they have begun, when they are called again."""
    exit_codes = EXIT_CODES
    """What their exit codes mean."""
    stamped = False
    """Whether what goes wrong is told with the time before it, as in a log."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **settings: Any) -> Any:
        """Run a command, and exit."""
        args = sys.argv[1:] if args is None else list(args)
        session = Session(args, self.program, self.resumable, self.stamped)
        settings |= {"prog_name": self.program, "standalone_mode": False, "obj": session}
        with _plain_warnings(session), _signals_raised():
            try:
                code = super().main(args, **settings)
            except click.exceptions.NoArgsIsHelpError as error:
                error.show()
                code = error.exit_code
            except click.Abort as error:
                code = session.end(error.__cause__ or KeyboardInterrupt())
            except (Exception, KeyboardInterrupt) as error:
                code = session.end(error)
        if code in STOPPED:
            warnings.simplefilter("ignore")  # of coroutines that were stopped, while they go
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Tell the exit codes, and how to complete names."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in self.exit_codes.items()])
        if self.program != PROGRAM:
            return
        with formatter.section("Completion of names in bash (zsh and fish alike)"):
            formatter.write_text('eval "$(_SPORE_DASK_COMPLETE=bash_source spore-dask)"')


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Raise `Stopped` for signals that ask to stop; a second one, later, ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise Stopped(number)
        if time.monotonic() - first[0] > IMPATIENT_SECONDS:
            os._exit(128 + number)  # workers notice that their parent is gone

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _plain_warnings(session: Session) -> Iterator[None]:
    """Show warnings as sentences."""

    def show(message: Any, *_: Any, **__: Any) -> None:
        session.tell(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
