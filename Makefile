# Everything a developer or CI does with this project. Needs Python 3.11 or later and make; the rest is set up here.
.DEFAULT_GOAL := help
.PHONY: help demo test bench matrix lint docs package clean
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# 3.11 is the oldest Python that is supported and the one to develop on; any later one does as well.
PYTHON ?= $(shell tools/find-python)
BIN := .venv/bin
# Tests use real sockets and processes, so a file's tests stay together, in order, on one of the workers.
TEST_WORKERS ?= 2

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: .venv/ready ## a distillation against a server with faults: what hung, and what was done about it
	$(BIN)/tinker-deadlines demo

test: .venv/ready ## the whole test suite, on the SDK version pinned for development
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

bench: .venv/bench-ready ## measure what bounding costs; prints the table and writes docs/benchmarks.md
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

matrix: .venv/ready ## the contract with the SDK: every supported SDK version on every Python that is found
	$(BIN)/python tools/matrix.py $(MATRIX_ARGS)

lint: .venv/ready ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs-ready ## build the documentation into site/, to be opened as site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: .venv/ready ## build wheel and sdist into dist/, and try each in an empty environment
	$(BIN)/python tools/check_package.py

clean: ## remove everything that was made here
	rm -rf .venv .matrix dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# pip before 25.1 does not know dependency groups.
.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -qq --no-compile --editable ".[all]" --group dev
	touch $@

.venv/bench-ready: .venv/ready
	$(BIN)/python -m pip install -qq --no-compile --group bench
	touch $@

.venv/docs-ready: .venv/ready
	$(BIN)/python -m pip install -qq --no-compile --group docs
	touch $@
