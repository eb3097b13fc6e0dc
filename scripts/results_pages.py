#!/usr/bin/env python3
"""Writes what the documents say about speed from bench/results, so that no such number is typed by hand.

    scripts/results_pages.py [--check]     --check changes nothing and fails when a page is not up to date

README.md              the part between its markers: picture and short table
docs/NAME.md           docs/NAME.in.md, wherever there is one, with these filled in:
                           {{machine/file > key > key | format}}   one number
                           <!-- table machine/file [NAME] -->      the table of a results file, or NAME of page_tables.py made of it
                           <!-- tables -->  <!-- roofs machine -->  all tables; what memory allows
                           <!-- output machine/file -->            bench/results/machine/file.txt, which a command printed
                           <!-- with machine/file --> ... <!-- end -->   nothing while there is no such file
docs/ratios.svg        the picture
"""

import json
import pathlib
import re
import sys

import ratio_chart
from page_tables import PAGE_TABLES, below
from results_tables import TABLES, roofs, spread

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTE = "<!-- Written by scripts/results_pages.py from docs/{} and bench/results: edit those. -->\n"


def load():
    """{machine: {file: contents}}"""
    return {folder.name: {f.stem: json.loads(f.read_text()) for f in sorted(folder.glob("*.json"))}
            for folder in sorted(RESULTS.glob("*")) if folder.is_dir()}


def machine_of(results):
    return next(d["machine"] for d in results.values() if "threads" in d.get("machine", {}))


def tables(everything):
    lines = []
    for name, results in everything.items():
        m = machine_of(results)
        lines += ["", f"### {m.get('gpu') or m['cpu']} (`bench/results/{name}`), {m['threads']} threads, {m['date']}"]
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
    return NOTE.format(f"{name}.in.md") + text.replace("<!-- tables -->", tables(everything))


def groups_of(rows):
    """The least, the middle and the largest ratio of every group of (group, case, ratio)."""
    yield "\n| against | cases | least | median | most |\n|---|---|---|---|---|"
    groups = {}
    for group, case, ratio in rows:
        groups.setdefault(group, []).append((ratio["median"], ratio, case))
    for group, found in groups.items():
        found.sort(key=lambda r: r[0])
        low, middle, high = found[0], found[len(found) // 2], found[-1]
        cell = lambda r: f"{spread(r[1])} {r[2]}"
        yield f"| {group} | {len(found)} | {cell(low)} | {middle[0]:.2f} | {cell(high)} |"


def of_gpu(data):
    """(group, case, ratio) of bench/gpu/bars.py, intervals as spreads."""
    for b in data["bars"]:
        if not b["ratio"] or b["goal"] is None:
            continue
        group = "a copy of as many bytes" if b["peer"].startswith("copy") else "eager PyTorch, torch.compile, Triton"
        if b["section"] not in ("vector add", "softmax", "memory-bound"):
            group = f"{b['section']}: {b['peer']}"
        yield group, b["case"], {"median": b["ratio"]["median"], "min": b["ratio"]["low"], "max": b["ratio"]["high"]}


def summary(everything):
    """The short table of the README: the training step, and the least and largest ratio of every group."""
    yield "![How many times faster than each peer](docs/ratios.svg)"
    for name, results in everything.items():
        m = machine_of(results)
        head = f"\n{m.get('gpu') or m['cpu']}, {m['threads']} threads, {m['date']}; all rows in [docs/performance.md](docs/performance.md).\n"
        if "gpt2_step" in results:
            yield head
            yield from TABLES["gpt2_step"](results["gpt2_step"])
            yield from groups_of((group, case, ratio) for group, case, ratio, _ in ratio_chart.bars(results) if not group.startswith("training"))
        elif "bars" in results:
            yield head.rstrip("\n").replace(f", {m['threads']} threads", "")
            yield from groups_of(of_gpu(results["bars"]))


def pages():
    everything = load()
    readme = (ROOT / "README.md").read_text()
    head, rest = readme.split(BEGIN)
    first = next(iter(everything.values()))
    return {
        ROOT / "README.md": f"{head}{BEGIN}\n" + "\n".join(summary(everything)) + f"\n{END}{rest.split(END)[1]}",
        **{ROOT / "docs" / f"{name}.md": page(everything, name) for name in sorted(p.name.removesuffix(".in.md") for p in (ROOT / "docs").glob("*.in.md"))},
        ROOT / "docs" / "ratios.svg": ratio_chart.svg(first, machine_of(first)),
    }


def main():
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        sys.exit("".join(f"{path.relative_to(ROOT)} differs from bench/results; run scripts/results_pages.py\n" for path in stale) or 0)
    for path, text in stale.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
