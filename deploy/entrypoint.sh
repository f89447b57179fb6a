#!/bin/sh
# What a container does: `scheduler` and `worker` are Dask's, `fit`, `tune` and `refresh` the jobs of
# pipelines/; anything else is run as it is given.
set -eu

case ${1:-} in
    scheduler | worker) exec dask "$@" ;;
    fit | tune | refresh) exec python -m pipelines "$@" ;;
    '') exec spore-dask --help ;;
    *) exec "$@" ;;
esac
