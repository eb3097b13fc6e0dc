"""The functions of `hpcdl` for PyTorch tensors, with gradients for autograd.

Each does the same as the function of that name in `hpcdl`, and calls it directly if no tensor needs a gradient. Gradients of
gradients are not supported (RuntimeError). CUDA tensors are computed on the current stream, without waiting, so all of this may be
captured into a torch.cuda.CUDAGraph; a module that was built without CUDA raises ValueError for them.
"""

import math
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _hpcdl as ops

__all__ = [
    "AdamW",
    "attention",
    "bias_gelu",
    "bias_gelu_mlp",
    "cross_entropy",
    "gelu",
    "int4_matmul",
    "layer_norm",
    "linear",
    "matmul_add_relu",
    "rms_norm",
    "softmax",
]


def _tracked(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def _rows(grad: Tensor) -> Tensor:
    """Gradients from autograd may be broadcast or transposed."""
    return grad if grad.is_contiguous() else grad.contiguous()


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, causal: bool) -> Tensor:
        y = ops.softmax(x, scale=scale, causal=causal)
        ctx.save_for_backward(y)
        ctx.options = {"scale": scale, "causal": causal}
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return ops.softmax_backward(_rows(dy), y, **ctx.options), None, None


def softmax(x: Tensor, *, scale: float = 1.0, causal: bool = False) -> Tensor:
    """softmax(scale * x) over the last dim, optionally causal."""
    if _tracked(x):
        return _Softmax.apply(x, scale, causal)
    return ops.softmax(x, scale=scale, causal=causal)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return ops.gelu(x, approximate=approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return ops.gelu_backward(_rows(dy), x, approximate=ctx.approximate), None


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU; approximate: "none" or "tanh"."""
    if _tracked(x):
        return _Gelu.apply(x, approximate)
    return ops.gelu(x, approximate=approximate)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.approximate = approximate
        return ops.bias_gelu(x, bias, approximate=approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        grads = ops.bias_gelu_backward(
            _rows(dy), *ctx.saved_tensors, approximate=ctx.approximate, needs=ctx.needs_input_grad[:2]
        )
        return (*grads, None)


def bias_gelu(x: Tensor, bias: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu(x + bias)."""
    if _tracked(x, bias):
        return _BiasGelu.apply(x, bias, approximate)
    return ops.bias_gelu(x, bias, approximate=approximate)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], eps: float) -> Tensor:
        y, mean, rstd = ops.layer_norm_forward(x, weight, bias, eps=eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        return (*ops.layer_norm_backward(_rows(dy), *ctx.saved_tensors, needs=ctx.needs_input_grad[:3]), None)


def layer_norm(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, eps: float = 1e-5) -> Tensor:
    """Layer norm over the last dim."""
    if _tracked(x, weight, bias):
        return _LayerNorm.apply(x, weight, bias, eps)
    return ops.layer_norm(x, weight, bias, eps=eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, rstd = ops.rms_norm_forward(x, weight, eps=eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        return (*ops.rms_norm_backward(_rows(dy), *ctx.saved_tensors, needs=ctx.needs_input_grad[:2]), None)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-5) -> Tensor:
    """RMS norm over the last dim."""
    if _tracked(x, weight):
        return _RmsNorm.apply(x, weight, eps)
    return ops.rms_norm(x, weight, eps=eps)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, reduction: str, ignore_index: int) -> Tensor:
        loss, lse = ops.cross_entropy_forward(logits, targets, reduction=reduction, ignore_index=ignore_index)
        ctx.save_for_backward(logits, targets, lse)
        ctx.options = {"reduction": reduction, "ignore_index": ignore_index}
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> Any:
        return ops.cross_entropy_backward(dloss, *ctx.saved_tensors, **ctx.options), None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, *, reduction: str = "mean", ignore_index: int = -100) -> Tensor:
    """Cross-entropy of logits (..., V) with targets (...); a float32 scalar."""
    if _tracked(logits):
        return _CrossEntropy.apply(logits, targets, reduction, ignore_index)
    return ops.cross_entropy(logits, targets, reduction=reduction, ignore_index=ignore_index)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], residual: Optional[Tensor], activation: str
    ) -> Tensor:
        y, z = ops.linear_forward(x, weight, bias, residual=residual, activation=activation)
        ctx.save_for_backward(x, weight, bias, z)
        ctx.activation = activation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        dy = _rows(dy)
        grads = ops.linear_backward(dy, *ctx.saved_tensors, activation=ctx.activation, needs=ctx.needs_input_grad[:3])
        return (*grads, dy if ctx.needs_input_grad[3] else None, None)


def linear(
    x: Tensor,
    weight: Union[Tensor, ops.PackedWeight],
    bias: Optional[Tensor] = None,
    *,
    residual: Optional[Tensor] = None,
    activation: str = "none",
) -> Tensor:
    """activation(x @ weight.T + bias) + residual; activation: "none", "relu", "gelu", "gelu_tanh". Gradients need weight as a tensor."""
    if _tracked(x, weight, bias, residual):
        return _Linear.apply(x, weight, bias, residual, activation)
    return ops.linear(x, weight, bias, residual=residual, activation=activation)


