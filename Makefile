# SPDX-License-Identifier: GPL-2.0-only
# Everything that is done with the project, by name: `make help`.
# Each target makes the Python environment it needs in .venv, once.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
C_FILES := $(wildcard $(foreach depth,native native/* native/*/*,$(depth)/*.c $(depth)/*.h))
# Each process takes a file after the other, in this order: the longest first, so that all end together.
TESTS := --dist loadfile --no-loadscope-reorder --nbmake --nbmake-timeout=3600 \
	$(wildcard notebooks) tests/twins tests/live tests
WARNINGS := -Wall -Wextra -Werror

.DEFAULT_GOAL := help
.PHONY: help replay studies test test-long bench docs lint build clean distclean

help: ## say what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

replay: $(VENV)/.with-script build ## run the experiments on real images, results in out/
	$(BIN)/btrfs-model replay --out out
	$(BIN)/btrfs-model atlas --scale quick --out out/atlas

studies: $(VENV)/.with-test build ## do the studies of notebooks/studies at full scale, charts in out/studies
	mkdir -p out/studies
	BTRFS_MODEL_STUDIES=full BTRFS_MODEL_STUDIES_STORE=$(CURDIR)/out/studies \
		$(BIN)/python scripts/run_notebooks.py notebooks/studies/*.ipynb

test: $(VENV)/.with-test build ## run all tests: Python, C under sanitizers, notebooks
	$(BIN)/pytest -n $(JOBS) $(TESTS)

test-long: $(VENV)/.with-test build ## the same with many more random cases, and fuzzing
	BTRFS_MODEL_TESTS=long $(BIN)/pytest -n $(JOBS) $(TESTS)
	$(MAKE) -C native fuzz SECONDS=600 IMAGE=$$($(BIN)/python tests/support/corpus.py features/nodesize-4096)

bench: $(VENV)/.with-bench build ## measure speed beside btrfs-progs and dissect.btrfs
	$(BIN)/python -m bench --out out/bench.json

docs: $(VENV)/.with-docs build ## make the man page, and the site in out/site; notebooks that changed are run
	mkdir -p out
	$(BIN)/python -m btrfs_model.cli.man >out/btrfs-model.1
	$(BIN)/sphinx-build -q -W --keep-going -c docs/site -b html . out/site

lint: $(VENV)/.with-lint build ## check style and types of Python and C, and the prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/vulture
	$(BIN)/codespell
	$(BIN)/python scripts/prose.py
	$(BIN)/clang-format --dry-run -Werror $(C_FILES) btrfs_model/kernels/*.c
	$(MAKE) -C native syntax CC=gcc
	@if command -v clang >/dev/null; then $(MAKE) -C native syntax CC=clang; \
	else echo "lint: no clang on this machine, its warnings were not looked at"; fi

build: $(VENV)/.built ## compile the C kernels, and Python to bytecode
	@$(BIN)/python -m compileall -q btrfs_model

$(VENV)/.built: $(filter-out native/tests/%,$(C_FILES)) native/build_ffi.py \
		btrfs_model/patches.py setup.py | $(VENV)/.with-any
	BTRFS_MODEL_CFLAGS="$(WARNINGS) $(BTRFS_MODEL_CFLAGS)" $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# One stamp for each set of optional dependencies; the environment itself comes with the first.
$(VENV)/.with-any: | $(VENV)/.with-core
	@touch $@

$(VENV)/.with-%: pyproject.toml setup.py native/build_ffi.py scripts/make_environment
	@scripts/make_environment $(PYTHON) $(VENV) $*
	@touch $@

clean: ## remove what was built and restored
	$(MAKE) -C native clean
	rm -rf build dist out *.egg-info btrfs_model/native/*.so tests/.cache $(VENV)/.built
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## the same and the Python environment
	rm -rf $(VENV)
