#!/usr/bin/env python3
"""One side of image_step.py: an image classifier in PyTorch. Prints "ready", then answers every line on stdin with one training step
(forward, backward, SGD with momentum) and its milliseconds as JSON.

    image_torch.py --arch simple_cnn|resnet18 --batch 128 --size 32 [--channels-last] [--compile] [--bf16]
"""

import argparse
import json
import os
import resource
import sys
import time

import common

common.reexec_tuned()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(common.ROOT / "hpcdl" / "models" / "golden"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import make_image_models  # noqa: E402


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--arch", choices=["simple_cnn", "resnet18"], default="simple_cnn")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--untuned", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(common.THREADS)
    torch.manual_seed(1)
    model = make_image_models.make(dict(model_type=args.arch, stem="cifar", classes=10, image_size=args.size, width=64))
    x, y = torch.rand(args.batch, 3, args.size, args.size) * 2 - 1, torch.randint(0, 10, (args.batch,))
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    forward = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)

    def step():
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), (time.perf_counter() - start) * 1e3

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        loss, ms = step()
        print(json.dumps({"ms": ms, "loss": loss, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)


if __name__ == "__main__":
    main()
