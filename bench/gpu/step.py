"""The bar of the training step: GPT-2 124M, B=64 T=1024, bf16, forward, backward, clip, AdamW; ours against torch.compile, or
with --no-compile against eager PyTorch, as processes whose steps take turns.
"""

import os
import pathlib
import statistics
import sys

import turns
from measure import Bar

BATCH, CONTEXT, ROUNDS = 64, 1024, 11
PEERS = pathlib.Path(__file__).resolve().parents[1] / "peers"


def commands(program, use_compile):
    torch = [sys.executable, "-W", "ignore", str(PEERS / "gpt2_torch.py"), "--batch", str(BATCH), "--context", str(CONTEXT), "--bf16", "--clip",
             "--device", "cuda"]
    # Ours first and ready before the others begin: it measures the memory that it uses on the GPU.
    sides = {"hpcdl": [program, str(BATCH), str(CONTEXT), "bf16", "cuda"]}
    sides["torch.compile" if use_compile else "eager"] = [*torch, "--compile"] if use_compile else torch
    return sides


def interval(values):
    """Order statistics that bracket the median with 95 % (six values or more), as in the lab's protocol."""
    s = sorted(values)
    k = max(0, int((len(s) - 1.96 * len(s) ** 0.5) / 2))
    return {"median": statistics.median(s), "low": s[k], "high": s[-1 - k]}


def measured(program, use_compile):
    sides = {}
    try:
        for name, command in commands(program, use_compile).items():
            sides[name] = turns.Side(command)
        for side in sides.values():
            side.step()
        return turns.rounds(sides, ROUNDS)
    finally:
        for side in sides.values():
            side.end()


def step(use_compile, program=None):
    program = program or os.environ.get("HPCDL_GPT2_STEP") or str(PEERS.parents[1] / "build" / "bench" / "gpt2_step")
    samples = measured(program, use_compile)
    ms = {name: [s["ms"] for s in rows] for name, rows in samples.items()}
    peak = {name: rows[-1]["peak_bytes"] for name, rows in samples.items()}
    tokens = {name: BATCH * CONTEXT / statistics.median(v) * 1e3 for name, v in ms.items()}
    flops = 6.0 * 124.4e6 * BATCH * CONTEXT + 12.0 * 12 * 768 * CONTEXT * BATCH * CONTEXT  # flops of products and attention, counted as in nanoGPT
    losses = ", ".join(f"{name} {rows[-1]['loss']:.3f}" for name, rows in samples.items())
    for peer, goal in (("torch.compile", 1.0), ("eager", None)):
        if peer not in ms:
            continue
        yield Bar("GPT-2 124M step", "bf16 B64 T1024", goal, peer, statistics.median(ms["hpcdl"]) * 1e3, statistics.median(ms[peer]) * 1e3,
                  interval([t / o for t, o in zip(ms[peer], ms["hpcdl"])]), note=f"losses: {losses}",
                  rate=f"{tokens['hpcdl'] / 1e3:.0f}k tokens/s against {tokens[peer] / 1e3:.0f}k, {flops / statistics.median(ms['hpcdl']) / 1e9:.0f} TFLOP/s")
        r = peak[peer] / peak["hpcdl"]
        yield Bar("GPT-2 124M step", "peak memory", 1.25 if goal else None, peer, ratio={"median": r, "low": r, "high": r},
                  rate=f"{peak['hpcdl'] / 2**30:.1f} GiB against {peak[peer] / 2**30:.1f}")
