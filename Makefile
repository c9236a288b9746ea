# `make run` and `make test` do everything from a fresh clone; each target installs what it needs into .venv
# once, and again only when what it is made from changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
BUILD_TOOLS := "scikit-build-core>=1.1" "nanobind>=3.1" "numpy>=2.1" "cmake>=3.20" ninja
# The CPU build; torch without a version takes gigabytes.
TORCH := torch==2.13.0

SOURCES := $(shell find cmake csrc include src -type f -not -name '*.pyc') \
           CMakeLists.txt pyproject.toml README.md LICENSE
CPP_FILES := $(shell find csrc include tests examples -name '*.cc' -o -name '*.h')

.PHONY: help run test lint bench test-triton test-ascend test-sanitize test-tsan test-aarch64 fuzz clean

help:
	@echo "make run            the gradients over two photographs, checked and drawn"
	@echo "make test           all tests"
	@echo "make lint           ruff, mypy, clang-format"
	@echo "make bench          timings against rivals and what memory allows; writes benchmarks/results/, the tables of README and docs"
	@echo "make test-triton    the Triton kernels: interpreted, and every variant compiled for GPUs; installs triton"
	@echo "make test-ascend    the Triton kernels through triton-ascend and AscendNPU-IR, in an environment of their own"
	@echo "make test-sanitize  the tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make test-tsan      threads of the C interface under ThreadSanitizer"
	@echo "make fuzz           RUNS executions of the C interface on random calls; needs clang"
	@echo "make test-aarch64   bits of an AArch64 build under qemu against those of this machine"
	@echo "make clean          removes everything made"

$(VENV)/made-base:
	$(PYTHON) -c 'import sys; sys.exit("groupnorm needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(BUILD_TOOLS)
	@touch $@

# Building without isolation works offline: the build tools are in the environment already.
$(VENV)/made-run: $(VENV)/made-base $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[examples]'
	@touch $@

# PyTorch first: what there is of it when groupnorm is built, it is built for.
$(VENV)/made-test: $(VENV)/made-base $(SOURCES)
	$(PIP) $(TORCH)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[examples,test]'
	@touch $@

$(VENV)/made-lint: $(VENV)/made-test pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[lint]'
	@touch $@

run: $(VENV)/made-run
	$(BIN)/python examples/photographs.py

test: $(VENV)/made-test
	$(BIN)/python -m pytest

lint: $(VENV)/made-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

$(VENV)/made-bench: $(VENV)/made-test pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

bench: $(VENV)/made-bench
	mkdir -p benchmarks/results
	$(BIN)/groupnorm bench --growth --json benchmarks/results/bench.json --plot benchmarks/results/bench.png
	$(BIN)/python benchmarks/acl.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/table.py

# 290 MB: not part of what `make test` installs. Its tests run there too once it is here.
$(VENV)/made-triton: $(VENV)/made-test
	$(PIP) "triton==3.9.0"
	@touch $@

test-triton: $(VENV)/made-triton
	GROUPNORM_TRITON_ALL=1 $(BIN)/python -m pytest tests/test_triton.py tests/test_triton_torch.py tests/test_triton_compile.py

# An environment of its own: triton-ascend owns the import name triton.
ASCEND := build/ascend-venv
$(ASCEND)/made: $(SOURCES)
	$(PYTHON) -m venv $(ASCEND)
	$(ASCEND)/bin/pip install --quiet --disable-pip-version-check "scikit-build-core>=1.1" "nanobind>=3.1" "cmake>=3.20" ninja \
	  "numpy<2" $(TORCH) "triton-ascend==3.2.0" \
	  "ascendnpu-ir==1.2.0" "pybind11>=2.13" ml_dtypes pytest
	PATH="$(CURDIR)/$(ASCEND)/bin:$$PATH" $(ASCEND)/bin/pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation -Cbuild-dir=$(ASCEND)/cmake -e .
	@touch $@

test-ascend: $(ASCEND)/made
	$(ASCEND)/bin/python -m pytest tests/test_triton_ascend.py

# An environment of its own: the sanitized extension has the same name as the other.
SANITIZE := build/sanitize
SANITIZER_RUNTIME = $(shell $(or $(CXX),g++) -print-file-name=libasan.so):$(shell $(or $(CXX),g++) -print-file-name=libstdc++.so)

$(SANITIZE)/made: $(SOURCES)
	$(PYTHON) -m venv $(SANITIZE)
	$(SANITIZE)/bin/pip install --quiet --disable-pip-version-check $(BUILD_TOOLS)
	PATH="$(CURDIR)/$(SANITIZE)/bin:$$PATH" $(SANITIZE)/bin/pip install --quiet --disable-pip-version-check \
	  --no-build-isolation -Cbuild-dir=$(SANITIZE)/cmake -Ccmake.define.GROUPNORM_SANITIZE=address,undefined \
	  -Ccmake.build-type=RelWithDebInfo -Ccmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -Cinstall.strip=false '.[test]'
	@touch $@

# Leaks are CPython's own at exit; torch and the example are not part of this environment. Golden data and comparison
# are Python over files.
test-sanitize: $(SANITIZE)/made
	CXXFLAGS="-fsanitize=address,undefined" LD_PRELOAD="$(SANITIZER_RUNTIME)" ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(SANITIZE)/bin/python -m pytest -p no:cacheprovider --ignore-glob='*/test_golden*' --ignore-glob='*/test_compare*'

TSAN := build/tsan
test-tsan: $(VENV)/made-base
	$(BIN)/cmake -S . -B $(TSAN) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGROUPNORM_PYTHON=OFF -DGROUPNORM_TESTS=ON \
	  -DGROUPNORM_SANITIZE=thread
	$(BIN)/cmake --build $(TSAN) --parallel 2 --target acl_stress
	$(TSAN)/acl_stress 1000 1000

# New finds go to build/fuzz/corpus; tests/fuzz/corpus holds what is kept.
FUZZ := build/fuzz
RUNS ?= 100000
fuzz: $(VENV)/made-base
	$(BIN)/cmake -S . -B $(FUZZ) -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DGROUPNORM_PYTHON=OFF -DGROUPNORM_FUZZ=ON -DGROUPNORM_SANITIZE=fuzzer-no-link,address,undefined
	$(BIN)/cmake --build $(FUZZ) --parallel 2 --target acl_fuzz
	mkdir -p $(FUZZ)/corpus
	$(FUZZ)/acl_fuzz -runs=$(RUNS) -max_len=160 -len_control=0 -timeout=30 -print_funcs=0 -reload=0 \
	  -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus tests/fuzz/corpus

test-aarch64:
	tests/cpp/aarch64.sh

clean:
	rm -rf build $(VENV) out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
