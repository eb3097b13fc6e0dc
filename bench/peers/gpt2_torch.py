#!/usr/bin/env python3
"""One side of gpt2_step.py: GPT-2 124M in PyTorch. Prints "ready", then answers every line on stdin with one training step
(forward, backward, fused AdamW) and its milliseconds as JSON.

    gpt2_torch.py --batch 4 --context 64 [--bf16] [--compile] [--clip] [--device cuda]

On a GPU: scaled_dot_product_attention picks its fastest kernel, products of f32 use TF32, and peak memory is what PyTorch's
allocator has handed out at most.
"""

import argparse
import json
import os
import resource
import sys
import time

import common

ON_GPU = "cuda" in sys.argv
if not ON_GPU:
    common.reexec_tuned()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(common.BUILD / "inductor"))

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 12, 12, 768, 1024, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(WIDTH, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--clip", action="store_true", help="clip the gradients' norm at 1, as our side does")
    p.add_argument("--untuned", action="store_true")
    p.add_argument("--device", default="cpu")
    args = p.parse_args()
    torch.set_num_threads(common.THREADS)
    torch.set_float32_matmul_precision("high" if ON_GPU else "highest")
    torch.manual_seed(1)
    with torch.device(args.device):
        model = Gpt2()
    forward = torch.compile(model) if args.compile else model
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step():
        batch = torch.randint(0, 50257, (args.batch, args.context + 1), device=args.device)
        if ON_GPU:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            loss = forward(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        value = loss.item()
        if ON_GPU:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3, value

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        ms, loss = step()
        peak = torch.cuda.max_memory_allocated() if ON_GPU else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"ms": ms, "loss": loss, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
