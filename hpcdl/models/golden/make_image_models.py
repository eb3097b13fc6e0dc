#!/usr/bin/env python3
"""Trains small image classifiers with PyTorch, for hpcdl/models/image_model.test.cpp to do the same.

Usage: make_image_models.py [OUT]   (needs torch, numpy, safetensors; OUT defaults to this folder)

Each folder NAME/ holds what ImageModel::open() reads, config.json and model.safetensors under the names and shapes of torch and torchvision,
and golden.safetensors:
  logits            F64 (B, classes)  of batch 0 in evaluation, from those weights
  lr                F64 (1)
  losses.RUN        F64 (20)          mean loss of each step, computed in double
  deviation.RUN     F64 (20)          how far PyTorch's own float32 is from that at most, in 8 runs whose first weights differ by 8 roundings: what a
                                      tolerance is made of. A ReLU or a pool that decides otherwise makes it jump, and in which run is chance.
  trained.RUN       F64 (B, classes)  logits of batch 0 in evaluation after the last step, which the running statistics go into
  trained_deviation.RUN  F64 (1)      largest distance of those float32 runs from that
RUN: `momentum` (SGD 0.9) and `nesterov` (SGD 0.9, Nesterov, weight decay of matrices, label smoothing). simple_cnn_full has no weights in its
folder: at 2.5 million they come from a formula, as all batches do.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

STEPS, BATCHES = 20, 4


def mixed(stream, count):
    """Uniform in [-1, 1): a hash of (stream, index), 24 bits."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(stream * 40503 + 1)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        x = x ^ (x >> np.uint32(16))
    return (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def batch(number, size, images, classes):
    x = torch.from_numpy(mixed(1000 + number, images * 3 * size * size).reshape(images, 3, size, size))
    y = torch.arange(images).mul(7).add(3 * number).remainder(classes)
    return x, y


class SimpleCnn(nn.Module):
    def __init__(self, width, classes, size):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.conv3, self.bn3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width)
        self.fc1 = nn.Linear(4 * width * (size // 8) ** 2, 8 * width)
        self.fc2 = nn.Linear(8 * width, classes)

    def forward(self, x):
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = F.max_pool2d(F.relu(norm(conv(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        around = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + around)


class ResNet18(nn.Module):
    def __init__(self, width, classes, stem):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False) if stem == "imagenet" else nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = stem == "imagenet"
        inputs = width
        for i in range(4):
            outputs = width << i
            setattr(self, f"layer{i + 1}", nn.Sequential(Block(inputs, outputs, 1 if i == 0 else 2), Block(outputs, outputs, 1)))
            inputs = outputs
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def make(config):
    if config["model_type"] == "simple_cnn":
        return SimpleCnn(config["width"], config["classes"], config["image_size"])
    return ResNet18(config["width"], config["classes"], config["stem"])


def scrambled(model, seed):
    """Weights far from their initial values, so that a swapped or transposed tensor shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.state_dict().items():
            if not p.is_floating_point():
                continue
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() > 1:
                p.copy_(noise / (p[0].numel()) ** 0.5)
            else:
                p.copy_(1 + 0.2 * noise.clamp(-3, 3) if name.endswith(("weight", "var")) else 0.1 * noise)
    return model


def by_formula(model):
    """Parameter number n, in order, is mixed(n) / sqrt(fan in); norms are 1 and 0."""
    with torch.no_grad():
        for n, (name, p) in enumerate(model.named_parameters()):
            if "bn" in name:
                continue
            fan_in = p[0].numel() if p.dim() > 1 else 1024
            p.copy_(torch.from_numpy(mixed(n, p.numel())).reshape(p.shape) * np.float32(fan_in**-0.5))
    return model


def nudged(model, seed):
    """Every weight moved by 8 roundings of float32 or not at all, as much as Winograd's form of a convolution makes of one; seed 0: as they are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters() if seed else ():
            p.mul_(1 + torch.randint(-1, 2, p.shape, generator=generator) * 2.0**-20)
    return model


def train(model, config, images, run, dtype):
    model = model.to(dtype).train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    nesterov = run == "nesterov"
    decay = 5e-4 if nesterov else 0
    optimizer = torch.optim.SGD([{"params": matrices, "weight_decay": decay}, {"params": others}], lr=config["lr"], momentum=0.9, nesterov=nesterov)
    losses = []
    for step in range(STEPS):
        x, y = batch(step % BATCHES, config["image_size"], images, config["classes"])
        loss = F.cross_entropy(model(x.to(dtype)), y, label_smoothing=0.1 if nesterov else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    x, _ = batch(0, config["image_size"], images, config["classes"])
    return torch.tensor(losses, dtype=torch.float64), model.eval()(x.to(dtype)).detach().double()


def write(out, config, images, seed=None):
    fresh = lambda: scrambled(make(config), seed) if seed else by_formula(make(config))
    out.mkdir(exist_ok=True)
    x, _ = batch(0, config["image_size"], images, config["classes"])
    model = fresh()
    golden = {"logits": model.double().eval()(x.double()).detach(), "lr": torch.tensor([config["lr"]], dtype=torch.float64)}
    for run in ("momentum", "nesterov"):
        truth, trained = train(fresh(), config, images, run, torch.float64)
        singles = [train(nudged(fresh(), i), config, images, run, torch.float32) for i in range(8)]
        deviation = torch.stack([(losses - truth).abs() for losses, _ in singles]).amax(0)
        trained_deviation = torch.stack([(logits - trained).abs() for _, logits in singles]).max()
        golden |= {f"losses.{run}": truth, f"deviation.{run}": deviation, f"trained.{run}": trained, f"trained_deviation.{run}": trained_deviation.reshape(1)}
        print(out.name, run, [round(v, 4) for v in truth[::5].tolist()], "f32 off by", deviation.max().item(), "logits by", trained_deviation.item(), flush=True)
    save_file(golden, str(out / "golden.safetensors"))
    (out / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "lr"}, indent=2) + "\n")
    if seed:
        save_file(fresh().state_dict(), str(out / "model.safetensors"), metadata={"format": "pt"})


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    torch.set_num_threads(1)
    cnn = dict(model_type="simple_cnn", stem="cifar", classes=10, image_size=32, width=64, lr=0.004)
    resnet = dict(model_type="resnet18", stem="cifar", classes=10, image_size=16, width=4, lr=0.001)
    count = lambda m: sum(p.numel() for p in m.parameters())
    assert count(make(cnn)) == 2474506
    assert count(ResNet18(64, 1000, "imagenet")) == 11689512  # torchvision's
    write(out / "simple_cnn", {**cnn, "image_size": 16, "width": 6, "classes": 7}, 12, seed=1)
    write(out / "simple_cnn_full", cnn, 8)
    write(out / "resnet18_cifar", resnet, 16, seed=2)
    write(out / "resnet18_imagenet", {**resnet, "stem": "imagenet", "image_size": 64, "classes": 5}, 16, seed=4)


if __name__ == "__main__":
    main()
