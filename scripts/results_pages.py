#!/usr/bin/env python3
"""Writes the speed figures of the documents from bench/results, so that no such number is typed by hand.

    scripts/results_pages.py [--check]     --check changes nothing and fails when a page is not up to date

README.md              the part between its markers: what make demo takes, and five ratios
docs/NAME.md           docs/NAME.in.md, if it exists, with these filled in:
                           {{machine/file > key > key | format}}   one number
                           <!-- table machine/file [NAME] -->      the table of a results file, or the table that NAME of page_tables.py makes of it
                           <!-- summary -->      a screen for every machine     <!-- below -->   results below their bars or behind a peer
                           <!-- tables -->       all tables                     <!-- roofs machine -->   what memory allows
                           <!-- output machine/file -->            bench/results/machine/file.txt, which a command printed
                           <!-- with machine/file --> ... <!-- end -->   nothing while there is no such file
docs/ratios.svg        the picture
"""

import json
import pathlib
import re
import sys

import ratio_chart
from page_tables import PAGE_TABLES, below, step_summary
from results_tables import TABLES, roofs

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTE = "<!-- Written by scripts/results_pages.py from docs/{} and bench/results: edit those. -->\n"


def contents(file):
    """What a results file says. Virtual machines may call an EPYC of any generation "AMD EPYC": the folder's name tells which it is."""
    data = json.loads(file.read_text())
    generation = re.fullmatch(r"cpu-zen(\d+)", file.parent.name)
    if generation and "cpu" in data.get("machine", {}):
        data["machine"]["cpu"] += f", Zen {generation[1]}"
    return data


def load():
    """{machine: {file: contents}}"""
    return {folder.name: {f.stem: contents(f) for f in sorted(folder.glob("*.json"))}
            for folder in sorted(RESULTS.glob("*")) if folder.is_dir()}


def machine_of(results):
    return next(d["machine"] for d in results.values() if "threads" in d.get("machine", {}))


def days_of(results):
    """The day, or the first and the last, on which these were measured; a row may have its own."""
    days = set()
    for d in results.values():
        rows = d.get("bars", [])
        days |= {b.get("date") or d["machine"].get("date") for b in rows} if rows else {d.get("machine", {}).get("date")}
    days = sorted(days - {None})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def tables(everything):
    lines = []
    for name, results in everything.items():
        if not results.keys() & TABLES.keys():
            continue
        m = machine_of(results)
        lines += ["", f"### {m.get('gpu') or m['cpu']} (`bench/results/{name}`), {m['threads']} threads, {days_of(results)}"]
        for file, make in TABLES.items():
            if file in results:
                lines += ["", *make(results[file])]
    return "\n".join(lines).strip()


def find(value, key):
    if isinstance(value, dict):
        return value[key]
    wanted = [w.strip().split("=") for w in key.split(";")] if "=" in key else [("name", key)]
    return next(v for v in value if all(str(v.get(k)) == w for k, w in wanted))


def lookup(everything, path):
    """"cpu-zen5/host > program > plan_ms > median | .1f": the rows of a file are meant where it has rows. Of a list, "name" is the
    row of that name, and "collective=all_reduce; bytes=4096" the first row of which that is true. The format is Python's, or MiB for bytes."""
    keys, _, form = path.partition("|")
    first, *rest = [k.strip() for k in keys.split(">")]
    machine, file = first.split("/")
    try:
        value = everything[machine][file]
        if rest[0] not in value:
            value = value["rows"]
        for key in rest:
            value = find(value, key)
    except (KeyError, StopIteration) as e:
        raise SystemExit(f"results_pages: bench/results has nothing that is {{{{{path}}}}}") from e
    return f"{value / 2**20:.0f} MiB" if form.strip() == "MiB" else format(value, form.strip())


