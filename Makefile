# Everything a fresh machine needs is Python >= 3.11, a C++ compiler and make.
#   make serve   environment, install, default model (once), then an OpenAI-compatible server on 127.0.0.1:8000
#                another model or port: make serve MODEL=./model.gguf ARGS="--port 8001"
#   make test    its own environment, then the whole suite
#   make test-sdk  client libraries (openai, anthropic, Agents SDK, LangChain, ...) against the scripted engine
#   make check   lint, format, types, import directions, sizes
#   make bench   decode, TTFT and batch on this machine against other backends (see benchmarks/)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
VENV ?= .venv
TEST_VENV ?= .venv-test
SDK_VENV ?= .venv-sdk
MODEL ?= smollm2-135m

# What an installed environment depends on: Python sources do not count, the install is editable.
BUILD_INPUTS := pyproject.toml hatch_build.py src/twinpath/native/build.py $(shell find src/twinpath/native/csrc -type f 2>/dev/null)

.PHONY: setup serve chat test test-sdk check bench wheel clean

setup: $(VENV)/.installed

serve: $(VENV)/.installed
	@exec $(VENV)/bin/twinpath serve $(MODEL) $(ARGS)

chat: $(VENV)/.installed
	@exec $(VENV)/bin/twinpath chat $(ARGS)

test: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m pytest $(ARGS)

# The libraries' own leaks and deprecations are theirs.
test-sdk: $(SDK_VENV)/.installed
	@PYTHONPATH=src $(SDK_VENV)/bin/python -m pytest tests/sdk -p no:unraisableexception -o filterwarnings=ignore $(ARGS)

check: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/ruff check .
	@$(TEST_VENV)/bin/ruff format --check .
	@$(TEST_VENV)/bin/mypy
	@$(TEST_VENV)/bin/lint-imports
	@$(TEST_VENV)/bin/python -m pytest -q tests/arch/test_sizes.py

bench: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m benchmarks $(ARGS)

wheel: $(TEST_VENV)/.installed
	@$(TEST_VENV)/bin/python -m build --outdir dist .

clean:
	rm -rf $(VENV) $(TEST_VENV) $(SDK_VENV) build dist src/twinpath/native/_lib

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
$(SDK_VENV)/.installed: pyproject.toml tests/sdk/requirements.txt tests/sdk/package.json
	@test -n "$(PYTHON)" || { echo "twinpath needs Python >= 3.11 (set PYTHON=/path/to/python)" >&2; exit 2; }
	@test -x $(SDK_VENV)/bin/python || { echo "creating $(SDK_VENV)"; $(PYTHON) -m venv $(SDK_VENV); }
	@$(SDK_VENV)/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*p["dependencies"], sep="\n")' > $(SDK_VENV)/runtime.txt
	@$(SDK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(SDK_VENV)/runtime.txt -r tests/sdk/requirements.txt
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --no-package-lock --prefix tests/sdk; \
		else echo "npm is not installed: the AI SDK's test will skip"; fi
	@touch $@
