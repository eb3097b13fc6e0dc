"""The cases: what our library computes, every way PyTorch has of computing it, and the copy that bounds both."""

import ctypes
import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F

LARGER_THAN_CACHE = 128 << 20  # bytes that one side rotates through


@dataclasses.dataclass
class Case:
    op: str
    shape: str
    dtype: str
    bytes: int  # that have to move; 0 where arithmetic is the bound
    flops: int
    sides: dict[str, Callable]
    compare: Callable  # -> (ours, reference, tolerance)
    error: float = 0.0

    def check(self):
        ours, reference, tolerance = self.compare()
        self.error = (ours.double() - reference.double()).abs().max().item()
        scale = max(1.0, reference.double().abs().max().item())
        if not self.error <= tolerance * scale:
            raise SystemExit(f"{self.op} {self.shape} {self.dtype}: differs from PyTorch by {self.error:.2e}, more than {tolerance * scale:.2e}")


class Ring:
    """Copies of one operand, handed out in turn, so that no call finds its input in the cache."""

    def __init__(self, make, footprint):
        first = make()
        copies = max(1, -(-LARGER_THAN_CACHE // max(footprint, 1)))
        self.items = [first] + [first.clone() for _ in range(min(copies, 64) - 1)]
        self.i = 0

    def __call__(self):
        self.i = (self.i + 1) % len(self.items)
        return self.items[self.i]


def p(t):
    return ctypes.c_void_p(t.data_ptr() if t is not None else 0)


def i64(*values):
    return [ctypes.c_int64(v) for v in values]


def call(f, *args):
    if f(*args):
        raise SystemExit("hpcdl reported an error (above)")


def copies(lib, dst, src, n):
    return {
        "copy": lambda: call(lib.hb_copy, p(dst()), p(src()), *i64(n), 0),
        "streaming copy": lambda: call(lib.hb_copy, p(dst()), p(src()), *i64(n), 1),
    }


def eps(dtype):
    return 2.0 ** -8 if dtype == torch.bfloat16 else 2.0 ** -23


def short(dtype):
    return "bf16" if dtype == torch.bfloat16 else "f32"


def softmax(lib, compiled, rows, cols, dtype):
    n = rows * cols * dtype.itemsize
    x, y = Ring(lambda: torch.randn(rows, cols).to(dtype), 2 * n), Ring(lambda: torch.empty(rows, cols, dtype=dtype), 2 * n)
    bf = int(dtype == torch.bfloat16)

    def ours(dst=None, src=None):
        call(lib.hb_softmax, p(y() if dst is None else dst), p(x() if src is None else src), *i64(rows, cols), bf)

    sides = {
        "hpcdl": ours,
        "torch": lambda: torch.softmax(x(), -1),
        "torch out=": lambda: torch.softmax(x(), -1, out=y()),
        **copies(lib, y, x, n),
    }
    if compiled:
        f = torch.compile(lambda a: torch.softmax(a, -1))
        sides["torch.compile"] = lambda: f(x())

    def compare():
        a, b = x(), y()
        ours(b, a)
        return b, torch.softmax(a.double(), -1), 16 * eps(dtype)

    return Case("softmax", f"{rows}x{cols}", short(dtype), 2 * n, 0, sides, compare)


def linear(lib, compiled, m, n, k, dtype, activation, residual=False):
    """y = act(x W^T + b [+ r]): with r it is relu(A B + C), which PyTorch computes in place on an addmm."""
    bf = int(dtype == torch.bfloat16)
    x, w, b = torch.randn(m, k).to(dtype), (torch.randn(n, k) / k**0.5).to(dtype), torch.randn(n).to(dtype)
    y = torch.empty(m, n, dtype=dtype)
    code = {"none": 0, "relu": 1, "gelu": 2}[activation]
    act = {"none": lambda z: z, "relu": torch.relu_, "gelu": lambda z: F.gelu(z, approximate="tanh")}[activation]

    def ours():
        call(lib.hb_linear, p(y), p(x), p(w), p(b), p(None), *i64(m, n, k), code, bf)

    sides = {"hpcdl": ours, "torch": lambda: act(F.linear(x, w, b)), "torch out=": lambda: act(torch.addmm(b, x, w.t(), out=y))}
    if compiled:
        f = torch.compile(lambda x, w, b: act(F.linear(x, w, b)))
        sides["torch.compile"] = lambda: f(x, w, b)
        # What Inductor calls when weights are frozen (inference): oneDNN with packed weights and a fused activation.
        packed = torch.ops.mkldnn._reorder_linear_weight(w, m)
        attr = ("gelu", [], "tanh") if activation == "gelu" else (activation, [], "")
        sides["torch, oneDNN packed, fused"] = lambda: torch.ops.mkldnn._linear_pointwise(x, packed, b, *attr)

    def compare():
        ours()
        reference = F.linear(x.double(), w.double(), b.double())
        return y, act(reference), (k**0.5 + 4) * 2.0**-23 + (2 * eps(dtype) if bf else 0)

    name = {"none": "linear", "relu": "linear+relu", "gelu": "linear+gelu"}[activation]
    return Case(name, f"{m}x{n}x{k}", short(dtype), 0, 2 * m * n * k, sides, compare)


def cases(lib, compiled):
    """(name, functions needed of our library, maker)"""
    f32, bf16 = torch.float32, torch.bfloat16
    for rows, cols, dtype in [(4096, 32768, f32), (4096, 1024, f32), (4096, 32768, bf16)]:
        yield (f"softmax {rows}x{cols} {short(dtype)}", ["hb_softmax"],
               lambda rows=rows, cols=cols, dtype=dtype: softmax(lib, compiled, rows, cols, dtype))
    for m, n, k, dtype, act in [(1024, 3072, 768, f32, "none"), (1024, 3072, 768, f32, "gelu"), (1024, 3072, 768, f32, "relu"),
                                (1024, 3072, 768, bf16, "none"), (1024, 3072, 768, bf16, "gelu"), (1024, 3072, 768, bf16, "relu")]:
        yield (f"linear {m}x{n}x{k} {act} {short(dtype)}", ["hb_linear"],
               lambda m=m, n=n, k=k, dtype=dtype, act=act: linear(lib, compiled, m, n, k, dtype, act))
