#!/usr/bin/env bash
# Builds build/bench/llmc_step from your checkout of llm.c:  LLMC_DIR=~/llm.c bench/peers/llmc.sh
# Compiled with the flags of its own Makefile: -Ofast -march=native -fopenmp.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -f ${LLMC_DIR:-}/train_gpt2.c ]] || { echo "llmc: set LLMC_DIR to a checkout of karpathy/llm.c (found '${LLMC_DIR:-}')" >&2; exit 1; }
mkdir -p build/bench
cc -Ofast -march=native -fopenmp -DOMP -Wno-unused-result -I"$LLMC_DIR" bench/peers/llmc_step.c -lm -o build/bench/llmc_step
