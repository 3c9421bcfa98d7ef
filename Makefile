# Every target installs what it needs into .venv. Requirements: Python >= 3.11, pip and make.

PYTHON ?= python3
ARGS ?= quickstart
SLOW ?= slow
BENCHMARKS ?=
WORKERS ?= 2

BIN := .venv/bin
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
READY := .venv/.ready
PEERS := benchmarks/peers/.venv-torch benchmarks/peers/.venv-reverb
PEERS_READY := $(PEERS:%=%/.ready)

.DEFAULT_GOAL := help
.PHONY: help install train test test-unit test-slow lint bench graph docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## Set up .venv with the pinned versions

train: $(READY) ## Train on KungFuMaster for a few minutes; ARGS="cartpole --actors 2" for another run
	$(BIN)/dpsr-apex train $(ARGS)

test: $(READY) ## Run all tests except the slow ones; WORKERS=1 for one process
	$(PYTEST) -m "not slow"

test-unit: $(READY) ## Run the unit tests and the simulation
	$(PYTEST) tests/simulation tests/unit -m "not slow"

test-slow: $(READY) ## Run the tests that take minutes
	$(PYTEST) -m "$(SLOW)"

lint: $(READY) ## Check style, format, types and words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tools.check_words

bench: $(READY) $(PEERS_READY) ## Run benchmarks against peers, into runs/bench; BENCHMARKS="core memory" for a subset
	$(BIN)/python -m benchmarks $(BENCHMARKS)

graph: $(READY) ## Print the layers and the imports between packages
	@$(BIN)/python -m tools.layers

docs: $(READY) ## Write the generated pages, such as docs/configuration.md
	$(BIN)/python -m docs.configuration
	$(BIN)/python -m docs.methods
	$(BIN)/python -m docs.metrics
	$(BIN)/python -m docs.paper

clean: ## Remove .venv and all caches; runs/ is kept
	rm -rf .venv $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The outer Python's pip installs into the environment, so that ensurepip is not needed.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python >= 3.11 is required, but $(PYTHON) is older; try make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --without-pip $(1)
	$(PYTHON) -m pip --python $(1)/bin/python install --quiet --disable-pip-version-check -r $(2)
endef

$(READY): requirements.lock pyproject.toml
	$(call make_venv,.venv,requirements.lock)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation --editable .
	@touch $@

benchmarks/peers/.venv-%/.ready: benchmarks/peers/requirements-%.txt
	$(call make_venv,$(@D),$<)
	@touch $@
