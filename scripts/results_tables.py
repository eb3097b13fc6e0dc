"""The measured tables, from bench/results: each function yields the Markdown lines of one results file."""

import re


def spread(r):
    return f"**{r['median']:.2f}** ({r['min']:.2f}-{r['max']:.2f})"


def rate(row, ms):
    return f"{row['flops'] / ms / 1e6:.0f} GFLOP/s" if row["flops"] else f"{row['bytes'] / ms / 1e6:.1f} GB/s"


def ops(data):
    yield "| op | ours | ratio to eager PyTorch, tuned | ratio to the best way PyTorch has | ratio to PyTorch out of the box | share of copy bandwidth |"
    yield "|---|---|---|---|---|---|"
    for row in data["rows"].values():
        ours, packed = (row["sides"].get(side, {}).get("median_ms") for side in ("hpcdl", "hpcdl packed"))
        once = f"; packed once {packed:.2f} ms" if packed else ""
        copy = spread(row["of_copy"]) if row.get("of_copy") and not row["flops"] else ""
        untuned = f"{row['untuned_ratio']['median']:.2f}" if "untuned_ratio" in row else ""
        yield (f"| {row['op']} {row['shape']} {row['dtype']} | {ours:.2f} ms, {rate(row, ours)}{once} | {spread(row['eager_ratio'])} | "
               f"{spread(row['ratio'])} {row['best_peer'].removeprefix('torch').strip(' .,') or 'eager'} | {untuned} | {copy} |")


# Bars of the memory-bound cases, as multiples of tuned PyTorch, and how many bytes they move for each byte of their copy (None: they have no copy).
ASKED = {"softmax 4096x32768 f32": (1.25, 1), "softmax 4096x1024 f32": (2, 1), "layer_norm 8192x768 fwd+bwd": (1.7, 2.5),
         "layer_norm 8192x4096 fwd+bwd": (1.7, 2.5), "bias_gelu 8192x3072 f32": (1.5, 1), "cross_entropy 1024x50304 f32": (1.5, 1.5),
         "adamw GPT-2 124M": (1.5, None), "linear 1024x3072x768 gelu f32": (1.35, None), "linear 1024x3072x768 relu f32": (1.35, None)}
# Bars of GPT-2's training steps, as multiples of each peer; of products with weights packed once, as multiples of oneDNN.
ASKED_OF_STEPS = {"torch": 1.2, "llm.c": 4.5}
ASKED_OF_PRODUCTS = {"f32": 0.95, "bf16": 0.93, "int8": 0.93}


def roofs(data):
    """The ratio of a kernel whose only time is that of its bytes in the streaming copy of the same rounds."""
    yield "| limited by memory | bar, against PyTorch's best way | measured | at the roof | share of the roof |"
    yield "|---|---|---|---|---|"
    for case, (asked, moved) in ASKED.items():
        if moved is None:
            continue
        row = data["rows"][case]
        ms = {name: s["median_ms"] for name, s in row["sides"].items()}
        roof = moved * ms["streaming copy"]
        best = ms[row["best_peer"]] / roof
        yield f"| {case} | {asked} | {spread(row['ratio'])} | {best:.2f}{'' if best >= asked else ': below the bar'} | {roof / ms['hpcdl']:.2f} |"


def steps(data):
    yield "| GPT-2 124M, one training step | ms | peak memory | ours is faster by |"
    yield "|---|---|---|---|"
    for case, row in data["rows"].items():
        for name, s in row["sides"].items():
            yield (f"| {case} {name} | {s['median_ms']:.0f} ({s['min_ms']:.0f}-{s['max_ms']:.0f}) | {s['peak_bytes'] / 2**30:.2f} GiB | "
                   f"{spread(s['ratio']) if 'ratio' in s else ''} |")


def int4(data):
    yield "| INT4 weights streamed from memory | ours, group 32 | ours, group 128 | ggml Q4_0 repacked | ratio to ggml, same bits | ratio to ggml, group 128 | share of read bandwidth |"
    yield "|---|---|---|---|---|---|---|"
    for case, row in data["rows"].items():
        ms = {n: f"{s['median_ms']:.3f} ms" for n, s in row["sides"].items()}
        r = row["ratios"]
        yield (f"| {case} | {ms['hpcdl g32']} | {ms['hpcdl g128']} | {ms['ggml Q4_0 repack']} | {spread(r['ggml, same bits'])} | "
               f"{spread(r['ggml, group 128'])} | {spread(r['of read']) if row['batch'] == 1 else ''} |")


