#!/usr/bin/env bash
# gpus.sh HPCDL: one process for each GPU gives the same weights under mpirun and under `hpcdl launch`; a killed and a frozen rank end all of
# them with 71, though their GPUs wait for each other. Ends with 77 if there are fewer than two GPUs.
set -uo pipefail
hpcdl=$(realpath "$1")
count=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/small_run.sh"
((count > 1)) || skip "$count GPUs"
((count > 4)) && count=4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

small_run 30
sed -i "s/^dp = 2/dp = $count/" "$work/run.toml"
gpus=(train -c "$work/run.toml" --train.device=cuda)
HPCDL_LOG=info "$hpcdl" launch -n $count -- "${gpus[@]}" --out "$work/launched" >"$work/launched.log" 2>&1 || fail "hpcdl launch"
grep "$count GPUs, NCCL" "$work/launched.log" || fail "which library carries the GPUs is not said"
if command -v mpirun >/dev/null; then
  mpirun --oversubscribe --bind-to none -n $count "$hpcdl" "${gpus[@]}" --out "$work/mpi" >"$work/mpi.log" 2>&1 || fail "mpirun"
  cmp "$work/mpi/model/model.safetensors" "$work/launched/model/model.safetensors" || fail "other weights"
fi

# Layers that all GPUs share give the losses of one GPU.
loss_of() { sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$work/$1/metrics.jsonl" | tail -n 1; }
tensor=("${gpus[@]}" --parallel.dp=1 --model.heads=4)
"$hpcdl" "${tensor[@]}" --out "$work/one" >"$work/one.log" 2>&1 || fail "one GPU"
for sequence in false true; do
  "$hpcdl" launch -n $count -- "${tensor[@]}" --parallel.tp=$count --parallel.sequence=$sequence --out "$work/tp_$sequence" \
    >"$work/tp_$sequence.log" 2>&1 || fail "tp $count, sequence $sequence"
  losses="loss $(loss_of "tp_$sequence"), on one GPU $(loss_of one)"
  awk -v a="$(loss_of one)" -v b="$(loss_of "tp_$sequence")" 'BEGIN { exit !(a > 0 && b > 0.9999 * a && b < 1.0001 * a) }' ||
    fail "tp $count, sequence $sequence: $losses"
  echo "tp $count, sequence $sequence: $losses"
done

# lost SIGNAL: a rank in the middle of its steps
lost() {
  local out="$work/$1" begin
  "$hpcdl" launch -n $count -- "${gpus[@]}" --train.steps=1000000 --dist.timeout=10 --out "$out" >"$out.log" 2>&1 &
  local launch=$! code
  comes_true grep -q '"step":50[,}]' "$out/metrics.jsonl" 2>/dev/null || { kill $launch; fail "no steps before $1"; }
  begin=$SECONDS
  kill -s "$1" "$(pgrep -P $launch | sed -n 2p)"
  wait $launch
  code=$?
  ((code == 71)) || fail "$1: ended with $code, not 71"
  ((SECONDS - begin < 60)) || fail "$1: it took $((SECONDS - begin)) s"
  echo "$1: code 71 in $((SECONDS - begin)) s: $(grep -m1 -i 'rank' "$out.log" | cut -c1-160)"
}
lost KILL
lost STOP
echo "$count GPUs: the same weights from all launchers, lost ranks end all"
