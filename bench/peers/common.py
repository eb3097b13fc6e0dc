"""What every comparison shares: the peers' best environment, interleaved rounds, and where results go."""

import ctypes
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

# glibc gives blocks above 128 KiB back to the kernel and so pays page faults for every temporary; frameworks that allocate
# as they go run 2-6x slower than they can. PyTorch's own documentation advises changing the allocator.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "17179869184",
    "MALLOC_TRIM_THRESHOLD_": "68719476736",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "ATEN_CPU_CAPABILITY": "avx512",
    "OPENBLAS_CORETYPE": "SkylakeX",
}


def tuned_environment():
    env = dict(os.environ, **TUNED, OMP_NUM_THREADS=str(THREADS), HPCDL_THREADS=str(THREADS))
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    if "avx512" not in cpuinfo:
        del env["ATEN_CPU_CAPABILITY"], env["OPENBLAS_CORETYPE"]
    shim = BUILD / "libmkl_as_intel.so"
    if "AuthenticAMD" in cpuinfo and shim.exists():
        env["LD_PRELOAD"] = str(shim)
    return env


def reexec_tuned():
    """Restarts this script with the peers' best environment, unless --untuned is given or it is there already."""
    if "--untuned" in sys.argv or os.environ.get("HPCDL_BENCH_TUNED"):
        return
    env = tuned_environment()
    env["HPCDL_BENCH_TUNED"] = "1"
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


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


def kernels():
    lib = ctypes.CDLL(str(BUILD / "libhpcdl_bench.so"))
    lib.hb_init(THREADS)
    return lib


def interleave(contenders, rounds=7, target_ms=25.0):
    """{name: f} -> {name: [seconds per call, one for each round]}. In each round every side runs once, in rotating order,
    after one call that is not measured; a side repeats its call until about `target_ms` have passed."""
    names = list(contenders)
    calls = {}
    for name in names:
        contenders[name]()
        start = time.perf_counter()
        contenders[name]()
        calls[name] = max(1, min(1000, round(target_ms / 1e3 / max(time.perf_counter() - start, 1e-7))))
    seconds = {name: [] for name in names}
    for r in range(rounds):
        for name in names[r % len(names):] + names[: r % len(names)]:
            f, n = contenders[name], calls[name]
            f()
            start = time.perf_counter()
            for _ in range(n):
                f()
            seconds[name].append((time.perf_counter() - start) / n)
    return seconds


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
    """Puts `rows` (case -> result) into the machine's file, keeping cases that were not measured now."""
    path = results_file(name)
    old = json.loads(path.read_text()) if path.exists() else {}
    merged = {"machine": machine(), "rows": old.get("rows", {})}
    for key, row in rows.items():
        merged["rows"].setdefault(key, {}).update(row)
    path.write_text(json.dumps(merged, indent=1) + "\n")
    return path
