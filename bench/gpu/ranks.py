#!/usr/bin/env python3
"""The bars of several GPUs, measured in one run on the GPUs at hand: all-reduces against NCCL, data-parallel training against PyTorch's
DistributedDataParallel, layers that several GPUs compute together against one GPU, mixtures whose experts they divide against an MLP of equal work and
against PyTorch. One table, and JSON.

    bench/gpu/ranks.py [--only all_reduce,tensor,experts,ddp] [--gpus N] [--buckets 200/80,400/160] [--rounds 5] [--steps 5] [--no-torch] [--limit 120] [--json FILE]

A bar on times is a ratio of medians, of sides that take turns. A program without output for --limit seconds is killed: without PyTorch its row
is left out, without one of ours the rows of that section. Programs come from HPCDL_BENCH_BIN (build/bench).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from concurrent import futures

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import turns  # noqa: E402

BIN = pathlib.Path(os.environ.get("HPCDL_BENCH_BIN") or ROOT / "build" / "bench")
BATCH, CONTEXT = 64, 1024
APART = "25:apart"  # the same number of GPUs without exchange, which is the most that they can reach


def gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("GPU") for line in listed.splitlines())


class Table:
    def __init__(self):
        self.rows = []

    def bar(self, section, case, ours, theirs, ratio, goal=None, most=False):
        """most: the ratio must not exceed the goal."""
        met = None if goal is None else ratio <= goal if most else ratio >= goal
        self.rows.append({"section": section, "case": case, "ours": ours, "theirs": theirs, "ratio": ratio, "goal": goal, "met": met})
        sign = "" if goal is None else f"{'<=' if most else '>='} {goal:.2f}"
        print(f"{section:<12} {case:<42} {ours:<22} {theirs:<22} {ratio:6.3f}  {sign:<8} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)


def size(n):
    return f"{n >> 20} MB" if n >= 1 << 20 else f"{n >> 10} KB" if n >= 1024 else f"{n} B"


def all_reduce(table, ranks):
    out = subprocess.run([BIN / "all_reduce_grid", str(ranks)], capture_output=True, text=True, check=True, timeout=60).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    for d in lines:
        small = d["bytes"] <= 65536 and ranks <= 4
        table.bar("all_reduce", f"{ranks} GPUs, {size(d['bytes'])}, captured", f"auto {d['auto']:.1f} us", f"NCCL {d['nccl']:.1f} us", d["auto"] / d["nccl"],
                  0.5 if small else 1.02, most=True)  # 2 %: if auto is NCCL, the two differ only by noise
    return lines


def started(commands, limit):
    """Starts all commands, or none. A command: its words, and its environment or None."""
    with futures.ThreadPoolExecutor(len(commands)) as pool:
        coming = {name: pool.submit(turns.Side, words, env, limit) for name, (words, env) in commands.items()}
    failed = [side.exception() for side in coming.values() if side.exception()]
    if failed:
        for side in coming.values():
            if not side.exception():
                side.result().end()
        raise failed[0]
    return {name: side.result() for name, side in coming.items()}


def in_turns(commands, rounds, limit, torch=None):
    """The results of each command in each round. Those of PyTorch, which compile, are started before all others, and left out if they fail."""
    sides = {}
    try:
        if torch:
            try:
                sides |= started(torch, limit)
            except RuntimeError as e:
                print(f"ranks: without PyTorch: {e}", file=sys.stderr, flush=True)
        sides |= started(commands, limit)
        try:
            return turns.rounds(sides, rounds)
        except (RuntimeError, OSError) as e:
            if not any(name in sides and sides[name].has_ended() for name in torch or ()):
                raise
            print(f"ranks: again without PyTorch: {e}", file=sys.stderr, flush=True)
            for name in torch:
                sides.pop(name).end()
            return turns.rounds(sides, rounds)
    finally:
        for side in sides.values():
            side.end()


def on_gpu(i):
    """The environment of a process that only sees GPU number i."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": seen.split(",")[i] if seen else str(i)}


