#!/usr/bin/env python3
"""GPT-2 124M on several GPUs with PyTorch's DistributedDataParallel and torch.compile, bf16. Prints "ready", then answers every line on
stdin with some steps (forward, backward, clip, fused AdamW) and their milliseconds each as JSON; starts its other ranks itself.

    gpt2_ddp.py --ranks 4 --batch 64 --context 1024 [--steps 5]

One rank runs without DistributedDataParallel. Both sides draw their data on the GPU, because loading is not compared.
"""

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

sys.argv.append("cuda") if "cuda" not in sys.argv else None  # gpt2_torch reads it
import gpt2_torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_others(args):
    """Ranks 1 to N-1: this script again, with its rank in the environment."""
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(args.ranks)}
    os.environ.update(env)
    return [subprocess.Popen([sys.executable, "-W", "ignore", *sys.argv], env={**env, "RANK": str(r)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            for r in range(1, args.ranks)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("device", nargs="?")
    args = p.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    others = start_others(args) if rank == 0 and args.ranks > 1 else []
    if rank > 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: if rank 0 is killed, no process keeps a GPU
    os.environ["RANK"] = str(rank)
    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = gpt2_torch.Gpt2()
    told = None
    if args.ranks > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        told = dist.new_group(backend="gloo")  # waiting for orders must not keep the GPU busy
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
    if rank == 0:
        print("ready", flush=True)
    while True:
        order = torch.tensor([1 if rank == 0 and sys.stdin.readline() else 0])
        if told:
            dist.broadcast(order, 0, group=told)
        if order.item() == 0:
            break
        report = steps(args.steps)
        if rank == 0:
            print(json.dumps(report), flush=True)
    # Nothing has to be saved, and destroy_process_group waits for the other ranks; one hung in it for minutes.
    for o in others:
        try:
            o.wait(20)
        except subprocess.TimeoutExpired:
            o.kill()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
