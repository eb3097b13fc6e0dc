"""How a peer on several GPUs starts its ranks, and how these wait for orders together."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

import torch
import torch.distributed as dist


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(count):
    """Returns this process's rank. Rank 0 starts the others: this script again, with their ranks in the environment."""
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        os.environ.update({"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)})
        start.others = [subprocess.Popen([sys.executable, "-W", "ignore", *sys.argv], env={**os.environ, "RANK": str(r)}, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL) for r in range(1, count)]
    else:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: if rank 0 is killed, no process keeps a GPU
    torch.cuda.set_device(rank)
    return rank


def answer(rank, report):
    """Rank 0 prints "ready", then a line with report() as JSON for every line on stdin. All ranks call report() together, and end with stdin."""
    told = dist.new_group(backend="gloo") if dist.is_initialized() else None  # waiting for orders must not keep the GPU busy
    if rank == 0:
        print("ready", flush=True)
    while True:
        order = torch.tensor([1 if rank == 0 and sys.stdin.readline() else 0])
        if told:
            dist.broadcast(order, 0, group=told)
        if order.item() == 0:
            break
        line = report()
        if rank == 0:
            print(json.dumps(line), flush=True)
    # Nothing has to be saved, and destroy_process_group waits for the other ranks; one hung in it for minutes.
    for other in getattr(start, "others", []):
        try:
            other.wait(20)
        except subprocess.TimeoutExpired:
            other.kill()
    sys.stdout.flush()
    os._exit(0)
