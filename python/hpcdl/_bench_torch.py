"""The ops of the lab's cases as PyTorch computes them, on the same memory."""

import dataclasses
from typing import Any, Callable, Dict, Optional, Tuple, Union

import torch
import torch.nn.functional as F

Tensors = Dict[str, torch.Tensor]


@dataclasses.dataclass
class Peer:
    call: Callable[[], Any]
    difference: Optional[float]  # largest difference, relative to the largest value of PyTorch's result; None if results are random or in place


def _attention(x: Tensors, shape: "list[int]", causal: bool) -> torch.Tensor:
    batch, heads, context, width = shape
    q, k, v = (t.view(batch, context, heads, width).transpose(1, 2) for t in x["qkv"].split(heads * width, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(batch, context, heads * width)


def _packed(x: Tensors, shape: "list[int]") -> torch.Tensor:
    batch, context, heads, width = shape
    q, k, v = (x[name].view(batch, context, heads, width).transpose(1, 2) for name in "qkv")
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x["q"].shape)


def _decode(x: Tensors, shape: "list[int]") -> Callable[[], torch.Tensor]:
    """Over keys and values in one piece: the pages are copied before."""
    batch, heads, pages, width = shape
    whole = lambda pool: pool.view(batch, pages, heads, -1, width).transpose(1, 2).reshape(batch, heads, -1, width)
    k, v = whole(x["k_pool"]), whole(x["v_pool"])
    return lambda: F.scaled_dot_product_attention(x["q"].view(batch, heads, 1, width), k, v).view(x["q"].shape)


def _prompt(x: Tensors, shape: "list[int]") -> Callable[[], torch.Tensor]:
    """The last queries of each sequence, over keys and values in one piece."""
    batch, heads, pages, width = shape
    queries = x["q"].shape[1] // batch
    whole = lambda pool: pool.view(batch, pages, heads, -1, width).transpose(1, 2).reshape(batch, heads, -1, width)
    k, v = whole(x["k_pool"]), whole(x["v_pool"])
    mask = torch.nn.attention.bias.causal_lower_right(queries, k.shape[2])
    q = x["q"].view(batch, queries, heads, width).transpose(1, 2)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x["q"].shape)


def _kv_write(x: Tensors) -> Callable[[], None]:
    page, row = x["slots"] // 64, x["slots"] % 64
    pools = [(x[name + "_pool"].transpose(1, 2), x[name].view(len(row), x["k_pool"].shape[1], -1)) for name in "kv"]

    def write() -> None:
        for pool, rows in pools:
            pool[page, row] = rows

    return write


def _rope(x: Tensors) -> torch.Tensor:
    cos, sin = (t[None, :, None, :].to(x["x"].dtype) for t in x["table"].chunk(2, -1))
    a, b = x["x"].chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _causal_softmax(x: Tensors) -> torch.Tensor:
    mask = torch.full(x["x"].shape[-2:], float("-inf"), dtype=x["x"].dtype, device=x["x"].device).triu_(1)
    return torch.softmax(x["x"] * 0.125 + mask, -1)


