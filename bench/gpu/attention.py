"""Bars of attention: forward and backward kernels against FlashAttention and cuDNN as PyTorch calls them.

They sum dq in another order each time, ours does not, except with --atomic-sums. --ways attention=own or attention=cudnn selects one way.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hpcdl
from hpcdl import bench
from measure import Measured, guarded, require_same, sets_for

SHAPES = [  # batch, heads, tokens, width, causal
    (64, 12, 1024, 64, True), (4, 16, 4096, 128, True), (4, 16, 4096, 128, False), (16, 12, 2048, 64, False),
]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def sdpa(backend, q, k, v, causal):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def their_backward(backend, q, k, v, dy, causal):
    """Only the backward pass: the forward is done once, on the stream whose work is captured later."""
    leaves = [z.detach().requires_grad_() for z in (q, k, v)]
    with torch.cuda.stream(bench.capture_stream()):
        y = sdpa(backend, *leaves, causal)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def our_backward(q, k, v, dy, causal, atomic_sums=False):
    y, lse = hpcdl.attention_forward(q, k, v, causal=causal)
    return lambda: hpcdl.attention_backward(dy, q, k, v, y, lse, causal=causal, atomic_sums=atomic_sums)


def packed_qkv(b, h, t, d):
    """q, k, v as views (B, H, T, D) of one projection's output (B, T, 3 H D), as in a transformer."""
    qkv = torch.randn(b, t, 3, h, d, device="cuda").bfloat16()
    return [z.transpose(1, 2) for z in qkv.unbind(2)]


def forward_sides(sets, causal):
    sides = {"hpcdl": [lambda s=s: hpcdl.attention(*s[:3], causal=causal) for s in sets]}
    for name, backend in BACKENDS.items():
        sides[name] = [lambda s=s, b=backend: sdpa(b, *s[:3], causal) for s in sets]
    return sides


def backward_sides(sets, causal, atomic_sums):
    sides = {"hpcdl": [our_backward(*s, causal, atomic_sums) for s in sets]}
    for name, backend in BACKENDS.items():
        try:
            sides[name] = [their_backward(backend, *s, causal) for s in sets]
        except RuntimeError as e:
            print(f"attention backward, {name}: {e}")
    return sides


def check(s, causal, backward):
    q, k, v, dy = s
    require_same("attention", hpcdl.attention(q, k, v, causal=causal), sdpa(BACKENDS["flash"], q, k, v, causal))
    if backward:
        theirs = their_backward(BACKENDS["flash"], *s, causal)()
        torch.cuda.synchronize()
        for mine, other in zip(our_backward(*s, causal)(), theirs):
            require_same("attention backward", mine, other)


def attention(roof: float, use_compile: bool, atomic_sums: bool, ways: str):
    asked = f", {ways}" if ways else ""
    asked += ", atomic sums" if atomic_sums else ""
    for b, h, t, d, causal in SHAPES:
        case = f"bf16 B{b} H{h} T{t} D{d}{' causal' if causal else ''}"

        def one(backward: bool, goal: float):
            each = 2.0 * b * h * t * d * 4
            sets = [(*packed_qkv(b, h, t, d), torch.randn(b, t, h, d, device="cuda").bfloat16().transpose(1, 2)) for _ in range(sets_for(each))]
            check(sets[0], causal, backward)
            m = Measured(backward_sides(sets, causal, atomic_sums) if backward else forward_sides(sets, causal), target=0.01)
            flops = 4.0 * b * h * t * t * d * (0.5 if causal else 1.0) * (2.5 if backward else 1.0)
            speed = flops / (m.us["hpcdl"] * 1e-6)
            what = ("attention backward" if backward else "attention forward") + asked
            return [m.bar(what, case, m.best(list(BACKENDS)), goal, rate=f"{speed / 1e12:.0f} TFLOP/s", share=speed / roof)]

        yield from guarded("attention forward", case, 0.9, lambda: one(False, 0.9))
        yield from guarded("attention backward", case, 0.8, lambda: one(True, 0.8))


