"""Adds PyTorch to the table of bench/gpu/awkward.cpp: the same calls, each in the fastest of its ways, before and after ours.

  awkward.py PATH_OF_AWKWARD > bench/results/NAME/awkward.json
"""

import json
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CASE = re.compile(r"attention (\d+)x(\d+)x(\d+)x(\d+)(?: kv (\d+))? (\w+)( tf32)?( causal)? (forward|backward)")


def captured(stream, call):
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def microseconds(graph, rounds=5, least=2e3):
    """The median over rounds of at least `least` us."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def time(launches):
        graph.replay()
        begin.record()
        for _ in range(launches):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / launches

    expected = time(3)
    return statistics.median(time(max(3, int(least / expected))) for _ in range(rounds))


def attention(name):
    b, h, t, d, kv, dtype, tf32, causal, what = CASE.fullmatch(name.lower()).groups()
    b, h, t, d, kv = int(b), int(h), int(t), int(d), int(kv or h)
    torch.backends.cuda.matmul.allow_tf32 = bool(tf32)

    def heads(n):
        return torch.randn(b, t, n, d, device="cuda", dtype=TYPES[dtype]).transpose(1, 2)

    found = {}
    for backend, way in BACKENDS.items():
        q, k, v, dy = heads(h), heads(kv), heads(kv), heads(h)
        stream = torch.cuda.Stream()

        def forward(q, k, v):
            with sdpa_kernel(way):
                return F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=kv != h)

        try:
            if what == "forward":
                graph = captured(stream, lambda: forward(q, k, v))
            else:
                leaves = [z.detach().requires_grad_() for z in (q, k, v)]
                with torch.cuda.stream(stream):
                    y = forward(*leaves)
                graph = captured(stream, lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True))
            found[backend] = microseconds(graph)
        except RuntimeError as e:
            print(f"{name}, {backend}: {str(e).splitlines()[0]}", file=sys.stderr)
            torch.cuda.synchronize()
    return found


def round_of(names):
    return {name: attention(name) for name in names}


def main():
    names = subprocess.run([sys.argv[1], "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    before = round_of(names)
    table = json.loads(subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, text=True, check=True).stdout)
    after = round_of(names)
    table["machine"] |= {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    for name in names:
        for backend in before[name]:
            if backend in after[name]:
                table[name]["torch " + backend] = round((before[name][backend] + after[name][backend]) / 2, 2)
    print(json.dumps(table, indent=1))


main()
