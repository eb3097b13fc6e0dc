"""Peers of bench/gpu/documents.cpp: what PyTorch has for documents in packed rows, on the same shapes, in microseconds.

flex: flex_attention, compiled, with a mask of blocks (made once, not timed). varlen: torch.nn.attention.varlen, where it exists.
"""

import functools
import json
import statistics

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SHAPES = [(4, 4096, 16, 16, 64), (4, 4096, 16, 16, 128), (2, 8192, 32, 8, 128)]  # batch, tokens, heads, key/value heads, width


def lengths(tokens: int, documents: int) -> list[int]:
    starts = [i * tokens // documents for i in range(documents)] + [tokens]
    return [b - a for a, b in zip(starts, starts[1:])]


def time_us(f, rounds: int = 7) -> float:
    f(), torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(rounds):
        begin.record()
        for _ in range(5):
            f()
        end.record(), torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 200)
    return round(statistics.median(times), 1)


@functools.cache
def compiled_flex():
    return torch.compile(flex_attention)


def flex(b, t, h, kv, d, documents):
    row = torch.repeat_interleave(torch.arange(documents), torch.tensor(lengths(t, documents))).cuda()
    mask = create_block_mask(lambda _b, _h, q, k: (q >= k) & (row[q] == row[k]), None, None, t, t, device="cuda")
    q, k, v, dy = (torch.randn(b, n, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (h, kv, kv, h))
    forward = lambda: compiled_flex()(q, k, v, block_mask=mask, enable_gqa=h != kv)
    y = forward()
    return forward, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)


def varlen(b, t, h, kv, d, documents):
    from torch.nn.attention.varlen import varlen_attn

    all_lengths = lengths(t, documents) * b
    starts = torch.tensor([0, *all_lengths]).cumsum(0).int().cuda()
    q, k, v, dy = (torch.randn(b * t, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (h, kv, kv, h))
    most = max(all_lengths)
    if h != kv:
        k2, v2 = (x.detach().repeat_interleave(h // kv, 1).requires_grad_() for x in (k, v))
    else:
        k2, v2 = k, v
    try:
        forward = lambda: varlen_attn(q, k2, v2, starts, starts, most, most, is_causal=True)
        forward()
    except TypeError:
        forward = lambda: varlen_attn(q, k2, v2, starts, starts, most, most, window_size=(-1, 0))
    y = forward()
    return forward, lambda: torch.autograd.grad(y, (q, k2, v2), dy, retain_graph=True)


def main():
    torch._dynamo.config.recompile_limit = 64
    for shape in SHAPES:
        for documents in (1, 8, 64):
            row = dict(zip(("batch", "tokens", "heads", "kv_heads", "width"), shape)) | {"documents": documents}
            for peer in (flex, varlen):
                try:
                    forward, backward = peer(*shape, documents)
                    row |= {f"{peer.__name__}_forward_us": time_us(forward), f"{peer.__name__}_backward_us": time_us(backward)}
                except Exception as e:  # a peer that is not there is left out
                    row[peer.__name__] = f"{type(e).__name__}: {str(e)[:120]}"
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
