# Every target sets up what it needs in .venv, on a machine that has only Python (3.11 or newer) and make.
#   make demo    pack the example photographs and stream them        make test    run the tests
#   make check   format, lint, types, layers, dependencies, tests    make bench   measure against peers (also: bench-cache)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Tests on every core: at most four, because each process loads torch (0.3 GB).
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist worksteal

.PHONY: setup demo test check bench bench-batches bench-cache docs clean

setup: $(VENV)/.dev-stamp

# What running needs: the library, torch.
$(VENV)/.stamp: pyproject.toml tools/install_torch.sh
	@$(PYTHON) -c 'import sys; sys.exit("janus-shards needs Python 3.11 or newer, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'pip>=25.1'
	tools/install_torch.sh $(BIN)/python
	$(PIP) install --quiet --editable '.[torch]'
	@touch $@

# What developing needs besides: the checks, the test servers and peers.
$(VENV)/.dev-stamp: $(VENV)/.stamp
	$(PIP) install --quiet --editable '.[torch,fsspec]' --group dev
	@touch $@

demo: $(VENV)/.stamp
	$(BIN)/python tools/demo.py

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/deptry .
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: setup
	$(BIN)/python tools/bench.py

# Padding, planning and steps of planned batches, and mixtures; half a minute.
bench-batches: setup
	$(BIN)/python tools/bench_batches.py

bench-cache: setup
	$(BIN)/python tools/bench_cache.py

# Links, and what the documents say about commands and folders, are tests.
docs: setup
	$(BIN)/python -m pytest tests/docs

clean:
	rm -rf $(VENV) .venv-* build dist demo bench-data .coverage* .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
