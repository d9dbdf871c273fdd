# Two commands do all: `make demo` and `make test`. Everything else is for working on the code.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# The interpreter that .venv has, once there is one: what was chosen stays chosen when the dependencies change.
PYTHON ?= $(shell .venv/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null || command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export DO_NOT_TRACK := 1
export PYTHONUNBUFFERED := 1
# Where it is set, every process compiles all it imports anew: some seconds for each of the hundreds that tests start.
unexport PYTHONDONTWRITEBYTECODE
# The pure tests keep a core each busy; those on real processes mostly wait, so that more of them run than there are cores.
UNIT_WORKERS ?= 2
WORKERS ?= 4
MINUTES ?= 15
SEED ?= 7
PYTEST := $(BIN)/pytest
# Shifts of ten seconds, started by a real worker, and whole systems run two at a time, after the others.
SHIFTS := tests/integration/prefect tests/e2e/test_whole_loop.py tests/e2e/test_tour.py
# Tests that serve real requests in compressed time or measure them need a core of their own: they run last, one after
# the other.
SERVING := tests/integration/replay/test_replay_agreement.py tests/integration/engine/test_traffic_replay.py \
  tests/integration/benchmarks/test_measuring.py tests/integration/services/test_service_benchmarks.py \
  tests/e2e/test_demonstration.py

.PHONY: help demo demo-tour test test-all soak unit integration e2e check format install crds monitoring bench clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(STAMP) ## create .venv with every dependency (a later call takes no time)

$(STAMP): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash deployments/install.sh
	@touch $@

demo: $(STAMP) ## onboard a model and scale it under real traffic, about five minutes (KEEP=1 leaves it running)
	@$(BIN)/modelyard demo $(if $(KEEP),--keep) $(DEMO_ARGS)

demo-tour: $(STAMP) ## models on nodes, services, updates, roll-back, routing, about three minutes (KEEP=1)
	@$(BIN)/modelyard demo tour $(if $(KEEP),--keep)

test: $(STAMP) ## before every merge: all but the long tests
	@$(BIN)/modelyard local binaries
	@status=0; run() { part=$$1; shift; \
	$(PYTEST) "$$@" $(if $(REPORT),--junitxml=$(REPORT).$$part) $(PYTEST_ARGS) || status=$$?; }; \
	run 1 -n $(UNIT_WORKERS) tests/unit; \
	run 2 -n $(WORKERS) tests/integration $(SHIFTS:%=--ignore=%) $(SERVING:%=--ignore=%); run 3 -n 2 $(SHIFTS); \
	run 4 -n 0 $(SERVING); exit $$status

test-all: test ## before a release: also the long tests, many examples of every property, a soak
	@$(PYTEST) -n 2 -m long tests/integration tests/e2e $(PYTEST_ARGS)
	@$(PYTEST) -n $(UNIT_WORKERS) -m long tests/unit $(PYTEST_ARGS)
	@$(PYTEST) -n $(UNIT_WORKERS) tests/unit --hypothesis-profile=thorough $(PYTEST_ARGS)
	@$(BIN)/python tests/soak/soak.py --minutes $(MINUTES) --seed $(SEED)

unit: $(STAMP) ## while you work: the pure tests
	@$(PYTEST) -n $(UNIT_WORKERS) tests/unit $(PYTEST_ARGS)

integration: $(STAMP) ## the tests on the real control plane, Prometheus and Prefect
	@$(BIN)/modelyard local binaries
	@$(PYTEST) -n $(WORKERS) tests/integration $(PYTEST_ARGS)

e2e: $(STAMP) ## the demonstrations, end to end
	@$(BIN)/modelyard local binaries
	@$(PYTEST) -n 0 tests/e2e $(PYTEST_ARGS)

check: $(STAMP) ## formatting, lint, types, layers, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m modelyard.resources --check
	@$(BIN)/python -m modelyard.monitoring --check

format: $(STAMP) ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

soak: $(STAMP) ## the fleet under load while everything is killed in turn (MINUTES=15 SEED=7)
	@$(BIN)/python tests/soak/soak.py --minutes $(MINUTES) --seed $(SEED)

crds: $(STAMP) ## generate config/crd from the models
	@$(BIN)/python -m modelyard.resources

monitoring: $(STAMP) ## generate dashboards, alerts and monitors
	@$(BIN)/python -m modelyard.monitoring

bench: $(STAMP) ## all measurements; see docs/performance.md
	@$(BIN)/modelyard local binaries
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean: ## remove the virtual environment and caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis out
