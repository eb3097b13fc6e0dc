#!/usr/bin/env python3
"""The cost of `make demo` on this machine for a new user: in a fresh clone, without a compiler cache.

    bench/demo_time.py [--picture]     writes bench/results/MACHINE/demo.json; --picture also docs/demo.png, by headless Chromium

The time includes the build, but not the installation of packages. Memory is the largest resident set of one process, disk the size of the clone afterwards.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import common  # noqa: E402

WINDOW = "1180,900"  # size of the picture: the top part of the report


def timed(*command, cwd):
    start = time.monotonic()
    subprocess.run(command, cwd=cwd, check=True, env={**os.environ, "CCACHE_DISABLE": "1"})
    return time.monotonic() - start


def picture(report):
    chromium = next(c for c in ("chromium", "chromium-browser", "google-chrome") if subprocess.run(["which", c], capture_output=True).returncode == 0)
    subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WINDOW}",
                    f"--screenshot={ROOT / 'docs' / 'demo.png'}", report.as_uri()], check=True, capture_output=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        clone = pathlib.Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        build = timed("make", "build", cwd=clone)
        demo = timed("make", "demo", cwd=clone)
        memory = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        disk = sum(f.lstat().st_size for f in clone.rglob("*") if f.is_file())
        path = common.merge_results("demo", {"make demo": {"build_seconds": build, "demo_seconds": demo, "peak_rss_bytes": memory, "disk_bytes": disk}})
        if "--picture" in sys.argv:
            picture(clone / "hpcdl-demo" / "report.html")
        print(path.read_text())


if __name__ == "__main__":
    main()
