# Everything is in .venv; `uv` is used where it is there, and not needed.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# What computes in the session of the test process.
ON_SPARK := $(addprefix tests/integration/test_,builder.py dagster.py environments.py pool.py)
export DAGSTER_HOME := $(CURDIR)/.persist/dagster
export PYTHONUTF8 := 1

BRIDGE := persist_assets/frontends/malloy_bridge
BUNDLE := $(BRIDGE)/dist/bridge.cjs

.PHONY: help setup bridge demo ui test nightly bench lint types acceptance lock clean

help: ## Show this list.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/installed ## Make the environment, and nothing else.
	@$(MAKE) --no-print-directory -s bridge || echo "Malloy files will not compile, those of the demo neither; all else works"

$(VENV)/installed: pyproject.toml requirements.lock
	@$(PYTHON) scripts/setup.py $(VENV)
	@touch $@

bridge: $(BUNDLE) ## Bundle Malloy's compiler.

$(BUNDLE): $(wildcard $(BRIDGE)/src/* $(BRIDGE)/*.json $(BRIDGE)/*.mjs) | $(VENV)/installed
	@$(BIN)/python scripts/bridge.py

demo: setup ## Prepare real data, build everything through Dagster, and show it.
	@$(BIN)/python examples/flights/demo.py

ui: setup ## Start Dagster's UI on the demo.
	@$(BIN)/python -c "from persist_assets.plugin.runs import write_home; from pathlib import Path; write_home(Path('$(DAGSTER_HOME)'))"
	$(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p $${PORT:-3000}

# The files that take longest come first, so that both processes end at the same time.
test: setup ## Run all tests, in two processes.
	@$(BIN)/python tests/jvm.py
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		tests/e2e tests/integration tests/unit

nightly: setup ## Run random queries and TPC-H against Spark, and tests on each kind of it.
	PERSIST_TEST_SPARK=local $(BIN)/python -m pytest -s tests/nightly
	PERSIST_TEST_SPARK=local-cluster $(BIN)/python -m pytest $(ON_SPARK)
	PERSIST_TEST_SPARK=shared $(BIN)/python -m pytest $(ON_SPARK)

bench: setup ## Measure speed and reuse, and write docs/benchmarks.md.
	$(BIN)/python benchmarks/run.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

acceptance: setup ## Write docs/acceptance.md from the rows and the tests that prove them.
	$(BIN)/python scripts/acceptance.py

lock: setup ## Pin every dependency for development and CI.
	$(BIN)/python scripts/lock.py

clean: ## Remove the environment and everything that was built.
	rm -rf $(VENV) .persist $(BRIDGE)/dist $(BRIDGE)/node_modules
