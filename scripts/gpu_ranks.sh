#!/usr/bin/env bash
# Everything that needs several GPUs, on a machine that has them: builds for it, tests groups and training over 2 and 4 GPUs, trains with
# one process for each GPU and kills one of them, and measures every bar beside NCCL and PyTorch. One table; some ten minutes on 16 cores,
# two of them on the GPUs.
#   scripts/gpu_ranks.sh [FOLDER]      logs and ranks.json go to FOLDER (build/gpu_ranks)
#   HPCDL_BENCH_PYTHON                 a Python with torch (otherwise python3); without torch its rows are left out
#   HPCDL_BUILT=1                      build/cuda is there already
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu_ranks}
mkdir -p "$out"
PATH=$PATH:/usr/local/cuda/bin
count=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)
((count > 1)) || { echo "gpu_ranks: $count GPUs here, and this is about two and more" >&2; exit 1; }
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # the same for all sides; where multicast is allowed: NCCL_NVLS_ENABLE=1
python=${HPCDL_BENCH_PYTHON:-python3}
failed=0
rows=()

# step NAME COMMAND...: its log, its last line for the table.
step() {
  local name=$1 start=$SECONDS status=ok last
  shift
  "$@" >"$out/$name.log" 2>&1 </dev/null || { status=FAILED; failed=$((failed + 1)); }
  last=$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c1-90)
  rows+=("$(printf '%-12s %-7s %4d s  %s' "$name" "$status" $((SECONDS - start)) "$last")")
  echo "${rows[-1]}" >&2
  [[ $status == ok ]]
}

if [[ -z ${HPCDL_BUILT:-} ]]; then
  cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  [[ $cc == 90 ]] && cc=90a
  step configure cmake --preset cuda -DHPCDL_TESTS=ON -DHPCDL_BENCH=ON -DCMAKE_CUDA_ARCHITECTURES="$cc-real" &&
    step build cmake --build build/cuda -j "$(nproc)" --target gpu_tests hpcdl_program bench.all_reduce_grid bench.gpt2_ranks bench.llama_block_ranks || exit 1
fi

step groups build/cuda/gpu_tests --gtest_brief=1 --gtest_filter='*CudaRanks*:GpuGroup*:*GpuRanks*'
torch=(--no-torch)
"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && torch=()
collectives() {  # of every kind, checked against sums in double
  local c
  for c in all_reduce reduce_scatter all_gather all_to_all; do
    build/cuda/hpcdl launch -n "$count" --plain -- bench comm --device cuda --collective $c --check --max 64M --seconds 0.3 --json "$out/comm_$c.json" || return 1
  done
}
step collectives collectives
step launchers tests/launchers/gpus.sh build/cuda/hpcdl
step bars timeout 400 "$python" -W ignore bench/gpu/ranks.py "${torch[@]}" --json "$out/ranks.json"
cat "$out/bars.log"
printf '\n%s x %d\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)" "$count"
printf '%s\n' "${rows[@]}"
exit $((failed > 0))
