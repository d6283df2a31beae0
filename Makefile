# What a fresh clone needs: Python 3.11 or newer with venv, git and make. Everything else is installed into .venv, once.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SOAK_SECONDS ?= 600
FUZZ_SECONDS ?= 60

.PHONY: demo test lint format bench soak fuzz clean

demo: $(STAMP)
	@$(BIN)/shmbroker demo

test: lint
	$(BIN)/python -m pytest --durations=15

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy shmbroker workers

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m pytest bench --benchmark-enable --benchmark-only --benchmark-sort=name
	$(BIN)/shmbroker bench

# The tests over and over, each round with a seed of its own, which a failure prints.
soak: $(STAMP)
	@end=$$(( $$(date +%s) + $(SOAK_SECONDS) )); round=0; \
	while [ $$(date +%s) -lt $$end ]; do \
		round=$$((round + 1)); echo "round $$round"; $(BIN)/python -m pytest -q || exit 1; \
	done; echo "$$round rounds, none failed"

# Looks for bytes from a peer that break the codec, from the recorded frames on; what it finds is left in tests/wire/finds
# and is a test case from then on.
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.wire.fuzzing .fuzz -max_total_time=$(FUZZ_SECONDS)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
