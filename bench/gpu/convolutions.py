"""Bars of convolutions: the layers of ResNet-18 and ResNet-50 on 224 x 224 images, channels last, against PyTorch on the same memory.

PyTorch calls cuDNN with the algorithm that it found fastest there. Ours is the fastest choice of `hpcdl tune` among our kernels and the algorithms of the same library that repeat
their bits; --ways conv2d=own or conv2d=cudnn makes it one of them.
"""

import torch

from hpcdl import _bench_torch, _hpcdl
from measure import Measured, guarded, require_same, sets_for

# (case of the lab, images x size x channels in x channels out)
LAYERS = [
    ("conv2d+stem", "256x224x3x64"),
    ("conv2d", "256x56x64x64"), ("conv2d", "256x28x128x128"), ("conv2d", "256x14x256x256"), ("conv2d", "256x7x512x512"), ("conv2d", "128x14x256x256"),
    ("conv2d+stride2", "256x56x64x128"), ("conv2d+stride2", "256x14x256x512"), ("conv2d+1x1", "256x56x64x128"),
    ("conv2d+pointwise", "256x56x64x256"), ("conv2d+pointwise", "256x56x256x64"), ("conv2d+pointwise", "128x14x256x1024"), ("conv2d+pointwise", "128x7x2048x512"),
]


F32_LAYERS = [("conv2d", "256x28x128x128"), ("conv2d+stride2", "256x14x256x512")]

TUNING_SECONDS = 20  # time limit of a layer


def their_call(op, x, dims, backward):
    f = _bench_torch.FORWARD[op]
    if not backward:
        return torch.no_grad()(lambda: f(x, dims))
    leaves = [x[name].requires_grad_() for name in ("x", "w")]

    def both():
        y = f(x, dims)
        return torch.autograd.grad(y, leaves, x["dy"].view(y.shape))

    return both


def one_layer(roof, op, shape, dtype, backward, goal, ways):
    dims = [int(n) for n in shape.split("x")]
    first = _hpcdl._BenchCase(op, shape, dtype, backward, "cuda")
    if not ways:
        first.tune(TUNING_SECONDS)
    mine = [first] + [_hpcdl._BenchCase(op, shape, dtype, backward, "cuda") for _ in range(sets_for(first.bytes) - 1)]
    xs = [m.inputs("torch") for m in mine]
    if not backward:
        first.run()
        with torch.no_grad():
            require_same(op, next(iter(first.kept("torch").values())), _bench_torch.FORWARD[op](xs[0], dims))
    m = Measured({"hpcdl": [c.run for c in mine], "cuDNN": [their_call(op, x, dims, backward) for x in xs]}, target=0.01)
    speed = first.flops / (m.us["hpcdl"] * 1e-6)
    what = f"convolution{' ' + ways.removeprefix('conv2d=') if ways else ''}"
    return [m.bar(what, f"{op} {dtype} {shape}{' fwd+bwd' if backward else ''}", "cuDNN", goal, rate=f"{speed / 1e12:.0f} TFLOP/s",
                  share=speed / roof if dtype == "bf16" else None)]


def convolutions(roof: float, use_compile: bool, ways: str):
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # like ours: f32 products are not rounded
    goal = None if ways else 0.95  # the bar applies to the choice; a single way is only shown
    for dtype, layers in (("bf16", LAYERS), ("f32", F32_LAYERS)):
        for op, shape in layers:
            for backward in (False, True):
                yield from guarded("convolution", f"{op} {dtype} {shape}", goal, lambda: one_layer(roof, op, shape, dtype, backward, goal, ways))