def references(alone):
    """The references for several GPUs, from the rate of each GPU alone (tokens/s): the first one; their mean; and the slowest, for which the others
    wait in every step."""
    return {"the first": alone[0], "their mean": statistics.mean(alone), "the slowest": min(alone)}


def efficiencies(together, alone):
    """The rate of all GPUs, as a share of that many times each reference."""
    return {name: together / (len(alone) * rate) for name, rate in references(alone).items()}


def of_alone(table, who, rate, n, kind, goal):
    """Rows of efficiency: the bar is compared with the mean GPU. rate: by side, with "alone 0" and on."""
    alone = [rate[f"{kind} alone {i}"] for i in range(n)]
    together = rate[f"{kind} {n}"]
    ratios = efficiencies(together, alone)
    for name, one in references(alone).items():
        table.bar("ddp", f"{who}, against {name} alone", f"{together / 1e3:.0f}k tokens/s", f"{name} {one / 1e3:.0f}k", ratios[name], goal if name == "their mean" else None)


def train(table, counts, args):
    """On the largest number of GPUs, in three runs, as no GPU has memory for all sides at once: each GPU alone beside all together, for every size of
    buckets; then the first of these beside the same GPUs without exchange; then beside PyTorch. The smaller numbers only beside each GPU alone."""
    buckets, most = args.buckets.split(","), max(counts)
    ours = lambda n, kind: [str(BIN / "gpt2_ranks"), str(n), str(BATCH), str(CONTEXT), "bf16", str(args.steps), kind]
    theirs = lambda n: [sys.executable, "-W", "ignore", str(ROOT / "bench" / "peers" / "gpt2_ddp.py"), "--ranks", str(n), "--batch", str(BATCH), "--context", str(CONTEXT), "--steps", str(args.steps)]
    rate_of = lambda samples: {name: statistics.median(s["tokens_per_second"] for s in rows) for name, rows in samples.items()}
    raw = {}
    for n in counts:
        commands = {f"hpcdl alone {i}": (ours(1, "25"), on_gpu(i)) for i in range(n)}
        commands |= {f"hpcdl {n} {kind}": (ours(n, f"{kind}:beside"), None) for kind in (buckets if n == most else buckets[:1])}
        raw[f"alone {n}"] = in_turns(commands, args.rounds, args.limit)
        rate = rate_of(raw[f"alone {n}"])
        for kind in (buckets if n == most else buckets[:1]):
            rate[f"hpcdl {n}"] = rate[f"hpcdl {n} {kind}"]
            of_alone(table, f"efficiency, {n} GPUs, buckets to {kind.replace('/', ' MB from ')} MB", rate, n, "hpcdl", 0.96 if n <= 4 else None)
    first = (ours(most, f"{buckets[0]}:beside"), None)
    raw["apart"] = in_turns({"together": first, "apart": (ours(most, APART), None)}, args.rounds, args.limit)
    rate = rate_of(raw["apart"])
    table.bar("ddp", f"beside {most} GPUs without exchange", f"{rate['together'] / 1e3:.0f}k tokens/s", f"{rate['apart'] / 1e3:.0f}k", rate["together"] / rate["apart"])
    if args.no_torch:
        return raw
    raw["torch"] = in_turns({"together": first}, args.rounds, args.limit, {"torch": (theirs(most), None)})
    rate = rate_of(raw["torch"])
    if "torch" in rate:
        table.bar("ddp", f"GPT-2 124M bf16 B={BATCH}, {most} GPUs", f"{rate['together'] / 1e3:.0f}k tokens/s", f"torch DDP {rate['torch'] / 1e3:.0f}k", rate["together"] / rate["torch"], 1.0)
    return raw


