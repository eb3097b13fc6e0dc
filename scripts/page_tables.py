"""Tables of single pages that are not in docs/performance_tables.md: <!-- table machine/file NAME --> is NAME(contents of the file)."""

from results_tables import ASKED, ASKED_OF_PRODUCTS, ASKED_OF_STEPS, spread


def size(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1024 else f"{n} B"


SIZES = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
SWEPT = {"all-reduce, tensors in the window": ("all_reduce", "shared", "window"), "all-reduce, private tensors": ("all_reduce", "shared", "private"),
         "all-reduce, ring over MPI's messages": ("all_reduce", "ring", "private"), "reduce-scatter, private": ("reduce_scatter", "shared", "private"),
         "all-gather, private": ("all_gather", "shared", "private"), "all-to-all, private": ("all_to_all", "shared", "private")}


def sweep(data):
    """comm_sweep.json: how many times as fast as the collective of MPI, by size."""
    ratio = {(r["collective"], r["algorithm"], r["memory"], r["bytes"]): r["ratio"] for r in data["rows"]}
    yield "| times as fast as MPI | " + " | ".join(size(n) for n in SIZES) + " |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for title, which in SWEPT.items():
        cells = [ratio.get((*which, n)) for n in SIZES]
        yield f"| {title} | " + " | ".join("" if r is None else f"{r:.2g}" if r < 10 else f"{r:.0f}" for r in cells) + " |"


def all_reduce(data):
    """h200-x4/ranks.json: all-reduces of several GPUs in captured graphs."""
    rows = {(r["case"].split(" GPUs, ")[0], r["case"].split(", ")[1]): r for r in data["all_reduce"]}
    sizes = [n for n in ("1 KB", "16 KB", "64 KB", "256 KB", "1 MB", "4 MB", "16 MB", "64 MB", "512 MB") if any(n == size for _, size in rows)]
    yield "| GPUs | | " + " | ".join(sizes) + " |"
    yield "|---" * (len(sizes) + 2) + "|"
    for gpus in sorted({gpus for gpus, _ in rows}):
        for name, side, word in (("NCCL", "theirs", "NCCL "), ("`auto`", "ours", "auto ")):
            yield f"| {gpus} | {name} | " + " | ".join(rows[gpus, n][side].removeprefix(word) for n in sizes) + " |"


def exchange(data):
    """ddp.json of `hpcdl bench ddp`: a step, by the way in which gradients are exchanged."""
    yield "| buckets | number | step | faster than waiting for each tensor by | exchange hidden |"
    yield "|---|---|---|---|---|"
    for f in data["forms"]:
        if "buckets" not in f:
            yield f"| no exchange | | {f['step_seconds']:.2f} s | | |"
            continue
        name = f"of {f['form']}" if f["overlap"] else "each tensor is a bucket, and is waited for"
        yield f"| {name} | {f['buckets']} | {f['step_seconds']:.2f} s | {f['speedup_vs_blocking']:.2f}x | {100 * f['hidden']:.0f} % |"


def gpu_buckets(data):
    """buckets.json: a step of several GPUs, by the buckets of its gradients."""
    yield "| buckets: number, first, largest | step | exchange | exchange after everything else |"
    yield "|---|---|---|---|"
    for name, r in data["rows"].items():
        if "buckets" in r:
            name = f"{r['buckets']}, {r['first_mb']:g} MB, {r['bucket_mb']:g} MB" + ("" if r["overlap"] else ", waited for")
            yield f"| {name} | {r['ms']:.1f} ms | {r['exchange_ms']:.1f} ms | {r['waited_ms']:.1f} ms |"
        else:
            yield f"| {name} | {r['ms']:.1f} ms | | |"


def step_summary(data):
    """gpt2_step.json: our training step next to each peer's, one row for a shape and type."""
    peers = {"torch-clip": "PyTorch with clipping", "torch": "PyTorch", "llm.c": "llm.c"}
    peers = {p: name for p, name in peers.items() if any(p in row["sides"] for row in data["rows"].values())}
    gib = lambda side: f"{side['peak_bytes'] / 2**30:.1f}"
    yield "| GPT-2 124M, a training step | ours | " + " | ".join(f"{p} | ours is faster by" for p in peers.values()) + " | peak memory, ours and PyTorch's |"
    yield "|---" * (3 + 2 * len(peers)) + "|"
    for case, row in data["rows"].items():
        batch, context = (word[1:] for word in case.split())
        for suffix, dtype in (("", "f32"), ("-bf16", "bf16")):
            sides = row["sides"]
            cells = []
            for peer in peers:
                side = sides.get(peer + suffix)
                cells += [f"{side['median_ms']:.0f} ms", spread(side["ratio"])] if side else ["", ""]
            ours = sides["hpcdl" + suffix]
            yield f"| {batch} x {context} tokens, {dtype} | {ours['median_ms']:.0f} ms | {' | '.join(cells)} | {gib(ours)} GiB, {gib(sides['torch' + suffix])} GiB |"


BEHIND = 0.97  # a peer within this margin is not faster: rounds of the same side differ by as much


def below(results):
    """(what, measured, bar or None) of one machine: every bar that is missed, and every peer that is faster if no bar was set."""
    for b in results.get("bars", {}).get("bars", []):
        behind = b["goal"] is None and b["ratio"] and b["ratio"]["median"] < BEHIND and not b["peer"].startswith(("copy", "product alone"))
        if behind or (b["goal"] is not None and not b["met"]):
            yield f"{'softmax ' if b['section'] == 'softmax' else ''}{b['case']}, against {b['peer']}", b["ratio"]["median"] if b["ratio"] else None, b["goal"]
    for section in ("tensor", "ddp", "images"):
        for r in results.get("ranks", {}).get(section, []):
            if r["goal"] is not None and not r["met"]:
                what = f"training {r['case']} on {r['gpus']} GPUs, of {r['gpus']} times one" if section == "images" else f"GPT-2 124M, data parallel: {r['case']}" if section == "ddp" else r["case"]
                yield what, r.get("ratio", r.get("efficiency")), r["goal"]
    for r in results.get("comm", {}).get("rows", []):
        if r["goal"] is not None and r["ratio"] < r["goal"]:
            memory = "in shared memory" if r["memory"] == "window" else "of private tensors"
            yield f"{r['collective'].replace('_', '-')} {memory} of {size(r['bytes'])} on {r['ranks']} CPU ranks, against MPI", r["ratio"], r["goal"]
    for case, row in results.get("ops", {}).get("rows", {}).items():
        ratio, asked = row["ratio"]["median"], ASKED.get(case, (None,))[0]
        if ratio < (asked or BEHIND):
            yield f"{row['op']} {row['shape']} {row['dtype']}, against {row['best_peer'].replace('torch', 'PyTorch', 1)}", ratio, asked
    for case, row in results.get("gpt2_step", {}).get("rows", {}).items():
        for name, side in row["sides"].items():
            peer, dtype = name.removesuffix("-bf16"), "bf16" if name.endswith("-bf16") else "f32"
            asked = ASKED_OF_STEPS.get(peer)
            if asked and side["ratio"]["median"] < asked:
                yield f"GPT-2 124M step {case} {dtype}, against {peer.replace('torch', 'PyTorch')}", side["ratio"]["median"], asked
    for row in results.get("gemm", {}).get("cases", []):
        ratio, asked = row["ratios"].get("hpcdl packed / onednn packed"), ASKED_OF_PRODUCTS[row["name"].split()[0]]
        if ratio and ratio["median"] < asked:
            yield f"product {row['name']}, against oneDNN, both packed", ratio["median"], asked
    for case, row in results.get("conv2d", {}).get("rows", {}).items():
        if row["ratio"]["median"] < BEHIND:
            yield f"convolution {case}, against PyTorch", row["ratio"]["median"], None
    for case, row in results.get("int4", {}).get("rows", {}).items():
        if row["ratios"]["ggml, same bits"]["median"] < BEHIND:
            yield f"INT4 {case}, against ggml", row["ratios"]["ggml, same bits"]["median"], None


def errors(data):
    """errors.json of bench/errors.py."""
    number = lambda x: "" if x is None else f"{x:.2e}"
    yield "| | type | error | error of rounding alone | PyTorch's error | largest error, share of its tolerance |\n|---|---|---|---|---|---|"
    for r in data["rows"]:
        yield f"| {r['name']} | {r['dtype']} | {number(r['rms'])} | {number(r['rounding'])} | {number(r['torch'])} | {r['share']:.2f} |"


def int4_errors(data):
    yield "| | error from the weights | error from rounded activations |\n|---|---|---|"
    for r in data["int4"]:
        yield f"| {r['name']} | {100 * r['weights']:.1f} % | {100 * r['activations']:.2f} % |"


def loader(data):
    """loader.json of bench/images_bench."""
    yield "| one worker of the loader | images a second | lowest to highest |\n|---|---|---|"
    for name, r in data["rows"].items():
        yield f"| {name.split('worker, ')[1]} | {r['images_per_second']:,.0f} | {r['lowest']:,.0f} to {r['highest']:,.0f} |"


def against(row):
    """The reference of a row of shapes.json: its name and time; the best peer, or a copy of the same number of bytes."""
    return (row["peer"], row["peer_us"]) if "peer" in row else ("a copy", row["copy_us"])


def shapes(data):
    """h200/shapes.json: shapes without a bar, by op, as ratios to the best peer or to a copy, before and now."""
    families = {}
    for row in data["cases"]:
        words = row["case"].split()
        families.setdefault(" ".join(words[:2]) if words[0] == "attention" else words[0], []).append(row)
    yield "| | shapes | against | median | least | least before |\n|---|---|---|---|---|---|"
    for name, rows in families.items():
        now = sorted(against(r)[1] / r["us"] for r in rows)
        before = [against(r)[1] / r["before_us"] for r in rows if "before_us" in r]
        peers = ", ".join(dict.fromkeys(against(r)[0] for r in rows))
        yield f"| {name} | {len(rows)} | {peers} | {now[len(now) // 2]:.2f} | {now[0]:.2f} | {min(before):.2f} |"


def worst_shapes(data):
    """The ten shapes that are farthest behind their peer."""
    yield "| | | of it | before |\n|---|---|---|---|"
    for r in sorted((r for r in data["cases"] if "peer" in r), key=lambda r: r["peer_us"] / r["us"])[:10]:
        before = f"{r['peer_us'] / r['before_us']:.2f}" if "before_us" in r else ""
        yield f"| {r['case']} | {r['peer']} | {r['peer_us'] / r['us']:.2f} | {before} |"


PAGE_TABLES = {f.__name__: f for f in (shapes, worst_shapes, sweep, all_reduce, exchange, gpu_buckets, errors, int4_errors, loader)}
