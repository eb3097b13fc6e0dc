#!/usr/bin/env python3
"""Every bar of the CUDA work, measured in one run on the GPU at hand: one table, and bench/results/NAME/bars.json.

    bench/gpu/bars.py [--only softmax,gemm] [--cases REGEX] [--ways attention=cudnn] [--no-compile] [--seconds S] [--json FILE]

With --only, FILE keeps the other sections that it holds. Sections: copy add softmax ops relu gemm fp8 conv attention int4 step image. A ratio is the time of the peer over ours, round by round in turns
(measure.py), with the interval that holds its median with 95 %; against "copy" it is the share of the speed of a copy of the same number of
bytes. HPCDL_MODULE: the folder of the Python module; HPCDL_GPT2_STEP, HPCDL_IMAGE_STEP: the programs
bench/gpt2_step and bench/image_step.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [os.environ.get("HPCDL_MODULE") or str(ROOT / "build" / "cuda" / "python"), str(ROOT / "bench" / "peers")]

import torch  # noqa: E402

import attention  # noqa: E402
import convolutions  # noqa: E402
import fp8  # noqa: E402
import hpcdl  # noqa: E402
import images  # noqa: E402
import measure  # noqa: E402
import memory  # noqa: E402
import products  # noqa: E402
import step  # noqa: E402

SECTIONS = ("add", "softmax", "ops", "relu", "gemm", "fp8", "conv", "attention", "int4", "step", "image")


def line(b):
    ratio = f"{b.ratio['median']:6.3f} [{b.ratio['low']:.3f} {b.ratio['high']:.3f}]" if b.ratio else " " * 21
    goal = f">= {b.goal:.2f}" if b.goal is not None else ""
    met = {True: "met", False: "MISSED", None: ""}[b.met]
    share = f"{100 * b.share:4.0f} %" if b.share is not None else ""
    return f"{b.section:<18} {b.case:<38} {b.ours_us:9.1f} {b.peer_us:9.1f} us  {b.peer:<14} {ratio:<22} {goal:<7} {met:<6} {share:>6}  {b.rate}{'  ' + b.note if b.note and not b.ratio else ''}"


def bars(only, use_compile, atomic_sums, ways, roofs):
    """Sections in order; the roofs with which they are compared come first."""
    if {"int4", "copy"} & set(only):
        roofs["copy_GBps"] = memory.copy_roof() / 1e9
    if {"relu", "gemm", "fp8", "conv", "attention", "copy"} & set(only):
        roofs["bf16_product_TFLOPs"] = products.tensor_core_roof() / 1e12
    peak, copy = roofs.get("bf16_product_TFLOPs", 0) * 1e12, roofs.get("copy_GBps", 0) * 1e9
    run = {"add": lambda: memory.vector_add(use_compile), "softmax": lambda: memory.softmax(use_compile), "ops": lambda: memory.ops(use_compile),
           "relu": lambda: products.matmul_add_relu(peak, use_compile), "gemm": lambda: products.gemm(peak, use_compile), "fp8": lambda: fp8.fp8(peak, use_compile),
           "conv": lambda: convolutions.convolutions(peak, use_compile, ways), "attention": lambda: attention.attention(peak, use_compile, atomic_sums, ways), "int4": lambda: products.int4(copy, use_compile), "step": lambda: measure.guarded("GPT-2 124M step", "bf16 B64 T1024", 1.0, lambda: step.step(use_compile)),
           "image": lambda: measure.guarded("image step", "all", 1.0, lambda: images.image_steps(use_compile))}
    for name in SECTIONS:
        if name in only:
            started = time.perf_counter()
            yield from run[name]()
            print(f"# {name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


def save(path, old, roofs, rows):
    measured = {b.section for b in rows}
    kept = [{**b, "date": b.get("date") or old["machine"]["date"]} for b in old["bars"] if b["section"] not in measured]
    machine = {"gpu": torch.cuda.get_device_name(), "threads": len(os.sched_getaffinity(0)), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    sections = list(dict.fromkeys([b["section"] for b in old["bars"]] + [b.section for b in rows]))  # a section that is measured again keeps its position
    bars = sorted(kept + [{**dataclasses.asdict(b), "met": b.met, "date": machine["date"]} for b in rows], key=lambda b: sections.index(b["section"]))
    data = {"machine": machine, "roofs": {**old["roofs"], **roofs}, "bars": bars}
    path.write_text(json.dumps(data, indent=1) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", default=",".join(("copy", *SECTIONS)))
    p.add_argument("--cases", help="only the cases that match this regular expression")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--atomic-sums", action="store_true", help="attention: our dq, too, may be summed in another order each time")
    p.add_argument("--ways", default="", help="ways in which ours computes wherever they are possible, such as conv2d=own")
    p.add_argument("--seconds", type=float, help="limit of one comparison, instead of 0.6")
    p.add_argument("--json")
    args = p.parse_args()
    if args.seconds:
        measure.OPTIONS["limit"] = args.seconds
    if args.cases:
        measure.wanted = re.compile(args.cases).search
    only = args.only.split(",")
    unknown = set(only) - {"copy", *SECTIONS}
    if unknown:
        sys.exit(f"no section {', '.join(sorted(unknown))}; there are copy {' '.join(SECTIONS)}")
    hpcdl.set_ways(args.ways)
    roofs, rows = {}, []
    path = pathlib.Path(args.json) if args.json else None
    old = json.loads(path.read_text()) if path and path.exists() else {"roofs": {}, "bars": []}
    for b in bars(only, not args.no_compile, args.atomic_sums, args.ways, roofs):
        rows.append(b)
        print(line(b), flush=True)
        if path:  # saves what is measured, in case the time runs out
            save(path, old, roofs, rows)
    asked = [b for b in rows if b.goal is not None]
    print(f"{sum(b.met for b in asked)} of {len(asked)} bars met; roofs: " + ", ".join(f"{k} {v:.0f}" for k, v in roofs.items()))


if __name__ == "__main__":
    main()
