# Needs Python >= 3.11, pip and make; everything else is set up in .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help map setup test nightly compiled lint unit integration demo resume chaos fuzz ray bench papers format constraints clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

# So many tests run at a time. Those marked `alone`, which look at the whole machine, come after them, one by one: from
# the files that hold some, as collecting all others would take longer than running these.
JOBS ?= 3
TOGETHER := $(BIN)/pytest --quiet --numprocesses $(JOBS) --dist worksteal
BRIEFLY := $(TOGETHER) -m 'not alone and not nightly'
ALONE := $(BIN)/pytest --quiet -m alone $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

test: export MILLRACE_PASSED_TESTS := build/passed-tests.txt
test: .venv/dev.stamp ## all checks and all tests, and whether these show what docs/coverage.md claims
	@$(MAKE) --no-print-directory --jobs 2 compiled lint
	@mkdir -p build && rm -f $(MILLRACE_PASSED_TESTS)
	@$(BRIEFLY)
	@$(ALONE)
	@$(BIN)/python -m tests.evidence $(MILLRACE_PASSED_TESTS)
	@$(BIN)/python -m benchmarks.plot --check > /dev/null
	@echo "all checks and all tests passed"

# Tests start thousands of processes, which would each compile what they import where Python may not write bytecode.
compiled: .venv/compiled.stamp
	@$(BIN)/python -m compileall -q src tests chaos benchmarks
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --quiet --collect-only > /dev/null # writes what asserts become, once

lint: .venv/dev.stamp ## style, types and layering
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: compiled ## tests that neither sleep nor open sockets nor start processes
	@$(BRIEFLY) tests/unit

integration: compiled ## tests with real processes, sockets and servers
	@$(BRIEFLY) tests/integration
	@$(ALONE)

nightly: export MILLRACE_ALL_CASES := 1
nightly: compiled ## all tests, those too that `make test` leaves out, and of all combinations of cases
	@$(TOGETHER) -m 'not alone'
	@$(ALONE)

demo: .venv/demo.stamp ## real pictures, a service with two workers, a model that learns
	@$(BIN)/millrace demo

resume: .venv/dev.stamp ## stopped at every step of every operator and source, and gone on elsewhere; ten minutes
	@$(BIN)/pytest --quiet tests/matrix

chaos: .venv/dev.stamp ## 300 faults in real processes, and a look at every element; CHAOS='--seed 1 --epochs 64'
	@$(BIN)/python -m chaos $(CHAOS)

ray: .venv/dev.stamp .venv/ray.stamp ## tests on Ray clusters of several nodes on this machine, which `make test` skips without Ray
	@$(BIN)/pytest --quiet tests/integration/clusters/test_ray*.py

fuzz: .venv/dev.stamp ## every decoder of bytes from elsewhere, with a million mutated messages each; FUZZ='--only elements'
	@$(BIN)/python -m tests.fuzz.run $(FUZZ)

# Every file of benchmarks/ that holds a BENCHMARK; one of them alone: make bench BENCHMARKS=decode
BENCHMARKS ?= $(patsubst benchmarks/%.py,%,$(shell grep -l '^BENCHMARK = ' benchmarks/*.py))
bench: .venv/bench.stamp ## every benchmark beside the peers, an hour; exit status 1 where an aim is missed
	@mkdir -p benchmarks/results
	@missed=0; for each in $(BENCHMARKS); do \
	  $(BIN)/python -m benchmarks.$$each --json benchmarks/results/$$each.json || missed=1; done; exit $$missed

papers: .venv/bench.stamp ## every experiment of the papers, some six hours, and exit status 1 where an aim is missed; PAPERS='--within 2'
	@$(BIN)/python -m benchmarks.papers $(PAPERS)

format: .venv/dev.stamp ## formats the code and fixes what can be fixed
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

map: .venv/dev.stamp ## docs/architecture.md: a line for each module, from their docstrings
	@$(BIN)/python -m tests.module_map

setup: .venv/dev.stamp ## the environment for development, nothing else

# .venv/EXTRA.stamp: the environment holds this extra, as pyproject.toml and constraints.txt ask.
.venv/%.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up .venv for '$*' (once; a minute or two)"
	@$(PIP_INSTALL) --no-compile --constraint constraints.txt --editable '.[$*]'
	@touch $@

# Libraries, which pip compiles on one core before it ends. Some hold files for other versions of Python.
.venv/compiled.stamp: .venv/dev.stamp
	@$(BIN)/python -m compileall -qq .venv/lib || true
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "millrace needs Python 3.11 or newer, this is " \
	  + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv

constraints: ## constraints.txt anew, from the newest versions that pyproject.toml allows
	@rm -rf build/fresh && $(PYTHON) -m venv build/fresh
	@build/fresh/bin/pip install --quiet --disable-pip-version-check '.[dev]'
	@build/fresh/bin/pip freeze --exclude millrace | sed 's/+[a-z0-9.]*$$//' > constraints.txt
	@rm -rf build/fresh

clean: ## removes the environment and everything built
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
