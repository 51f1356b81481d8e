# Every target makes what it needs by itself and is quick the second time.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Two sets of packages: what `make quick` needs, without torch, and everything.
DEV := $(VENV)/.installed-dev
INSTALLED := $(VENV)/.installed
LIGHT := core api client operator tuner bench cli
KEEP ?=
PYTEST_ARGS ?=
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt
# Processes that share the unit, property and contract tests, each with one thread for torch.
WORKERS ?= 2

DTYPE_TESTS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit tests/contract -m auto_dtype -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

.PHONY: help demo quick test nightly lint types format unit dtypes apiserver e2e binaries model generate constraints bench bench-modes clean

help: ## Show this help
	@echo "Headrace: LLM serving on Kubernetes that tunes itself."
	@echo
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(INSTALLED) ## The whole loop on the embedded cluster (KEEP=1 leaves it up)
	@$(BIN)/headrace local demo $(if $(KEEP),--keep)

quick: $(DEV) ## Lint, types and tests of all but engine and cluster: no torch, no model, no server; below a minute
	@$(MAKE) --no-print-directory lint
	$(BIN)/mypy $(LIGHT:%=-p headrace_%)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

test: quick types unit dtypes apiserver e2e ## Everything: quick, then unit, contract, API server, end to end

nightly: $(INSTALLED) model ## Property, contract and fuzz tests at depth (hours)
	HYPOTHESIS_PROFILE=nightly HEADRACE_FUZZ=10000 $(BIN)/python -m pytest tests/property tests/contract --timeout 7200 $(PYTEST_ARGS)
	HEADRACE_AUTO_DTYPE=float32 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(MAKE) unit
	HEADRACE_AUTO_DTYPE=bfloat16 $(MAKE) unit

lint: $(DEV) ## Style, import contracts, dead code, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python -m headrace_api.generate --check

types: $(INSTALLED) ## mypy, strict
	$(BIN)/mypy

format: $(DEV) ## Rewrite sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(INSTALLED) model ## Unit and contract tests of the engine, the cluster and the clients: those that quick leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit tests/contract -m "not quick" -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

dtypes: $(INSTALLED) model ## What depends on the machine's dtype, under each that a machine may have
	HEADRACE_AUTO_DTYPE=float32 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(DTYPE_TESTS)
	HEADRACE_AUTO_DTYPE=bfloat16 $(DTYPE_TESTS)

apiserver: $(INSTALLED) binaries ## Tests against the real API server, and of the chart
	$(BIN)/python -m pytest tests/apiserver tests/chart $(PYTEST_ARGS)

e2e: $(INSTALLED) binaries model ## End to end on the embedded cluster with a real model
	$(BIN)/python -m pytest tests/e2e $(PYTEST_ARGS)

binaries: $(INSTALLED) ## Find or build etcd, Kubernetes, Helm and Prometheus (once, about 12 minutes on 2 cores)
	@$(BIN)/headrace local binaries

model: $(INSTALLED) ## Get the demo model (once)
	@$(BIN)/headrace model demo

generate: $(DEV) ## Write the CRDs and the generated docs from the models
	$(BIN)/python -m headrace_api.generate

bench: $(INSTALLED) model ## Step times of the engine on this machine
	@$(BIN)/headrace bench engine "$$($(BIN)/headrace model demo)"

bench-modes: $(INSTALLED) model ## Static, continuous, chunked: one load, one table (about ten minutes)
	@$(BIN)/headrace bench modes

constraints: ## Refresh constraints.txt from a fresh environment
	rm -rf build/constraints-venv && $(PYTHON) -m venv build/constraints-venv
	build/constraints-venv/bin/pip install -q '.[full]'
	{ echo '# Pinned versions of what `make` installs; refreshed by `make constraints`.'; \
	  build/constraints-venv/bin/pip list --format=freeze | grep -vE '^(pip|setuptools|wheel|headrace)=='; } > constraints.txt

clean: ## Remove what make built in the checkout (the caches outside stay)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEV): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory venv
	@echo "Installing what quick checks need (without torch)."
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory venv
	@echo "Installing everything; the first time this downloads about 3 GB, torch most of it."
	@$(PIP_INSTALL) -e '.[full]'
	@touch $(DEV) $@

.PHONY: venv
venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Install it, or: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) ($$($(PYTHON) --version))."; \
	  $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed: on Debian, apt-get install python3-venv" >&2; exit 1; }; }
