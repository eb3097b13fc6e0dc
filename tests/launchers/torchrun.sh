#!/usr/bin/env bash
# torchrun.sh HPCDL: the same command under `torchrun --no-python`. Needs HPCDL_PYTHON, a Python with torch; ends with 77 otherwise.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/small_run.sh"
python=${HPCDL_PYTHON:-}
[[ -n $python ]] && "$python" -c 'import torch.distributed.run' 2>/dev/null || skip "HPCDL_PYTHON names no Python with torch"

small_run 60
"$hpcdl" launch -n 2 -- train -c "$work/run.toml" --out "$work/launched" >"$work/launched.log" 2>&1 || fail "hpcdl launch"
"$python" -m torch.distributed.run --standalone --no-python --nproc-per-node 2 "$hpcdl" train -c "$work/run.toml" --out "$work/torchrun" >"$work/torchrun.log" 2>&1 ||
  fail "torchrun --standalone"
grep -q '2 ranks over tcp, as torchrun says' "$work/torchrun.log" || fail "who started the ranks"
cmp "$work/torchrun/model/model.safetensors" "$work/launched/model/model.safetensors" || fail "other weights"
echo "torchrun and hpcdl launch: the same weights"
