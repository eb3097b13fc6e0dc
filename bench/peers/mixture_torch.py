#!/usr/bin/env python3
"""A mixture on several GPUs that divide its eight experts, two for every token, with PyTorch in bf16: grouped_mm of what
each expert got (no token is dropped), all_to_all_single with the sizes that a step finds, DistributedDataParallel for the rest, and
torch.compile around the exchanges. Prints "ready", then answers every line on stdin with some steps (forward, backward, clip, fused AdamW)
and their milliseconds each as JSON; starts its other ranks itself. The other side: bench/mixture_ranks.cpp.

    mixture_torch.py [--ranks 2 --batch 16 --context 1024 --width 1024 --layers 8 --ffn 1792 --steps 5] [--device cpu]
"""

import argparse
import time

import peer_ranks
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_to_all_single_autograd

EXPERTS, CHOSEN, VOCAB = 8, 2, 32000


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.router = nn.Linear(width, EXPERTS, bias=False)

    def forward(self, x, cos, sin):
        """x after attention, its normalised rows, and of each choice the weight and the expert; the sums that the balance needs."""
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, -1))

        def turned(z):
            left, right = z.chunk(2, -1)
            return z * cos + torch.cat((-right, left), -1) * sin

        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        rows = self.mlp_norm(x).reshape(-1, c)
        with torch.autocast(x.device.type, enabled=False):
            p = (rows.float() @ self.router.weight.t()).softmax(-1)
        weights, experts = p.topk(CHOSEN, -1)
        counts = torch.zeros(EXPERTS, device=x.device).index_add_(0, experts.flatten(), torch.ones(experts.numel(), device=x.device))
        return x, rows.to(torch.bfloat16), weights / weights.sum(-1, keepdim=True), experts, p.sum(0), counts


class Experts(nn.Module):
    """Those of one rank."""

    def __init__(self, width, ffn, ranks):
        super().__init__()
        mine = EXPERTS // ranks
        self.ranks, self.mine = ranks, mine
        self.gate_up = nn.Parameter(torch.randn(mine, width, 2 * ffn) * 0.02)
        self.down = nn.Parameter(torch.randn(mine, ffn, width) * 0.02)

    def forward(self, rows, weights, experts):
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=EXPERTS)
        sent = rows[order // CHOSEN]
        if self.ranks > 1:
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            by_rank = torch.stack((counts, theirs)).view(2, self.ranks, self.mine)
            outgoing, incoming = by_rank.sum(-1).tolist()  # the only way to learn the sizes is to wait for them
            got = all_to_all_single_autograd(sent, incoming, outgoing, dist.group.WORLD)
            of = torch.arange(self.mine, device=rows.device).repeat(self.ranks).repeat_interleave(theirs, output_size=sum(incoming))
            by_expert = of.argsort(stable=True)
            got, ends = got[by_expert], theirs.view(self.ranks, self.mine).sum(0).cumsum(0)
        else:
            got, ends = sent, counts.cumsum(0)
        ends = ends.to(torch.int32)
        gate, up = F.grouped_mm(got, self.gate_up.to(torch.bfloat16), offs=ends).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, self.down.to(torch.bfloat16), offs=ends)
        if self.ranks > 1:
            y = all_to_all_single_autograd(torch.empty_like(y).index_copy(0, by_expert, y), outgoing, incoming, dist.group.WORLD)
        y = y * weights.flatten()[order, None]
        return torch.zeros_like(rows, dtype=torch.float32).index_add(0, order // CHOSEN, y.float())


class Mixture(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.table = nn.Embedding(VOCAB, args.width)
        self.attention = nn.ModuleList(Attention(args.width) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, VOCAB, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets, cos, sin, experts):
        x = self.table(tokens).to(torch.bfloat16)
        probabilities = counts = 0
        for attention, mlps in zip(self.attention, experts):
            x, rows, weights, chosen, p, n = attention(x, cos, sin)
            probabilities, counts = probabilities + p, counts + n
            x = x + mlps(rows, weights, chosen).to(x.dtype).view_as(x)
        dist.all_reduce(counts)
        balance = EXPERTS * (probabilities * counts).sum() / (len(self.attention) * tokens.numel()) ** 2 / dist.get_world_size()
        return self.loss(x, targets) + 0.01 * balance

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB).float(), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    for name, value in {"ranks": 2, "batch": 16, "context": 1024, "width": 1024, "layers": 8, "ffn": 1792, "steps": 5}.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    on_gpu = args.device == "cuda"
    rank = peer_ranks.start(args.ranks) if on_gpu else 0
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    if on_gpu:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    else:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{peer_ranks.free_port()}", rank=0, world_size=1)
    with torch.device(args.device):
        model = Mixture(args)
        angles = torch.outer(torch.arange(args.context), 10000.0 ** (-torch.arange(0, 64, 2) / 64))
        cos, sin = (f(torch.cat((angles, angles), -1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        torch.manual_seed(2 + rank)
        experts = nn.ModuleList(Experts(args.width, args.ffn, dist.get_world_size()) for _ in range(args.layers))
    if on_gpu:
        for attention in model.attention:
            attention.compile()
        model.loss = torch.compile(model.loss)
    whole = nn.parallel.DistributedDataParallel(model, device_ids=[rank] if on_gpu else None, gradient_as_bucket_view=True)
    everything = [*model.parameters(), *experts.parameters()]
    opt = torch.optim.AdamW(everything, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)

    def step():
        batch = torch.randint(0, VOCAB, (args.batch, args.context + 1), device=args.device)
        with torch.autocast(args.device, torch.bfloat16):
            loss = whole(batch[:, :-1].contiguous(), batch[:, 1:].contiguous(), cos, sin, experts)
        loss.backward()
        torch._foreach_div_([p.grad for p in experts.parameters()], dist.get_world_size())
        of_experts = nn.utils.get_total_norm([p.grad for p in experts.parameters()]) ** 2
        dist.all_reduce(of_experts)
        norm = (nn.utils.get_total_norm([p.grad for p in model.parameters()]) ** 2 + of_experts).sqrt()
        nn.utils.clip_grads_with_norm_(everything, 1.0, norm)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    def wait():
        if on_gpu:
            torch.cuda.synchronize()

    def steps(n):
        wait()
        start = time.perf_counter()
        for _ in range(n):
            loss = step()
        value = loss.item()
        wait()
        seconds = time.perf_counter() - start
        return {"ms": seconds * 1e3 / n, "loss": value, "tokens_per_second": n * dist.get_world_size() * args.batch * args.context / seconds}

    steps(3)
    peer_ranks.answer(rank, lambda: steps(args.steps))


if __name__ == "__main__":
    main()
