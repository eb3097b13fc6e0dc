#!/usr/bin/env bash
# restart.sh HPCDL: under `hpcdl launch` a rank is killed and the run continues from its last checkpoint; it is asked to stop, ends with 75, and
# the same command finishes it; a rank is frozen, and the other ends with 71. The weights are those of an undisturbed run.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
launched=
finish() {
  [[ -n $launched ]] && kill -KILL "$launched" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT
. "$(dirname "$0")/small_run.sh"

small_run 6000
launch() { "$hpcdl" launch -n 2 "$@" -- train -c "$work/run.toml" --out "$work/run" --checkpoint.every 500 >>"$work/run.log" 2>&1 & launched=$!; }
lines() { [[ -f $work/run/metrics.jsonl ]] && (($(wc -l <"$work/run/metrics.jsonl") >= $1)); }
rank() { cut -d ' ' -f $(($1 + 1)) "/proc/$launched/task/$launched/children"; }  # they were started in this order
"$hpcdl" launch -n 2 -- train -c "$work/run.toml" --out "$work/undisturbed" >"$work/undisturbed.log" 2>&1 || fail "the undisturbed run"

launch --max-restarts 1
comes_true lines 1500 || fail "no steps"
kill -KILL "$(rank 1)"
restarted() { grep -q 'rank 1 was killed by signal 9.*restart 1 of 1, from the last checkpoint' "$work/run.log" && grep -q 'resumed at step' "$work/run.log"; }
comes_true restarted || fail "no restart"
resumed=$(sed -n 's/.*resumed at step \([0-9]*\).*/\1/p' "$work/run.log")
comes_true lines $((resumed + 1500)) || fail "no steps after the restart"
kill -TERM "$launched"
wait "$launched"
code=$?
((code == 75)) || fail "asked to stop, it ended with $code"
launch
wait "$launched" || fail "the last part"
cmp "$work/run/model/model.safetensors" "$work/undisturbed/model/model.safetensors" || fail "other weights"

small_run 1000000
rm -rf "$work/run"
HPCDL_DIST_TIMEOUT=5 launch --grace 2
comes_true lines 100 || fail "no steps"
kill -STOP "$(rank 1)"
began=$(date +%s)
wait "$launched"
code=$?
((code == 71)) || fail "with a frozen rank it ended with $code"
launched=
echo "killed, restarted, stopped, resumed: the same weights. Frozen: over after $(($(date +%s) - began)) s"
