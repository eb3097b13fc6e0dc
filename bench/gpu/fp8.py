"""Bars of products of 8-bit floats, against the best of torch._scaled_mm: with exact and with fast sums, scales of tensors and of rows."""

from typing import Tuple

import torch

from hpcdl import _hpcdl
from measure import Measured, compiled, guarded, sets_for

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (65536, 4096, 4096))


class Operands:
    """E4M3 operands of random numbers, like those of the lab's case."""

    def __init__(self, m: int, n: int, k: int):
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn) for rows in (m, n))
        self.a, self.b = a, b.t()
        self.one = torch.ones((), device="cuda")
        self.rows = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
        self.bias = torch.randn(n, device="cuda").bfloat16()

    def product(self, fast: bool, by_rows: bool = False, bias: bool = False) -> torch.Tensor:
        scale_a, scale_b = self.rows if by_rows else (self.one, self.one)
        return torch._scaled_mm(self.a, self.b, scale_a=scale_a, scale_b=scale_b, bias=self.bias if bias else None, out_dtype=torch.bfloat16, use_fast_accum=fast)



def finish(y: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    z = torch.nn.functional.gelu(y, approximate="tanh")
    return z, z.abs().amax()


def fp8(roof: float, use_compile: bool):
    """`roof`: FLOP/s of a bf16 product through cuBLASLt."""
    for m, n, k in SHAPES:
        shape, flops = f"{m}x{n}x{k}", 2.0 * m * n * k

        def case(op: str) -> list:
            first = _hpcdl._BenchCase(op, shape, "bf16", False, "cuda")
            return [c.run for c in [first] + [_hpcdl._BenchCase(op, shape, "bf16", False, "cuda") for _ in range(sets_for(first.bytes) - 1)]]

        def one():
            ours, rows, finished = case("fp8_linear"), case("fp8_linear+rows"), case("fp8_linear+bias_gelu_amax")
            sets = [Operands(m, n, k) for _ in ours]
            peers = {f"torch, {'rows' if by_rows else 'tensor'}, {'fast' if fast else 'exact'}": [lambda x=x, f=fast, r=by_rows: x.product(f, r) for x in sets] for fast in (True, False) for by_rows in (False, True)}
            speed = lambda us: {"rate": f"{flops / us / 1e6:.0f} TFLOP/s", "share": flops / (us * 1e-6) / roof}
            plain = Measured({"hpcdl": ours, "hpcdl, rows": rows, "bf16": case("linear"), **peers})
            yield plain.bar("fp8", shape, plain.best(list(peers)), 0.9, **speed(plain.us["hpcdl"]))
            yield plain.bar("fp8", f"{shape}, of bf16", "bf16", 1.7 if m == 8192 else None, **speed(plain.us["hpcdl"]))
            ways = {"eager": finish, **({"compile": compiled(finish)} if use_compile else {})}
            peers = {f"torch, {'fast' if fast else 'exact'}, {way}": [lambda x=x, f=fast, g=g: g(x.product(f, bias=True)) for x in sets] for fast in (True, False) for way, g in ways.items()}
            whole = Measured({"hpcdl": finished, **peers})
            yield whole.bar("fp8", f"{shape}, bias, gelu, amax", whole.best(list(peers)), 0.95, **speed(whole.us["hpcdl"]))

        yield from guarded("fp8", shape, 0.9, one)
