# Everything runs from .venv, which `make setup` creates from requirements.lock.
PY := .venv/bin/python
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Tests with servers of other projects: `python -m tests.campaigns list`.
OTHER_SERVERS := --ignore tests/kafka --ignore tests/cluster --ignore tests/yarn --ignore tests/kubernetes
# Keep compiled modules, whatever the shell says: the tests start several hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all mutants lint types docs bench lock clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18
	@echo "Long campaigns: $(PY) -m tests.campaigns list"

setup: .venv/.ready  ## Create .venv from requirements.lock

.venv/.ready: requirements.lock pyproject.toml scripts/setup
	scripts/setup

demo: setup  ## Trace a small agent, keep its spans, and show them
	.venv/bin/tracelake demo

test: lint types  ## Lint, types, and the tests that take minutes
	scripts/setup-browser
	$(PYTEST) -m "not slow and not mutant" --ignore tests/mutants $(OTHER_SERVERS)

test-all: setup  ## All other tests: Spark, kills, simulations, browser, Kafka
	scripts/setup-browser
	$(PYTEST) -m "slow and not mutant" --ignore tests/mutants $(OTHER_SERVERS)
	$(PY) -m tests.campaigns kafka

mutants: setup  ## Break each rule, and check that a test notices
	$(PYTEST) tests/mutants

lint: setup  ## Check style with ruff, spelling with codespell, workflows with zizmor
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/zizmor --offline --quiet .github/workflows

types: setup  ## Check types with mypy
	.venv/bin/mypy

docs: setup  ## Generate the reference pages; the complete ones in build/reference
	$(PY) -m scripts.reference --complete build/reference

bench: setup  ## Measure ingestion beside plain PySpark and DuckDB
	$(PY) benchmarks/ingest.py

lock: setup  ## Write requirements.lock from pyproject.toml
	scripts/lock

clean:  ## Remove .venv and caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
