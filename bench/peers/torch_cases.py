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
    copied: int = 0  # bytes that the "copy" side reads and writes
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


def one(make):
    """An output: the same memory in every call, as PyTorch's allocator hands out the block that was just freed."""
    return Ring(make, LARGER_THAN_CACHE)


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
    x, y = Ring(lambda: torch.randn(rows, cols).to(dtype), n), one(lambda: torch.empty(rows, cols, dtype=dtype))
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

    return Case("softmax", f"{rows}x{cols}", short(dtype), 2 * n, 0, sides, compare, 2 * n)


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


def bias_gelu(lib, compiled, rows, cols, dtype):
    n, bf = rows * cols * dtype.itemsize, int(dtype == torch.bfloat16)
    x, y = Ring(lambda: torch.randn(rows, cols).to(dtype), n), one(lambda: torch.empty(rows, cols, dtype=dtype))
    b, t = torch.randn(cols).to(dtype), torch.empty(rows, cols, dtype=dtype)

    def ours(dst=None, src=None):
        call(lib.hb_bias_gelu, p(y() if dst is None else dst), p(x() if src is None else src), p(b), *i64(rows, cols), bf)

    sides = {
        "hpcdl": ours,
        "torch": lambda: F.gelu(x() + b, approximate="tanh"),
        "torch out=": lambda: torch._C._nn.gelu(torch.add(x(), b, out=t), approximate="tanh", out=y()),
        **copies(lib, y, x, n),
    }
    if compiled:
        f = torch.compile(lambda x, b: F.gelu(x + b, approximate="tanh"))
        sides["torch.compile"] = lambda: f(x(), b)

    def compare():
        src, dst = x(), y()
        ours(dst, src)
        return dst, F.gelu(src.double() + b.double(), approximate="tanh"), 16 * eps(dtype)

    return Case("bias+gelu", f"{rows}x{cols}", short(dtype), 2 * n, 0, sides, compare, 2 * n)


def layer_norm(lib, compiled, rows, cols, backward):
    """Forward alone moves x and y; with backward also x and dy again, and dx."""
    n = rows * cols * 4
    x, dy = Ring(lambda: torch.randn(rows, cols), 2 * n), Ring(lambda: torch.randn(rows, cols), 2 * n)
    y, dx = one(lambda: torch.empty(rows, cols)), one(lambda: torch.empty(rows, cols))
    w, b, dw, db = torch.rand(cols), torch.randn(cols), torch.empty(cols), torch.empty(cols)
    mean, rstd = torch.empty(rows), torch.empty(rows)

    def ours():
        d = dx()
        call(lib.hb_layer_norm, p(y()), p(mean), p(rstd), p(d if backward else None), p(dw), p(db), p(x()), p(w), p(b), p(dy()),
             *i64(rows, cols), 0)
        return d

    def theirs(src, grad):
        out, mu, rs = torch.native_layer_norm(src, [cols], w, b, 1e-5)
        if not backward:
            return out
        return torch.ops.aten.native_layer_norm_backward(grad, src, [cols], mu, rs, w, b, [True, True, True])

    sides = {"hpcdl": ours, "torch": lambda: theirs(x(), dy()), **copies(lib, y, x, n)}
    if compiled:
        f = torch.compile(theirs)
        sides["torch.compile"] = lambda: f(x(), dy())

    def compare():
        src, grad, dst, d = x.items[0], dy.items[0], y.items[0], dx.items[0]
        call(lib.hb_layer_norm, p(dst), p(mean), p(rstd), p(d), p(dw), p(db), p(src), p(w), p(b), p(grad), *i64(rows, cols), 0)
        s64 = src.double()
        out, mu, rs = torch.native_layer_norm(s64, [cols], w.double(), b.double(), 1e-5)
        r = torch.ops.aten.native_layer_norm_backward(grad.double(), s64, [cols], mu, rs, w.double(), b.double(), [True] * 3)
        parts = [(dst, out), (d, r[0]), (dw, r[1]), (db, r[2])]
        return torch.cat([a.flatten() for a, _ in parts]), torch.cat([e.flatten() for _, e in parts]), (cols**0.5 + 4) * eps(x().dtype)

    op = "layer_norm fwd+bwd" if backward else "layer_norm fwd"
    return Case(op, f"{rows}x{cols}", "f32", (5 if backward else 2) * n, 0, sides, compare, 2 * n)


