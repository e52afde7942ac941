# Everything a newcomer needs: `make demo`, `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOCK   := requirements/dev.txt
ROUNDS ?= 10
# The long tests stand side by side: a process that was dealt them all would still be busy when the others are done.
SPREAD := -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test chaos lint check format bench metrics lock pictures schema clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '  %-10s %s\n' "$$name" "$$what"; done

$(READY): $(LOCK) pyproject.toml requirements/install.py
	@$(PYTHON) requirements/install.py $(VENV) $(LOCK)

demo: $(READY)  ## the sample app, two workers and a database of its own, under the screens; a summary without a terminal
	@if [ -t 0 ] && [ -t 2 ]; then $(BIN)/horsies demo --tui; else $(BIN)/horsies demo --seconds 30; fi

test: $(READY)  ## run the tests (needs nothing but Python)
	@$(BIN)/python -m pytest $(SPREAD) || { \
	    echo "what failed is run once more, alone: fault tests have limits in seconds, which a starved machine may miss"; \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

chaos: $(READY)  ## the fault scenarios again and again, ROUNDS=10 says how often; fails also where a p99 of recovery is above its bound
	@times=$$(mktemp); export CHAOS_TIMES=$$times; failed=0; \
	for round in $$(seq $(ROUNDS)); do \
	    echo "round $$round of $(ROUNDS)"; \
	    $(BIN)/python -m pytest $(SPREAD) -q --hypothesis-profile=chaos tests/chaos || { failed=1; break; }; \
	done; \
	$(BIN)/python -m tests.support.recovery_times $$times || failed=1; rm -f $$times; exit $$failed

lint: $(READY)  ## format, lint, types and layers, without changing anything
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

check: lint test  ## what CI runs

format: $(READY)  ## rewrite the code in our format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)  ## measure sending, draining, workflows, recovery and screens, on durable servers of their own
	@for what in run draining workflows recovery screens; do $(BIN)/python -m bench.$$what || exit 1; done

metrics: $(READY)  ## print figures about the code: modules, sizes, one-call helpers and the three walks
	@$(BIN)/python -m bench.structure

lock: $(READY)  ## resolve the dependencies anew into requirements/dev.txt (needs uv)
	@command -v uv > /dev/null || { echo "error: make lock needs uv; hint: pip install uv" >&2; exit 1; }
	@uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	    --custom-compile-command 'make lock' --extra embedded --group dev pyproject.toml --output-file $(LOCK) --upgrade

pictures: $(READY)  ## draw the pictures of README and docs anew after a change of the screens
	@$(BIN)/python docs/pictures.py

schema: $(READY)  ## write docs/schema.sql anew after a change of the migrations
	@$(BIN)/python -m tests.support.databases

clean:  ## remove what make made
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
