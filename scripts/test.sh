#!/usr/bin/env bash
# Everything that must hold before a change is merged: the whole suite in a release build, then the parts where memory
# and threads can go wrong under the sanitizers. Ends with one line, "N passed, N failed". Called by `make test`.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)} test_jobs=${TEST_JOBS:-3}
# What the sanitizers look at (kernels apart, which `make asan` and `make tsan` include): the pool, the recorder and everything that parses files it does not trust.
sanitized=${SANITIZED:-'^(core|graph|io|data)(\.|$)'}
# Seconds for everything. A sanitizer suite compiles the library once more, in up to twice the time that the longest build so
# far took, and runs for some three minutes: it starts only while there is time for both, and what its build is short of in the
# end is not waited for. `make asan` and `make tsan` run them whole.
budget=${TEST_BUDGET:-900}
build_seconds=0
passed=0 failed=0

# The Python module is built for the Python that runs its tests, when nanobind can be had.
module=(-DHPCDL_PYTHON=OFF)

# suite PRESET [REGEX [SECONDS]]: configures, builds, within so many seconds, and runs the tests whose names match.
suite() {
  local preset=$1 match=${2:-.} limit=${3:-0} log=build/$1/test.log targets=()
  echo "== $preset" >&2
  [[ $preset == release ]] || module=(-DHPCDL_PYTHON=OFF)
  cmake --preset "$preset" "${module[@]}" -DHPCDL_TESTS=ON -DHPCDL_SANITIZE_KERNELS=OFF >build/configure.log 2>&1 || { cat build/configure.log >&2; failed=$((failed + 1)); return; }
  if [[ $match != . ]]; then
    mapfile -t targets < <(ctest --test-dir "build/$preset" -N -R "$match" | sed -n 's/^ *Test *#[0-9]*: /test./p')
    ((${#targets[@]})) || return 0
  fi
  local start=$SECONDS status=0
  timeout --foreground "$limit" ninja -C "build/$preset" -j "$jobs" ${targets[@]:+"${targets[@]}"} </dev/null >build/$preset/build.log 2>&1 || status=$?
  if ((status == 124)); then
    echo "== $preset: left out, its build did not end within $limit s; 'make $preset' runs it" >&2
    return
  elif ((status)); then
    tail -n 60 "build/$preset/build.log" >&2
    echo "== $preset: the build failed" >&2
    failed=$((failed + 1))
    return
  fi
  build_seconds=$((SECONDS - start > build_seconds ? SECONDS - start : build_seconds))
  ctest --test-dir "build/$preset" -R "$match" -j "$test_jobs" --output-on-failure --no-tests=error </dev/null 2>&1 | tee "$log"
  local bad all
  read -r bad all < <(sed -n 's/^.*, \([0-9]*\) tests failed out of \([0-9]*\).*/\1 \2/p' "$log")
  if [[ -z ${all:-} ]]; then failed=$((failed + 1)); return; fi
  passed=$((passed + all - bad)) failed=$((failed + bad))
}

mkdir -p build
HPCDL_PYTHON=$(scripts/venv.sh test)
if [[ -n $HPCDL_PYTHON ]]; then export HPCDL_PYTHON; else unset HPCDL_PYTHON; fi
has_headers='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
if [[ -z ${HPCDL_PYTHON:-} || -z $(scripts/venv.sh build) ]]; then
  echo "== the Python module is left out: no Python with numpy, or no nanobind" >&2
elif ! "$HPCDL_PYTHON" -c "$has_headers"; then
  echo "== the Python module is left out: $HPCDL_PYTHON has no Python.h (python3-dev)" >&2
else
  module=(-DHPCDL_PYTHON=ON "-DPython_EXECUTABLE=$HPCDL_PYTHON")
fi
suite release
# sanitizer PRESET REGEX
sanitizer() {
  local tests=180
  if ((SECONDS + 2 * build_seconds + tests > budget)); then
    echo "== $1: left out, $SECONDS of $budget s are gone; 'make $1' runs it" >&2
    return
  fi
  suite "$@" $((budget - SECONDS - tests))
}
if [[ ${QUICK:-0} != 1 ]]; then
  sanitizer asan "$sanitized"
  TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1} sanitizer tsan '^(core|graph|data)(\.|$)'
fi
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
