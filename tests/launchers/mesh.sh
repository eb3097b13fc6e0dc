#!/usr/bin/env bash
# mesh.sh HPCDL: mpirun with 2 and 4 ranks on every mesh of data x tensor gives the losses of one rank to 1e-5, and a run that was stopped on one mesh continues
# on another. Ends with 77 if there is no mpirun.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/small_run.sh"
. "$(dirname "$0")/mpi.sh"
command -v python3 >/dev/null || skip "no python3"

steps=30
small_run 30
common=(-c "$work/run.toml" --model.heads=4 --train.lr=1e-3 --train.warmup=30)
"$hpcdl" train "${common[@]}" --parallel.dp=1 --train.batch=4 --out "$work/one" >"$work/one.log" 2>&1 || fail "one rank"
# mesh NAME DP TP ARGUMENTS: into $work/NAME
mesh() {
  local name=$1 dp=$2 tp=$3
  shift 3
  "${mpirun[@]}" -n $((dp * tp)) "$hpcdl" train "${common[@]}" --train.batch=$((4 / dp)) --parallel.dp="$dp" --parallel.tp="$tp" --train.steps="$steps" \
    --out "$work/$name" "$@" >"$work/$name.log" 2>&1 || fail "dp $dp x tp $tp"
  same "$name" "$steps"
}
same() {
  python3 - "$work/one" "$work/$1" "$2" <<'PY' || fail "$1: other losses than one rank"
import json, sys
steps = int(sys.argv.pop())
def read(run, key):
    return {j["step"]: j[key] for j in map(json.loads, open(run + "/metrics.jsonl")) if key in j}
for key in ("loss", "grad_norm", "eval_loss"):
    one, many = (read(run, key) for run in sys.argv[1:])
    assert key == "eval_loss" or len(many) == steps, (key, steps, many.keys())
    for step, value in many.items():
        if key == "eval_loss" and step not in one: continue  # of a shorter run
        assert abs(one[step] - value) <= 1e-5 * abs(value), (key, step, one[step], value)
PY
}
for shape in "1 2" "2 1" "2 2" "1 4" "4 1"; do mesh "${shape/ /x}" $shape; done
mesh sequence 1 2 --parallel.sequence=true
steps=15 mesh resumed 2 2
mesh resumed 1 2
"${mpirun[@]}" -n 2 "$hpcdl" train "${common[@]}" --parallel.dp=0 --parallel.tp=3 --out "$work/x" >"$work/bad.log" 2>&1
(($? == 2)) || fail "a tp that does not fit has to end with 2"
grep -q 'start a multiple of 3' "$work/bad.log" || fail "no word of what would fit: $(cat "$work/bad.log")"
echo "every mesh of 2 and 4 ranks under mpirun: the losses of one"
