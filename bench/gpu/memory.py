"""Bars of memory-bound ops: vector add, softmax at the shapes of the issue, and every other op of the lab's list."""

import torch

import hpcdl
from hpcdl import _bench_torch, _bench_triton, _hpcdl
from measure import Bar, Measured, compiled, copies, guarded, require_same, sets_for

PEERS = ["eager", "compile", "Triton"]
WORDS = {torch.bfloat16: "bf16", torch.float32: "f32", torch.float16: "f16"}
LARGE = 64e6  # bytes from which the share of a copy is a bar


def bars_of(m: Measured, section: str, case: str, total: float, of_copy: float, of_best: float):
    """The two bars of a memory-bound case: its share of copy, and the ratio to the best peer."""
    share = m.ratio("copy")["median"]
    rate = f"{total / m.us[m.first] / 1e3:.0f} GB/s"
    goal = of_copy if total >= LARGE else None
    yield m.bar(section, case, "copy", goal, rate=rate, share=share)
    yield m.bar(section, case, m.best(PEERS), of_best, rate=rate, share=share)


def vector_add(use_compile: bool):
    for dtype, n in ((torch.float32, 1 << 26), (torch.bfloat16, 1 << 27)):
        case = f"{WORDS[dtype]} {n}"

        def one():
            mine = _hpcdl._BenchCase("add", str(n), WORDS[dtype], False, "cuda")
            x = mine.inputs("torch")
            add = lambda: x["a"] + x["b"]
            mine.run()
            require_same("add", next(iter(mine.kept("torch").values())), add())
            sides = {"hpcdl": [mine.run], "copy": copies(mine.bytes, 1), "eager": [add], "Triton": [lambda: _bench_triton.add(x["a"], x["b"])]}
            if use_compile:
                f = compiled(torch.add)
                sides["compile"] = [lambda: f(x["a"], x["b"])]
            return list(bars_of(Measured(sides), "vector add", case, mine.bytes, 0.97, 0.95))

        yield from guarded("vector add", case, 0.97, one)


SOFTMAX = [
    (torch.bfloat16, 8192, 8192), (torch.bfloat16, 16384, 4096), (torch.bfloat16, 4096, 32768), (torch.bfloat16, 4096, 131072),
    (torch.float32, 8192, 8192), (torch.float32, 4096, 131072), (torch.bfloat16, 65536, 256),
]


def softmax(use_compile: bool):
    for dtype, rows, cols in SOFTMAX:
        case = f"{WORDS[dtype]} {rows}x{cols}"

        def one():
            total = 2.0 * rows * cols * dtype.itemsize
            xs = [torch.randn(rows, cols, device="cuda").to(dtype) for _ in range(sets_for(total))]
            require_same("softmax", hpcdl.softmax(xs[0]), torch.softmax(xs[0], -1))
            require_same("softmax, Triton", _bench_triton.softmax(xs[0]), torch.softmax(xs[0], -1))
            each = lambda f: [lambda x=x: f(x) for x in xs]
            sides = {"hpcdl": each(hpcdl.softmax), "copy": copies(total, len(xs)), "eager": each(lambda x: torch.softmax(x, -1)),
                     "Triton": each(_bench_triton.softmax)}
            if use_compile:
                sides["compile"] = each(compiled(lambda x: torch.softmax(x, -1)))
            m = Measured(sides)
            bars = list(bars_of(m, "softmax", case, total, 0.88, 1.7 if cols == 131072 else 0.95))
            if (dtype, rows, cols) == (torch.bfloat16, 8192, 8192):
                bars.append(m.bar("softmax", case, "eager", 3.53, rate=bars[0].rate, share=bars[0].share))
            return bars

        yield from guarded("softmax", case, 0.88, one)


