"""Shared by all comparisons: our module, the peers' best environment, and the files of results."""

import json
import os
import pathlib
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
THREADS = int(os.environ.get("HPCDL_THREADS") or len(os.sched_getaffinity(0)))

sys.path.insert(0, os.environ.get("HPCDL_MODULE") or str(ROOT / "build" / "release" / "python"))


def tuned_environment():
    from hpcdl import bench

    return bench.tuned_environment(THREADS)


def reexec_tuned():
    """Restarts this script with the peers' best environment, unless --untuned is given or it already runs in it."""
    from hpcdl import bench

    if "--untuned" not in sys.argv:
        bench.restart_tuned(THREADS, sys.argv)


def cpu():
    """(model name, short name): ("AMD EPYC 9R45", "cpu-zen5")."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    get = lambda key: (re.search(rf"^{key}\s*: (.*)$", text, re.M) or [None, "?"])[1]
    name, family = get("model name"), get("cpu family")
    if get("vendor_id") == "AuthenticAMD" and family in ("25", "26"):
        short = "zen5" if family == "26" else "zen4" if "avx512f" in text else "zen3"
    else:
        short = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|Processor|@.*", "", name).lower()).strip("-")
    return name, f"cpu-{short}"


def machine():
    name, _ = cpu()
    return {"cpu": name, "threads": THREADS, "date": time.strftime("%Y-%m-%d")}


def summary(seconds):
    return {"median_ms": statistics.median(seconds) * 1e3, "min_ms": min(seconds) * 1e3, "max_ms": max(seconds) * 1e3}


def ratio(peer, ours):
    """Median, least and largest of the round-by-round ratios peer/ours: above 1, ours is faster."""
    r = [p / o for p, o in zip(peer, ours)]
    return {"median": statistics.median(r), "min": min(r), "max": max(r)}


def results_file(name):
    folder = pathlib.Path(os.environ.get("HPCDL_RESULTS") or ROOT / "bench" / "results" / cpu()[1])
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def merge_results(name, rows):
    """Writes `rows` (case -> result) to the machine's file, and keeps cases that were not measured now."""
    path = results_file(name)
    old = json.loads(path.read_text()) if path.exists() else {}
    merged = {"machine": machine(), "rows": old.get("rows", {})}
    for key, row in rows.items():
        merged["rows"].setdefault(key, {}).update(row)
    path.write_text(json.dumps(merged, indent=1) + "\n")
    return path
