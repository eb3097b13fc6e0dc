#!/usr/bin/env python3
"""The errors of results relative to double precision, and their share of the tolerance of docs/numerics.md: products, attention, convolutions, INT4 weights.

    bench/errors.py [--device cuda] [--json FILE]     FILE: bench/results/MACHINE/errors.json

Both sides read the same operands. "rms" is the root mean square of the error over that of the exact result, "rounding" the same of the exact result
rounded to the type it is stored in, which is the least possible error. "share" is the largest error of an element as a share of the tolerance of that
element (hpcdl/core/tolerance.h). PyTorch chooses its own kernels, with f32 as f32. Needs the Python module (HPCDL_MODULE: its folder) and torch.
"""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import common  # noqa: E402  (finds the module)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import hpcdl  # noqa: E402
from hpcdl import _hpcdl  # noqa: E402

HALF_ULP = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def rms(t):
    return t.double().square().mean().sqrt().item()


def row(name, dtype, ours, theirs, exact, terms, magnitudes, beyond=0.0):
    """terms: of the sum of an element; magnitudes: the sum of their absolute values; beyond: an additional tolerance, in units of those."""
    allowed = 2 * HALF_ULP[ours.dtype] * exact.abs() + ((4 + terms**0.5) * 2.0**-24 + beyond) * magnitudes
    error, size = (ours.double() - exact).abs(), rms(exact)
    return {"name": name, "dtype": dtype, "rms": rms(error) / size, "rounding": rms(exact.to(ours.dtype).double() - exact) / size,
            "torch": None if theirs is None else rms(theirs.double() - exact) / size, "share": (error / allowed.clamp_min(1e-300)).max().item()}


def random(shape, dtype, device, scale=1.0):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype).to(device)


def products(device):
    for name, dtype in DTYPES.items():
        x, w = random((256, 3072), dtype, device), random((768, 3072), dtype, device, 0.02)
        exact, magnitudes = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
        yield row("product 256x768, sums of 3072", name, hpcdl.linear(x, w), F.linear(x, w), exact, 3072, magnitudes)


def attention(device):
    """Scores of standard deviation 9: a few keys take most of the probability, as in a trained model."""
    for name, dtype in DTYPES.items():
        shape = (1, 4, 1024, 64)
        q, k, v = (random((*shape[:3], shape[3] + i), dtype, device, s)[..., : shape[3]].contiguous() for i, s in enumerate((9.0, 1.0, 1.0)))
        p = torch.softmax(q.double() @ k.double().transpose(-1, -2) / 8, -1)
        beyond = 0.0 if dtype == torch.float32 else HALF_ULP[dtype]  # probabilities are rounded to it before they are multiplied by the values
        # A score is a sum of 64 terms; the exponential makes its error a relative error of the probability.
        scores = (4 + 64**0.5) * 2.0**-24 * (q.double().abs() @ k.double().abs().transpose(-1, -2) / 8).max().item()
        yield row("attention, 1024 keys, heads of 64", name, hpcdl.attention(q, k, v), F.scaled_dot_product_attention(q, k, v), p @ v.double(), 1024, p @ v.double().abs(), beyond + 2 * scores)


def convolutions(device):
    for name in DTYPES:
        for op, shape in (("conv2d", "8x28x64x64"), ("conv2d+stem", "4x64x3x64")):
            case = _hpcdl._BenchCase(op, shape, name, False, device)
            x = case.inputs("torch")
            case.run()
            if device == "cuda":
                torch.cuda.synchronize()
            ours = next(iter(case.kept("torch").values()))
            images, kernels = (x[n].permute(0, 3, 1, 2) for n in ("x", "w"))
            size = kernels.shape[-1]
            conv = lambda a, b: F.conv2d(a, b, None, 2 if "stem" in op else 1, size // 2).permute(0, 2, 3, 1)
            exact, magnitudes = conv(images.double(), kernels.double()), conv(images.double().abs(), kernels.double().abs())
            kind = "7x7 of stride 2" if "stem" in op else "3x3"
            yield row(f"convolution {kind}, {images.shape[1]} channels", name, ours, conv(images, kernels.to(images.dtype)), exact, images.shape[1] * size * size, magnitudes)


def int4():
    """For normal weights: the error of 4 bits, and the additional error of activations of 8 bits. On the CPU, which quantises."""
    x, w = random((64, 4096), torch.float32, "cpu"), random((1024, 4096), torch.float32, "cpu", 0.02)
    for group in (32, 64, 128):
        q = hpcdl.int4_quantize(w.numpy(), group=group)
        full = x.double() @ torch.from_numpy(hpcdl.int4_dequantize(q)).double().T
        y = torch.from_numpy(hpcdl.int4_matmul(x.numpy(), q)).double()
        yield {"name": f"groups of {group}", "weights": q.relative_error, "activations": rms(y - full) / rms(full)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--json")
    o = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    machine = {**common.machine(), "torch": torch.__version__}
    if o.device == "cuda":
        machine = {"gpu": torch.cuda.get_device_name(), "threads": len(os.sched_getaffinity(0)), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    rows = [*products(o.device), *attention(o.device), *convolutions(o.device)]
    weights = list(int4())
    for r in rows:
        print(f"{r['name']:<36} {r['dtype']:<5} rms {r['rms']:.3e}  rounding {r['rounding']:.3e}  PyTorch {r['torch']:.3e}  {r['share']:.3f} of what is allowed")
    for r in weights:
        print(f"INT4, {r['name']:<30} weights {r['weights']:.4f}  activations {r['activations']:.4f}")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"machine": machine, "rows": rows, "int4": weights}, indent=1) + "\n")


if __name__ == "__main__":
    main()
