# Two commands for a fresh clone: make demo, make test. Both call setup, which is quick when nothing changed.
# make test-long: whole experiments, benchmarks and examples, and runs that are killed.
# make test-docs builds the documentation and types every command of README.md and docs/.
# make test-inspector needs a Chromium (apt-get install chromium).
# make test-release builds wheel and sdist and tries them in an environment of their own: 1 GB in a temporary folder, 4 minutes.
# make nightly fuzzes every reader, parser and saved file with 10,000 cases a test, and kills every writer at every moment: hours.
# make test-vllm has an environment of its own, with vLLM's CPU build: 3.5 GB.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
VLLM := .venv-vllm/bin
PINNED := tests_vllm/constraints.txt
VLLM_TORCH := $(shell grep '^torch==' $(PINNED))
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo docs test test-long nightly test-docs test-docs-vllm test-gpu test-inspector test-release test-vllm check clean

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

docs: setup  # not --quiet: mkdocs would count no warnings
	@echo "== the documentation into site/; a warning ends it"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "== look at it: python3 -m http.server -d site, then http://127.0.0.1:8000"

check: setup
	@echo "== lint and types"
	@$(BIN)/ruff check src tests tests_browser tests_docs tests_release tests_vllm bench examples
	@$(BIN)/ruff format --check src tests tests_browser tests_docs tests_release tests_vllm bench examples
	@$(BIN)/mypy

test: check
	@echo "== tests"
	@$(BIN)/pytest -n 2 -m "not long"

test-long: setup
	@echo "== whole experiments, benchmarks and examples, and runs that are killed"
	@$(BIN)/pytest -n 2 -m long

nightly: setup
	@echo "== fuzzing: the tests of tests/fuzz, with other cases than in make test, and 10,000 of each"
	@$(BIN)/pytest -n 2 --hypothesis-profile=nightly tests/fuzz

test-docs: docs
	@echo "== every command and every block of Python in README.md and docs/"
	@$(BIN)/pytest -c tests_docs/pytest.ini --rootdir . -n 2 --dist loadfile README.md docs tests_docs

test-gpu: setup
	@echo "== decoding tests, and those of states and methods, on the GPU"
	@MGAP_TEST_GPU=1 $(BIN)/pytest tests/decoding
	@MGAP_TEST_GPU=1 $(BIN)/pytest tests/states tests/methods -m gpu
	@echo "== benchmarks, in a process of their own: torch's profiler crashes where graphs were captured before it"
	@MGAP_TEST_GPU=1 $(BIN)/pytest tests/bench -m gpu

test-inspector: setup
	@echo "== tests of the inspector, in a real browser"
	@$(BIN)/pytest -c tests_browser/pytest.ini tests_browser

test-release: setup
	@echo "== wheel and sdist, built, installed without extras, and tried without a network"
	@$(BIN)/pytest -c tests_release/pytest.ini tests_release

.venv-vllm/ready: pyproject.toml $(PINNED) tests_vllm/requirements.txt tests_vllm/requires.py
	@echo "== setting up .venv-vllm (a few minutes the first time)"
	@test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	@$(VLLM)/pip install -qq "$(VLLM_TORCH)+cpu" 2>/dev/null || $(VLLM)/pip install -qq $(VLLM_TORCH)
	@echo "== vLLM without torch's companions, then what else it needs, at the tested versions"
	@$(VLLM)/pip install -qq --no-deps -r tests_vllm/requirements.txt
	@$(VLLM)/pip install -qq --no-deps $$(grep '^torchvision==' $(PINNED))
	@$(VLLM)/python tests_vllm/requires.py > .venv-vllm/requires.txt
	@$(VLLM)/pip install -qq --no-warn-conflicts -c $(PINNED) -r .venv-vllm/requires.txt
	@echo "== mgap"
	@$(VLLM)/pip install -qq --no-warn-conflicts -c $(PINNED) -e . pytest pytest-xdist
	@touch $@

test-vllm: .venv-vllm/ready
	@echo "== tests of serving, with vLLM on the CPU"
	@$(VLLM)/pytest -c tests_vllm/pytest.ini -n 2 --dist loadfile --ignore tests_vllm/test_docs.py tests_vllm

test-docs-vllm: .venv-vllm/ready
	@echo "== the commands of README.md and docs/ that need vLLM"
	@$(VLLM)/pytest -c tests_vllm/pytest.ini tests_vllm/test_docs.py

clean:
	rm -rf site .venv .venv-vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis
