#!/usr/bin/env bash
# The four demos in full size on a GPU, and what mixed precision costs in accuracy over three seeds. Four minutes on one H200.
#   scripts/gpu_demos.sh [FOLDER [STEP...]]    tables, JSON and pages go to FOLDER (build/gpu_demos); runs build/cuda/hpcdl.
#                                      STEP: some of demo1 demo4 demo3 demo2 accuracy (all, in this order)
#   HPCDL_SECONDS                      time for all of it (270): steps that do not fit are cut off or left out, and reported
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/gpu_demos}")
wanted=" ${*:2} "
[[ $wanted =~ ^\ *((demo[1-4]|accuracy)\ +)*$ ]] || { echo "gpu_demos: \"${*:2}\": expected some of demo1 demo4 demo3 demo2 accuracy" >&2; exit 2; }
seconds=${HPCDL_SECONDS:-270}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "gpu_demos: HPCDL_SECONDS is \"$seconds\"; expected a number" >&2; exit 2; }
bin=build/cuda/hpcdl
[[ -x $bin ]] || { echo "gpu_demos: expected $bin: cmake --preset cuda && cmake --build build/cuda --target hpcdl" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# step NAME LIMIT COMMAND...: runs it, with a log and a row of results. LIMIT: seconds.
step() {
  local name=$1 limit=$2 start=$SECONDS left=$((seconds - SECONDS)) status=ok
  shift 2
  [[ $wanted =~ ^\ *$ || $wanted == *" $name "* ]] || return 0
  ((left < 5)) && { echo "$name: no time left"; failed=$((failed + 1)); return; }
  timeout -k 5 $((limit < left ? limit : left)) "$@" >"$out/$name.log" 2>&1 </dev/null || { status="FAILED ($?)"; failed=$((failed + 1)); }
  [[ -f $work/$name/report.html ]] && cp "$work/$name/report.html" "$out/$name.html"
  echo "$name: $status, $((SECONDS - start)) s"
}

step demo1 60 $bin demo 1 --device cuda --out "$work/demo1"
step demo4 90 $bin demo 4 --device cuda --out "$work/demo4"
step demo3 90 $bin demo 3 --device cuda --epochs 3 --out "$work/demo3"
step demo2 60 $bin demo 2 --device cuda --out "$work/demo2"
step accuracy 150 env HPCDL_BIN=$bin python3 bench/amp_accuracy.py --seeds 3 --train.device=cuda --train.epochs=5 --json "$out/accuracy.json"
tail -n 12 "$out"/*.log
exit $((failed > 0))
