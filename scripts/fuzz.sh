#!/usr/bin/env bash
# Runs libFuzzer targets of build/fuzz, all or those named, for N seconds each:  scripts/fuzz.sh 60 [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
targets=("${@:2}")
((${#targets[@]})) || targets=(build/fuzz/fuzz/*)
[[ -x ${targets[0]} ]] || { echo "fuzz: no targets in build/fuzz/fuzz; run 'make fuzz'" >&2; exit 1; }
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$(basename "$target")
  mkdir -p "$corpus"
  echo "== $(basename "$target"), ${seconds} s" >&2
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus" </dev/null
done
echo "${#targets[@]} passed, 0 failed"