def page(everything, name):
    """docs/name.md from docs/name.in.md."""
    def printed(m):
        lines = (RESULTS / f"{m[1]}.txt").read_text().rstrip().split("\n")
        return "\n".join(f"    {line}".rstrip() for line in lines)
    text = (ROOT / "docs" / f"{name}.in.md").read_text()
    text = re.sub(r"<!-- with (\S+)/(\S+) -->\n(.*?)<!-- end -->\n", lambda m: m[3] if m[2] in everything.get(m[1], {}) else "", text, flags=re.S)
    text = re.sub(r"\{\{(.+?)\}\}", lambda m: lookup(everything, m[1]), text)
    text = re.sub(r"<!-- output (\S+) -->", printed, text)
    text = re.sub(r"<!-- table (\S+)/(\S+)(?: (\w+))? -->", lambda m: "\n".join((PAGE_TABLES[m[3]] if m[3] else TABLES[m[2]])(everything[m[1]][m[2]])), text)
    text = re.sub(r"<!-- roofs (\S+) -->", lambda m: "\n".join(roofs(everything[m[1]]["ops"])), text)
    text = text.replace("<!-- tables -->", tables(everything)).replace("<!-- below -->", "\n".join(missed(everything)))
    text = text.replace("<!-- summary -->", "\n".join(summary(everything)).strip())
    return NOTE.format(f"{name}.in.md") + text


def groups_of(rows):
    """The least, the middle and the largest ratio of every group of (group, ratio)."""
    yield "\n| ours is faster by | cases | least | middle | most |\n|---|---|---|---|---|"
    groups = {}
    for group, ratio in rows:
        groups.setdefault(group, []).append(ratio)
    for group, found in groups.items():
        found.sort()
        yield f"| {group} | {len(found)} | {found[0]:.2f} | **{found[len(found) // 2]:.2f}** | {found[-1]:.2f} |"


def of_gpu(data):
    """(group, ratio) of bench/gpu/bars.py; the copy that is the roof of what memory bounds comes last."""
    compared = [b for b in data["bars"] if b["ratio"] and b["goal"] is not None and not b["peer"].startswith("copy")]
    for b in compared:
        kernels = b["section"] in ("vector add", "softmax", "memory-bound")
        what = f"{b['section']}, {b['case']}" if b["case"] == "peak memory" else b["section"]
        yield "what memory bounds, than the best of eager PyTorch, torch.compile and Triton" if kernels else f"{what}, than {b['peer']}", b["ratio"]["median"]
    for b in data["bars"]:
        if b["ratio"] and b["goal"] is not None and b["section"] != "INT4" and b["peer"].startswith("copy"):
            yield "what memory bounds, than a copy of as many bytes", b["ratio"]["median"]


def of_cpu(results):
    """(group, ratio) of what was compared on a CPU."""
    for row in results["ops"]["rows"].values():
        yield "an op, than the best way PyTorch has", row["ratio"]["median"]
    for row in results["gemm"]["cases"]:
        if both := row["ratios"].get("hpcdl packed / onednn packed"):
            yield "a product, than oneDNN, both with packed weights", both["median"]
    for row in results["int4"]["rows"].values():
        yield "INT4, than ggml with the same bits", row["ratios"]["ggml, same bits"]["median"]
    for row in results.get("conv2d", {}).get("rows", {}).values():
        yield "a convolution, than PyTorch", row["ratio"]["median"]
    for row in results.get("comm", {}).get("rows", []):
        yield "a collective of CPU ranks, than Open MPI", row["ratio"]


def missed(everything):
    """A table of what is below its bar on each machine, or behind a peer where no bar was set."""
    yield "| | ours is faster by | bar |\n|---|---|---|"
    for results in everything.values():
        rows = [(what, ratio or 0, goal) for what, ratio, goal in below(results)]
        if rows:
            yield f"| **{short_name(results)}** | | |"
        for what, ratio, goal in sorted(rows, key=lambda r: r[1] / (r[2] or 1)):
            digits = 3 if goal and round(ratio, 2) >= goal else 2  # enough to see that it is missed
            yield f"| {what} | {f'{ratio:.{digits}f}' if ratio else 'not measured'} | {'' if goal is None else f'{goal:.2f}'} |"


def short_name(results):
    m = machine_of(results)
    return m.get("gpu") or f"{m['cpu']}, {m['threads']} threads"


WHOLE = {"ops", "gpt2_step", "gemm", "int4", "comm"}  # what a CPU must have been measured on to stand in the README


def newest_cpu(everything):
    """The name of the CPU whose whole results are the latest."""
    return max((name for name, results in everything.items() if results.keys() >= WHOLE), key=lambda name: max(everything[name][file].get("machine", {}).get("date", "") for file in WHOLE))


