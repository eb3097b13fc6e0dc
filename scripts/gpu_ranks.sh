#!/usr/bin/env bash
# Everything that needs several GPUs, on a machine that has them: builds for it, tests groups and training over all numbers of GPUs up to those
# (2; 2 and 4), trains with one process for each GPU and kills one of them, and measures every bar against NCCL and PyTorch's
# DistributedDataParallel. One table; within nine minutes on 16 cores. Steps that need more GPUs than the machine has are left out, and reported.
# The bars come first: if time is over, only tests of code that has already trained are missing.
#   scripts/gpu_ranks.sh [--dry-run] [FOLDER [all|tests|bars]]   logs and JSON go to FOLDER (build/gpu_ranks), each below a megabyte
#   --dry-run                          prints the steps, and makes the checks that need no GPU
#   HPCDL_BENCH_PYTHON                 a Python with torch (otherwise python3); without torch its rows are left out
#   HPCDL_BUILT=1                      build/cuda is already built
#   HPCDL_SECONDS                      time for all of it (530): each step has the remaining time, and none begins after it
#   HPCDL_GPUS                         number of GPUs to use (all, at most 4)
set -uo pipefail
dry=
words=()
for word in "$@"; do
  case $word in
    --dry-run) dry=1 ;;
    -*) echo "gpu_ranks: unknown option $word; see the head of $0" >&2; exit 2 ;;
    *) words+=("$word") ;;
  esac
done
part=${words[1]:-all}
[[ $part =~ ^(all|tests|bars)$ ]] && ((${#words[@]} < 3)) || { echo "gpu_ranks: \"${words[*]}\": expected a folder and all, tests or bars" >&2; exit 2; }
[[ -n ${words[0]:-} ]] && out=$(realpath -m "${words[0]}")
cd "$(dirname "$0")/.."
out=${out:-$PWD/build/gpu_ranks}
seconds=${HPCDL_SECONDS:-530}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "gpu_ranks: HPCDL_SECONDS is \"$seconds\"; expected a number" >&2; exit 2; }
PATH=$PATH:/usr/local/cuda/bin
count=${HPCDL_GPUS:-2}
if [[ -z $dry ]]; then
  here=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)
  count=${HPCDL_GPUS:-$here}
  ((count > here)) && count=$here
  ((count > 1)) || { echo "gpu_ranks: expected at least two GPUs, found $count" >&2; exit 1; }
  ((count > 4)) && count=4
  mkdir -p "$out"
fi
left_out=
((count < 4)) && left_out="left out with $count GPUs: tests of 3 and 4 ranks, tensor parallelism of 4 and efficiency on 4; the bars of 4 GPUs are compared with $count where that is meaningful"
[[ -n $left_out ]] && echo "$left_out"
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # the same for all sides; if multicast is allowed: NCCL_NVLS_ENABLE=1
python=${HPCDL_BENCH_PYTHON:-python3}
bin=build/cuda/hpcdl

. scripts/gpu_steps.sh
run() {  # NAME LIMIT COMMAND...; LIMIT: seconds
  local name=$1 limit=$2 left=$((seconds - SECONDS))
  shift 2
  if [[ -n $dry ]]; then
    printf '%-12s %4d s  %s\n' "$name" "$limit" "$*"
    return
  fi
  ((left < 5)) && { printf '%-12s no time\n' "$name" >"$out/$name.row"; return 1; }
  logged "$name" timeout -k 10 $((limit < left ? limit : left)) "$@"
}
note() { [[ -n $dry ]] || noted "$1"; }

if [[ -n $dry ]]; then
  for f in bench/gpu/ranks.py bench/gpu/image_ranks.py bench/peers/turns.py bench/peers/gpt2_ddp.py; do "$python" - "$f" <<'PY' || failed=1; done
import ast, sys
ast.parse(open(sys.argv[1]).read(), sys.argv[1])
PY
  for f in tests/launchers/gpus.sh tests/launchers/small_run.sh; do bash -n "$f" || failed=1; done
  for target in all_reduce_grid gpt2_ranks mixture_ranks llama_block_ranks; do
    [[ -f bench/$target.cpp || -f bench/gpu/$target.cpp ]] || { echo "gpu_ranks: no source of $target" >&2; failed=1; }
  done
fi

if [[ -z ${HPCDL_BUILT:-} ]]; then
  cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
  [[ ${cc:-90} == 90 ]] && cc=90a
  step configure 60 cmake --preset cuda -DHPCDL_TESTS=ON -DHPCDL_BENCH=ON -DCMAKE_CUDA_ARCHITECTURES="$cc-real" &&
    step build 300 cmake --build build/cuda -j "$(nproc)" --target gpu_tests hpcdl_cli bench.all_reduce_grid bench.gpt2_ranks bench.mixture_ranks bench.llama_block_ranks || exit 1
fi

bars=("$python" -W ignore bench/gpu/ranks.py --gpus "$count" --limit 100)
if [[ $part != tests ]]; then
  # PyTorch compiles for a minute, with four ranks for longer. It does so while tests run, so that its cache is ready for the bars.
  if [[ -n $dry ]] || "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    export TORCHINDUCTOR_CACHE_DIR=${TMPDIR:-/tmp}/hpcdl-inductor
    beside torch_warm 110 bash -c 'echo step | "$@"' - "$python" -W ignore bench/peers/gpt2_ddp.py --ranks "$count" --batch 64 --context 1024
  else
    bars+=(--no-torch)
  fi
fi
if [[ $part != bars ]]; then
  beside groups 120 build/cuda/gpu_tests --gtest_brief=1 --gtest_filter='*CudaRanks*:gpu_group*:*GpuRanks*:*GpuExperts*'
  beside launchers 150 tests/launchers/gpus.sh $bin
fi
together
if [[ $part != tests ]]; then
  step bars_tensor 110 "${bars[@]}" --only tensor --json "$out/ranks_tensor.json"
  step bars_experts 200 "${bars[@]}" --only experts --json "$out/ranks_experts.json"
  step bars_ddp 300 "${bars[@]}" --only ddp --json "$out/ranks_ddp.json"
  step bars_all_reduce 60 "${bars[@]}" --only all_reduce --json "$out/ranks_all_reduce.json"
  step images 80 "$python" -W ignore bench/gpu/image_ranks.py --gpus "$count" --json "$out/images.json"
fi
if [[ $part != bars ]]; then
  step demos 90 env HPCDL_SECONDS=80 scripts/gpu_demos.sh "$out/demos" demo4 demo2
  for c in all_reduce reduce_scatter all_gather all_to_all; do  # each checked against sums in double
    step "comm_$c" 40 $bin launch -n "$count" --plain -- bench comm --device cuda --collective $c --check --max 64M --seconds 0.2 --json "$out/comm_$c.json"
  done
fi
[[ -n $dry ]] && exit $failed

[[ $part != tests ]] && cat "$out"/bars_*.log "$out"/images.log
for log in "$out"/*.log; do
  (($(stat -c %s "$log") > 1000000)) && { tail -c 200000 "$log" >"$log.end" && mv "$log.end" "$log"; }
done
printf '\n%s x %d\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)" "$count"
printf '%s\n' "${rows[@]}" ${left_out:+"$left_out"} | tee "$out/table.log"
exit $((failed > 0))
