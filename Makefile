# Two commands for a fresh clone: make demo, make test. The first installs what mgap needs, the second also what its tests need.
# make test-all adds the product of methods, modes and families, and whole experiments, benchmarks, examples and killed runs.
# make test-docs types every command of README.md and docs/; that they build is in make test.
# make test-inspector tests the web inspector; it needs a Chromium (apt-get install chromium).
# make test-release builds wheel and sdist and tries them in an environment of their own.
# make nightly fuzzes every reader, parser and saved file with 10,000 cases a test, and kills every writer at every moment: hours.
# make test-vllm has an environment of its own, with vLLM's CPU build: 3.5 GB.
# make test-integrations has one too, with other projects' programs: 1.9 GB.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
VLLM := .venv-vllm/bin
PINNED := tests_vllm/constraints.txt
VLLM_TORCH := $(shell grep '^torch==' $(PINNED))
VLLM_OLDER := 0.31.0 0.30.0
OTHERS := .venv-integrations/bin
UV := $(shell command -v uv)
# By uv where there is one, and by pip where there is none or where uv fails, as on an index that only pip.conf names.
# $(1): the environment's bin, $(2): what, $(3): flags for pip alone. Python compiles what it imports, or `compile` all of it.
install = $(if $(UV),$(UV) pip install -q --python $(1)/python $(2) || )$(1)/pip install -qq --no-compile $(3) $(2)
compile = $(1)/python -m compileall -qq -j 0 $$($(1)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || true
# Torch is pip's, for uv does not read pip.conf: the CPU build where pip finds one, for the other brings gigabytes of CUDA.
cpu_torch = $(1)/pip install -qq --no-compile "$(2)+cpu" 2>/dev/null || $(1)/pip install -qq --no-compile $(2)
PYTEST := $(BIN)/pytest
# Processes that share a suite's tests: make test WORKERS=8
WORKERS ?= 2
QUICK := not long and not product
INSPECTOR := tests/inspector
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
unexport PYTHONDONTWRITEBYTECODE  # where it is set, every process that a test starts would compile mgap anew

.PHONY: setup demo docs test test-all nightly test-docs test-docs-vllm test-gpu test-inspector test-release test-vllm test-vllm-older test-integrations check clean

setup: .venv/ready

.venv/runtime: pyproject.toml constraints.txt
	@echo "== setting up .venv with mgap and what it needs, at the tested versions"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "== torch: the GPU build where there is a GPU, else the CPU build"
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then $(BIN)/pip install -qq --no-compile $(TORCH); \
	 else $(call cpu_torch,$(BIN),$(TORCH)); fi
	@echo "== mgap"
	@$(call install,$(BIN),-c constraints.txt -e .)
	@touch $@

.venv/ready: .venv/runtime
	@echo "== what the tests need (a few minutes the first time)"
	@$(call install,$(BIN),-c constraints.txt -e ".[test]")
	@echo "== compiling it once for the processes that tests start"
	@$(call compile,$(BIN))
	@touch $@

demo: .venv/runtime  # make demo MODEL=pocket/natural
	@$(BIN)/mgap demo $(if $(MODEL),--model $(MODEL))

docs: setup  # not --quiet: mkdocs would count no warnings
	@echo "== the documentation into site/; a warning ends it"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "== look at it: python3 -m http.server -d site, then http://127.0.0.1:8000"

check: setup
	@echo "== lint and types"
	@$(BIN)/ruff check src tests tests_browser tests_docs tests_integrations tests_release tests_vllm bench examples research hatch_build.py
	@$(BIN)/ruff format --check src tests tests_browser tests_docs tests_integrations tests_release tests_vllm bench examples research hatch_build.py
	@$(BIN)/mypy

test: setup
	@$(MAKE) --no-print-directory -j 2 check docs
	@echo "== tests: every formula and refusal, every method, every mode with a method of each kind"
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(QUICK)" --ignore $(INSPECTOR)

test-all: test
	@echo "== the rest: all methods in all modes on both families; whole experiments, benchmarks and examples; killed runs"
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m "not ($(QUICK))" --ignore $(INSPECTOR)

nightly: setup
	@echo "== fuzzing: the tests of tests/fuzz, with other cases than in make test, and 10,000 of each"
	@$(PYTEST) -n $(WORKERS) --hypothesis-profile=nightly --timeout 14400 -o faulthandler_timeout=14520 tests/fuzz

test-docs: setup
	@echo "== every command and every block of Python in README.md and docs/"
	@$(PYTEST) -c tests_docs/pytest.ini --rootdir . -n $(WORKERS) --dist loadfile README.md docs tests_docs

test-gpu: setup
	@echo "== decoding tests, and those of priors and methods, on the GPU"
	@MGAP_TEST_GPU=1 $(PYTEST) tests/decoding
	@MGAP_TEST_GPU=1 $(PYTEST) tests/priors tests/methods -m gpu
	@echo "== benchmarks, in a process of their own: torch's profiler crashes where graphs were captured before it"
	@MGAP_TEST_GPU=1 $(PYTEST) tests/bench -m gpu

test-inspector: setup
	@echo "== tests of the inspector: its parts, and then its page in a real browser"
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(INSPECTOR)
	@$(PYTEST) -c tests_browser/pytest.ini -n $(WORKERS) --dist worksteal tests_browser

test-release: setup
	@echo "== wheel and sdist, built, installed without extras, and tried without a network"
	@$(PYTEST) -c tests_release/pytest.ini -n $(WORKERS) tests_release

.venv-vllm/ready: pyproject.toml $(PINNED) tests_vllm/requirements.txt tests_vllm/requires.py
	@echo "== setting up .venv-vllm (a few minutes the first time)"
	@test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	@$(call cpu_torch,$(VLLM),$(VLLM_TORCH))
	@echo "== vLLM without torch's companions, then what else it needs, at the tested versions"
	@$(call install,$(VLLM),--no-deps -r tests_vllm/requirements.txt)
	@$(call install,$(VLLM),--no-deps $$(grep '^torchvision==' $(PINNED)))
	@$(VLLM)/python tests_vllm/requires.py > .venv-vllm/requires.txt
	@$(call install,$(VLLM),-c $(PINNED) -r .venv-vllm/requires.txt,--no-warn-conflicts)
	@echo "== mgap, and its tests' own needs"
	@$(call install,$(VLLM),-c $(PINNED) -e . pytest pytest-timeout pytest-xdist,--no-warn-conflicts)
	@$(call compile,$(VLLM))
	@touch $@

test-vllm: .venv-vllm/ready
	@echo "== tests of serving, with vLLM on the CPU"
	@$(VLLM)/pytest -c tests_vllm/pytest.ini -n $(WORKERS) --ignore tests_vllm/test_docs.py tests_vllm

# Older versions: the same environment, linked, with what they want otherwise. The tests are those of what the plugin takes hold of.
OLDER_TESTS := alone endpoint methods mgap paired_requests plain refusals server text_models
.venv-vllm-%/ready: .venv-vllm/ready tests_vllm/older/%.txt
	@echo "== setting up $(@D)"
	@rm -rf $(@D) && cp -al .venv-vllm $(@D) && rm -rf $@ $(@D)/vllm-cache
	@$(@D)/bin/python -m pip install -qq --no-compile --no-deps -r tests_vllm/older/$*.txt
	@touch $@

test-vllm-older: $(VLLM_OLDER:%=.venv-vllm-%/ready)
	@for version in $(VLLM_OLDER); do echo "== tests of serving, with vLLM $$version on the CPU"; \
	 .venv-vllm-$$version/bin/python -m pytest -c tests_vllm/pytest.ini -n $(WORKERS) $(addprefix tests_vllm/test_,$(addsuffix .py,$(OLDER_TESTS))) || exit 1; done

test-docs-vllm: .venv-vllm/ready
	@echo "== the commands of README.md and docs/ that need vLLM"
	@$(VLLM)/pytest -c tests_vllm/pytest.ini -n $(WORKERS) tests_vllm/test_docs.py

.venv-integrations/ready: pyproject.toml constraints.txt tests_integrations/requirements.txt tests_integrations/needs.txt
	@echo "== setting up .venv-integrations (a few minutes the first time)"
	@test -x $(OTHERS)/python || $(PYTHON) -m venv .venv-integrations
	@$(call cpu_torch,$(OTHERS),$(TORCH))
	@$(call install,$(OTHERS),--no-deps -r tests_integrations/requirements.txt)
	@$(call install,$(OTHERS),-c constraints.txt -r tests_integrations/needs.txt -e . pytest pytest-timeout pytest-xdist)
	@$(call compile,$(OTHERS))
	@touch $@

test-integrations: .venv-integrations/ready
	@echo "== tests inside other projects' programs: MLX, SGLang, lmms-eval"
	@$(OTHERS)/pytest -c tests_integrations/pytest.ini --rootdir . -n $(WORKERS) --dist loadfile tests_integrations

clean:
	rm -rf site .venv .venv-vllm* .venv-integrations .pytest_cache .mypy_cache .ruff_cache .hypothesis
