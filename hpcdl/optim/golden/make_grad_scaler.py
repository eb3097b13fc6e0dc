#!/usr/bin/env python3
"""The behaviour of torch.amp.GradScaler in scripted sequences of good steps and overflows, and its effect on a weight that SGD trains.

Usage: make_grad_scaler.py > grad_scaler.json   (needs torch)

Each run: its settings, whether each step overflows ("overflow"), and after each step the scale, the growth tracker and the weight.
"""
import json

import torch


def run(name, overflow, **settings):
    scaler = torch.amp.GradScaler("cpu", **settings)
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.125, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps = []
    for bad in overflow:
        optimizer.zero_grad()
        scaler.scale((weight * 0.5).sum()).backward()
        if bad:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        steps.append({"scale": state["scale"], "tracker": state["_growth_tracker"], "weight": weight.item()})
    return {"name": name, "settings": settings, "overflow": overflow, "steps": steps}


def script(text):
    return [c == "x" for c in text]


print(json.dumps([
    run("defaults", script("....x.xx....")),
    run("grows every third good step", script("...x......x..x...xx......."), growth_interval=3),
    run("other factors", script("x..x....xx......"), init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2),
    run("falls below 1", script("xxxx...."), init_scale=4.0, growth_interval=2),
    run("grows at every step", script("......x..."), growth_interval=1),
], indent=1))
