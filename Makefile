# Every target sets up .venv by itself. To choose another Python: make PYTHON=python3.12 test
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
FULL := .venv/.installed

.PHONY: help demo test test-slow test-release lint format docs build clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "quell needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)."; \
	    echo "Type for example: make PYTHON=python3.11 $(or $(firstword $(MAKECMDGOALS)),test)"; exit 1; }
	$(PYTHON) -m venv .venv

# The demo needs the library and its commands only, and bytecode of what it imports; the full environment serves it too.
$(DEMO): pyproject.toml requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c requirements.txt -e '.[cli]'
	@touch $@

$(FULL): pyproject.toml requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c requirements.txt -e '.[dev]'
	@touch $(DEMO) $@

demo: $(DEMO) ## a small version of the paper's Table 1, written to demo-output/
	$(BIN)/python -m experiments.paper table1 --datasets ionosphere,sonar --variates none,S4,S7,c7 --runs 4 --out demo-output

test: $(FULL) ## tests and doctests, within ten minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not release"

test-slow: $(FULL) ## the long tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not release"

test-release: $(FULL) ## the longest tests, and more cases of the others: once before a release
	$(BIN)/python -m pytest -n 2 --dist worksteal -m release

lint: $(FULL) ## style, types, import layers, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

format: $(FULL) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(FULL) ## the documentation, written to site/
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict

build: $(FULL) ## the wheel, tried out in an empty environment
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation
	empty=$$(mktemp -d) && trap 'rm -rf "$$empty"' EXIT && \
	  $(BIN)/python -m venv "$$empty" && \
	  "$$empty/bin/python" -m pip install --quiet --disable-pip-version-check -c requirements.txt dist/quell-*.whl && \
	  "$$empty/bin/python" -I tests/wheel_smoke.py

clean: ## remove what the other targets wrote (.venv stays)
	rm -rf dist build site demo-output .pytest_cache .ruff_cache .import_linter_cache
	find src experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +
