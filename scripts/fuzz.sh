#!/usr/bin/env bash
# Runs libFuzzer targets of build/fuzz, all or those named, for N seconds each or through N cases each, and says how many
# cases each target has had and how long they took:  scripts/fuzz.sh 60 [TARGET...]
#                                                    scripts/fuzz.sh --runs 10000000 [TARGET...]
# Before either, --max-len BYTES: no longer inputs, where the time of a case grows with its length.
set -euo pipefail
cd "$(dirname "$0")/.."
longest=()
if [[ ${1:-} == --max-len ]]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: --max-len: expected a number of bytes, found '${2:-}'" >&2; exit 2; }
  longest=(-max_len="$2")
  shift 2
fi
if [[ ${1:-} == --runs ]]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: --runs: expected a number of cases, found '${2:-}'" >&2; exit 2; }
  limit=-runs=$2 what="$2 cases"
  shift 2
else
  [[ ${1:-60} =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: expected a number of seconds, or --runs N, found '$1'" >&2; exit 2; }
  limit=-max_total_time=${1:-60} what="${1:-60} s"
  shift $(($# > 0))
fi
targets=("$@")
((${#targets[@]})) || targets=(build/fuzz/fuzz/*)
[[ -x ${targets[0]} ]] || { echo "fuzz: no targets in build/fuzz/fuzz; run 'make fuzz'" >&2; exit 1; }
counts=()
for target in "${targets[@]}"; do
  name=$(basename "$target") corpus=build/fuzz/corpus/$(basename "$target")
  mkdir -p "$corpus"
  echo "== $name, $what" >&2
  begin=$SECONDS
  "$target" "$limit" "${longest[@]}" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus" \
    </dev/null 2>&1 | tee "$corpus.log" >&2
  cases=$(sed -n 's/^stat::number_of_executed_units: *//p' "$corpus.log")
  counts+=("$(printf '%-24s %12s cases %6d s' "$name" "${cases:-?}" $((SECONDS - begin)))")
done
printf '%s\n' "${counts[@]}"
echo "${#targets[@]} passed, 0 failed"
