#!/usr/bin/env python3
"""Writes the JSON lines of a C++ comparison into the machine's results:  build/bench/ggml_int4 | bench/peers/collect.py int4"""

import json
import sys

import common

rows = {}
for line in sys.stdin:
    if not line.startswith("{"):
        print(line, end="")
        continue
    item = json.loads(line)
    rows[item["key"]] = item["row"]
    sides = "  ".join(f"{n} {s['median_ms']:.3f} ms" for n, s in item["row"].get("sides", {}).items())
    ratios = "  ".join(f"x{r['median']:.2f} [{r['min']:.2f} {r['max']:.2f}] {n}" for n, r in item["row"].get("ratios", {}).items())
    print(f"{item['key']:<34} {sides}   {ratios}" if sides else f"{item['key']:<34} {json.dumps(item['row'])}", flush=True)
if rows:
    print("#", common.merge_results(sys.argv[1], rows))
