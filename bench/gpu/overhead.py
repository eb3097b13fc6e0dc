#!/usr/bin/env python3
"""Host time of a call from Python, in microseconds: small tensors, so that the GPU waits for the host; compared with PyTorch's call of
the same op, and with the launch alone, queued by the lab without converting tensors.

    bench/gpu/overhead.py
"""

import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.environ.get("HPCDL_MODULE") or str(ROOT / "build" / "cuda" / "python"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import hpcdl  # noqa: E402
from hpcdl import _hpcdl  # noqa: E402


def cost(call, calls=400, rounds=15):
    """Microseconds a call takes to return; the queue is emptied between rounds, so that it never blocks."""
    best = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return sorted(best)[rounds // 2]


def main():
    x, w, b = torch.randn(64, 64, device="cuda"), torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
    out, weight = torch.empty_like(x), torch.randn(64, 64, device="cuda")
    lab = lambda op: _hpcdl._BenchCase(op, "64x64", "f32", False, "cuda").run
    rows = [
        ("softmax", lambda: hpcdl.softmax(x), lambda: torch.softmax(x, -1), lab("softmax")),
        ("softmax, out=", lambda: hpcdl.softmax(x, out=out), lambda: torch.softmax(x, -1, out=out), lab("softmax")),
        ("gelu", lambda: hpcdl.gelu(x), lambda: F.gelu(x), lab("gelu")),
        ("layer_norm", lambda: hpcdl.layer_norm(x, w, b), lambda: F.layer_norm(x, (64,), w, b), lab("layer_norm")),
        ("linear", lambda: hpcdl.linear(x, weight, b), lambda: F.linear(x, weight, b), _hpcdl._BenchCase("linear+bias", "64x64x64", "f32", False, "cuda").run),
    ]
    empty = cost(lambda: torch.empty_strided((64, 64), (64, 1), dtype=torch.float32, device=x.device))
    print(f"{'host time of a call, us':<26} {'ours':>7} {'PyTorch':>8} {'launch':>7} {'over the launch':>16}    (torch.empty_strided alone {empty:.2f})")
    for name, ours, theirs, launch in rows:
        a, p, bare = cost(ours), cost(theirs), cost(launch)
        print(f"{name:<26} {a:7.2f} {p:8.2f} {bare:7.2f} {a - bare:16.2f}")


if __name__ == "__main__":
    main()
