#!/usr/bin/env bash
# All comparisons, one after the other; nothing else should run on the machine. Peers that are not installed are left out.
#   HPCDL_BENCH_PYTHON   a Python with torch (otherwise build/venv-bench is made)
#   LLMC_DIR             a checkout of karpathy/llm.c
#   GGML_DIR             a checkout of ggml-org/ggml, built statically in its build/ (also given to CMake)
set -uo pipefail
cd "$(dirname "$0")/../.."
python=$(scripts/venv.sh bench)
if [[ -n $python ]]; then
  "$python" -W ignore bench/peers/torch_bench.py --prepare
  "$python" -W ignore bench/peers/torch_bench.py
else
  echo "bench: no PyTorch; its comparisons are left out" >&2
fi
[[ -z ${LLMC_DIR:-} ]] || bench/peers/llmc.sh
sides=hpcdl,hpcdl-bf16${python:+,torch,torch-bf16,torch-clip,torch-clip-bf16,torch-untuned,torch-bf16-untuned},llm.c
for context in 64 256; do "${python:-python3}" bench/peers/gpt2_step.py --context $context --sides "$sides"; done
[[ ! -x build/bench/ggml_int4 ]] || build/bench/ggml_int4 | "${python:-python3}" bench/peers/collect.py int4
machine=$("${python:-python3}" -c 'import sys; sys.path.insert(0, "bench/peers"); import common; print(common.results_file("gemm"))')
build/bench/gemm --json "$machine"
{ build/bench/program_bench; build/bench/load_bench; } | "${python:-python3}" bench/peers/collect.py host
build/bench/images_bench | "${python:-python3}" bench/peers/collect.py loader
[[ -z $python ]] || "$python" -W ignore bench/errors.py --json "$(dirname "$machine")/errors.json"
HPCDL=build/release/hpcdl scripts/trouble_outputs.sh "$(dirname "$machine")"
"${python:-python3}" scripts/results_pages.py
