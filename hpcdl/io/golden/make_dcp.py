#!/usr/bin/env python3
"""Writes golden/dcp with torch.distributed.checkpoint on two ranks:  make_dcp.py FOLDER [RANK]

Element i of each tensor, in row-major order, is i / 2 - 3; of turned.weight in column-major order. counts: i; flags:
whether i is odd."""
import datetime
import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 2


def numbers(shape, dtype):
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count, dtype=torch.float64) / 2 - 3).reshape(shape).to(dtype)


def write(folder, rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (RANKS,))
    model = {
        "rows.weight": distribute_tensor(numbers((5, 4), torch.float32), mesh, [Shard(0)]),
        "columns.weight": distribute_tensor(numbers((3, 6), torch.bfloat16), mesh, [Shard(1)]),
        "same.bias": distribute_tensor(numbers((7,), torch.float16), mesh, [Replicate()]),
        "turned.weight": numbers((2, 3), torch.float64).t(),
    }
    other = {"scalar": numbers((), torch.float32), "counts": torch.arange(4), "flags": torch.arange(3) % 2 == 1, "step": 7}
    dcp.save({"model": model, "other": other}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        write(folder, int(sys.argv[2]))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        ranks = [subprocess.Popen([sys.executable, __file__, folder, str(r)]) for r in range(RANKS)]
        codes = [p.wait() for p in ranks]
        if os.path.exists(folder + ".store"):
            os.remove(folder + ".store")
        sys.exit(max(codes))
