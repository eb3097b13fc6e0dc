#!/usr/bin/env bash
# gpus.sh HPCDL: one process for each GPU gives the same weights under mpirun and under `hpcdl launch`, and every mesh the losses of one GPU; a
# killed and a frozen rank end all of them with 71, though their GPUs wait for each other, and the next start goes on. Ends with 77 if there
# are fewer than two GPUs.
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

# Every mesh of these GPUs gives the losses of one of them: 50 steps, to 1e-5 of f32 and 2e-3 of bf16.
losses=("${gpus[@]}" --model.heads=4 --train.lr=1e-3 --train.warmup=30 --train.steps=50)
same() {  # ONE MANY BOUND
  python3 - "$work/$1" "$work/$2" "$3" <<'PY' || fail "$2: other losses than one GPU"
import json, sys
bound, worst = float(sys.argv[3]), 0
one, many = ([j["loss"] for j in map(json.loads, open(run + "/metrics.jsonl")) if "loss" in j] for run in sys.argv[1:3])
assert len(one) == len(many) == 50, (len(one), len(many))
for step, (a, b) in enumerate(zip(one, many), 1):
    worst = max(worst, abs(a - b) / abs(a))
    assert worst <= bound, (step, a, b)
print(f"{sys.argv[2].rsplit('/', 1)[1]}: 50 losses, largest difference {worst:.1e} of {bound:.0e}")
PY
}
mesh() {  # DTYPE BOUND DP TP ARGUMENTS
  local dtype=$1 bound=$2 dp=$3 tp=$4 name
  shift 4
  name=${dtype}_dp${dp}_tp$tp${1:+_$(tr -cd a-z <<<"${1#--parallel.}")}
  "$hpcdl" launch -n $((dp * tp)) -- "${losses[@]}" --train.dtype=$dtype --train.batch=$((4 / dp)) --parallel.dp=$dp --parallel.tp=$tp "$@" \
    --out "$work/$name" >"$work/$name.log" 2>&1 || fail "$name"
  same "$dtype" "$name" "$bound"
}
for kind in "f32 1e-5" "bf16 2e-3"; do
  read -r dtype bound <<<"$kind"
  "$hpcdl" "${losses[@]}" --train.dtype=$dtype --parallel.dp=1 --out "$work/$dtype" >"$work/$dtype.log" 2>&1 || fail "one GPU, $dtype"
  for ((dp = 1; dp <= count; dp++)); do
    ((count % dp == 0 && 4 % dp == 0)) && mesh $dtype $bound $dp $((count / dp))
  done
  mesh $dtype $bound 1 $count --parallel.sequence=true
done

# lost SIGNAL: a rank in the middle of its steps
lost() {
  local out="$work/$1" begin
  local run=("${gpus[@]}" --train.schedule=constant --dist.timeout=10 --checkpoint.every=20 --out "$out")
  "$hpcdl" launch -n $count -- "${run[@]}" --train.steps=1000000 >"$out.log" 2>&1 &
  local launch=$! code
  comes_true grep -q '"step":50[,}]' "$out/metrics.jsonl" 2>/dev/null || { kill $launch; fail "no steps before $1"; }
  begin=$SECONDS
  kill -s "$1" "$(pgrep -P $launch | sed -n 2p)"
  wait $launch
  code=$?
  ((code == 71)) || fail "$1: ended with $code, not 71"
  ((SECONDS - begin < 60)) || fail "$1: it took $((SECONDS - begin)) s"
  echo "$1: code 71 in $((SECONDS - begin)) s: $(grep -E 'rank 1([^0-9]|$)' "$out.log" | grep -m1 -v ' ranks over ' | cut -c1-200)"
  "$hpcdl" launch -n $count -- "${run[@]}" --train.steps=$(($(tail -n 1 "$out/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*/\1/') + 20)) \
    >"$out.again.log" 2>&1 || fail "$1: the next start"
  grep -o 'resumed at step [0-9]*' "$out.again.log" || fail "$1: the next start began anew"
}
lost KILL
lost STOP
echo "$count GPUs: the same weights from all launchers, the losses of one GPU from every mesh, lost ranks end all"
