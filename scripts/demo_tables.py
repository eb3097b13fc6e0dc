#!/usr/bin/env python3
"""The tables that `hpcdl demo N` printed, without notes, paths and progress: what docs/vision.md shows.

    build/release/hpcdl demo 3 2>/dev/null | scripts/demo_tables.py >bench/results/MACHINE/demo_3.txt
"""

import re
import sys

TITLES = ("Epochs", "Stopped and resumed", "Ranks and replicas", "Precision", "Loading", "Batch size and precision", "All together")


def tables(lines):
    """The lines of the tables, one empty line between two."""
    inside = False
    for line in lines:
        line = line.rstrip()
        if line in TITLES or not line:
            inside = bool(line)
            if inside:
                yield ("", line)
        elif inside and not line.endswith(".") and not re.search(r"\s/\S", line):
            yield (line,)


if __name__ == "__main__":
    sys.stdout.write("\n".join(line for group in tables(sys.stdin) for line in group).lstrip("\n") + "\n")
