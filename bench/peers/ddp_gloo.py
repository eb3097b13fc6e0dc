#!/usr/bin/env python3
"""The training steps of `hpcdl bench ddp` in PyTorch: a GPT-2 of any size, DistributedDataParallel over gloo, one CPU rank a process. Started
on every rank by scripts/bench_ddp.sh with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; rank 0 prints one JSON object.

    ddp_gloo.py --layers 4 --width 384 --heads 6 --context 256 --vocab 1024 --batch 30 [--buckets 1,25] [--rounds 2] [--threads 1]

"compute" exchanges nothing; the others use buckets of this many MB. All take turns.
"""

import argparse
import json
import statistics
import time

import gpt2_torch as gpt2  # restarts this script with PyTorch's best environment, for HPCDL_THREADS threads
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Model(gpt2.Gpt2):
    """With a separate head, like ours."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(gpt2.WIDTH, gpt2.VOCAB, bias=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).view(-1, gpt2.VOCAB), targets.view(-1))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 4), ("width", 384), ("heads", 6), ("context", 256), ("vocab", 1024), ("batch", 30), ("rounds", 2), ("threads", 1)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--buckets", default="1,25")
    args = p.parse_args()
    gpt2.LAYERS, gpt2.HEADS, gpt2.WIDTH, gpt2.CONTEXT, gpt2.VOCAB = args.layers, args.heads, args.width, args.context, args.vocab
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    batch = torch.randint(0, args.vocab, (args.batch, args.context + 1))
    forms = {}
    for name in ["compute", *args.buckets.split(",")]:
        model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=25 if name == "compute" else float(name), gradient_as_bucket_view=True)
        forms[name if name == "compute" else f"{name} MB"] = (model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    seconds = {name: [] for name in forms}
    for round in range(args.rounds + 1):
        for name, (model, opt) in forms.items():
            dist.barrier()
            start = time.perf_counter()
            if name == "compute":
                with model.no_sync():
                    model(batch[:, :-1], batch[:, 1:].contiguous()).backward()
            else:
                model(batch[:, :-1], batch[:, 1:].contiguous()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            mine = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            if round > 0:  # the first one touches memory for the first time
                seconds[name].append(mine.item())
    if dist.get_rank() == 0:
        median = {name: statistics.median(s) for name, s in seconds.items()}
        print(json.dumps({"torch": torch.__version__, "backend": "gloo", "ranks": dist.get_world_size(), "threads": args.threads,
                          "parameters": sum(q.numel() for q in forms["compute"][0].parameters()), "step_seconds": median, "steps": seconds}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