def cross_entropy(lib, compiled, rows, vocab, dtype):
    n, bf = rows * vocab * dtype.itemsize, int(dtype == torch.bfloat16)
    x, dx = Ring(lambda: torch.randn(rows, vocab).to(dtype), n), one(lambda: torch.empty(rows, vocab, dtype=dtype))
    target = torch.randint(0, vocab, (rows,))
    target32, loss, lse, row_loss = target.int(), torch.zeros(1), torch.empty(rows), torch.empty(rows)

    def ours(src=None, dst=None):
        call(lib.hb_cross_entropy, p(loss), p(dx() if dst is None else dst), p(lse), p(row_loss), p(x() if src is None else src),
             p(target32), ctypes.c_float(1.0 / rows), *i64(rows, vocab), bf)

    aten = torch.ops.aten
    total = torch.ones((), dtype=dtype)

    def eager(src):  # what autograd runs, without its overhead
        logp = aten._log_softmax(src, -1, False)
        out, weight = aten.nll_loss_forward(logp, target, None, 1, -100)
        return out, aten._log_softmax_backward_data(aten.nll_loss_backward(total, logp, target, None, 1, -100, weight), logp, -1, src.dtype)

    def formula(src, index):  # the gradient by hand, so that the compiler can fuse all of it
        lse = torch.logsumexp(src.float(), -1)
        grad = torch.exp(src.float() - lse[:, None]) - (torch.arange(vocab) == index[:, None]).float()
        return (lse - src.gather(1, index[:, None])[:, 0].float()).mean(), (grad / rows).to(src.dtype)

    sides = {"hpcdl": ours, "torch": lambda: eager(x()), **copies(lib, dx, x, n)}
    if compiled:
        f = torch.compile(formula)
        sides["torch.compile"] = lambda: f(x(), target)

    def compare():
        src, dst = x(), dx()
        ours(src, dst)
        expected, grad = formula(src.double(), target)
        return (torch.cat([dst.flatten().double() * rows, loss.double() / rows]),
                torch.cat([grad.flatten() * rows, expected[None]]), (vocab**0.5 + 4) * 2.0**-23 + (eps(dtype) if bf else 0))

    return Case("cross_entropy fwd+bwd", f"{rows}x{vocab}", short(dtype), 3 * n, 0, sides, compare, 2 * n)


def adamw(lib, compiled, _=None):
    """All tensors of GPT-2 124M: 16 bytes read, 12 written for each parameter."""
    c = 768
    shapes = [(50304, c), (1024, c)] + [(c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,), (c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,)] * 12
    params, grads = [torch.randn(s) for s in shapes], [torch.randn(s) for s in shapes]
    m, v = [torch.randn(s) * 0.1 for s in shapes], [torch.rand(s) for s in shapes]
    steps = [torch.tensor(3.0) for _ in shapes]
    pointers = lambda ts: (ctypes.c_void_p * len(ts))(*[t.data_ptr() for t in ts])
    arrays = [pointers(ts) for ts in (params, grads, m, v)]
    sizes = (ctypes.c_int64 * len(shapes))(*[t.numel() for t in params])

    def ours():
        call(lib.hb_adamw, *arrays, sizes, ctypes.c_int64(len(shapes)), ctypes.c_float(1e-5), ctypes.c_float(0.1), ctypes.c_int64(3))

    def theirs(a=params, b=grads, c=m, d=v):
        torch._fused_adamw_(a, b, c, d, [], steps, lr=1e-5, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)

    n = 2 * sum(t.numel() for t in params)  # a copy of so many 4-byte words moves as much as 4 words for each parameter
    big = torch.zeros(n), torch.zeros(n)
    sides = {"hpcdl": ours, "torch": theirs, **copies(lib, lambda: big[0], lambda: big[1], 4 * n)}

    def compare():
        first = [[t[k].clone() for t in (params, grads, m, v)] for k in (1, 4)]
        ours()
        mine = [params[1].clone(), params[4].clone()]
        for s in steps:
            s.fill_(4.0)
        for t in first:
            t[0], t[2], t[3] = t[0].double(), t[2].double(), t[3].double()
            g = t[1].double()
            t[2] = 0.9 * t[2] + 0.1 * g
            t[3] = 0.95 * t[3] + 0.05 * g * g
            t[0] = t[0] * (1 - 1e-6) - 1e-5 * (t[2] / (1 - 0.9**4)) / ((t[3] / (1 - 0.95**4)).sqrt() + 1e-8)
        return torch.cat([a.flatten() for a in mine]), torch.cat([t[0].flatten() for t in first]), 4 * 2.0**-23

    words = sum(t.numel() for t in params)
    return Case("adamw", "GPT-2 124M", "f32", 28 * words, 0, sides, compare, 8 * n)


