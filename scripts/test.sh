#!/usr/bin/env bash
# Builds and tests, one part after the other while there is time:  scripts/test.sh PART...
#   release         the whole suite in a release build, with the Python module if it can be built
#   tsan, asan      the parts with threads and the parts that parse untrusted files, under a sanitizer
#   fuzz            the fuzz targets, built with Clang under ASan and UBSan, for FUZZ_SECONDS (5) each
#   cuda:90a-real   the CUDA build for one architecture, with its tests compiled but not run
# TEST_BUDGET seconds for everything (900). A part that would not end by then does not start, and a build that
# takes too long is stopped; both are reported. The last line is "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."

export JOBS=${JOBS:-$(nproc)}
test_jobs=${TEST_JOBS:-3}
budget=${TEST_BUDGET:-900}
# What the sanitizers check (without kernels, which `make asan` and `make tsan` include): the pool, the recorder, ranks
# that communicate, the engine and the server, and everything that parses files.
sanitized=${SANITIZED:-'^(core|program|graph|io|data|comm|parallel|infer|serve)(\.|$)|^models\.hf_config$'}
# Seconds of the release build and of its tests: the time of other parts is estimated from them, because caches and cores
# are the same. A sanitizer checks a third of the tests, and takes as long for them.
build_seconds=0 test_seconds=300
passed=0 failed=0 skipped=0

# fits NAME SECONDS: whether a part that takes this time may start.
fits() {
  ((SECONDS + $2 > budget)) || return 0
  echo "== $1: left out, it takes some $2 s and $((budget - SECONDS)) of $budget s are left" >&2
  return 1
}

# configure PRESET ARGUMENTS...
configure() {
  cmake --preset "$@" >"build/configure.log" 2>&1 && return
  cat build/configure.log >&2
  failed=$((failed + 1))
  return 1
}

# build PRESET SECONDS TARGET...: false if it failed or its time was over; reports which.
build() {
  local preset=$1 limit=$2 status
  shift 2
  SECONDS_LEFT=$limit scripts/build.sh "build/$preset" "$@"
  status=$?
  case $status in
    0) return 0 ;;
    124) echo "== $preset: left unfinished, its build did not end within $limit s" >&2 ;;
    *) echo "== $preset: the build failed" >&2; failed=$((failed + 1)) ;;
  esac
  return 1
}

# run_tests PRESET REGEX
run_tests() {
  local log=build/$1/test.log bad all none
  ctest --test-dir "build/$1" -R "$2" -j "$test_jobs" --output-on-failure --no-tests=error </dev/null 2>&1 |
    scripts/progress.sh "$1" "$log" tests
  read -r bad all < <(sed -n 's/^.*, \([0-9]*\) tests failed out of \([0-9]*\).*/\1 \2/p' "$log")
  if [[ -z ${all:-} ]]; then failed=$((failed + 1)); return; fi
  none=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*(Skipped|Not Run)' "$log")
  passed=$((passed + all - bad - none)) failed=$((failed + bad)) skipped=$((skipped + none))
  local cases
  cases=$(grep -cE '^\[  SKIPPED \] [^ ]+ \([0-9]+ ms\)' "build/$1/Testing/Temporary/LastTest.log")
  ((cases == 0)) || echo "== $1: $cases cases, some of them in tests that passed, were skipped because something that they need is missing; see build/$1/Testing/Temporary/LastTest.log" >&2
}

# The Python module is built for the Python that runs its tests, if nanobind is available.
python_module() {
  HPCDL_PYTHON=$(scripts/venv.sh test)
  if [[ -n $HPCDL_PYTHON ]]; then export HPCDL_PYTHON; else unset HPCDL_PYTHON; fi
  local has_headers='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
  module=(-DHPCDL_PYTHON=OFF)
  if [[ -z ${HPCDL_PYTHON:-} || -z $(scripts/venv.sh build) ]]; then
    echo "== the Python module is left out: no Python with numpy, or no nanobind" >&2
  elif ! "$HPCDL_PYTHON" -c "$has_headers"; then
    echo "== the Python module is left out: $HPCDL_PYTHON has no Python.h (python3-dev)" >&2
  else
    module=(-DHPCDL_PYTHON=ON "-DPython_EXECUTABLE=$HPCDL_PYTHON")
  fi
}

part_release() {
  python_module
  configure release "${module[@]}" -DHPCDL_TESTS=ON || return
  local start=$SECONDS
  build release 0 || return
  build_seconds=$((SECONDS - start))
  run_tests release .
  test_seconds=$((SECONDS - start - build_seconds))
}

# part_sanitizer PRESET. Its kernels are those of the release, so the compiler cache has them.
part_sanitizer() {
  local tests=$((test_seconds * 6 / 5)) targets
  fits "$1" $((build_seconds / 2 + tests)) || return
  configure "$1" -DHPCDL_PYTHON=OFF -DHPCDL_TESTS=ON -DHPCDL_SANITIZE_KERNELS=OFF || return
  mapfile -t targets < <(ctest --test-dir "build/$1" -N -R "$sanitized" | sed -n 's/^ *Test *#[0-9]*: /test./p')
  build "$1" $((budget - SECONDS - tests)) "${targets[@]}" && run_tests "$1" "$sanitized"
}

# Every target counts as a test.
part_fuzz() {
  local seconds=${FUZZ_SECONDS:-5} target log=build/fuzz/run.log
  fits fuzz $((build_seconds / 2 + 12 * seconds)) || return
  scripts/setup.sh fuzz && configure fuzz && build fuzz $((budget - SECONDS)) fuzz_targets || return
  for target in build/fuzz/fuzz/*; do
    if scripts/fuzz.sh "$seconds" "$target" >"$log" 2>&1; then passed=$((passed + 1)); continue; fi
    failed=$((failed + 1))
    tail -n 60 "$log" >&2
  done
}

# part_cuda ARCHITECTURE
part_cuda() {
  PATH=$PATH:/usr/local/cuda/bin
  if ! command -v nvcc >/dev/null; then
    echo "== cuda $1: left out, there is no nvcc" >&2
    skipped=$((skipped + 1))
    return
  fi
  fits "cuda $1" $((build_seconds * 6 / 5 + 60)) || return
  configure cuda -DHPCDL_PYTHON=OFF -DHPCDL_TESTS=ON "-DCMAKE_CUDA_ARCHITECTURES=$1" || return
  build cuda $((budget - SECONDS)) hpcdl_cli gpu_tests hpcdl_cuda_headers && passed=$((passed + 1))
}

mkdir -p build
for part in "$@"; do
  echo "== $part" >&2
  case $part in
    release) part_release ;;
    tsan) TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1} part_sanitizer tsan ;;
    asan) part_sanitizer asan ;;
    fuzz) part_fuzz ;;
    cuda:*) part_cuda "${part#cuda:}" ;;
    *) echo "test: unknown part '$part'; expected release, tsan, asan, fuzz or cuda:ARCHITECTURE" >&2; exit 2 ;;
  esac
done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
