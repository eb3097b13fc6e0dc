#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one: builds for it, runs every op spec on it, the sanitizers over the
# kernels, the main job end to end, probe, verify, roofline and profile of the lab, and the bench; with a Python that has PyTorch, also the
# module's tests and every bar against PyTorch. Ends with one table. On 16 cores "tests" take eight minutes and "bars" seven, including two and
# a half for the build, which the second of them reuses.
#   scripts/gpu.sh [FOLDER [all|tests|bars]]   logs, probe.json, roofline.*, gpt2_trace.json.gz, bench.json, bars.json and errors.json go to FOLDER (build/gpu)
#   HPCDL_BENCH_PYTHON                         a Python with torch (otherwise python3)
#   HPCDL_BUILT=1                              build/cuda and build/bench were copied here, with the module for this Python: no compiler is needed
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu} part=${2:-all}
[[ $part =~ ^(all|tests|bars)$ ]] || { echo "gpu: expected all, tests or bars, found \"$part\"" >&2; exit 2; }
mkdir -p "$out"
work=$(mktemp -d)  # models and their text: hundreds of megabytes that are not needed afterwards
trap 'rm -rf "$work"' EXIT
PATH=$PATH:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null || { echo "gpu: this machine has no NVIDIA driver; hpcdl doctor says what is missing" >&2; exit 1; }
[[ -n ${HPCDL_BUILT:-} ]] || command -v nvcc >/dev/null || { echo "gpu: this machine has no nvcc: install the CUDA 13 toolkit" >&2; exit 1; }
cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
[[ $cc == 90 ]] && cc=90a  # with the instructions that only this chip has

. scripts/gpu_steps.sh
run() { logged "$@"; }  # NAME COMMAND...
note() {
  noted "$1" || { tail -n 30 "$out/$1.log" >&2; return 1; }
}

# gpt2 FOLDER STEPS DTYPE: trains in FOLDER up to STEPS
gpt2() {
  build/cuda/hpcdl train --out "$1" --device cuda --data.text="$work/text.txt" --data.vocab_size=1024 --model.family=gpt2 --model.layers=2 --model.heads=4 \
    --model.width=128 --model.context=128 --train.steps="$2" --train.schedule=constant --train.batch=8 --train.accumulate=2 --train.dtype="$3"
}