def gemm(data):
    yield "| matrix product | ours | ours, packed once | ratio to oneDNN, both packed | ratio to oneDNN, neither packed | ratio to OpenBLAS |"
    yield "|---|---|---|---|---|---|"
    for row in data["cases"]:
        if not any(part in row["name"] for part in ("cube 1024", "cube 2048", "1024x3072x768", "50304", "tn ", "1x4096x4096")):
            continue  # all cases are in the JSON file
        sides, r = row["sides"], row["ratios"]
        cell = lambda name: f"{sides[name]['gflops']:.0f} GFLOP/s" if name in sides else ""
        get = lambda pair: spread(r[pair]) if pair in r else ""
        yield (f"| {row['name']} | {cell('hpcdl')} | {cell('hpcdl packed')} | {get('hpcdl packed / onednn packed')} | {get('hpcdl / onednn')} | "
               f"{get('hpcdl / openblas')} |")


def conv2d(data):
    yield "| convolution | forward | ratio to PyTorch | dx | ratio to PyTorch | dw | ratio to PyTorch |"
    yield "|---|---|---|---|---|---|---|"
    rows = data["rows"]
    for layer in dict.fromkeys(key.rsplit(" ", 1)[0] for key in rows):
        cells = []
        for direction in ("forward", "dx", "dw"):
            row = rows[f"{layer} {direction}"]
            ms = row["sides"]["hpcdl"]["median_ms"]
            cells.append(f"{ms:.2f} ms, {row['flops'] / ms / 1e6:.0f} GFLOP/s | {spread(row['ratio'])}")
        yield f"| {layer} | {' | '.join(cells)} |"


def host(data):
    rows = data["rows"]
    yield "| | |"
    yield "|---|---|"
    if program := rows.get("program"):
        for key, value in program.items():
            if key == "records":
                continue
            yield f"| a program of {program['records']} records: {key.replace('_', ' ')} | {value['median'] if isinstance(value, dict) else value:.4g} |"
    if warm := rows.get("load.warm"):
        yield f"| a 498 MB model, warm: mapped, ratio to reading it into fresh memory | {spread(warm['ratio'])} |"
    if cold := rows.get("load.cold"):
        yield f"| the same, cold: mapped with prefetch, ratio to reading it | {spread(cold['prefetched_over_read'])} |"


def bench(data):
    """hpcdl bench: every op separately; shares of the roof of its arithmetic or its bytes on this machine."""
    def cell(c):
        if c is None:
            return ""
        us = 1e3 * c["sides"]["hpcdl"]["median_ms"]
        return f"{us:.3g} us, {100 * c['speed_of_light_score']:.0f} %" if us < 1e4 else f"{us / 1e3:.1f} ms, {100 * c['speed_of_light_score']:.0f} %"
    rows = {}
    for c in data["cases"]:
        rows.setdefault((c["op"], c["shape"]), {})[c["dtype"], c["pass"]] = c
    kinds = [(dtype, which) for dtype in ("f32", "bf16") for which in ("fwd", "fwd+bwd")]
    yield (f"`hpcdl bench --device cuda`, {'operands where the last call left them' if data['protocol']['cache'] == 'warm' else 'caches flushed'}: medians, and shares of the speed of light: the "
           "shortest time in which the machine can do that arithmetic or move those bytes. Operands that fit into L2 are compared with L2; a launch of a few microseconds is included.")
    yield ""
    yield "| op | f32 forward | forward and backward | bf16 forward | forward and backward |"
    yield "|---|---|---|---|---|"
    for (op, shape), cases in rows.items():
        yield f"| {op} {shape} | {' | '.join(cell(cases.get(k)) for k in kinds)} |"


