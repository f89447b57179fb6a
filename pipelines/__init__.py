"""Jobs that call the public API only: benchmarks, and scheduled work in `jobs`."""
