#!/usr/bin/env bash
# Runs every libFuzzer target of build/fuzz for N seconds:  scripts/fuzz.sh 60
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60} count=0
for target in build/fuzz/fuzz/*; do
  [[ -f $target && -x $target ]] || continue
  corpus=build/fuzz/corpus/$(basename "$target")
  mkdir -p "$corpus"
  echo "== $(basename "$target"), ${seconds} s" >&2
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus" </dev/null
  count=$((count + 1))
done
((count)) || { echo "fuzz: no targets in build/fuzz/fuzz; run 'make fuzz'" >&2; exit 1; }
echo "$count passed, 0 failed"
