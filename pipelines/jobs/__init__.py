"""Scheduled work: one YAML file a job, one command for each kind, exit codes to act on.

`documents` reads and checks the file; `fitting`, `tuning` and `refreshing` do what it asks for,
through the public names of spore_dask; `records` keeps what became of it; `matching` and `drift`
compare today's clusters with the last ones; `publishing` holds what readers follow, and its
pointer; `places` is how they are written and read; `commands` is the command line.
"""
