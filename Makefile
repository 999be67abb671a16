# Everything a fresh machine needs is Python >= 3.11, a C++ compiler and make.
#   make serve   environment, install, default model (once), then an OpenAI-compatible server on 127.0.0.1:8000
#                another model or port: make serve MODEL=./model.gguf ARGS="--port 8001"
#   make test    its own environment, then the whole suite
#   make test-sdk  client libraries (openai, anthropic, Agents SDK, LangChain, ...) against the scripted engine
#   make test-sdk-model  the same libraries against the default model (a few minutes)
#   make test-schema     200 generated requests for every operation of the API, good and bad (CI makes 25)
#   make check   lint, format, types, import directions, sizes
#   make bench   decode, TTFT and batch on this machine against other backends (see benchmarks/)
#   make bench-gpu  decode steps, prefill and sampler on this machine's NVIDIA card, with the python that has torch and CUDA

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
VENV ?= .venv
TEST_VENV ?= .venv-test
SDK_VENV ?= .venv-sdk
# LlamaIndex wants openai < 3, the Agents SDK wants more: an environment of its own.
LLAMA_INDEX_VENV ?= .venv-llama-index
MODEL ?= smollm2-135m

# What an installed environment depends on: Python sources do not count, the install is editable.
BUILD_INPUTS := pyproject.toml hatch_build.py src/twinpath/native/build.py $(shell find src/twinpath/native/csrc -type f 2>/dev/null)

.PHONY: setup serve chat test test-sdk test-sdk-model test-schema check bench bench-gpu wheel clean

setup: $(VENV)/.installed

serve: $(VENV)/.installed
	@exec $(VENV)/bin/twinpath serve $(MODEL) $(ARGS)

chat: $(VENV)/.installed
	@exec $(VENV)/bin/twinpath chat $(ARGS)

# What only computes shares the cores; rooms with servers, processes and clocks have the machine to themselves.
SERVING_ROOMS = api e2e gateway ipc rpc sdk telemetry test_worker.py
test: $(TEST_VENV)/.installed
ifdef ARGS
	@$(TEST_VENV)/bin/python -m pytest $(ARGS)
else
	@status=0; $(TEST_VENV)/bin/python -m pytest -n 2 --dist worksteal $(SERVING_ROOMS:%=--ignore tests/%) || status=1; \
		$(TEST_VENV)/bin/python -m pytest $(SERVING_ROOMS:%=tests/%) || status=1; exit $$status
endif

# The libraries' own leaks and deprecations are theirs.
SDK_TEST = -m pytest -p no:unraisableexception -o filterwarnings=ignore
test-sdk: $(SDK_VENV)/.installed $(LLAMA_INDEX_VENV)/.installed
	@PYTHONPATH=src $(SDK_VENV)/bin/python $(SDK_TEST) tests/sdk --ignore tests/sdk/real $(ARGS)
	@PYTHONPATH=src $(LLAMA_INDEX_VENV)/bin/python $(SDK_TEST) tests/sdk/test_llama_index.py tests/sdk/test_recipes.py -k llama_index $(ARGS)

test-sdk-model: export TWINPATH_SERVE = $(VENV)/bin/twinpath serve
test-sdk-model: $(VENV)/.installed $(SDK_VENV)/.installed $(LLAMA_INDEX_VENV)/.installed
	@PYTHONPATH=src $(SDK_VENV)/bin/python $(SDK_TEST) tests/sdk/real --timeout 300 $(ARGS)
	@PYTHONPATH=src $(LLAMA_INDEX_VENV)/bin/python $(SDK_TEST) tests/sdk/real --timeout 300 -k LlamaIndex $(ARGS)

test-schema: export TWINPATH_SCHEMA_EXAMPLES = 200
test-schema: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m pytest tests/api/test_conformance.py --timeout 1800 $(ARGS)

check: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/ruff check .
	@$(TEST_VENV)/bin/ruff format --check .
	@$(TEST_VENV)/bin/mypy
	@$(TEST_VENV)/bin/lint-imports
	@$(TEST_VENV)/bin/python -m pytest -q tests/arch/test_sizes.py

bench: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m benchmarks $(ARGS)

# HTTP needs a tokenizer: python -m benchmarks.gpu_http --tokenizer FOLDER. Several GPUs: python -m benchmarks.gpu_ranks.
bench-gpu:
	@PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_engine --parts sampler,prefill,steps --json benchmarks/results/gpu-engine.json
	@PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_costs --json benchmarks/results/gpu-costs.json
	@PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_decode --out benchmarks/results/gpu-decode.json

wheel: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m build --outdir dist .

clean:
	rm -rf $(VENV) $(TEST_VENV) $(SDK_VENV) $(LLAMA_INDEX_VENV) build dist src/twinpath/native/_lib

# $(1): environment folder, $(2): extra. The stamp is written last, so that an interrupted install is done again.
define environment
$(1)/.installed: $$(BUILD_INPUTS)
	@test -n "$$(PYTHON)" || { echo "twinpath needs Python >= 3.11 (set PYTHON=/path/to/python)" >&2; exit 2; }
	@test -x $(1)/bin/python || { echo "creating $(1)"; $$(PYTHON) -m venv $(1); }
	@echo "installing twinpath into $(1) (once, one to three minutes: dependencies, and the C++ step is compiled)"
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.$(2)'
	@touch $$@
endef
$(eval $(call environment,$(VENV),))
$(eval $(call environment,$(TEST_VENV),[dev]))

# Client libraries pin much, so they live apart; with what the HTTP side imports, and without the compiled step.
# $(1): environment folder, $(2): its requirements.
define client_environment
	@test -n "$(PYTHON)" || { echo "twinpath needs Python >= 3.11 (set PYTHON=/path/to/python)" >&2; exit 2; }
	@test -x $(1)/bin/python || { echo "creating $(1)"; $(PYTHON) -m venv $(1); }
	@$(1)/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*p["dependencies"], sep="\n")' > $(1)/runtime.txt
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r $(1)/runtime.txt -r $(2)
endef

$(LLAMA_INDEX_VENV)/.installed: pyproject.toml tests/sdk/requirements-llama-index.txt
	$(call client_environment,$(LLAMA_INDEX_VENV),tests/sdk/requirements-llama-index.txt)
	@touch $@

$(SDK_VENV)/.installed: pyproject.toml tests/sdk/requirements.txt tests/sdk/package.json
	$(call client_environment,$(SDK_VENV),tests/sdk/requirements.txt)
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --no-package-lock --prefix tests/sdk; \
		else echo "npm is not installed: the AI SDK's test will skip"; fi
	@touch $@
