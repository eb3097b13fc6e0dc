"""Some of the lab's cases as an experienced Triton user would write them: one pass if a row fits a program, few parameters."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


def add(a, b):
    y = torch.empty_like(a)
    block = 4096 if a.dtype == torch.float32 else 8192
    _add[(triton.cdiv(a.numel(), block),)](a, b, y, a.numel(), BLOCK=block, num_warps=8)
    return y


@triton.jit
def _softmax_row(x, y, cols, BLOCK: tl.constexpr):
    """The whole row in registers."""
    base = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    v = tl.load(x + base + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + base + at, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=at < cols)


@triton.jit
def _softmax_online(x, y, cols, BLOCK: tl.constexpr):
    """Maximum and sum in one pass over the row, the result in a second."""
    base = tl.program_id(0).to(tl.int64) * cols
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, cols, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        v = tl.load(x + base + at, mask=at < cols, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, v)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - safe) + tl.exp(v - safe)
        top = higher
    row_top = tl.max(top, 0)
    row_total = tl.sum(total * tl.exp(top - row_top), 0)
    for begin in range(0, cols, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        v = tl.load(x + base + at, mask=at < cols, other=float("-inf")).to(tl.float32)
        tl.store(y + base + at, (tl.exp(v - row_top) / row_total).to(y.dtype.element_ty), mask=at < cols)


def softmax(x):
    y = torch.empty_like(x)
    rows, cols = x.shape
    if cols <= 32768:
        block = triton.next_power_of_2(cols)
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16 if block <= 16384 else 32
        _softmax_row[(rows,)](x, y, cols, BLOCK=block, num_warps=warps)
    else:
        _softmax_online[(rows,)](x, y, cols, BLOCK=8192, num_warps=16)
    return y


@triton.jit
def _layer_norm(x, gamma, beta, y, cols, eps, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    inside = at < cols
    v = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / cols
    d = tl.where(inside, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(d * d, 0) / cols + eps)
    w = tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(beta + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + base + at, (d * scale * w + b).to(y.dtype.element_ty), mask=inside)


def layer_norm(x, gamma, beta):
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
    _layer_norm[(x.numel() // cols,)](x, gamma, beta, y, cols, 1e-5, BLOCK=block, num_warps=warps)
    return y


# case of the lab -> y of its inputs
FORWARD = {
    "add": lambda x: add(x["a"], x["b"]),
    "softmax": lambda x: softmax(x["x"]),
    "layer_norm": lambda x: layer_norm(x["x"], x["gamma"], x["beta"]),
}
