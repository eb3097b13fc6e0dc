# The two main commands are `make demo` and `make test`. Both work on a fresh Debian or Ubuntu without preparation.
JOBS ?= $(shell nproc)
# Tests at a time: one more than there are cores, because a third of their time is spent waiting for deadlines, but at
# most eight, because more would disturb each other's timings and memory. cmake/HpcdlSchedule.cmake says which run
# one by one.
TEST_JOBS ?= $(shell n=$$(nproc); echo $$((n < 7 ? n + 1 : 8)))
# The parts of `make test`: see scripts/test.sh.
PARTS ?= release asan tsan
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
.DEFAULT_GOAL := help
.PHONY: help build demo test quick asan tsan bench fuzz format install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z ]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the program, at build/release/hpcdl
	@scripts/setup.sh build
	@test -f build/release/CMakeCache.txt || cmake --preset release -DHPCDL_TESTS=OFF
	@JOBS=$(JOBS) scripts/build.sh build/release hpcdl

demo: build ## train, checkpoint, quantise to INT4, generate; ends with a report (ARGS=... for `hpcdl demo`)
	build/release/hpcdl demo $(ARGS)

test: ## all tests, then the threaded and file-parsing ones under the sanitizers
	@scripts/setup.sh test
	@JOBS=$(JOBS) TEST_JOBS=$(TEST_JOBS) scripts/test.sh $(PARTS)

quick: ## all tests, no sanitizers
	@$(MAKE) --no-print-directory test PARTS=release

asan tsan: ## all tests under the address or the thread sanitizer
	@scripts/setup.sh test
	cmake --preset $@ -DHPCDL_SANITIZE_KERNELS=ON
	@JOBS=$(JOBS) scripts/build.sh build/$@
	HPCDL_PYTHON=$$(scripts/venv.sh test) ctest --test-dir build/$@ -j $(TEST_JOBS) --output-on-failure

bench: ## comparisons with other libraries in the same run; writes bench/results and the README's table
	@scripts/setup.sh bench
	@scripts/venv.sh build >/dev/null
	cmake --preset release -DHPCDL_BENCH=ON $$(python=$$(scripts/venv.sh bench); [ -z "$$python" ] || echo -DHPCDL_PYTHON=ON -DPython_EXECUTABLE=$$python)
	@JOBS=$(JOBS) scripts/build.sh build/release
	bench/peers/run.sh

fuzz: ## each libFuzzer target for FUZZ_SECONDS (60) under ASan and UBSan
	@scripts/setup.sh fuzz
	cmake --preset fuzz
	@JOBS=$(JOBS) scripts/build.sh build/fuzz fuzz_targets
	scripts/fuzz.sh $(FUZZ_SECONDS)

format: ## clang-format over all sources
	@scripts/setup.sh format
	@scripts/format.sh

install: build ## into PREFIX (/usr/local)
	cmake --install build/release --prefix $(PREFIX)

clean: ## removes build/
	rm -rf build
