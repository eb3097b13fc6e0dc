#!/usr/bin/env python3
"""Our kernels against PyTorch in one process, on the same memory, in the same rounds.

    bench/peers/torch_bench.py [--only softmax,adamw] [--rounds N] [--no-compile] [--prepare]

The script restarts itself with the environment in which PyTorch is fastest (common.tuned_environment), then once more
without it for the untuned column. --prepare runs every side once, so that torch.compile's cache is warm.
"""

import argparse
import os
import subprocess
import sys
import threading

import common

common.reexec_tuned()
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(common.BUILD / "inductor"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # compare on the CPU, even if there is a GPU

import torch  # noqa: E402

import hpcdl  # noqa: E402
from hpcdl import bench  # noqa: E402

import torch_cases  # noqa: E402

OURS = ("hpcdl", "hpcdl packed")
ROOFS = ("copy", "streaming copy")
# OpenMP's workers keep spinning after a call: 300,000 pauses by default, which are 16 ms if a pause takes 140 cycles. A side
# that begins earlier shares a core with them, both ours and PyTorch's own next call.
SETTLE = 0.02


def threads_of(start):
    """The threads that start() leaves running."""
    before = set(os.listdir("/proc/self/task"))
    start()
    return sorted(int(t) for t in set(os.listdir("/proc/self/task")) - before)


def one_core_each():
    """Binds every thread of both sides to its own core, the same cores for both: a scheduler that lets just woken threads share
    a core (it saves power, and hosts of virtual machines like it) would halve the speed of either side, now and then."""
    x = torch.randn(512, 512)
    cores = sorted(os.sched_getaffinity(0))
    for workers in (threads_of(lambda: hpcdl.softmax(x)), threads_of(lambda: (x.exp(), x @ x))):
        for i, thread in enumerate(workers):
            os.sched_setaffinity(thread, {cores[(i + 1) % len(cores)]})
    os.sched_setaffinity(threading.get_native_id(), cores[:1])


def measure(case, args):
    case.check()
    if args.prepare:
        for f in case.sides.values():
            f()
        return None
    result = bench.compare(case.sides, rounds=args.rounds, cache="rotated", limit=args.seconds, settle=SETTLE)
    seconds = result["seconds"]
    peers = [n for n in seconds if n not in OURS and n not in ROOFS]
    best = min(peers, key=lambda n: common.summary(seconds[n])["median_ms"])
    row = {"op": case.op, "shape": case.shape, "dtype": case.dtype, "bytes": case.bytes, "flops": case.flops, "rounds": result["rounds"], "half_width": result["half_width"]}
    row["sides" if not args.untuned else "untuned_sides"] = {n: common.summary(s) for n, s in seconds.items()}
    if args.untuned:
        first = next(n for n in seconds if n.startswith("torch"))
        row["untuned_side"], row["untuned_ratio"] = first, common.ratio(seconds[first], seconds["hpcdl"])
        return row
    # Compares PyTorch in eager mode, in every form, with our unpacked calls; and the best of all its ways, which may have packed
    # weights, with ours, packed if possible.
    ours = OURS[-1] if OURS[-1] in seconds else OURS[0]
    eager = min((n for n in peers if n in ("torch", "torch out=", "torch flash")), key=lambda n: common.summary(seconds[n])["median_ms"])
    row["best_peer"], row["best_eager"] = best, eager
    row["ratio"] = common.ratio(seconds[best], seconds[ours])
    row["eager_ratio"] = common.ratio(seconds[eager], seconds["hpcdl"])
    if "copy" in seconds:
        share = case.bytes / case.copied  # compares bandwidths, even if the sides move different bytes
        row["of_copy"] = common.ratio([share * c for c in seconds["copy"]], seconds["hpcdl"])
    row["error"] = case.error
    row["peer"] = f"PyTorch {torch.__version__.split('+')[0]}"
    return row


def show(key, row, untuned):
    if untuned:
        r = row["untuned_ratio"]
        return print(f"{key:<38} untuned {row['untuned_side']} {row['untuned_sides'][row['untuned_side']]['median_ms']:9.3f} ms  x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}]")
    ours = row["sides"]["hpcdl"]["median_ms"]
    rate = f"{row['flops'] / ours / 1e6:7.0f} GFLOP/s" if row["flops"] else f"{row['bytes'] / ours / 1e6:7.1f} GB/s"
    r, c = row["ratio"], row.get("of_copy")
    copy = f"  {c['median']:.2f} of copy [{c['min']:.2f} {c['max']:.2f}]" if c else ""
    e = row["eager_ratio"]
    print(f"{key:<38} {ours:9.3f} ms {rate}  x{e['median']:.2f} [{e['min']:.2f} {e['max']:.2f}] of eager, "
          f"x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}] of {row['best_peer']}{copy}")
    print(" " * 38, "  ".join(f"{n} {s['median_ms']:.3f}" for n, s in row["sides"].items()), f" max error {row['error']:.1e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", default="", help="comma-separated beginnings of case names")
    p.add_argument("--rounds", type=int, default=0, help="0: until the interval is narrow enough, or --seconds are over")
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    p.add_argument("--prepare", action="store_true")
    p.add_argument("--untuned", action="store_true", help="measure PyTorch as it is out of the box")
    p.add_argument("--tuned-only", action="store_true")
    args = p.parse_args()

    torch.set_num_threads(common.THREADS)
    torch.manual_seed(0)
    hpcdl.set_threads(common.THREADS)
    one_core_each()
    print(f"# {common.cpu()[0]}, {common.THREADS} threads, PyTorch {torch.__version__}, {'untuned' if args.untuned else 'tuned'}")
    rows, only = {}, tuple(args.only.split(","))
    with torch.no_grad():
        for key, make in torch_cases.cases(compiled=not (args.no_compile or args.untuned)):
            if not key.startswith(only):
                continue
            row = measure(make(), args)
            if row:
                rows[key] = row
                show(key, row, args.untuned)
                sys.stdout.flush()
    if rows:
        print("#", common.merge_results("ops", rows))
    if not (args.untuned or args.tuned_only or args.prepare):
        plain = {k: v for k, v in os.environ.items() if k not in bench.TUNED and k not in ("HPCDL_BENCH_TUNED", "LD_PRELOAD", "OMP_NUM_THREADS")}
        sys.exit(subprocess.call([sys.executable, *sys.argv, "--untuned"], env=plain))


if __name__ == "__main__":
    main()
