"""Peak resident memory of this process: of its whole life, and since any moment.

Linux keeps one high-water mark for a process, which can be set back. Whoever measures sets it back
after all who are measuring already have noted how high it was: so tasks in threads and a stage
within a task each get their own peak, and the life's is kept. What comes and goes between the note
and the setting back, a few microseconds, is missed. Where it cannot be set back, on other systems
and in some containers, the peak of the life is what is known.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator


class Peak:
    """The most resident memory that this process had while something was done."""

    def __init__(self) -> None:
        self.nbytes = 0

    def note(self, nbytes: int) -> None:
        """Take note of what the process has had."""
        self.nbytes = max(self.nbytes, nbytes)


_life = Peak()
_measuring = [_life]
_changing = threading.Lock()


@contextlib.contextmanager
def peak_since_now() -> Iterator[Peak]:
    """Measure the peak of this process while the context is open; known when it is closed."""
    peak = Peak()
    with _changing:
        _note()
        _measuring.append(peak)
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", 0) as file:
            file.write(b"5")
    try:
        yield peak
    finally:
        with _changing:
            _note()
            _measuring.remove(peak)


def peak_nbytes() -> int:
    """Return the peak resident memory of this process in bytes, in all its life."""
    with _changing:
        _note()
        return _life.nbytes


def _note() -> None:
    """Let all who measure know how high the mark is."""
    nbytes = _high_water_nbytes()
    for peak in _measuring:
        peak.note(nbytes)


def _high_water_nbytes() -> int:
    """Return the most that this process has had since the mark was set back, or in all its life."""
    peak = status_nbytes("VmHWM")
    if peak:  # getrusage would count what the parent had when it started this process
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def status_nbytes(name: str) -> int:
    """Return one of Linux's figures about this process, or 0 elsewhere."""
    try:
        with open("/proc/self/status", "rb", 0) as file:
            _, _, rest = file.read().partition(f"\n{name}:".encode())
    except OSError:
        return 0
    return int(rest.split(None, 1)[0]) * 1024 if rest else 0
