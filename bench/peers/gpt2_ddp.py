#!/usr/bin/env python3
"""GPT-2 124M on several GPUs with PyTorch's DistributedDataParallel and torch.compile, bf16. Prints "ready", then answers every line on
stdin with some steps (forward, backward, clip, fused AdamW) and their milliseconds each as JSON; starts its other ranks itself.

    gpt2_ddp.py --ranks 4 --batch 64 --context 1024 [--steps 5]

One rank runs without DistributedDataParallel. Both sides draw their data on the GPU, because loading is not compared.
"""

import argparse
import sys
import time

sys.argv.append("cuda") if "cuda" not in sys.argv else None  # gpt2_torch reads it
import gpt2_torch  # noqa: E402
import peer_ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("device", nargs="?")
    args = p.parse_args()
    rank = peer_ranks.start(args.ranks)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = gpt2_torch.Gpt2()
    if args.ranks > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    forward = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(100 + rank)

    def step():
        batch = torch.randint(0, 50257, (args.batch, args.context + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
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
        return {"ms": (time.perf_counter() - start) * 1e3 / n, "loss": value, "tokens_per_second": n * args.ranks * args.batch * args.context / (time.perf_counter() - start)}

    steps(3)
    peer_ranks.answer(rank, lambda: steps(args.steps))


if __name__ == "__main__":
    main()