def bars(data):
    """bench/gpu/bars.py: against each peer, and as a share of a roof measured in the same run."""
    roofs = data["roofs"]
    yield (f"Roofs of that run: a copy of 1 GiB {roofs['copy_GBps']:.0f} GB/s, an 8192^3 bf16 product {roofs['bf16_product_TFLOPs']:.0f} TFLOP/s; "
           f"PyTorch {data['machine']['torch']}. {sum(bool(b['met']) for b in data['bars'])} of {sum(b['goal'] is not None for b in data['bars'])} bars met.")
    yield ""
    yield "| section | case | ours | peer | ours is faster by | bar | share of the roof | rate |"
    yield "|---|---|---|---|---|---|---|---|"
    for b in data["bars"]:
        r = b["ratio"]
        ratio = f"{'**' if b['met'] else ''}{r['median']:.2f}{'**' if b['met'] else ''} ({r['low']:.2f}-{r['high']:.2f})" if r else b["note"]
        time = lambda us: "" if not us else f"{us:.1f} us" if us < 1e4 else f"{us / 1e3:.1f} ms"
        goal = f"{b['goal']:.2f}{'' if b['met'] else ', missed'}" if b["goal"] is not None else ""
        share = f"{100 * b['share']:.0f} %" if b["share"] is not None else ""
        yield f"| {b['section']} | {b['case']} | {time(b['ours_us'])} | {b['peer']} {time(b['peer_us'])} | {ratio} | {goal} | {share} | {b['rate']} |"


def amp_accuracy(data):
    yield "| ResNet-18, cifar stem, 128 images a step | held-out accuracy, by seed | points above f32 | samples/s | faster than f32 by |\n|---|---|---|---|---|"
    for r in data["rows"]:
        yield (f"| {r['dtype']} | {', '.join(f'{100 * a:.2f} %' for a in r['accuracy'])} | {r['points_from_first']:+.2f} "
               f"| {r['samples_per_second']:,.0f} | {r['speed_up']:.2f}x |")


def ranks(data):
    """Tables of the sections that were measured."""
    if data.get("all_reduce"):
        yield "| all-reduce, in captured graphs | ours | the peer | our share of the peer's time |\n|---|---|---|---|"
    for r in data.get("all_reduce", []):
        yield f"| {r['case'].removesuffix(', captured')} | {r['ours'].removeprefix('auto ')} | {r['theirs']} | {r['ratio']:.2f} |"
    goal = lambda r: "" if r["goal"] is None else f"{r['goal']:.2f}" + ("" if r["met"] else ", missed")
    for name, title, against, ratio in (("tensor", "tensor parallel: forward and backward of 4 x 2048 tokens, bf16", "one GPU", "share of the ideal"),
                                        ("ddp", "data parallel: training GPT-2 124M in bf16, 64 x 1024 tokens each", "compared with", "ratio")):
        if name in data:
            yield f"\n| {title} | ours | {against} | {ratio} | bar |\n|---|---|---|---|---|"
        for r in data.get(name, []):
            case = re.sub(r"beside (\d+) GPUs with 25:apart", r"of \1 GPUs that exchange nothing", r["case"])
            yield f"| {case} | {r['ours']} | {r['theirs']} | {r['ratio']:.3f} | {goal(r)} |"
    if data.get("images"):
        yield "\n| data-parallel training of images | GPUs | one GPU, samples/s | all GPUs, samples/s | efficiency |\n|---|---|---|---|---|"
    for r in data.get("images", []):
        yield f"| {r['case']} | {r['gpus']} | {r['one']:,.0f} | {r['many']:,.0f} | {r['efficiency']:.2f} |"


def comm(data):
    yield f"Collectives of CPU ranks against {data['mpi'].replace('mpirun (Open MPI)', 'Open MPI')}, where malloc keeps its memory (`bench/peers/comm.py`). Each row has the MPI algorithm that is best against ours."
    yield ""
    yield "| collective, tensors | ranks | bytes | ours | MPI | ours is faster by | bar |"
    yield "|---|---|---|---|---|---|---|"
    time = lambda us: f"{us:,.0f}" if us >= 100 else f"{us:.4g}"
    for r in data["rows"]:
        where = f"{r['ranks']} on {r['hosts']} hosts, {r['link']}" if r["hosts"] > 1 else f"{r['ranks']}"
        goal = "" if r["goal"] is None else f"{r['goal']}" if r["ratio"] >= r["goal"] else f"{r['goal']}, missed"
        yield (f"| {r['collective']} {r['algorithm']}, {r['memory']} | {where} | {r['bytes']:,} | {time(r['us'])} us | {time(r['native_us'])} us, {r['against']} | "
               f"**{r['ratio']:.2f}** ({r['ratio_low']:.2f}-{r['ratio_high']:.2f}) | {goal} |")


TABLES = {"bars": bars, "gpt2_step": steps, "ops": ops, "gemm": gemm, "conv2d": conv2d, "int4": int4, "host": host, "bench": bench, "comm": comm, "ranks": ranks,
          "amp_accuracy": amp_accuracy}
