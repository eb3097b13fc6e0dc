"""The bars of image classifiers: training steps (forward, backward, SGD with momentum) of SimpleCNN and ResNet-18 on 32 x 32 images,
as processes whose steps take turns. The images of both lie on the GPU.
"""

import concurrent.futures
import os
import pathlib
import statistics
import sys

import turns
from measure import Bar
from step import interval

PEERS = pathlib.Path(__file__).resolve().parents[1] / "peers"
ROUNDS, STEPS = 11, 20

# (model, batch, our precision, {PyTorch's way: (arguments, the least ratio asked for)})
EAGER, LAST, COMPILED = [], ["--channels-last"], ["--channels-last", "--compile"]
SETS = [
    ("simple_cnn", 128, "f32", {"eager": (EAGER, 2.0), "eager, channels last": (LAST, None), "eager, TF32": (["--tf32"], None)}),
    ("simple_cnn", 128, "bf16", {"eager": (["--dtype", "bf16"], 2.0)}),
    ("resnet18", 128, "f32", {"eager, channels last": (LAST, None)}),
    ("resnet18", 128, "bf16", {"eager, channels last": ([*LAST, "--dtype", "bf16"], None), "torch.compile": ([*COMPILED, "--dtype", "bf16"], 1.0)}),
    ("resnet18", 512, "bf16", {"torch.compile": ([*COMPILED, "--dtype", "bf16"], 1.0)}),
]


def torch_command(arch, batch, args):
    return [sys.executable, "-W", "ignore", str(PEERS / "image_torch.py"), "--arch", arch, "--batch", str(batch), "--device", "cuda", *args]


def compiled_before(sets):
    """Compiles everything with torch.compile first, so that the measured processes find it in the cache."""
    commands = [torch_command(arch, batch, args) for arch, batch, _, ways in sets for args, _ in ways.values() if "--compile" in args]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(commands))) as pool:
        list(pool.map(lambda command: turns.Side(command).end(), commands))


def image_steps(use_compile):
    if use_compile:
        compiled_before(SETS)
    program = os.environ.get("HPCDL_IMAGE_STEP") or str(PEERS.parents[1] / "build" / "bench" / "image_step")
    ms_of = {}
    for arch, batch, dtype, ways in SETS:
        ways = {name: way for name, way in ways.items() if use_compile or "--compile" not in way[0]}
        sides = {}
        try:
            # Ours first and ready before the others begin: it measures the memory that it uses on the GPU.
            sides["hpcdl"] = turns.Side([program, arch, str(batch), "32", dtype, "cuda"])
            for name, (args, _) in ways.items():
                sides[name] = turns.Side(torch_command(arch, batch, args))
            turns.rounds(sides, 1, steps=STEPS)
            samples = turns.rounds(sides, ROUNDS, steps=STEPS)
        finally:
            for side in sides.values():
                side.end()
        ms = {name: [s["ms"] for s in rows] for name, rows in samples.items()}
        ours = ms_of[arch, batch, dtype] = statistics.median(ms["hpcdl"])
        for name, (_, goal) in ways.items():
            theirs = statistics.median(ms[name])
            yield Bar("image step", f"{arch} {dtype} B{batch}", goal, name, ours * 1e3, theirs * 1e3, interval([t / o for t, o in zip(ms[name], ms["hpcdl"])]),
                      rate=f"{batch / ours:.0f}k samples/s against {batch / theirs:.0f}k, "
                           f"{samples['hpcdl'][-1]['peak_bytes'] / 2**20:.0f} MiB against {samples[name][-1]['peak_bytes'] / 2**20:.0f}")
    r = ms_of["resnet18", 128, "f32"] / ms_of["resnet18", 128, "bf16"]
    yield Bar("image step", "resnet18 B128: bf16 against f32", 1.7, "our f32", ms_of["resnet18", 128, "bf16"] * 1e3, ms_of["resnet18", 128, "f32"] * 1e3,
              {"median": r, "low": r, "high": r})
