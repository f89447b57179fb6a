"""Compiled inner loops: numba functions on arrays, without I/O, Python objects or Dask.

What they compute has a plain-Python twin in `tests/naive.py`. They release the GIL and run on one
thread; whoever calls them decides how many run at once. Compiled code is cached between runs.
"""