def attention(lib, compiled, batch, context, heads, width, dtype, backward):
    bf, c = int(dtype == torch.bfloat16), heads * width
    make = lambda: torch.randn(batch, context, c).to(dtype)
    q, k, v, out, dq, dk, dv, dout = (make() for _ in range(8))
    lse, scratch = torch.empty(batch, heads, context), torch.empty(4 * batch * context * c + 4096)
    split = lambda t: t.view(batch, context, heads, width).transpose(1, 2)
    theirs = [split(t).contiguous() for t in (q, k, v, dout)]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask = torch.full((context, context), float("-inf")).triu_(1).to(dtype)

    def ours(with_gradient):
        args = [p(t) for t in ((dq, dk, dv) if with_gradient else (None, None, None))]
        call(lib.hb_attention, p(out), p(lse), p(q), p(k), p(v), *args, p(dout), p(scratch), *i64(batch, context, heads, width), bf)

    def run_ours():
        ours(False)
        if backward:
            ours(True)

    def run_flash():
        o, l = flash(*theirs[:3], 0.0, True)
        return (o, *flash_backward(theirs[3], *theirs[:3], o, l, 0.0, True)) if backward else (o,)

    def naive():
        a = torch.softmax(torch.matmul(theirs[0], theirs[1].transpose(-1, -2)).mul_(width**-0.5).add_(mask), -1)
        return torch.matmul(a, theirs[2])

    sides = {"hpcdl": run_ours, "torch flash": run_flash}
    if not backward:
        sides["torch naive"] = naive

    def compare():
        ours(False)
        ours(True)
        d = [split(t).double().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            o = F.scaled_dot_product_attention(*d, is_causal=True)
            grads = torch.autograd.grad(o, d, split(dout).double())
        mine = torch.cat([split(t).flatten() for t in (out, dq, dk, dv)])
        return mine, torch.cat([t.flatten() for t in (o.detach(), *grads)]), (context**0.5 + 4) * 2.0**-23 * 4 + (4 * eps(dtype) if bf else 0)

    flops = 2 * batch * heads * context * context * width  # causal: half of both products
    op = "attention fwd+bwd" if backward else "attention fwd"
    return Case(op, f"B{batch} H{heads} T{context} D{width}", short(dtype), 0, int(flops * 3.5) if backward else flops, sides, compare)


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
    for rows, cols, dtype in [(8192, 3072, f32), (1024, 3072, f32), (8192, 3072, bf16)]:
        yield (f"bias_gelu {rows}x{cols} {short(dtype)}", ["hb_bias_gelu"],
               lambda rows=rows, cols=cols, dtype=dtype: bias_gelu(lib, compiled, rows, cols, dtype))
    for rows, cols, backward in [(8192, 768, False), (8192, 768, True), (8192, 4096, True)]:
        yield (f"layer_norm {rows}x{cols} {'fwd+bwd' if backward else 'fwd'}", ["hb_layer_norm"],
               lambda rows=rows, cols=cols, backward=backward: layer_norm(lib, compiled, rows, cols, backward))
    for rows, dtype in [(1024, f32), (1024, bf16)]:
        yield (f"cross_entropy {rows}x50304 {short(dtype)}", ["hb_cross_entropy"],
               lambda rows=rows, dtype=dtype: cross_entropy(lib, compiled, rows, 50304, dtype))
    yield "adamw GPT-2 124M", ["hb_adamw"], lambda: adamw(lib, compiled)
    for dtype, backward in [(f32, False), (f32, True), (bf16, False), (bf16, True)]:
        yield (f"attention T1024 {short(dtype)} {'fwd+bwd' if backward else 'fwd'}", ["hb_attention"],
               lambda dtype=dtype, backward=backward: attention(lib, compiled, 4, 1024, 12, 64, dtype, backward))