class _MatmulAddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        d = ops.matmul_add_relu(a, b, c)
        ctx.save_for_backward(a, b, d, c)
        return d

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dd: Tensor) -> Any:
        return ops.matmul_add_relu_backward(_rows(dd), *ctx.saved_tensors, needs=ctx.needs_input_grad)


def matmul_add_relu(a: Tensor, b: Tensor, c: Optional[Tensor] = None) -> Tensor:
    """relu(a @ b + c)."""
    if _tracked(a, b, c):
        return _MatmulAddRelu.apply(a, b, c)
    return ops.matmul_add_relu(a, b, c)


class _BiasGeluMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, b1: Optional[Tensor], w2: Tensor, b2: Optional[Tensor], approximate: str
    ) -> Tensor:
        y, h, z = ops.bias_gelu_mlp_forward(x, w1, b1, w2, b2, approximate=approximate)
        ctx.save_for_backward(x, w1, b1, w2, b2, h, z)
        ctx.approximate = approximate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        grads = ops.bias_gelu_mlp_backward(
            _rows(dy), *ctx.saved_tensors, approximate=ctx.approximate, needs=ctx.needs_input_grad[:5]
        )
        return (*grads, None)


def bias_gelu_mlp(
    x: Tensor, w1: Tensor, b1: Optional[Tensor], w2: Tensor, b2: Optional[Tensor], *, approximate: str = "none"
) -> Tensor:
    """gelu(x @ w1.T + b1) @ w2.T + b2."""
    if _tracked(x, w1, b1, w2, b2):
        return _BiasGeluMlp.apply(x, w1, b1, w2, b2, approximate)
    return ops.bias_gelu_mlp(x, w1, b1, w2, b2, approximate=approximate)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Any) -> Tensor:
        y, lse = ops.attention_forward(q, k, v, **options)
        ctx.save_for_backward(q, k, v, y, lse)
        ctx.options = options
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        if dy.stride(-1) != 1:
            dy = dy.contiguous()
        return (*ops.attention_backward(dy, *ctx.saved_tensors, **ctx.options, needs=ctx.needs_input_grad[:3]), None)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
    heads: Optional[int] = None,
    layout: str = "bhtd",
) -> Tensor:
    """Scaled dot-product attention; shapes and options as in hpcdl.attention."""
    options = {"causal": causal, "scale": scale, "heads": heads, "layout": layout}
    if _tracked(q, k, v):
        return _Attention.apply(q, k, v, options)
    return ops.attention(q, k, v, **options)


class _Int4Matmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: ops.Int4Weight, bias: Optional[Tensor], residual: Optional[Tensor], exact: bool
    ) -> Tensor:
        y = ops.int4_matmul(x, weight, bias, residual=residual, exact=exact)  # raises for other types
        ctx.weight, ctx.dtypes = weight, (x.dtype, None if bias is None else bias.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        dx = dbias = None
        if ctx.needs_input_grad[0]:
            dense = ops.int4_dequantize(
                ctx.weight, dtype=ctx.dtypes[0], out=torch.empty(ctx.weight.shape, dtype=ctx.dtypes[0], device=dy.device)
            )
            dx = dy @ dense
        if ctx.needs_input_grad[2]:
            dbias = dy.reshape(-1, dy.shape[-1]).sum(0, dtype=torch.float32).to(ctx.dtypes[1])
        return dx, None, dbias, dy if ctx.needs_input_grad[3] else None, None


def int4_matmul(
    x: Tensor,
    weight: ops.Int4Weight,
    bias: Optional[Tensor] = None,
    *,
    residual: Optional[Tensor] = None,
    exact: bool = False,
) -> Tensor:
    """x @ weight.T + bias + residual with 4-bit weights, which are constant: the other operands have gradients."""
    if _tracked(x, bias, residual):
        return _Int4Matmul.apply(x, weight, bias, residual, exact)
    return ops.int4_matmul(x, weight, bias, residual=residual, exact=exact)


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW in one kernel for all parameters of a group."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: "tuple[float, float]" = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        if not (lr >= 0 and math.isfinite(lr)):
            raise ValueError(f"[AdamW] lr must be a number of at least 0, got {lr}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def load_state_dict(self, state_dict: "dict[str, Any]") -> None:
        """Like in every optimizer, but the moments stay float32; torch would round them to the type of their parameters."""
        super().load_state_dict(state_dict)
        names = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(names, params):
            for key, value in state_dict["state"].get(i, {}).items():
                if key in ("exp_avg", "exp_avg_sq"):
                    self.state[p][key] = value.detach().to(p.device, torch.float32, copy=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update. Parameters without a gradient are skipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_step: "dict[int, list[Tensor]]" = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
                state["step"] += 1
                by_step.setdefault(int(state["step"]), []).append(p)
            for step, params in by_step.items():
                ops.adamw(
                    params,
                    [_rows(p.grad) for p in params],
                    [self.state[p]["exp_avg"] for p in params],
                    [self.state[p]["exp_avg_sq"] for p in params],
                    lr=group["lr"],
                    step=step,
                    betas=group["betas"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                )
        return loss
