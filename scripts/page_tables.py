"""Tables that one page shows and docs/performance.md does not: <!-- table machine/file NAME --> is NAME(contents of the file)."""

from results_tables import ASKED


def size(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1024 else f"{n} B"


SIZES = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
SWEPT = {"all-reduce, tensors in the window": ("all_reduce", "shared", "window"), "all-reduce, private tensors": ("all_reduce", "shared", "private"),
         "all-reduce, ring over MPI's messages": ("all_reduce", "ring", "private"), "reduce-scatter, private": ("reduce_scatter", "shared", "private"),
         "all-gather, private": ("all_gather", "shared", "private"), "all-to-all, private": ("all_to_all", "shared", "private")}


def sweep(data):
    """comm_sweep.json: how many times as fast as MPI's own collective, by size."""
    ratio = {(r["collective"], r["algorithm"], r["memory"], r["bytes"]): r["ratio"] for r in data["rows"]}
    yield "| times as fast as MPI | " + " | ".join(size(n) for n in SIZES) + " |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for title, which in SWEPT.items():
        cells = [ratio.get((*which, n)) for n in SIZES]
        yield f"| {title} | " + " | ".join("" if r is None else f"{r:.2g}" if r < 10 else f"{r:.0f}" for r in cells) + " |"


def all_reduce(data):
    """h200-x2/ranks.json: all-reduces of several GPUs in captured graphs."""
    rows = {r["case"].split(", ")[1]: r for r in data["all_reduce"]}
    shown = [n for n in ("1 KB", "16 KB", "64 KB", "256 KB", "1 MB", "4 MB", "16 MB", "64 MB") if n in rows]
    yield "| | " + " | ".join(shown) + " |"
    yield "|---" * (len(shown) + 1) + "|"
    yield "| NCCL | " + " | ".join(rows[n]["theirs"].removeprefix("NCCL ") for n in shown) + " |"
    yield "| `auto` | " + " | ".join(rows[n]["ours"].removeprefix("auto ") for n in shown) + " |"


def exchange(data):
    """ddp.json of `hpcdl bench ddp`: a step by how its gradients are exchanged."""
    yield "| buckets | their number | step | against waiting for each tensor | exchange hidden |"
    yield "|---|---|---|---|---|"
    for f in data["forms"]:
        if "buckets" not in f:
            yield f"| no exchange | | {f['step_seconds']:.2f} s | | |"
            continue
        name = f"of {f['form']}" if f["overlap"] else "every tensor by itself, waited for"
        yield f"| {name} | {f['buckets']} | {f['step_seconds']:.2f} s | {f['speedup_vs_blocking']:.2f}x | {100 * f['hidden']:.0f} % |"


def below(results):
    """(what, measured, asked for) of every bar of one machine that is missed."""
    for b in results.get("bars", {}).get("bars", []):
        if b["goal"] is not None and not b["met"]:
            yield f"{b['case']}, against {b['peer']}", b["ratio"]["median"] if b["ratio"] else None, b["goal"]
    for section in ("tensor", "ddp", "images"):
        for r in results.get("ranks", {}).get(section, []):
            if r["goal"] is not None and not r["met"]:
                yield f"{r['case']}, {r['gpus']} GPUs against one" if section == "images" else r["case"], r.get("ratio", r.get("efficiency")), r["goal"]
    for r in results.get("comm", {}).get("rows", []):
        if r["goal"] is not None and r["ratio"] < r["goal"]:
            yield f"{r['collective'].replace('_', '-')} of {size(r['bytes'])} between CPU ranks, {r['memory']} memory, against MPI", r["ratio"], r["goal"]
    rows = results.get("ops", {}).get("rows", {})
    for case, (asked, _) in ASKED.items():
        if case in rows and rows[case]["ratio"]["median"] < asked:
            yield f"{case}, against PyTorch's best way", rows[case]["ratio"]["median"], asked


PAGE_TABLES = {f.__name__: f for f in (sweep, all_reduce, exchange)}
