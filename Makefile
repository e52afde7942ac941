# Start with `make demo` and `make test`; `make help` lists all targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOCK   := requirements/dev.txt
ROUNDS ?= 10
MINUTES ?= 30
# worksteal: otherwise one process may get all the long tests, and the others wait for it.
PARALLEL := -p tests.support.progress --dist worksteal
# Two per CPU: tests of workers wait for processes to start and thresholds to pass.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(2 * os.cpu_count())')
# Checked one after the other: all files in one process take pyright more than ten minutes instead of one.
TYPED := worker/horsies+horsies_ops+tui tests/unit tests/integration+tests/support tests/acceptance+tests/chaos+tests/docs+tests/conftest.py

.DEFAULT_GOAL := help
.PHONY: help demo test site chaos soak lint check format bench bench-peers metrics lock pictures schema settings clean

help:  ## list all targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-11s %s\n' "$$name" "$$text"; done

$(READY): $(LOCK) pyproject.toml requirements/install.py
	@$(PYTHON) requirements/install.py $(VENV) $(LOCK)

demo: $(READY)  ## run the sample app with two workers in the terminal UI, on its own database (without a terminal: print a summary)
	@if [ -t 0 ] && [ -t 2 ]; then $(BIN)/horsies demo --tui; else $(BIN)/horsies demo --seconds 30; fi

test: $(READY)  ## run all tests and show how far they are (needs only Python)
	@$(BIN)/python -m pytest $(PARALLEL) -n $(PROCESSES)

chaos: $(READY)  ## repeat the fault tests (ROUNDS=10 times); also fails if the p99 of a recovery time is above its limit
	@times=$$(mktemp); export CHAOS_TIMES=$$times; failed=0; \
	for round in $$(seq $(ROUNDS)); do \
	    echo "round $$round of $(ROUNDS)"; \
	    $(BIN)/python -m pytest $(PARALLEL) -n auto -q --hypothesis-profile=chaos tests/chaos || { failed=1; break; }; \
	done; \
	$(BIN)/python -m tests.support.recovery_times $$times || failed=1; rm -f $$times; exit $$failed

soak: $(READY)  ## run mixed load with random kills for MINUTES=30 and compare the queue with the ledger
	@$(BIN)/python -m tests.support.soak --minutes $(MINUTES)

lint: $(READY)  ## check format, lint rules, types and import layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@for part in $(TYPED); do $(BIN)/pyright $$(echo $$part | tr + ' ') || exit 1; done
	@$(BIN)/lint-imports

site: $(READY)  ## build the documentation in build/site; a broken link is an error
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs --doctree-dir build/doctrees . build/site
	@echo "open build/site/index.html"

check: lint test  ## run lint and test, like CI

format: $(READY)  ## format the code and fix lint errors
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)  ## run the benchmarks of sending, processing, workflows, schedules, recovery and the TUI, on durable private servers
	@for name in run draining growth workflows schedules recovery screens; do $(BIN)/python -m bench.$$name || exit 1; done

bench-peers: $(READY)  ## compare draining with other task queues, installed into an environment that is deleted afterwards
	@peers=$$(mktemp -d) && trap 'rm -rf "$$peers"' EXIT && $(PYTHON) -m venv "$$peers" && \
	    "$$peers/bin/pip" install --quiet --disable-pip-version-check -r requirements/peers.txt && \
	    $(BIN)/python -m bench.peers --python "$$peers/bin/python"

metrics: $(READY)  ## print figures about the code: modules, sizes, one-call helpers and the three walks
	@$(BIN)/python -m bench.structure

lock: $(READY)  ## update the dependencies in requirements/dev.txt (needs uv)
	@command -v uv > /dev/null || { echo "error: make lock needs uv; hint: pip install uv" >&2; exit 1; }
	@uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	    --custom-compile-command 'make lock' --extra embedded --group dev pyproject.toml --output-file $(LOCK) --upgrade

pictures: $(READY)  ## render the pictures of README and docs again after a change of the TUI
	@$(BIN)/python -m tests.support.pictures

schema: $(READY)  ## write docs/schema.sql again after a change of the migrations
	@$(BIN)/python -m tests.support.databases

settings: $(READY)  ## write horsies.toml.example and the tables of docs/settings.md again after a change of a setting
	@$(BIN)/python -m tests.support.settings_files

clean:  ## remove the environment, builds and caches
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
