#!/usr/bin/env python3
"""One training step of an image classifier (forward, backward, SGD with momentum), ours against PyTorch's, in interleaved rounds.

    bench/peers/image_step.py --arch simple_cnn --batch 128 [--size 32] [--rounds 9] [--sides hpcdl,torch,torch-channels-last]

Each side is a process that waits while the others compute. PyTorch runs in the environment in which it is fastest; the reported ratio is the
one to its faster layout.
"""

import argparse
import sys

import common
import turns

HERE = common.ROOT / "bench" / "peers"


def commands(arch, batch, size):
    torch = [sys.executable, "-W", "ignore", str(HERE / "image_torch.py"), "--arch", arch, "--batch", str(batch), "--size", str(size)]
    ours = [str(common.BUILD / "image_step"), arch, str(batch), str(size)]
    return {
        "hpcdl": [*ours, "f32"],
        "hpcdl-bf16": [*ours, "bf16"],
        "torch": torch,
        "torch-channels-last": [*torch, "--channels-last"],
        "torch-compile": [*torch, "--channels-last", "--compile"],
        "torch-bf16": [*torch, "--dtype", "bf16"],
        "torch-channels-last-bf16": [*torch, "--channels-last", "--dtype", "bf16"],
    }


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--arch", choices=["simple_cnn", "resnet18"], default="simple_cnn")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--sides", default="hpcdl,torch,torch-channels-last")
    args = p.parse_args()
    known = commands(args.arch, args.batch, args.size)
    sides = {name: turns.Side(known[name], None if name.startswith("hpcdl") else common.tuned_environment()) for name in args.sides.split(",")}
    samples = turns.rounds(sides, args.rounds, pause=0.05)
    for side in sides.values():
        side.end()
    rows = {}
    print(f"# {common.cpu()[0]}, {common.THREADS} threads, {args.arch}, batch {args.batch}, {args.size} x {args.size}")
    for name, s in samples.items():
        seconds = [x["ms"] / 1e3 for x in s]
        rows[name] = {**common.summary(seconds), "samples_per_second": args.batch / sorted(seconds)[len(seconds) // 2], "peak_bytes": s[-1]["peak_bytes"]}
        ours = "hpcdl-bf16" if "bf16" in name else "hpcdl"
        if ours in samples and not name.startswith("hpcdl"):
            rows[name]["ratio"] = common.ratio(seconds, [x["ms"] / 1e3 for x in samples[ours]])
        r = rows[name].get("ratio")
        print(f"{name:<26} {rows[name]['median_ms']:8.1f} ms  [{rows[name]['min_ms']:.1f} {rows[name]['max_ms']:.1f}]  {rows[name]['samples_per_second']:7.1f} samples/s  "
              f"peak {rows[name]['peak_bytes'] / 2**20:5.0f} MiB" + (f"  ours x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}]" if r else ""))
    print("#", common.merge_results("image_step", {f"{args.arch} B{args.batch} {args.size}x{args.size}": {"sides": rows}}))


if __name__ == "__main__":
    main()
