#!/usr/bin/env python3
"""Every convolution of SimpleCNN and ResNet-18, ours against PyTorch's (oneDNN) in both memory formats, in interleaved rounds.

    bench/peers/conv2d.py [--rounds 7] [--dtype f32|bf16]

Each side is a process that waits while the others compute; per layer and direction the faster format of PyTorch counts.
"""

import argparse
import json
import os
import sys
import time

import common
import turns

# The same as in bench/conv2d_layers.cpp: name, batch, size, in, out, kernel, stride
LAYERS = [
    ("SimpleCNN 1", 128, 32, 3, 64, 3, 1), ("SimpleCNN 2", 128, 16, 64, 128, 3, 1), ("SimpleCNN 3", 128, 8, 128, 256, 3, 1),
    ("ResNet stem", 32, 32, 3, 64, 3, 1), ("ResNet 64", 32, 32, 64, 64, 3, 1), ("ResNet 64-128 /2", 32, 32, 64, 128, 3, 2),
    ("ResNet 128", 32, 16, 128, 128, 3, 1), ("ResNet 128-256 /2", 32, 16, 128, 256, 3, 2), ("ResNet 256", 32, 8, 256, 256, 3, 1),
    ("ResNet 256-512 /2", 32, 8, 256, 512, 3, 2), ("ResNet 512", 32, 4, 512, 512, 3, 1), ("ResNet 1x1 64-128 /2", 32, 32, 64, 128, 1, 2),
    ("ResNet 1x1 128-256 /2", 32, 16, 128, 256, 1, 2), ("ResNet 1x1 256-512 /2", 32, 8, 256, 512, 1, 2),
]
DIRECTIONS = ("forward", "dx", "dw")


def milliseconds(call):
    """Milliseconds of the faster of two calls after one that is not measured."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times[1:])


def serve(dtype, channels_last):
    """PyTorch's side: a turn for every line of standard input."""
    import torch

    torch.set_num_threads(common.THREADS)
    form = {"memory_format": torch.channels_last if channels_last else torch.contiguous_format}
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    sides = {}
    for name, batch, size, inputs, outputs, kernel, stride in LAYERS:
        x, w = (torch.rand(s).sub_(0.5).to(kind).contiguous(**form) for s in ((batch, inputs, size, size), (outputs, inputs, kernel, kernel)))
        pad = kernel // 2
        forward = lambda x=x, w=w, stride=stride, pad=pad: torch.conv2d(x, w, None, stride, pad)
        dy = torch.rand_like(forward())
        backward = lambda mask, x=x, w=w, dy=dy, stride=stride, pad=pad: lambda: torch.ops.aten.convolution_backward(
            dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)
        sides[name] = dict(zip(DIRECTIONS, (forward, backward([True, False, False]), backward([False, True, False]))))
    print("ready", flush=True)
    with torch.no_grad():
        for _ in sys.stdin:
            print(json.dumps({name: {d: milliseconds(call) for d, call in calls.items()} for name, calls in sides.items()}), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    p.add_argument("--serve", choices=("channels_last", "contiguous"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.serve:
        return serve(args.dtype, args.serve == "channels_last")
    environment = common.tuned_environment()
    torch = lambda form: turns.Side([sys.executable, "-W", "ignore", os.path.abspath(__file__), "--serve", form, "--dtype", args.dtype], environment)
    sides = {"hpcdl": turns.Side([str(common.BUILD / "conv2d_layers"), args.dtype]), "channels_last": torch("channels_last"), "contiguous": torch("contiguous")}
    samples = turns.rounds(sides, args.rounds, pause=0.05)
    for side in sides.values():
        side.end()
    rows = {}
    for name in samples["hpcdl"][0]:
        for d in DIRECTIONS:
            ms = {side: [r[name][d] for r in rounds] for side, rounds in samples.items()}
            best = min(("channels_last", "contiguous"), key=lambda s: common.statistics.median(ms[s]))
            row = {"flops": samples["hpcdl"][0][name]["flops"], "ratio": common.ratio(ms[best], ms["hpcdl"]), "best_peer": best,
                   "sides": {side: common.summary([m / 1e3 for m in values]) for side, values in ms.items()}}
            rows[f"{name} {args.dtype} {d}"] = row
            ours, r = row["sides"]["hpcdl"]["median_ms"], row["ratio"]
            print(f"{name + ' ' + d:<34} {ours:8.2f} ms {row['flops'] / ours / 1e6:6.0f} GFLOP/s   torch {best:<13} {row['sides'][best]['median_ms']:8.2f} ms"
                  f"   x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}]")
    print("#", common.merge_results("conv2d", rows))


if __name__ == "__main__":
    main()
