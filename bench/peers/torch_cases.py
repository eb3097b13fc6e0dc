"""The cases: what our library computes, every way PyTorch has of computing it, and the copy that bounds both."""

import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F

import hpcdl
from hpcdl import bench

LARGER_THAN_CACHE = 128 << 20  # bytes of the operands through which a side rotates


@dataclasses.dataclass
class Case:
    op: str
    shape: str
    dtype: str
    bytes: int  # bytes that have to be moved; 0 if arithmetic is the limit
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
    """Copies of one operand, used in turns, so that no call finds its input in the cache."""

    def __init__(self, make, footprint):
        first = make()
        copies = max(1, -(-LARGER_THAN_CACHE // max(footprint, 1)))
        self.items = [first] + [first.clone() for _ in range(min(copies, 64) - 1)]
        self.i = 0

    def __call__(self):
        self.i = (self.i + 1) % len(self.items)
        return self.items[self.i]


def one(make):
    """An output: the same memory in every call, because PyTorch's allocator reuses the block that was just freed."""
    return Ring(make, LARGER_THAN_CACHE)


def copies(dst, src):
    return {"copy": lambda: bench.copy(dst(), src()), "streaming copy": lambda: bench.copy(dst(), src(), streaming=True)}


def eps(dtype):
    return 2.0 ** -8 if dtype == torch.bfloat16 else 2.0 ** -23


def short(dtype):
    return "bf16" if dtype == torch.bfloat16 else "f32"


def softmax(compiled, rows, cols, dtype):
    n = rows * cols * dtype.itemsize
    x, y = Ring(lambda: torch.randn(rows, cols).to(dtype), n), one(lambda: torch.empty(rows, cols, dtype=dtype))
    sides = {
        "hpcdl": lambda: hpcdl.softmax(x(), out=y()),
        "torch": lambda: torch.softmax(x(), -1),
        "torch out=": lambda: torch.softmax(x(), -1, out=y()),
        **copies(y, x),
    }
    if compiled:
        f = torch.compile(lambda a: torch.softmax(a, -1))
        sides["torch.compile"] = lambda: f(x())

    def compare():
        a, b = x(), y()
        hpcdl.softmax(a, out=b)
        return b, torch.softmax(a.double(), -1), 16 * eps(dtype)

    return Case("softmax", f"{rows}x{cols}", short(dtype), 2 * n, 0, sides, compare, 2 * n)


def linear(compiled, m, n, k, dtype, activation, residual=False):
    """y = act(x W^T + b [+ r]): with r it is relu(A B + C), which PyTorch computes in place on an addmm."""
    bf = dtype == torch.bfloat16
    x, w, b = torch.randn(m, k).to(dtype), (torch.randn(n, k) / k**0.5).to(dtype), torch.randn(n).to(dtype)
    y = torch.empty(m, n, dtype=dtype)
    word = {"gelu": "gelu_tanh"}.get(activation, activation)
    act = {"none": lambda z: z, "relu": torch.relu_, "gelu": lambda z: F.gelu(z, approximate="tanh")}[activation]

    ours_packed = hpcdl.pack_linear(w)

    def ours(weight=w):
        hpcdl.linear(x, weight, b, activation=word, out=y)

    sides = {"hpcdl": ours, "hpcdl packed": lambda: ours(ours_packed), "torch": lambda: act(F.linear(x, w, b)), "torch out=": lambda: act(torch.addmm(b, x, w.t(), out=y))}
    if compiled:
        f = torch.compile(lambda x, w, b: act(F.linear(x, w, b)))
        sides["torch.compile"] = lambda: f(x, w, b)
        # The call of Inductor for frozen weights (inference): oneDNN with packed weights and a fused activation.
        packed = torch.ops.mkldnn._reorder_linear_weight(w, m)
        attr = ("gelu", [], "tanh") if activation == "gelu" else (activation, [], "")
        sides["torch, oneDNN packed, fused"] = lambda: torch.ops.mkldnn._linear_pointwise(x, packed, b, *attr)

    def compare():
        ours()
        plain = y.clone()
        ours(ours_packed)
        if not torch.equal(y, plain):
            raise SystemExit(f"linear {m}x{n}x{k} {short(dtype)}: a packed weight gives other bits")
        reference = F.linear(x.double(), w.double(), b.double())
        return y, act(reference), (k**0.5 + 4) * 2.0**-23 + (2 * eps(dtype) if bf else 0)

    name = {"none": "linear", "relu": "linear+relu", "gelu": "linear+gelu"}[activation]
    return Case(name, f"{m}x{n}x{k}", short(dtype), 0, 2 * m * n * k, sides, compare)


def bias_gelu(compiled, rows, cols, dtype):
    n = rows * cols * dtype.itemsize
    x, y = Ring(lambda: torch.randn(rows, cols).to(dtype), n), one(lambda: torch.empty(rows, cols, dtype=dtype))
    b, t = torch.randn(cols).to(dtype), torch.empty(rows, cols, dtype=dtype)

    sides = {
        "hpcdl": lambda: hpcdl.bias_gelu(x(), b, approximate="tanh", out=y()),
        "torch": lambda: F.gelu(x() + b, approximate="tanh"),
        "torch out=": lambda: torch._C._nn.gelu(torch.add(x(), b, out=t), approximate="tanh", out=y()),
        **copies(y, x),
    }
    if compiled:
        f = torch.compile(lambda x, b: F.gelu(x + b, approximate="tanh"))
        sides["torch.compile"] = lambda: f(x(), b)

    def compare():
        src, dst = x(), y()
        hpcdl.bias_gelu(src, b, approximate="tanh", out=dst)
        return dst, F.gelu(src.double() + b.double(), approximate="tanh"), 16 * eps(dtype)

    return Case("bias+gelu", f"{rows}x{cols}", short(dtype), 2 * n, 0, sides, compare, 2 * n)


def layer_norm(compiled, rows, cols, backward):
    """Forward moves x and y; with backward also x and dy again, and dx."""
    n = rows * cols * 4
    x, dy = Ring(lambda: torch.randn(rows, cols), 2 * n), Ring(lambda: torch.randn(rows, cols), 2 * n)
    y, dx = one(lambda: torch.empty(rows, cols)), one(lambda: torch.empty(rows, cols))
    w, b, dw, db = torch.rand(cols), torch.randn(cols), torch.empty(cols), torch.empty(cols)
    mean, rstd = torch.empty(rows), torch.empty(rows)

    def ours():
        src = x()
        hpcdl.layer_norm_forward(src, w, b, out=(y(), mean, rstd))
        if backward:
            hpcdl.layer_norm_backward(dy(), src, w, b, mean, rstd, out=(dx(), dw, db))

    def theirs(src, grad):
        out, mu, rs = torch.native_layer_norm(src, [cols], w, b, 1e-5)
        if not backward:
            return out
        return torch.ops.aten.native_layer_norm_backward(grad, src, [cols], mu, rs, w, b, [True, True, True])

    sides = {"hpcdl": ours, "torch": lambda: theirs(x(), dy()), **copies(y, x)}
    if compiled:
        f = torch.compile(theirs)
        sides["torch.compile"] = lambda: f(x(), dy())

    def compare():
        src, grad, dst, d = x.items[0], dy.items[0], y.items[0], dx.items[0]
        hpcdl.layer_norm_forward(src, w, b, out=(dst, mean, rstd))
        hpcdl.layer_norm_backward(grad, src, w, b, mean, rstd, out=(d, dw, db))
        s64 = src.double()
        out, mu, rs = torch.native_layer_norm(s64, [cols], w.double(), b.double(), 1e-5)
        r = torch.ops.aten.native_layer_norm_backward(grad.double(), s64, [cols], mu, rs, w.double(), b.double(), [True] * 3)
        parts = [(dst, out), (d, r[0]), (dw, r[1]), (db, r[2])]
        return torch.cat([a.flatten() for a, _ in parts]), torch.cat([e.flatten() for _, e in parts]), (cols**0.5 + 4) * eps(x().dtype)

    op = "layer_norm fwd+bwd" if backward else "layer_norm fwd"
    return Case(op, f"{rows}x{cols}", "f32", (5 if backward else 2) * n, 0, sides, compare, 2 * n)


def cross_entropy(compiled, rows, vocab, dtype):
    n, bf = rows * vocab * dtype.itemsize, dtype == torch.bfloat16
    x, dx = Ring(lambda: torch.randn(rows, vocab).to(dtype), n), one(lambda: torch.empty(rows, vocab, dtype=dtype))
    target = torch.randint(0, vocab, (rows,))
    target32 = target.int()

    aten = torch.ops.aten
    total = torch.ones((), dtype=dtype)

    def eager(src):  # the functions that autograd calls, without its overhead
        logp = aten._log_softmax(src, -1, False)
        out, weight = aten.nll_loss_forward(logp, target, None, 1, -100)
        return out, aten._log_softmax_backward_data(aten.nll_loss_backward(total, logp, target, None, 1, -100, weight), logp, -1, src.dtype)

    def formula(src, index):  # the gradient written by hand, so that the compiler can fuse all of it
        lse = torch.logsumexp(src.float(), -1)
        grad = torch.exp(src.float() - lse[:, None]) - (torch.arange(vocab) == index[:, None]).float()
        return (lse - src.gather(1, index[:, None])[:, 0].float()).mean(), (grad / rows).to(src.dtype)

    sides = {"hpcdl": lambda: hpcdl.cross_entropy_with_grad(x(), target32, out=dx()), "torch": lambda: eager(x()), **copies(dx, x)}
    if compiled:
        f = torch.compile(formula)
        sides["torch.compile"] = lambda: f(x(), target)

    def compare():
        src, dst = x(), dx()
        loss, _ = hpcdl.cross_entropy_with_grad(src, target32, out=dst)
        expected, grad = formula(src.double(), target)
        return (torch.cat([dst.flatten().double() * rows, loss.double().reshape(1)]),
                torch.cat([grad.flatten() * rows, expected[None]]), (vocab**0.5 + 4) * 2.0**-23 + (eps(dtype) if bf else 0))

    return Case("cross_entropy fwd+bwd", f"{rows}x{vocab}", short(dtype), 3 * n, 0, sides, compare, 2 * n)


def adamw(compiled, name, vocab, context, c, layers):
    """All tensors of a GPT-2: 16 bytes read, 12 written for each parameter."""
    shapes = [(vocab, c), (context, c)] + [(c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,), (c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,)] * layers
    params, grads = [torch.randn(s) for s in shapes], [torch.randn(s) for s in shapes]
    m, v = [torch.randn(s) * 0.1 for s in shapes], [torch.rand(s) for s in shapes]
    steps = [torch.tensor(3.0) for _ in shapes]

    def ours():
        hpcdl.adamw(params, grads, m, v, lr=1e-5, step=4, betas=(0.9, 0.95), weight_decay=0.1)

    def theirs(a=params, b=grads, c=m, d=v):
        torch._fused_adamw_(a, b, c, d, [], steps, lr=1e-5, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)

    n = 2 * sum(t.numel() for t in params)  # a copy of this many 4-byte words moves the same bytes as 4 words for each parameter
    big = torch.zeros(n), torch.zeros(n)
    sides = {"hpcdl": ours, "torch": theirs, **copies(lambda: big[0], lambda: big[1])}

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
    return Case("adamw", name, "f32", 28 * words, 0, sides, compare, 8 * n)


def attention(compiled, batch, context, heads, width, dtype, backward):
    bf, c = dtype == torch.bfloat16, heads * width
    make = lambda: torch.randn(batch, context, c).to(dtype)
    q, k, v, out, dq, dk, dv, dout = (make() for _ in range(8))
    lse = torch.empty(batch, heads, context)
    split = lambda t: t.view(batch, context, heads, width).transpose(1, 2)
    theirs = [split(t).contiguous() for t in (q, k, v, dout)]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask = torch.full((context, context), float("-inf")).triu_(1).to(dtype)

    def ours(with_gradient=backward):
        hpcdl.attention_forward(q, k, v, causal=True, heads=heads, out=(out, lse))
        if with_gradient:
            hpcdl.attention_backward(dout, q, k, v, out, lse, causal=True, heads=heads, out=(dq, dk, dv))

    def run_flash():
        o, l = flash(*theirs[:3], 0.0, True)
        return (o, *flash_backward(theirs[3], *theirs[:3], o, l, 0.0, True)) if backward else (o,)

    def naive():
        a = torch.softmax(torch.matmul(theirs[0], theirs[1].transpose(-1, -2)).mul_(width**-0.5).add_(mask), -1)
        return torch.matmul(a, theirs[2])

    sides = {"hpcdl": ours, "torch flash": run_flash}
    if not backward:
        sides["torch naive"] = naive

    def compare():
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


def cases(compiled):
    """(name, maker)"""
    f32, bf16 = torch.float32, torch.bfloat16
    for rows, cols, dtype in [(4096, 32768, f32), (4096, 1024, f32), (4096, 32768, bf16)]:
        yield (f"softmax {rows}x{cols} {short(dtype)}",
               lambda rows=rows, cols=cols, dtype=dtype: softmax(compiled, rows, cols, dtype))
    for m, n, k, dtype, act in [(1024, 3072, 768, f32, "none"), (1024, 3072, 768, f32, "gelu"), (1024, 3072, 768, f32, "relu"),
                                (1024, 3072, 768, bf16, "none"), (1024, 3072, 768, bf16, "gelu"), (1024, 3072, 768, bf16, "relu")]:
        yield (f"linear {m}x{n}x{k} {act} {short(dtype)}",
               lambda m=m, n=n, k=k, dtype=dtype, act=act: linear(compiled, m, n, k, dtype, act))
    for rows, cols, dtype in [(8192, 3072, f32), (1024, 3072, f32), (8192, 3072, bf16)]:
        yield (f"bias_gelu {rows}x{cols} {short(dtype)}",
               lambda rows=rows, cols=cols, dtype=dtype: bias_gelu(compiled, rows, cols, dtype))
    for rows, cols, backward in [(8192, 768, False), (8192, 768, True), (8192, 4096, True)]:
        yield (f"layer_norm {rows}x{cols} {'fwd+bwd' if backward else 'fwd'}",
               lambda rows=rows, cols=cols, backward=backward: layer_norm(compiled, rows, cols, backward))
    for rows, dtype in [(1024, f32), (1024, bf16)]:
        yield (f"cross_entropy {rows}x50304 {short(dtype)}",
               lambda rows=rows, dtype=dtype: cross_entropy(compiled, rows, 50304, dtype))
    yield "adamw GPT-2 124M", lambda: adamw(compiled, "GPT-2 124M", 50304, 1024, 768, 12)
    yield "adamw GPT-2 1M", lambda: adamw(compiled, "GPT-2 1M", 2048, 128, 128, 4)  # stays in the caches
    for dtype, backward in [(f32, False), (f32, True), (bf16, False), (bf16, True)]:
        yield (f"attention T1024 {short(dtype)} {'fwd+bwd' if backward else 'fwd'}",
               lambda dtype=dtype, backward=backward: attention(compiled, 4, 1024, 12, 64, dtype, backward))
