# Everything is in .venv; `uv` is used where it is there, and not needed.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# The files that take longest come first, so that both processes end at the same time.
IN_TWO = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
export DAGSTER_HOME := $(CURDIR)/.persist/dagster
export PYTHONUTF8 := 1

BRIDGE := persist_assets/compiler/malloy/bridge_js
BUNDLE := $(BRIDGE)/dist/bridge.cjs
VENDOR := persist_assets/web/vendor
VENDORED := $(VENDOR)/dist/NOTICES.txt

TEST_NODE := tests/node/node_modules/.package-lock.json

.PHONY: help setup bridge vendor test-tools demo ui quick test test-all test-slow nightly soak mutations bench bench-peers lint types acceptance reference docs lock clean

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/installed ## Make the environment, and nothing else.
	@$(MAKE) --no-print-directory -s bridge || echo "Malloy files will not compile, those of the demo neither; all else works"
	@$(MAKE) --no-print-directory -s vendor || echo "the dashboard and the catalog site will be plain, without charts"

$(VENV)/installed: pyproject.toml requirements.lock
	@$(PYTHON) scripts/setup.py $(VENV)
	@touch $@

bridge: $(BUNDLE) ## Bundle Malloy's compiler.

$(BUNDLE): $(wildcard $(BRIDGE)/src/* $(BRIDGE)/*.json $(BRIDGE)/*.mjs) | $(VENV)/installed
	@$(BIN)/python scripts/npm.py $(BRIDGE) "ci --no-audit --no-fund" "run build"

vendor: $(VENDORED) ## Fetch the style sheet and the charts of the dashboard.

$(VENDORED): $(wildcard $(VENDOR)/*.json $(VENDOR)/*.mjs) | $(VENV)/installed
	@$(BIN)/python scripts/npm.py $(VENDOR) "ci --no-audit --no-fund" "run build"

test-tools: setup $(BUNDLE) $(VENDORED) $(TEST_NODE) ## Install what only tests need, and name missing programs.
	@command -v chromium >/dev/null || { echo "the tests need Chromium: apt-get install chromium"; exit 1; }
	@$(BIN)/python tests/support/jvm.py

$(TEST_NODE): tests/node/package-lock.json | $(VENV)/installed
	@$(BIN)/python scripts/npm.py tests/node "ci --no-audit --no-fund"
	@touch $@

demo: setup ## Prepare real data, build everything through Dagster, and show it.
	@$(BIN)/python examples/flights/demo.py

ui: setup ## Start Dagster's UI on the demo.
	@$(BIN)/python -c "from persist_assets.operations.home import write_home; from pathlib import Path; write_home(Path('$(DAGSTER_HOME)'))"
	$(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p $${PORT:-3000}

quick: test-tools ## Run the tests that need no Spark and search nothing at random.
	$(BIN)/python -m pytest -n 2 -m "not spark and not random and not slow" $(PYTEST_OPTIONS) tests/unit

test: test-tools ## Run all tests but the slow ones, in two processes.
	$(IN_TWO) -m "not slow" $(PYTEST_OPTIONS) tests/e2e tests/integration tests/unit

test-all: test-tools ## Run all tests.
	$(IN_TWO) $(PYTEST_OPTIONS) tests/e2e tests/integration tests/unit

# The order follows from the date, so that it is another one each day and can be repeated.
BY_DATE = --random-order --random-order-seed=$$(date +%Y%m%d)

test-slow: test-tools ## Run the slow tests, as many as begin within MINUTES; 0 runs all.
	$(IN_TWO) -m slow --minutes $(MINUTES) $(BY_DATE) --random-order-bucket=module $(PYTEST_OPTIONS) tests/e2e tests/integration tests/unit

nightly: test-tools ## Run random queries and TPC-H against Spark, tests on each kind and supported version of it and of Dagster, and all tests in random order.
	PERSIST_TEST_SPARK=local PERSIST_TEST_BY_NIGHT=1 $(BIN)/python -m pytest -s tests/nightly
	$(BIN)/python scripts/versions.py
	PERSIST_TEST_BY_NIGHT=1 $(MAKE) test-all PYTEST_OPTIONS="$(BY_DATE)"
	$(MAKE) soak MINUTES=60

MINUTES ?= 5
SOAK_PATH := $(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support:$(CURDIR)/tests/integration/ledger

soak: test-tools ## Let two deployments work for MINUTES (5) while everything is killed, and look for anything wrong.
	PYTHONPATH=$(SOAK_PATH) $(BIN)/python -m soak.run $(MINUTES)

mutations: test-tools ## Break rules one by one, and see that a test finds each.
	$(BIN)/python tests/support/mutations.py $(OPTIONS)

bench: setup ## Measure speed and reuse, and write docs/benchmarks.md (OPTIONS=--small: only run everything).
	$(BIN)/python benchmarks/run.py $(OPTIONS)

bench-peers: setup ## Compare with SQLMesh, dbt and Spark's pipelines, and write docs/benchmarks-peers.md.
	$(BIN)/python benchmarks/peers.py $(OPTIONS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

acceptance: setup ## Write docs/acceptance.md from the rows and the tests that prove them.
	$(BIN)/python scripts/acceptance.py $(OPTIONS)

reference: setup ## Write docs/reference from the code.
	$(BIN)/python scripts/reference.py $(OPTIONS)

docs: setup ## Build the documentation site.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: setup ## Pin every dependency for development and CI.
	$(BIN)/python scripts/lock.py

clean: ## Remove the environment and everything that was built.
	rm -rf $(VENV) .persist $(BRIDGE)/dist $(BRIDGE)/node_modules
