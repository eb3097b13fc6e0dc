#!/usr/bin/env python3
"""The cost of mixed precision in accuracy and its gain in speed: trains one configuration in f32 and in other types from several seeds, and prints the
accuracy on images held out, its difference from f32 with the standard error over the seeds, and samples per second.

    bench/amp_accuracy.py [--config examples/demos/3_mixed_precision.toml] [--seeds 3] [--types f32,bf16] [--json FILE] [--section.key=value ...]

The program comes from HPCDL_BIN (build/release/hpcdl); all other arguments are passed to `hpcdl train`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
HPCDL = os.environ.get("HPCDL_BIN") or str(ROOT / "build" / "release" / "hpcdl")


def train(config, dtype, seed, words):
    with tempfile.TemporaryDirectory() as out:
        command = [HPCDL, "train", "-c", config, f"--train.dtype={dtype}", f"--train.seed={seed}", "--checkpoint.resume=none", *words, "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in open(pathlib.Path(out) / "metrics.jsonl")]
    rates = [line["samples_per_second"] for line in lines if "samples_per_second" in line]
    return [line["eval_accuracy"] for line in lines if "eval_accuracy" in line][-1], statistics.median(rates[len(rates) // 4:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", default=str(ROOT / "examples" / "demos" / "3_mixed_precision.toml"))
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--types", default="f32,bf16")
    p.add_argument("--json")
    o, words = p.parse_known_args()
    types = o.types.split(",")
    results = {t: [] for t in types}
    for seed in range(1, o.seeds + 1):  # types in turns, so that disturbances of the machine affect all of them
        for t in types:
            results[t].append(train(o.config, t, seed, words))
            print(f"seed {seed}  {t:<5} accuracy {100 * results[t][-1][0]:6.2f} %  {results[t][-1][1]:9.0f} samples/s", flush=True)
    rows = []
    for t in types:
        apart = [100 * (a[0] - b[0]) for a, b in zip(results[t], results[types[0]])]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
        rate = statistics.median(r for _, r in results[t])
        speed_up = rate / statistics.median(r for _, r in results[types[0]])
        rows.append({"dtype": t, "accuracy": [a for a, _ in results[t]], "points_from_first": statistics.mean(apart), "standard_error": error, "samples_per_second": rate, "speed_up": speed_up})
        print(f"{t:<5} mean accuracy {100 * statistics.mean(a for a, _ in results[t]):6.2f} %  {statistics.mean(apart):+.2f} points (standard error {error:.2f})  {rate:9.0f} samples/s  {speed_up:.2f}x")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"config": o.config, "overrides": words, "rows": rows}, indent=1) + "\n")


main()