def _block_linear(x: Tensors, s: "list[int]", groups: int) -> torch.Tensor:
    m, b, q, p = s
    groups = groups if q % groups == 0 else 1
    y = torch.einsum("mbp,bqp->mbq", x["x"].view(m, b, p), x["w"])
    return y.view(m, b, groups, q // groups).transpose(1, 2).reshape(m, b * q)


def _linear(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, s: activation(F.linear(x["x"], x["w"], x.get("bias")))


def _conv2d(stride: int) -> Callable[..., torch.Tensor]:
    """On the same memory: channels last, which is fastest in PyTorch, forward and backward."""

    def forward(x: Tensors, shape: "list[int]") -> torch.Tensor:
        w = x["w"].permute(0, 3, 1, 2)
        return F.conv2d(x["x"].permute(0, 3, 1, 2), w, x.get("bias"), stride, w.shape[-1] // 2).permute(0, 2, 3, 1)

    return forward


_tanh_gelu = lambda z: F.gelu(z, approximate="tanh")
_norm = lambda z, x: F.layer_norm(z, z.shape[-1:], x["gamma"], x["beta"], 1e-5)
_rms = lambda z, x: F.rms_norm(z, z.shape[-1:], x["gamma"], 1e-5)
_of_sum = lambda norm: lambda x, s: (lambda h: (norm(h, x), h))(x["x"] + x["residual"])  # the sum is a result, too, as in our op
# Images lie as (N, H, W, C): PyTorch's channels_last.
_nchw = lambda t: t.permute(0, 3, 1, 2)
_of_images = lambda f: lambda x, s: f(_nchw(x["x"])).permute(0, 2, 3, 1)
_batch_norm = lambda t, x: F.batch_norm(_nchw(t), None, None, x["weight"], x["bias"], training=True).permute(0, 2, 3, 1)
_loss = lambda logits, x: F.cross_entropy(logits.float(), x["targets"], reduction="sum")

# case -> y of (inputs, shape), or y and the other outputs of the op
FORWARD: Dict[str, Callable[[Tensors, "list[int]"], Union[torch.Tensor, Tuple[torch.Tensor, ...]]]] = {
    "add": lambda x, s: x["a"] + x["b"],
    "relu": lambda x, s: torch.relu(x["x"]),
    "gelu": lambda x, s: _tanh_gelu(x["x"]),
    "gelu+erf": lambda x, s: F.gelu(x["x"]),
    "bias_gelu": lambda x, s: _tanh_gelu(x["x"] + x["bias"]),
    "swiglu": lambda x, s: F.silu(x["a"]) * x["b"],
    "dropout": lambda x, s: F.dropout(x["x"], 0.1),
    "cast": lambda x, s: x["x"].to(torch.bfloat16 if x["x"].dtype == torch.float32 else torch.float32),
    "fuse": lambda x, s: _tanh_gelu(2 * x["x"] + x["bias"]) + x["x"],
    "softmax": lambda x, s: torch.softmax(x["x"], -1),
    "softmax+causal": lambda x, s: _causal_softmax(x),
    "layer_norm": lambda x, s: _norm(x["x"], x),
    "layer_norm+residual": _of_sum(_norm),
    "rms_norm": lambda x, s: _rms(x["x"], x),
    "rms_norm+residual": _of_sum(_rms),
    "matmul": lambda x, s: x["a"] @ x["b"],
    "matmul+nt": lambda x, s: x["a"] @ x["b"].t(),
    "matmul+tn": lambda x, s: x["a"].t() @ x["b"],
    "linear": _linear(lambda z: z),
    "linear+bias": _linear(lambda z: z),
    "linear+bias_relu": _linear(torch.relu),
    "linear+bias_gelu": _linear(_tanh_gelu),
    "linear+bias_residual": lambda x, s: F.linear(x["x"], x["w"], x["bias"]) + x["residual"],
    "block_linear": lambda x, s: _block_linear(x, s, 1),
    "block_linear+groups": lambda x, s: _block_linear(x, s, 4),
    "mlp": lambda x, s: F.linear(_tanh_gelu(F.linear(x["x"], x["w1"], x["b1"])), x["w2"], x["b2"]),
    "conv2d": _conv2d(1),
    "conv2d+bias": _conv2d(1),
    "conv2d+stride2": _conv2d(2),
    "conv2d+1x1": _conv2d(2),
    "conv2d+pointwise": _conv2d(1),
    "conv2d+stem": _conv2d(2),
    "packed_attention": lambda x, s: _packed(x, s),
    "attention": lambda x, s: _attention(x, s, False),
    "attention+causal": lambda x, s: _attention(x, s, True),
    "rope": lambda x, s: _rope(x),
    "embedding": lambda x, s: F.embedding(x["ids"], x["table"]),
    "cross_entropy": lambda x, s: _loss(x["logits"], x),
    "top1": lambda x, s: (x["logits"].argmax(-1) == x["targets"]).sum().float().view(1),
    "cross_entropy+smoothing": lambda x, s: F.cross_entropy(x["logits"].float(), x["targets"], reduction="sum", label_smoothing=0.1),
    "batch_norm": lambda x, s: _batch_norm(x["x"], x),
    "batch_norm+relu": lambda x, s: torch.relu_(_batch_norm(x["x"], x)),
    "batch_norm+residual_relu": lambda x, s: torch.relu_(_batch_norm(x["a"], x).add_(x["b"])),
    "max_pool2d": _of_images(lambda t: F.max_pool2d(t, 2)),
    "max_pool2d+overlap": _of_images(lambda t: F.max_pool2d(t, 3, 2, 1)),
    "avg_pool2d": _of_images(lambda t: F.avg_pool2d(t, 2)),
    "adaptive_avg_pool2d": _of_images(lambda t: F.adaptive_avg_pool2d(t, 1)),
    "lm_head_loss": lambda x, s: _loss(x["h"] @ x["w"].t(), x),
}


def _adamw(x: Tensors) -> Union[Callable[[], Any], str]:
    if x["p"].dtype != torch.float32:
        return "PyTorch's fused AdamW wants all its tensors in one dtype"
    steps = [torch.tensor(3.0, device=x["p"].device)]
    lists = [[x[name]] for name in ("p", "p.grad", "m", "v")]
    return lambda: torch._fused_adamw_(*lists, [], steps, lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)


def _sgd(x: Tensors) -> Union[Callable[[], Any], str]:
    if x["p"].dtype != torch.float32:
        return "PyTorch's fused SGD wants all its tensors in one dtype"
    lists = [[x[name]] for name in ("p", "p.grad", "m")]
    return lambda: torch._fused_sgd_(*lists, weight_decay=5e-4, momentum=0.9, lr=0.1, dampening=0.0, nesterov=True, maximize=False, is_first_step=False)


# Ops without gradient that write in place, or whose result is not the output: case -> the call
IN_PLACE: Dict[str, Callable[[Tensors, "list[int]"], Any]] = {
    "adamw": lambda x, s: _adamw(x),
    "sgd": lambda x, s: _sgd(x),
    "grad_norm": lambda x, s: lambda: torch.linalg.vector_norm(x["gradient"]),
    "fill+add_into": lambda x, s: lambda: x["y"].add_(x["x"]),
    "kv_write": lambda x, s: _kv_write(x),
    "paged_attention": _decode,
    "paged_attention+prompt": _prompt,
}



def first(results: Union[torch.Tensor, Tuple[torch.Tensor, ...]]) -> torch.Tensor:
    return results[0] if isinstance(results, tuple) else results


RANDOM = ("dropout",)
NO_GRADIENT_OF = ("dy", "ids", "targets")


def _difference(y: torch.Tensor, kept: torch.Tensor, case: str, dtype: str) -> float:
    """Fails unless both are the same except for rounding: bf16 results are rounded at each of PyTorch's steps."""
    expected = y.detach().double().flatten()
    found = kept.double().flatten()
    difference = ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    allowed = 2.0**-6 if dtype == "bf16" else 2.0**-13
    if not difference <= allowed:
        raise SystemExit(f"{case} {dtype}: differs from PyTorch by {difference:.1e} of the largest value, more than {allowed:.1e}")
    return difference


def checked(mine: Any, kernel: Callable[[Tensors], torch.Tensor], op: str, dtype: str) -> Peer:
    """A kernel on the inputs of a case."""
    x: Tensors = mine.inputs("torch")
    mine.run()
    return Peer(lambda: kernel(x), _difference(kernel(x), next(iter(mine.kept("torch").values())), op, dtype))


def counterpart(mine: Any, op: str, shape: str, dtype: str, backward: bool) -> Union[Peer, str]:
    """The function by which PyTorch computes a case, or why there is none."""
    x: Tensors = mine.inputs("torch")
    dims = [int(n) for n in shape.split("x")]
    for name in ("ids", "targets"):
        if name in x:
            x[name] = x[name].long()  # its indices have 64 bits
    if op in IN_PLACE:
        call = IN_PLACE[op](x, dims)
        return call if isinstance(call, str) else Peer(call, None)
    if op not in FORWARD:
        return "PyTorch has no counterpart of this op on the same data"
    forward = FORWARD[op]
    mine.run()
    with torch.no_grad():
        y = first(forward(x, dims))
    difference = None if op in RANDOM else _difference(y, next(iter(mine.kept("torch").values())), f"{op} {shape}", dtype)
    if not backward:
        return Peer(torch.no_grad()(lambda: forward(x, dims)), difference)
    leaves = [t.requires_grad_() for name, t in x.items() if t.is_floating_point() and name not in NO_GRADIENT_OF and (op, name) != ("rope", "table")]
    dy = x["dy"].view(y.shape)
    return Peer(lambda: torch.autograd.grad(first(forward(x, dims)), leaves, dy.to(y.dtype)), difference)
