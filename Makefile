# Every target sets up what it needs in .venv by itself; all that must be there is Python >= 3.11, pip and make.

PYTHON ?= python3
ARGS ?= configs/breakout_short.toml
SLOW ?= slow
BENCHMARKS ?=

BIN := .venv/bin
READY := .venv/.ready
PEERS := benchmarks/peers/.venv-torch benchmarks/peers/.venv-reverb
PEERS_READY := $(PEERS:%=%/.ready)

.DEFAULT_GOAL := help
.PHONY: help install train test test-slow lint bench docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## Set up .venv with the pinned versions

train: $(READY) ## Train on Breakout for a few minutes; ARGS="cartpole --actors 2" for another run
	$(BIN)/dpsr-apex train $(ARGS)

test: $(READY) ## Run the tests, without the slow ones
	$(BIN)/pytest -m "not slow"

test-slow: $(READY) ## Run the tests that take minutes
	$(BIN)/pytest -m "$(SLOW)"

lint: $(READY) ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(READY) $(PEERS_READY) ## Measure beside peers, into runs/bench; BENCHMARKS="core memory" for some of it
	$(BIN)/python -m benchmarks $(BENCHMARKS)

docs: $(READY) ## Write the pages that are generated, such as docs/configuration.md
	$(BIN)/python -m docs.configuration

clean: ## Remove what make and the tools made; runs/ stays
	rm -rf .venv $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip of the outer Python installs into the environment, so that a Python without ensurepip will do.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python >= 3.11 is needed, $(PYTHON) is older; try make PYTHON=python3.12" >&2; exit 1; }
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
