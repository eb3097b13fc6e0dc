#!/usr/bin/env python3
"""One side of image_step.py and bench/gpu/bars.py: an image classifier in PyTorch. Prints "ready", then answers every line on stdin with the given number of
training steps (forward, backward, SGD with momentum) and their mean milliseconds as JSON.

    image_torch.py --arch simple_cnn|resnet18 --batch 128 --size 32 [--channels-last] [--compile] [--dtype bf16|f16] [--device cuda] [--tf32]

On a GPU: cuDNN takes the algorithm that it measures as its fastest; f32 stays f32 unless --tf32 is given; and the host waits at the end of a line,
not of a step.
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
    p.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    p.add_argument("--tf32", action="store_true")
    p.add_argument("--device", default="cpu")
    p.add_argument("--untuned", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(common.THREADS)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.manual_seed(1)
    model = make_image_models.make(dict(model_type=args.arch, stem="cifar", classes=10, image_size=args.size, width=64)).to(args.device)
    x = torch.rand(args.batch, 3, args.size, args.size, device=args.device) * 2 - 1
    y = torch.randint(0, 10, (args.batch,), device=args.device)
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    forward = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True) if ON_GPU else torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    scaler = torch.amp.GradScaler(args.device, enabled=args.dtype == "f16")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]

    def step():
        with torch.autocast(args.device, dtype, enabled=args.dtype != "f32"):
            loss = F.cross_entropy(forward(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            loss = step().detach()
        value = loss.item()  # waits
        if ON_GPU:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / count, value

    steps(10 if ON_GPU else 1)
    print("ready", flush=True)
    for line in sys.stdin:
        ms, loss = steps(int(line))
        peak = torch.cuda.max_memory_allocated() if ON_GPU else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"ms": ms, "loss": loss, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
