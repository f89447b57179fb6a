"""Run `python -m pipelines.benchmark`."""

from pipelines.benchmark.commands import main

if __name__ == "__main__":
    main()
