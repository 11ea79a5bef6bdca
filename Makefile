# Two commands for a fresh clone: make demo, make test. Both call setup, which is quick when nothing changed.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-gpu check clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "== setting up .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "== torch: the GPU build where there is a GPU, else the CPU build"
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then $(BIN)/pip install -qq $(TORCH); \
	 else $(BIN)/pip install -qq "$(TORCH)+cpu" 2>/dev/null || $(BIN)/pip install -qq $(TORCH); fi
	@echo "== mgap and what its tests need, at the tested versions"
	@$(BIN)/pip install -qq -c constraints.txt -e ".[test]"
	@touch $@

demo: setup
	@$(BIN)/mgap demo

check: setup
	@echo "== lint and types"
	@$(BIN)/ruff check src tests bench examples
	@$(BIN)/ruff format --check src tests bench examples
	@$(BIN)/mypy

test: check
	@echo "== tests"
	@$(BIN)/pytest -n 2

test-gpu: setup
	@echo "== decoding tests, and those of states and methods, on the GPU"
	@MGAP_TEST_GPU=1 $(BIN)/pytest tests/decoding
	@MGAP_TEST_GPU=1 $(BIN)/pytest tests/states tests/methods tests/bench -m gpu

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
