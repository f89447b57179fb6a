"""`fit` and `SPORE` with the parameters of the paper, in one pass: what most tests are about."""

import functools

import spore_dask

fit = functools.partial(spore_dask.fit, params="paper")
SPORE = functools.partial(spore_dask.SPORE, params="paper")
