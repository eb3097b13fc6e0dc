"""Bars of matrix products: relu(A B + C), our own product against cuBLASLt, and 4-bit weights against bf16."""

import torch

import hpcdl
from hpcdl import _hpcdl
from measure import Bar, Measured, Plain, compiled, copies, guarded, require_same, sets_for


def tensor_core_roof() -> float:
    """FLOP/s of an 8192^3 bf16 product of random numbers through cuBLASLt, either way round: the roof of arithmetic-bound ops."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    m = Measured({"nn": [lambda: a @ b], "nt": [lambda: a @ b.t()]}, limit=1.0)
    return 2.0 * n**3 / (min(m.us.values()) * 1e-6)


def half_dtype() -> torch.dtype:
    """float16, or bfloat16 if the module does not support float16 yet."""
    try:
        x = torch.zeros(64, 64, dtype=torch.float16, device="cuda")
        hpcdl.matmul_add_relu(x, x, x)
        return torch.float16
    except (TypeError, ValueError):
        return torch.bfloat16


def matmul_add_relu(roof: float, use_compile: bool):
    dtype = half_dtype()
    word = "fp16" if dtype == torch.float16 else "bf16"
    for n, goal in ((1024, 1.25), (2048, 1.25), (4096, 1.18), (8192, 1.08)):
        case = f"{word} relu({n}^3 + C)"

        def one():
            sets = [[torch.randn(n, n, device="cuda").to(dtype) / s for s in (n**0.25, n**0.25, 1)] for _ in range(sets_for(4.0 * n * n * 2))]
            eager = lambda a, b, c: torch.relu(a @ b + c)
            require_same("matmul_add_relu", hpcdl.matmul_add_relu(*sets[0]), eager(*sets[0]))
            each = lambda f: [lambda s=s: f(*s) for s in sets]
            called = Measured({"hpcdl": Plain(each(hpcdl.matmul_add_relu)), "eager": Plain(each(eager))})
            sides = {"hpcdl": each(hpcdl.matmul_add_relu), "eager": each(eager), "product alone": each(lambda a, b, c: a @ b)}
            if use_compile:
                sides["compile"] = each(compiled(eager))
            m = Measured(sides)
            speed = lambda us: {"rate": f"{2.0 * n**3 / us / 1e6:.0f} TFLOP/s", "share": 2.0 * n**3 / (us * 1e-6) / roof}
            return [called.bar("matmul+add+ReLU", f"{case}, as called", "eager", goal, **speed(called.us["hpcdl"])),
                    m.bar("matmul+add+ReLU", f"{case}, graphs", m.best(["eager", "compile"]), None, **speed(m.us["hpcdl"])),
                    m.bar("matmul+add+ReLU", f"{case}, graphs", "product alone", None, **speed(m.us["hpcdl"]))]

        yield from guarded("matmul+add+ReLU", case, goal, one)


def gemm(roof: float, use_compile: bool):
    """The op behind every product, as the lab's case records it, against the same product through cuBLASLt."""
    shapes = [(4096, 4096, 4096, 0.95), (8192, 8192, 8192, 0.95), (65536, 3072, 768, None), (65536, 768, 3072, None), (65536, 2304, 768, None)]
    for m_, n, k, goal in shapes:
        case = f"bf16 {m_}x{n}x{k}"

        def one():
            shape = f"{m_}x{n}x{k}"
            first = _hpcdl._BenchCase("linear", shape, "bf16", False, "cuda")
            mine = [first] + [_hpcdl._BenchCase("linear", shape, "bf16", False, "cuda") for _ in range(sets_for(first.bytes) - 1)]
            xs = [c.inputs("torch") for c in mine]
            first.run()
            require_same("linear", next(iter(first.kept("torch").values())), torch.nn.functional.linear(xs[0]["x"], xs[0]["w"]))
            m = Measured({"hpcdl": [c.run for c in mine], "cuBLASLt": [lambda x=x: torch.nn.functional.linear(x["x"], x["w"]) for x in xs]})
            speed = 2.0 * m_ * n * k / (m.us["hpcdl"] * 1e-6)
            return [m.bar("GEMM", case, "cuBLASLt", goal, rate=f"{speed / 1e12:.0f} TFLOP/s", share=speed / roof)]

        yield from guarded("GEMM", case, goal, one)


def int4(copy: float, use_compile: bool):
    for n, k in ((4096, 4096), (8192, 28672), (28672, 8192)):
        for batch in (1, 8):
            goal = 2.5 if batch == 1 and (n, k) != (28672, 8192) else None
            case = f"INT4 {batch}x{n}x{k}, groups of 64"

            def one():
                count = sets_for(n * k / 2 * 1.1)
                x = torch.randn(batch, k, device="cuda").bfloat16()
                packed = [torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda") for _ in range(count)]
                scales = [(torch.rand(n, k // 64, device="cuda") / k**0.5).bfloat16() for _ in range(count)]
                written = [hpcdl.Int4Weight(p, s, tiled=True) for p, s in zip(packed, scales)]  # from the point of view of a product
                weights = [hpcdl.Int4Weight(p, s, tiled=True).freeze() for p, s in zip(packed, scales)]
                dense = [hpcdl.int4_dequantize(w, dtype=torch.bfloat16) for w in weights]
                require_same("int4_matmul", hpcdl.int4_matmul(x, weights[0]), x @ dense[0].t())
                moved = weights[0].nbytes + x.nbytes + 2 * batch * n
                m = Measured({"hpcdl": [lambda w=w: hpcdl.int4_matmul(x, w) for w in weights], "bf16 cuBLAS": [lambda d=d: x @ d.t() for d in dense],
                              "hpcdl, not frozen": [lambda w=w: hpcdl.int4_matmul(x, w) for w in written], "copy of as few bytes": copies(moved, count)})
                rate = moved / (m.us["hpcdl"] * 1e-6)
                more = {"rate": f"{rate / 1e9:.0f} GB/s", "share": rate / copy}
                bars = [m.bar("INT4", case, "bf16 cuBLAS", goal, **more)]
                if goal:
                    r = rate / copy
                    bars.append(Bar("INT4", case, 0.6, "copy, in bytes moved", m.us["hpcdl"], moved / copy * 1e6, {"median": r, "low": r, "high": r}, **more))
                return bars

            yield from guarded("INT4", case, goal, one)