def summary(everything):
    """A screen for every machine: training steps, and the least, middle and largest ratio of every group of comparisons."""
    newest = newest_cpu(everything)
    for name in sorted(everything, key=lambda n: (n != newest, n)):
        results = everything[name]
        if not results.keys() & {"gpt2_step", "bars"}:
            continue
        yield f"\n## {short_name(results)}, {days_of(results)}\n"
        if name == newest:
            yield "![How many times faster than each peer](ratios.svg)\n"
        if "gpt2_step" in results:
            yield from step_summary(results["gpt2_step"])
        yield from groups_of(of_gpu(results["bars"]) if "bars" in results else of_cpu(results))


def front(everything):
    """The five ratios of the README, each of the machine that it names."""
    cpu, gpu = everything[newest_cpu(everything)], everything["h200"]
    step = cpu["gpt2_step"]["rows"]["B4 T256"]["sides"]["torch-bf16"]["ratio"]
    int4 = cpu["int4"]["rows"]["N14336 K4096 batch 1"]["ratios"]["ggml, same bits"]
    reduce = find(cpu["comm"]["rows"], "collective=all_reduce;algorithm=shared;memory=private;bytes=1048576")
    def bar(section, case):  # a section that was not measured again keeps its own date
        row = find(gpu["bars"]["bars"], f"section={section};case={case};peer=torch.compile")
        return {**row["ratio"], "date": row["date"]}

    low_high = lambda r: f"**{r['median']:.2f}** ({r.get('low', r.get('min')):.2f}-{r.get('high', r.get('max')):.2f})"
    if demo := cpu.get("demo", {}).get("rows", {}).get("make demo"):
        yield (f"On two cores ({cpu['demo']['machine']['cpu']}) `make demo` took {(demo['build_seconds'] + demo['demo_seconds']) / 60:.0f} minutes, {demo['build_seconds'] / 60:.0f} of "
               f"them for the build, {demo['peak_rss_bytes'] / 2**30:.1f} GiB of memory and {demo['disk_bytes'] / 2**30:.1f} GiB of disk.\n")
    else:  # not measured yet: in words, without a number
        yield ("On two cores the first `make demo` takes about ten minutes, seven to eight of them for the build; with a warm compiler cache the build takes about two minutes. The demo "
               "itself takes two to three minutes. The build needs about one gigabyte of memory for each core; source, build and demo take less than one gigabyte of disk.\n")
    yield "| HPC-DL is faster at | on | than | by | measured |\n|---|---|---|---|---|"
    for what, on, file, peer, ratio in (
            ("training GPT-2 124M, bf16, a step of 4 x 256 tokens", cpu, "gpt2_step", "PyTorch", step),
            ("training GPT-2 124M, bf16, a step of 64 x 1024 tokens", gpu, "bars", "torch.compile", bar("GPT-2 124M step", "bf16 B64 T1024")),
            ("training ResNet-18, bf16, a step of 512 images", gpu, "bars", "torch.compile", bar("image step", "resnet18 bf16 B512")),
            ("decoding with INT4 weights: one row times 14336 x 4096", cpu, "int4", "ggml's Q4_0", int4),
            ("adding up 1 MiB over two processes of a host", cpu, "comm", "Open MPI", {"median": reduce["ratio"], "low": reduce["ratio_low"], "high": reduce["ratio_high"]})):
        yield f"| {what} | {short_name(on)} | {peer} | {low_high(ratio)} | {ratio.get('date') or on[file]['machine']['date']} |"


def pages():
    everything = load()
    readme = (ROOT / "README.md").read_text()
    head, rest = readme.split(BEGIN)
    cpu = everything[newest_cpu(everything)]
    return {
        ROOT / "README.md": f"{head}{BEGIN}\n" + "\n".join(front(everything)) + f"\n{END}{rest.split(END)[1]}",
        **{ROOT / "docs" / f"{name}.md": page(everything, name) for name in sorted(p.name.removesuffix(".in.md") for p in (ROOT / "docs").glob("*.in.md"))},
        ROOT / "docs" / "ratios.svg": ratio_chart.svg(cpu, machine_of(cpu)),
    }


def main():
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        sys.exit("".join(f"{path.relative_to(ROOT)} differs from bench/results; run scripts/results_pages.py\n" for path in stale) or 0)
    for path, text in stale.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