main_job() {
  local text="$work/text.txt" model="$work/run/model"
  cat docs/*.md README.md include/hpcdl/*.h hpcdl/*/*.h hpcdl/*/*.cuh >"$text"
  build/cuda/hpcdl train --out "$work/run" --device cuda --data.text="$text" --data.vocab_size=1024 --model.family=llama --model.layers=2 \
    --model.heads=4 --model.width=128 --model.context=128 --train.steps=40 --train.batch=8 --train.dtype=bf16 --checkpoint.every=20 &&
    build/cuda/hpcdl quantize --model "$model" --out "$work/int4" --group 32 &&
    for folder in "$model" "$work/int4"; do
      gpu=$(build/cuda/hpcdl eval --model "$folder" --text "$text" --limit 4000 --device cuda) &&
        cpu=$(build/cuda/hpcdl eval --model "$folder" --text "$text" --limit 4000) &&
        build/cuda/hpcdl generate --model "$folder" --prompt "the" --tokens 16 --temperature 0 --device cuda || return 1
      # Sums in another order differ at most in the last printed digits.
      awk -v a="$gpu" -v b="$cpu" 'BEGIN { split(a, x); split(b, y); d = x[2] - y[2]; exit !(d < 0.01 && d > -0.01) }' ||
        { echo "GPU and CPU disagree: $gpu, $cpu"; return 1; }
      echo "GPU: $gpu; CPU: $cpu"
    done || return 1
  local dtype
  for dtype in bf16 fp16; do  # stopped half way and resumed: the same weights as without a stop
    gpt2 "$work/gpt2_$dtype" 10 $dtype && gpt2 "$work/gpt2_$dtype" 20 $dtype && gpt2 "$work/gpt2_once_$dtype" 20 $dtype &&
      cmp "$work/gpt2_$dtype/model/model.safetensors" "$work/gpt2_once_$dtype/model/model.safetensors" || return 1
    echo "$dtype: $(tail -n 1 "$work/gpt2_$dtype/metrics.jsonl")"
  done
}

gpt2=(--data.text="$work/text.txt" --data.vocab_size=1024 --model.family=gpt2 --model.layers=12 --model.heads=12 --model.width=768 --model.context=1024
  --model.vocab=50304 --train.batch=16 --train.dtype=bf16 --train.device=cuda)

roofline() {
  timeout 90 build/cuda/hpcdl roofline --device cuda --json --csv "$out/roofline.csv" --svg "$out/roofline.svg" --html "$out/roofline.html" >"$out/roofline.json" &&
    awk -F, 'NR > 1 && $14 != "" { rows++; above += $18; if ($18 > 0) print "above its roof: " $0 } END { printf "%d kernels timed, %d above their roof\n", rows, above }' "$out/roofline.csv"
}

python=${HPCDL_BENCH_PYTHON:-python3}
options=() targets=(gpu_tests hpcdl example.my_cuda_kernels)
if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  [[ -n ${HPCDL_BUILT:-} ]] || "$python" -c 'import nanobind' 2>/dev/null || scripts/venv.sh build >/dev/null
  options=(-DHPCDL_PYTHON=ON -DHPCDL_BENCH=ON -DPython_EXECUTABLE="$(command -v "$python")") targets+=(hpcdl_python bench.gpt2_step bench.image_step)
fi

module_tests() {
  local t
  for t in test_cuda test_torch test_int4 test_docs; do
    (cd python/tests && PYTHONPATH=$PWD/../../build/cuda/python PYTHONDONTWRITEBYTECODE=1 "$python" -W ignore $t.py) || return 1
  done
}

# racecheck makes kernels a hundred times slower: one type, and no kernels whose threads share nothing. For rings of stages
# (hpcdl/cuda/mbarrier.cuh) it orders the next copy after the loads of the threads that arrived themselves; but it reports races for loads of threads for which one
# other arrived after __syncwarp() or a named barrier. It does not see tensor copies (tma_load): for them, no report means nothing.
cases_of() {
  if [[ $1 == racecheck ]]; then echo '*forward.cuda/BF16/*:*accumulate.cuda/BF16/*-add/*:relu/*:gelu/*:swiglu/*:cast/*:rope/*:dropout/*'
  else echo '*forward.cuda/*:*accumulate.cuda/*'; fi
}

build() {
  [[ -z ${HPCDL_BUILT:-} ]] || return 0
  step configure cmake --preset cuda -DHPCDL_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES="$cc-real" "${options[@]}" &&
    step build cmake --build build/cuda -j "$(nproc)" --target "${targets[@]}"
}

if build; then
  if [[ $part != bars ]]; then
    for ((shard = 0; shard < 4; shard++)); do  # most of the time is for the double reference, which one core computes
      beside "specs_$shard" env GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard build/cuda/gpu_tests --gtest_brief=1 --gtest_filter='*cuda*:*gpu*:*Gpu*:*Device*:device_images*:Cudnn*-*GpuMemoryHeld*'
    done
    beside main_job main_job
    for way in own cudnn; do  # every convolution in this way, if possible; cuDNN needs aligned operands, so direct calls and replays differ
      beside "conv_$way" build/cuda/gpu_tests --ways conv2d=$way --gtest_brief=1 --gtest_filter='*conv2d*cuda*:-*replay*'
    done
    for way in own cudnn; do  # the same for attention; only the gradients that cuDNN sums in order
      beside "attention_$way" build/cuda/gpu_tests --ways attention=$way --gtest_brief=1 --gtest_filter='attention/*cuda*:-*replay*'
    done
    if ((${#options[@]})); then beside module module_tests; fi
    if command -v compute-sanitizer >/dev/null; then
      for tool in memcheck initcheck racecheck; do
        beside "$tool" timeout 200 compute-sanitizer --tool "$tool" --error-exitcode 9 build/cuda/gpu_tests --gtest_brief=1 --gtest_filter="$(cases_of "$tool")"
      done
      # The ways of attention on tensor cores, for heads of 64 and 128; without those of cuDNN.
      beside racecheck_attention timeout 200 compute-sanitizer --tool racecheck --kernel-name kns=attention_ --error-exitcode 9 \
        build/cuda/gpu_tests --gtest_brief=1 --gtest_filter='cuda/DeviceAttention.*/2:cuda/DeviceAttention.*/3'
    fi
    together
    step memory build/cuda/gpu_tests --gtest_filter='*GpuMemoryHeld*'  # alone, because it reads the free memory from the driver
    step probe build/cuda/hpcdl probe --device cuda --out "$out/probe.json"
    step profile timeout 60 build/cuda/hpcdl profile "${gpt2[@]}" --steps 5 --rows 10 --trace "$out/gpt2_trace.json.gz" --html "$out/gpt2_profile.html"
    step planted timeout 60 build/cuda/hpcdl verify --planted --device cuda
    step verify timeout 60 build/cuda/hpcdl verify --device cuda
    step user_library timeout 30 build/cuda/hpcdl verify build/cuda/examples/my_cuda_kernels.so
    step roofline roofline
    step bench timeout 150 build/cuda/hpcdl bench --device cuda --seconds 0.1 --json "$out/bench.json"
    grep -E 'light' "$out/bench.log" | cut -c1-120
  fi
  if [[ $part != tests ]] && ((${#options[@]})); then
    bars=("$python" -W ignore bench/gpu/bars.py)
    step bars timeout 300 "${bars[@]}" --only add,softmax,ops,relu,gemm,conv,attention,int4,step --seconds 0.4 --json "$out/bars.json"
    step images timeout 240 "${bars[@]}" --only image --json "$out/bars.json"
    step errors env HPCDL_MODULE=build/cuda/python timeout 60 "$python" -W ignore bench/errors.py --device cuda --json "$out/errors.json"
    step conv_alone timeout 60 "${bars[@]}" --only conv --ways conv2d=own --no-compile --seconds 0.1 --json "$out/bars_conv_own.json"
    step attention_atomic timeout 60 "${bars[@]}" --only attention --atomic-sums --no-compile --seconds 0.1 --json "$out/bars_attention_atomic.json"
    cat "$out"/{bars,images,conv_alone,attention_atomic}.log
  fi
fi
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
printf '%s\n' "${rows[@]}"
exit $((failed > 0))