# (op, shape, dtypes, backward): one above 64 MB and one of a training step of GPT-2 each. dims: hpcdl bench --list
OPS = [
    ("relu", "8192x8192", ("bf16",), False), ("gelu", "65536x3072", ("f32", "bf16"), False), ("bias_gelu", "65536x3072", ("bf16",), False),
    ("swiglu", "16384x8192", ("bf16",), False), ("dropout", "134217728", ("bf16",), False), ("cast", "134217728", ("f32", "bf16"), False),
    ("softmax+causal", "384x1024x1024", ("bf16",), False),
    ("layer_norm", "65536x768", ("f32", "bf16"), False), ("layer_norm", "65536x768", ("bf16",), True), ("layer_norm", "16384x4096", ("bf16",), False),
    ("layer_norm+residual", "65536x768", ("bf16",), False), ("rms_norm", "16384x4096", ("bf16",), False), ("rms_norm", "16384x4096", ("bf16",), True),
    ("rms_norm+residual", "16384x4096", ("bf16",), False), ("rope", "8x2048x32x128", ("bf16",), False), ("embedding", "50304x768x65536", ("f32", "bf16"), False),
    ("cross_entropy", "8192x50304", ("bf16", "f32"), False), ("cross_entropy", "8192x50304", ("bf16",), True),
    ("adamw", "67108864", ("f32",), False), ("grad_norm", "134217728", ("f32", "bf16"), False), ("kv_write", "256x32x64", ("bf16",), False),
    ("layer_norm", "4096x768", ("bf16",), False), ("gelu", "4096x3072", ("bf16",), False), ("add", "3145728", ("bf16",), False),
]


def ways(op: str, backward: bool, use_compile: bool):
    """Implementations of an op in PyTorch and Triton: name -> f(inputs, dims)."""
    if op in _bench_torch.IN_PLACE:
        return {}
    found = {"eager": _bench_torch.FORWARD[op]}
    if use_compile:
        found["compile"] = compiled(_bench_torch.FORWARD[op])
    if op in _bench_triton.FORWARD and not backward:
        found["Triton"] = lambda x, dims: _bench_triton.FORWARD[op](x)
    return found


def call_of(f, op: str, x, dims, backward: bool):
    if not backward:
        return torch.no_grad()(lambda: f(x, dims))
    leaves = [t.requires_grad_() for k, t in x.items() if t.is_floating_point() and k not in _bench_torch.NO_GRADIENT_OF and (op, k) != ("rope", "table")]

    def both():
        y = _bench_torch.first(f(x, dims))
        return torch.autograd.grad(y, leaves, x["dy"].view(y.shape).to(y.dtype))

    return both


def peers_of(op: str, xs, dims, backward: bool, use_compile: bool):
    if op in _bench_torch.IN_PLACE:
        calls = [_bench_torch.IN_PLACE[op](x, dims) for x in xs]
        return {} if isinstance(calls[0], str) else {"eager": calls}
    return {name: [call_of(f, op, x, dims, backward) for x in xs] for name, f in ways(op, backward, use_compile).items()}


def one_op(op: str, shape: str, dtype: str, backward: bool, use_compile: bool):
    dims = [int(n) for n in shape.split("x")]
    first = _hpcdl._BenchCase(op, shape, dtype, backward, "cuda")
    mine = [first] + [_hpcdl._BenchCase(op, shape, dtype, backward, "cuda") for _ in range(sets_for(first.bytes) - 1)]
    xs = [m.inputs("torch") for m in mine]
    for x in xs:
        for k in ("ids", "targets"):
            if k in x:
                x[k] = x[k].long()  # PyTorch's indices are 64 bit
    if op in _bench_torch.FORWARD and op not in _bench_torch.RANDOM:
        first.run()
        with torch.no_grad():
            require_same(op, next(iter(first.kept("torch").values())), _bench_torch.first(_bench_torch.FORWARD[op](xs[0], dims)))
    sides = {"hpcdl": [m.run for m in mine], "copy": copies(first.bytes, len(mine)), **peers_of(op, xs, dims, backward, use_compile)}
    m = Measured(sides)
    case = f"{op} {dtype} {shape}{' fwd+bwd' if backward else ''}"
    return list(bars_of(m, "memory-bound", case, first.bytes, 0.88, 0.95))


def ops(use_compile: bool):
    for op, shape, dtypes, backward in OPS:
        for dtype in dtypes:
            yield from guarded("memory-bound", f"{op} {dtype} {shape}", 0.88, lambda: one_op(op, shape, dtype, backward, use_compile))


def copy_roof() -> float:
    """Bytes a second of a copy of 1 GiB, each byte read and written."""
    n = 1 << 30
    return 2.0 * n / (Measured({"copy": copies(2.0 * n, 1)}).us["copy"] * 1e-6)


__all__ = ["Bar", "copy_roof", "ops", "softmax", "vector_add"]
