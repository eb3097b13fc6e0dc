#!/usr/bin/env python3
"""Long rows on two GPUs: tokens per second and memory of training with parallel.cp = 2 by cp_mode, of one GPU, and of PyTorch's context_parallel.

    bench/gpu/context.py HPCDL [--tokens 65536,131072] [--modes zigzag,ring,gather,ulysses] [--steps 5] [--no-torch] [--json FILE]

The model: two Llama layers 2048 wide, 16 heads of 128 over 4 of keys and values (for PyTorch over 16: its context_parallel knows no groups), bf16.
The sides run one after another, since each needs all memory; a median over the steps after the second.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, HEADS, KV_HEADS, WIDTH, FFN = 2, 16, 4, 2048, 5632
WORDS = "the river runs under a stone bridge and small boats wait for rain".split()


class Memory:
    """The most memory in use on GPU 0, in MiB, while it is open."""

    def __enter__(self):
        self.most, self.going = 0, True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while self.going:
            lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
            self.most = max([self.most, *(int(line) for line in lines[:1])])
            time.sleep(0.2)

    def __exit__(self, *_):
        self.going = False
        self.thread.join()


def write_text(folder: pathlib.Path, tokens: int):
    x, words = 12345, []
    for _ in range(tokens):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        words.append(WORDS[(x >> 16) % len(WORDS)])
    (folder / "text.txt").write_text(" ".join(words))


def ours(hpcdl: str, folder: pathlib.Path, tokens: int, mode: str | None, steps: int, kv_heads: int):
    run = folder / f"{tokens}_{mode}_{kv_heads}"
    settings = {
        "model.family": "llama", "model.layers": LAYERS, "model.heads": HEADS, "model.kv_heads": kv_heads, "model.width": WIDTH, "model.ffn": FFN,
        "model.context": tokens, "data.text": folder / "text.txt", "data.cache": folder / "cache", "data.vocab_size": 300, "train.steps": steps,
        "train.batch": 1, "train.dtype": "bf16", "train.device": "cuda", "train.eval_every": 1000, "train.log_every": 1, "checkpoint.keep": 0,
    }
    if mode:
        settings |= {"parallel.cp": 2, "parallel.cp_mode": mode}
    command = [hpcdl] + (["launch", "-n", "2", "--plain", "--", "train"] if mode else ["train"]) + ["--out", str(run)]
    command += [f"--{key}={value}" for key, value in settings.items()]
    with Memory() as memory:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        return {"failed": (done.stderr or done.stdout).strip().splitlines()[-1][:200]}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line][2:]
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"tokens_per_second": round(statistics.median(rates)), "MiB": memory.most, "last_loss": losses[-1]}


def peer(tokens: int, steps: int):
    """Run by torchrun on each of two ranks."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("cp",))
    torch.manual_seed(1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.gate, self.up, self.down = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False), nn.Linear(FFN, WIDTH, bias=False)

        def forward(self, x, angles):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            cos, sin = angles.cos(), angles.sin()
            turn = lambda z: (z * cos + torch.cat((-z[..., z.shape[-1] // 2 :], z[..., : z.shape[-1] // 2]), -1) * sin).to(z.dtype)
            y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    embedding = nn.Embedding(300, WIDTH).cuda()
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).cuda().bfloat16()
    head = nn.Linear(WIDTH, 300, bias=False).cuda().bfloat16()
    parameters = [*embedding.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    rates = []
    for _ in range(steps):
        ids = torch.randint(0, 300, (1, tokens + 1), device="cuda")
        x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        angles = torch.outer(torch.arange(tokens, device="cuda").float(), 10000.0 ** (-torch.arange(0, WIDTH // HEADS, 2, device="cuda") / (WIDTH // HEADS)))
        angles = torch.cat((angles, angles), -1)[None, None]
        dist.barrier(), torch.cuda.synchronize()
        begin = time.perf_counter()
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]), context_parallel(mesh, buffers=(x, y, angles), buffer_seq_dims=(1, 1, 2)):
            z = embedding(x).bfloat16()
            for layer in layers:
                z = layer(z, angles)
            loss = F.cross_entropy(head(z).float().view(-1, 300), y.view(-1))
            loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step(), optimizer.zero_grad()
        torch.cuda.synchronize()
        rates.append(tokens / (time.perf_counter() - begin))
    if rank == 0:
        print(json.dumps({"tokens_per_second": round(statistics.median(rates[2:])), "MiB": torch.cuda.max_memory_reserved() >> 20}))
    dist.destroy_process_group()


def torch_side(tokens: int, steps: int):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__, "peer", "--tokens", str(tokens), "--steps", str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return {"failed": "no result within 120 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hpcdl")
    parser.add_argument("--tokens", default="65536,131072")
    parser.add_argument("--modes", default="zigzag,ring,gather,ulysses")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]
    if args.hpcdl == "peer":
        return peer(tokens[0], args.steps)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder, max(tokens) * (args.steps + 2))
        for t in tokens:
            sides = [("one GPU", None, KV_HEADS)] + [(m, m, KV_HEADS) for m in args.modes.split(",") if m] + [("zigzag, 16 heads of keys", "zigzag", HEADS)]
            for side, mode, kv_heads in sides:
                rows.append({"tokens": t, "side": side} | ours(args.hpcdl, folder, t, mode, args.steps, kv_heads))
                print(json.dumps(rows[-1]), flush=True)
            if not args.no_torch:
                rows.append({"tokens": t, "side": "PyTorch context_parallel, 16 heads of keys"} | torch_side(t, args.steps))
                print(json.dumps(rows[-1]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
