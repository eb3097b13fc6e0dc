#!/usr/bin/env bash
# Prints the path of a Python with the modules for a task:  scripts/venv.sh build|test|bench|format
#   build: nanobind, with which the Python module is built
#   test:  numpy safetensors tokenizers tensorboard jinja2 jsonschema gguf  (HPCDL_PYTHON overrides)
#   bench: numpy torch                                                 (HPCDL_BENCH_PYTHON overrides)
#   format: clang-format, always in its own venv
# Makes build/venv-KIND if it does not exist. Prints nothing, except for a message on stderr, if the package index cannot be
# reached; the tests that need it are then skipped.
set -uo pipefail
cd "$(dirname "$0")/.."

kind=${1:-test}
case $kind in
  build) chosen= modules=(nanobind) ;;
  test) chosen=${HPCDL_PYTHON:-} modules=(numpy safetensors tokenizers tensorboard jinja2 jsonschema gguf) ;;
  bench) chosen=${HPCDL_BENCH_PYTHON:-} modules=(numpy torch) ;;
  format) chosen= modules=(clang_format) packages=(clang-format==20.1.8) ;;
  *) echo "venv: unknown kind '$kind'; expected build, test, bench or format" >&2; exit 2 ;;
esac

imports() { "$1" -c "import $(IFS=,; echo "${modules[*]}")" >/dev/null 2>&1; }

if [[ -n $chosen ]]; then echo "$chosen"; exit 0; fi
venv=build/venv-$kind
[[ $kind != test ]] || venv=build/venv
python=$PWD/$venv/bin/python
if [[ -x $python ]] && imports "$python"; then echo "$python"; exit 0; fi
if [[ $kind != format ]] && imports /usr/bin/python3; then echo /usr/bin/python3; exit 0; fi

mkdir -p build
log=build/venv-$kind.log
echo "venv: making $venv with ${modules[*]}" >&2
if python3 -m venv "$venv" >"$log" 2>&1 &&
   "$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 30 "${packages[@]:-${modules[@]}}" >>"$log" 2>&1 </dev/null &&
   imports "$python"; then
  echo "$python"
else
  echo "venv: could not install ${modules[*]} (see $log); tests that need them are skipped" >&2
fi
