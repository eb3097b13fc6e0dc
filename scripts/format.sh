#!/usr/bin/env bash
# clang-format over all sources:  scripts/format.sh [--check]
# --check changes nothing, names the first lines that differ and fails; exit code 77 if clang-format is not available.
# The version is pinned, because versions format differently.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(scripts/venv.sh format)
if [[ -z $python ]]; then
  echo "format: clang-format is not available" >&2
  exit 77
fi
how=(-i)
[[ ${1:-} != --check ]] || how=(--dry-run --Werror)
git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r -P "$(nproc)" -n 50 "$(dirname "$python")/clang-format" "${how[@]}"