def tensor(table, counts, args):
    """The time of a layer is half of the difference of three layers and one: embedding, last norm and head are in both."""
    program = str(BIN / "llama_block_ranks")
    commands = {f"{n}x{layers}": ([program, f"{n}x{layers}", "conjugate" if n == 1 else "conjugate:beside"], None) for layers in (1, 3) for n in (1, *counts)}  # this is faster on one GPU
    samples = in_turns(commands, args.rounds, args.limit)
    ms = {name: statistics.median(s["ms"] for s in rows) for name, rows in samples.items()}
    layer = {n: (ms[f"{n}x3"] - ms[f"{n}x1"]) / 2 for n in (1, *counts)}
    for n in counts:
        table.bar("tensor", f"Llama layer d=4096, tp {n}", f"{layer[n]:.2f} ms", f"one {layer[1]:.2f} ms", layer[1] / n / layer[n], {2: 0.85, 4: 0.80}.get(n))
        table.bar("tensor", f"with embedding and head, tp {n}", f"{ms[f'{n}x1']:.2f} ms", f"one {ms['1x1']:.2f} ms", ms["1x1"] / n / ms[f"{n}x1"])
    return samples


def experts(table, counts, args):
    """A mixture in which every token goes through two of eight experts."""
    raw = {}
    for n in counts:
        commands = {kind: ([str(BIN / "mixture_ranks"), str(n), kind], None) for kind in ("dense", "divided")}
        peer = None if args.no_torch else {"torch": ([sys.executable, "-W", "ignore", str(ROOT / "bench" / "peers" / "mixture_torch.py"), "--ranks", str(n)], None)}
        raw[n] = in_turns(commands, args.rounds, args.limit, peer)
        rate = {name: statistics.median(s["tokens_per_second"] for s in rows) for name, rows in raw[n].items()}
        ours = f"{rate['divided'] / 1e3:.0f}k tokens/s"
        table.bar("experts", f"an MLP of equal work, {n} GPUs", ours, f"{rate['dense'] / 1e3:.0f}k", rate["divided"] / rate["dense"], 0.75)
        if "torch" in rate:
            table.bar("experts", f"PyTorch, grouped_mm, {n} GPUs", ours, f"{rate['torch'] / 1e3:.0f}k", rate["divided"] / rate["torch"], 1.0)
    return raw


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", default="all_reduce,tensor,experts,ddp")
    p.add_argument("--gpus", type=int, default=8, help="the most GPUs to use")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--buckets", default="200/80,400/160", help="MB of the largest bucket of ours in data-parallel training, and of the first: over NVLink few large ones cost less than 25 MB")
    p.add_argument("--steps", type=int, default=5, help="steps of data-parallel training in a round")
    p.add_argument("--no-torch", action="store_true")
    p.add_argument("--limit", type=int, default=120, help="seconds that a program may be silent")
    p.add_argument("--json")
    args = p.parse_args()
    counts = [n for n in (2, 4, 8) if n <= min(gpus(), args.gpus)]
    if not counts:
        raise SystemExit(f"ranks: expected at least two GPUs, found {gpus()}")
    sections = {"all_reduce": lambda: {str(n): all_reduce(table, n) for n in counts}, "tensor": lambda: tensor(table, counts, args), "experts": lambda: experts(table, counts, args), "ddp": lambda: train(table, counts, args)}
    table, raw, failed = Table(), {}, 0
    for name in args.only.split(","):
        try:
            raw[name] = sections[name]()
        except (RuntimeError, subprocess.SubprocessError, OSError) as e:
            print(f"ranks: no rows of {name}: {e}", file=sys.stderr, flush=True)
            failed += 1
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps({"gpus": gpus(), "bars": table.rows, "samples": raw}, indent=1) + "\n")
    missed = sum(r["met"] is False for r in table.rows)
    print(f"{len(table.rows)} rows, {missed} bars missed" + (f", {failed} sections failed" if failed else ""))
    raise SystemExit(missed + failed > 0)


if __name__ == "__main__":
    main()
