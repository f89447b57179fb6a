# `make demo` and `make test` need Python 3.11 or later and nothing else: they make their own
# environment in .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PYTEST := --numprocesses 2
PACKAGES := chromium iproute2 munge openssl slurm-wlm

.PHONY: demo test test-all lint check-python system-packages pictures bench-phases bench-graphs bench-fits bench-choices bench-chaos bench-costs evidence clean

demo: .venv/ready
	$(BIN)/spore-dask demo

test: .venv/ready .venv/kernels lint
	$(BIN)/python -m pytest $(PYTEST)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests of kernels, once more with the bounds of all arrays checked; `make test` does so in small.
BOUNDED := clustering density extending golden partitions predict probing search sums

test-all: system-packages .venv/ready .venv/kernels lint
	SPORE_EXAMPLES=1000 SPORE_CRASHES=all $(BIN)/python -m pytest $(PYTEST)
	NUMBA_BOUNDSCHECK=1 SPORE_CACHE_DIR=$(CURDIR)/.pytest_cache/numba-bounds-workers \
		$(BIN)/python -m pytest $(PYTEST) -k 'not peak' $(BOUNDED:%=tests/test_%.py)

# The Debian packages that some tests drive; those tests skip where they are absent.
system-packages:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES)

# Order, expansion and reassignment against the author's package, which needs Python 3.12.
PEER_PYTHON ?= python3.12
bench-phases: .venv/ready .venv-peer/ready
	$(BIN)/python -m pipelines.phases --peer-python .venv-peer/bin/python

# The out-of-core graph: exactness, recall, memory, speed against peers, start, scaling.
PARTS ?=
bench-graphs: .venv/ready
	$(BIN)/python -m pipelines.graphs $(PARTS)

# The choice among trials without labels; DATA is a folder of .npz files with X and y.
DATA ?= ../shared/data
bench-choices: .venv/ready
	$(BIN)/python -m pipelines.choices --data $(DATA) $(PARTS)

# The whole run: equality, bytes read, memory, speed against peers, scaling, estimates, tune, predict.
bench-fits: .venv/ready .venv-peer/ready
	$(BIN)/python -m pipelines.fits --peer-python .venv-peer/bin/python $(PARTS)

# Fits that random faults hit, called again until they are done.
bench-chaos: .venv/ready
	$(BIN)/python -m pipelines.chaos $(PARTS)

# What each stage costs, and what follows for larger data: the figures of docs/scale.md.
bench-costs: .venv/ready
	$(BIN)/python -m pipelines.costs measure --out build/costs.json
	$(BIN)/python -m pipelines.costs page --out build/costs.json --docs docs

# The evidence in small: the paper's evaluation on the datasets that ship with scikit-learn, and
# 100,000 generated points for us and our peers. The whole of it is in docs/results.md.
EVIDENCE := build/evidence
evidence: .venv/ready
	$(BIN)/python -m pipelines.benchmark run --out $(EVIDENCE)/evaluation --scaling clip-minmax --reruns 3
	$(BIN)/python -m pipelines.scale run --out $(EVIDENCE)/scale --points 1e5 --columns 2 --columns 8 --limit 60
	$(BIN)/python -m pipelines.benchmark page --out $(EVIDENCE)/evaluation --docs $(EVIDENCE)
	$(BIN)/python -m pipelines.scale page --out $(EVIDENCE)/scale --docs $(EVIDENCE)

pictures: .venv/ready
	$(BIN)/python docs/pictures.py

.venv/ready: pyproject.toml | check-python
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --without-pip --clear .venv && \
		$(PYTHON) -m pip --python .venv/bin/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# numba does not see that a function inlined from another file has changed: compile anew.
.venv/kernels: $(wildcard spore_dask/kernels/*.py) | .venv/ready
	find spore_dask -name '*.nb[ci]' -delete
	rm -rf .pytest_cache/numba-*
	touch $@

.venv-peer/ready:
	$(PEER_PYTHON) -m venv .venv-peer
	.venv-peer/bin/python -m pip install --quiet --disable-pip-version-check spore-clustering==1.0.0
	touch $@

check-python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Python 3.11 or later is needed, not "$(PYTHON)": install it, or name it: make PYTHON=...' >&2; exit 1; }

clean:
	rm -rf .venv .venv-peer build .mypy_cache .pytest_cache .ruff_cache .hypothesis
