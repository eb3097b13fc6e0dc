#!/usr/bin/env python3
"""A Llama on several GPUs with PyTorch's FSDP2 and torch.compile, bf16. Prints "ready", then answers every line on stdin with some
steps (forward, backward, clip, fused AdamW), their milliseconds each and the peak memory of rank 0 as JSON; starts its other ranks itself.

    llama_fsdp.py --ranks 2 --layers 24 --width 2048 --ffn 5504 --heads 16 --batch 4 --context 2048 [--steps 5]

Every block is a unit of its own, as in our units, gathered in bf16 and reduced in f32. It draws its data on the GPU. With --offload, weights,
gradients and AdamW are on the host (CPUOffloadPolicy).
"""

import argparse
import time

import peer_ranks
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm_1(x)).chunk(3, -1))

        def turned(z):
            left, right = z.chunk(2, -1)
            return z * cos + torch.cat((-right, left), -1) * sin

        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.table = nn.Embedding(args.vocab, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.ffn, args.heads) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, args.vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets, cos, sin):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    for name, value in {"ranks": 2, "layers": 24, "width": 2048, "ffn": 5504, "heads": 16, "vocab": 32000, "batch": 4, "context": 2048, "steps": 5}.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--offload", action="store_true")
    args = p.parse_args()
    rank = peer_ranks.start(args.ranks)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.offload else "nccl", device_id=torch.device("cuda", rank))
    with torch.device("cuda"):
        model = Llama(args)
        angles = torch.outer(torch.arange(args.context), 10000.0 ** (-torch.arange(0, args.width // args.heads, 2) / (args.width // args.heads)))
        cos, sin = (f(torch.cat((angles, angles), -1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    place = CPUOffloadPolicy() if args.offload else OffloadPolicy()
    for block in model.blocks:
        block.compile()
        fully_shard(block, mp_policy=policy, offload_policy=place)
    fully_shard(model, mp_policy=policy, offload_policy=place)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(100 + rank)

    def step():
        batch = torch.randint(0, args.vocab, (args.batch, args.context + 1), device="cuda")
        loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous(), cos, sin)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    def steps(n):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            loss = step()
        value = loss.item()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return {"ms": seconds * 1e3 / n, "loss": value, "tokens_per_second": n * args.ranks * args.batch * args.context / seconds,
                "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}

    steps(3)
    torch.cuda.reset_peak_memory_stats()
    peer_ranks.answer(rank, lambda: steps(args.steps))


if __name__ == "__main__":
    main()
