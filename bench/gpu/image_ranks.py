#!/usr/bin/env python3
"""Data-parallel training of image classifiers on the GPUs at hand, against one of them: samples per second of `hpcdl launch -n N -- train` on the
configurations of the demos, and the efficiency, which is the rate over N times that of one GPU. One table, and JSON.

    bench/gpu/image_ranks.py [--gpus N] [--rounds 2] [--json FILE]

One GPU and all of them take turns; a rate is the median of the lines of metrics after the first quarter, of all rounds. The program comes from
HPCDL_BIN (build/cuda/hpcdl).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HPCDL = os.environ.get("HPCDL_BIN") or str(ROOT / "build" / "cuda" / "hpcdl")
GOAL = 0.9
CASES = {
    "resnet18 bf16": ["3_mixed_precision.toml", "--train.dtype=bf16", "--train.epochs=0", "--train.steps=240"],
    "simple_cnn bf16": ["2_data_parallel.toml", "--train.dtype=bf16", "--train.steps=600"],
}
SHORT = ["--train.log_every=20", "--train.eval_batches=1", "--train.warmup=10", "--checkpoint.resume=none", "--train.device=cuda"]


def rates(case, ranks):
    toml, *words = CASES[case]
    with tempfile.TemporaryDirectory() as out:
        command = [HPCDL, "launch", "-n", str(ranks), "--", "train", "-c", str(ROOT / "examples" / "demos" / toml), *words, *SHORT, "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        lines = [json.loads(line) for line in open(pathlib.Path(out) / "metrics.jsonl")]
    lines = [line for line in lines if "samples_per_second" in line]
    lines = lines[len(lines) // 4:]
    return [line["samples_per_second"] for line in lines], [line["data_wait_percent"] for line in lines]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--json")
    o = p.parse_args()
    rows = []
    for case in CASES:
        seen = {1: [], o.gpus: []}
        waits = {1: [], o.gpus: []}
        for _ in range(o.rounds):
            for n in seen:
                rate, wait = rates(case, n)
                seen[n] += rate
                waits[n] += wait
        one, many = statistics.median(seen[1]), statistics.median(seen[o.gpus])
        efficiency = many / one / o.gpus
        rows.append({"case": case, "gpus": o.gpus, "one": one, "many": many, "efficiency": efficiency, "goal": GOAL, "met": efficiency >= GOAL,
                     "data_wait_percent": statistics.median(waits[o.gpus])})
        print(f"{case:<18} 1 GPU {one:9.0f} samples/s   {o.gpus} GPUs {many:9.0f}   efficiency {efficiency:.3f}  >= {GOAL}  {'met' if efficiency >= GOAL else 'MISSED'}"
              f"   waiting for data {rows[-1]['data_wait_percent']:.1f} %", flush=True)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(rows, indent=1) + "\n")


main()
