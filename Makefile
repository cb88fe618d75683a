# Two commands do everything: `make reproduce` (the main job) and `make test`.
# They need Python 3.11 or newer and nothing else; the environment is built in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: reproduce test test-all check docs notebooks mutants bad-calls lint setup clean

reproduce: setup
	$(BIN)/lfom reproduce

test: setup lint
	$(BIN)/python -m pytest --quick $(SIDE_BY_SIDE)

# With the slow ones too (tests/slow.txt): variants of what `make test` runs, and long trainings.
test-all: setup lint
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

# Lint, types and the laws of the core: a minute, for every change.
check: setup lint
	$(BIN)/python -m pytest -n 2 -q tests/test_laws.py tests/test_architecture.py tests/test_parameters.py \
		tests/test_readers.py tests/test_coefficients_memories.py tests/test_theorems.py

# The site, from docs/ to build/site: every page is executed, a warning is an error, and links are followed.
docs: setup $(VENV)/.docs
	rm -rf build/site
	$(BIN)/python docs/build.py build/site

# The two tours as notebooks, from their pages; a test compares them.
notebooks: setup
	$(BIN)/python docs/notebooks.py

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

# Slips put into a copy of the code, one at a time: how many do the tests see? (tests/mutants)
mutants: setup
	$(BIN)/python -m tests.mutants

# 300 calls of the command line and 300 of the API with bad arguments, generated from the signatures (tests/bad_calls).
bad-calls: setup
	$(BIN)/python -m tests.bad_calls

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lfom needs Python 3.11 or newer; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) results build
