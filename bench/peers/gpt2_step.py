#!/usr/bin/env python3
"""One training step of GPT-2 124M (forward, backward, AdamW), ours against PyTorch's and llm.c's, in interleaved rounds.

    bench/peers/gpt2_step.py --context 64 [--rounds 7] [--sides hpcdl,torch,hpcdl-bf16,torch-bf16,llm.c]

Each side is a process that waits while the others compute. Peers run in the environment in which they are fastest.
Peak memory is what the kernel has counted for the process.
"""

import argparse
import sys

import common
import turns

HERE = common.ROOT / "bench" / "peers"


def commands(batch, context):
    torch = [sys.executable, "-W", "ignore", str(HERE / "gpt2_torch.py"), "--batch", str(batch), "--context", str(context)]
    ours = [str(common.BUILD / "gpt2_step"), str(batch), str(context)]
    return {
        "hpcdl": [*ours, "f32"],
        "hpcdl-bf16": [*ours, "bf16"],
        "torch": torch,
        "torch-bf16": [*torch, "--bf16"],
        "torch-clip": [*torch, "--clip"],
        "torch-clip-bf16": [*torch, "--clip", "--bf16"],
        "torch-compile": [*torch, "--compile"],
        "torch-compile-bf16": [*torch, "--bf16", "--compile"],
        "torch-untuned": [*torch, "--untuned"],
        "torch-bf16-untuned": [*torch, "--bf16", "--untuned"],
        "llm.c": [str(common.BUILD / "llmc_step"), str(batch), str(context)],
    }


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--sides", default="hpcdl,torch,llm.c")
    args = p.parse_args()
    known = commands(args.batch, args.context)
    sides = {}
    for name in args.sides.split(","):
        if name.startswith(("hpcdl", "llm.c")) and not common.pathlib.Path(known[name][0]).exists():
            print(f"# {name}: {known[name][0]} is not built, left out")
            continue
        sides[name] = turns.Side(known[name], None if name.endswith("untuned") else common.tuned_environment())
    samples = turns.rounds(sides, args.rounds, pause=0.05)
    rows = {}
    print(f"# {common.cpu()[0]}, {common.THREADS} threads, GPT-2 124M, batch {args.batch}, context {args.context}")
    for name, s in samples.items():
        ms = [x["ms"] / 1e3 for x in s]
        rows[name] = {**common.summary(ms), "peak_bytes": s[-1]["peak_bytes"], "loss": s[-1]["loss"]}
        ours = "hpcdl-bf16" if "bf16" in name else "hpcdl"
        if ours in samples and not name.startswith("hpcdl"):
            rows[name]["ratio"] = common.ratio(ms, [x["ms"] / 1e3 for x in samples[ours]])
        r = rows[name].get("ratio")
        print(f"{name:<20} {rows[name]['median_ms']:9.1f} ms  [{rows[name]['min_ms']:.1f} {rows[name]['max_ms']:.1f}]  "
              f"peak {rows[name]['peak_bytes'] / 2**20:7.0f} MiB" + (f"  ours x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}]" if r else ""))
    for side in sides.values():
        side.end()
    print("#", common.merge_results("gpt2_step", {f"B{args.batch} T{args.context}": {"sides": rows}}))


if __name__ == "__main__":
    main()
