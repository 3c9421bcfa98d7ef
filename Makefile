# Every target installs what it needs into .venv. Requirements: Python >= 3.11, pip and make.

PYTHON ?= python3
ARGS ?= quickstart
SLOW ?= slow
BENCHMARKS ?=
MINUTES ?= 10
MUTATIONS ?= 1000000
HISTORIES ?=
SEED ?= 0
WORKERS ?= 2
AGAIN ?=

BIN := .venv/bin
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder \
	$(if $(AGAIN),--last-failed --last-failed-no-failures none)
READY := .venv/.ready
FUZZER := build/atheris
PEERS := $(addprefix benchmarks/peers/.venv-,torch reverb envpool)
PEERS_READY := $(PEERS:%=%/.ready)

.DEFAULT_GOAL := help
.PHONY: help install train test test-unit test-slow fuzz simulate chaos lint bench bench-score bench-explorer graph docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## Set up .venv with the pinned versions

train: $(READY) ## Train on KungFuMaster for a few minutes; ARGS="cartpole --actors 2" for another run
	$(BIN)/dpsr-apex train $(ARGS)

test: $(READY) ## Run all tests except the slow ones; WORKERS=1 for one process, AGAIN=1 for those that failed
	$(PYTEST) -m "not slow"

test-unit: $(READY) ## Run the unit tests and the simulation
	$(PYTEST) tests/simulation tests/unit -m "not slow"

test-slow: $(READY) ## Run the tests that take minutes
	$(PYTEST) -m "$(SLOW)"

fuzz: $(READY) $(FUZZER)/.ready ## Fuzz the messages of clients with valid keys for MINUTES=10, then MUTATIONS=1000000 damaged ones
	PYTHONPATH=$(FUZZER) $(BIN)/python -m tests.fuzz --minutes $(MINUTES) --mutations $(MUTATIONS)

simulate: $(READY) ## Simulate runs that fail, for MINUTES=10 or HISTORIES=10000, from SEED=0 on
	$(BIN)/python -m tests.simulation --first $(SEED) $(if $(HISTORIES),--histories $(HISTORIES),--minutes $(MINUTES))

chaos: $(READY) ## Kill, suspend and starve a real run for MINUTES=10, and account for every acknowledged transition
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

lint: $(READY) ## Check style, format, types and words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tools.check_words

bench: $(READY) $(PEERS_READY) ## Run benchmarks against peers, into runs/bench; BENCHMARKS="core memory" for a subset
	$(BIN)/python -m benchmarks $(BENCHMARKS)

bench-score: $(READY) benchmarks/peers/.venv-score/.ready ## Measure CPU time to a score against other trainers, for hours; ARGS="--task cartpole"
	$(BIN)/python -m benchmarks.time_to_score --json runs/bench/time_to_score.json $(ARGS)

bench-explorer: $(READY) ## Measure the explorer in Chromium: how soon a million transitions are shown, and what watching costs a run
	mkdir -p runs/bench
	$(BIN)/python -m benchmarks.explorer views --json runs/bench/explorer_views.json
	$(BIN)/python -m benchmarks.explorer watching --json runs/bench/explorer_watching.json

graph: $(READY) ## Print the layers and the imports between packages
	@$(BIN)/python -m tools.layers

docs: $(READY) ## Write the generated pages, such as docs/configuration.md, and build the site into site/
	$(BIN)/python -m docs.configuration
	$(BIN)/python -m docs.methods
	$(BIN)/python -m docs.metrics
	$(BIN)/python -m docs.paper >/dev/null
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(READY) ## Build the wheel and the source archive into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean: ## Remove .venv and all caches; runs/ is kept
	rm -rf .venv $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
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

$(FUZZER)/.ready:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target $(FUZZER) atheris==3.0.0
	@touch $@

benchmarks/peers/.venv-%/.ready: benchmarks/peers/requirements-%.txt
	$(call make_venv,$(@D),$<)
	@touch $@
