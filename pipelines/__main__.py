"""`python -m pipelines`: scheduled work. The benchmarks are modules of their own."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a job."""
    try:
        from pipelines.jobs.commands import commands  # takes a moment, in which a signal may come
    except KeyboardInterrupt:
        sys.exit(130)
    commands()


if __name__ == "__main__":
    main()
