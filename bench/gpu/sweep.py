#!/usr/bin/env python3
"""Shapes that no bar names, where a kernel may fall off a cliff: rows off lines of memory, wide heads, odd widths, one token at a time.
Ours against the best of PyTorch's ways, in turns (measure.py): the ratios' distribution, the ten worst, and all of them as JSON.

    bench/gpu/sweep.py [--only linear,attention,rows,decode] [--seconds S] [--program build/cuda/hpcdl] [--json FILE]

HPCDL_MODULE: the folder of the Python module.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.environ.get("HPCDL_MODULE") or str(ROOT / "build" / "cuda" / "python"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import hpcdl  # noqa: E402
import attention as heads  # noqa: E402
import measure  # noqa: E402
from measure import Measured, copies, require_same, sets_for  # noqa: E402

LINEAR = [  # rows, outputs, inputs
    (1000, 3000, 5000), (4096, 4096, 1000), (8191, 4099, 1023), (2048, 2048, 2000), (4096, 4096, 4096), (1, 4096, 4096), (4, 11008, 4096),
]
ACTIVATIONS = {"none": lambda y: y, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "gelu": F.gelu}
ATTENTION = [(2, 16, 4096, 144), (2, 16, 4096, 192), (2, 16, 4096, 256), (4, 8, 500, 256), (2, 16, 4096, 128)]  # batch, heads, tokens, width
ROWS = [(8191, 8193), (3000, 50257), (100000, 99), (4099, 5001)]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
         "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1}


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def linear():
    for m, n, k in LINEAR:
        for word, activation in ACTIVATIONS.items():
            sets = [(randn(m, k), randn(n, k) / k**0.5, randn(n)) for _ in range(sets_for(2.0 * (m * k + n * k + m * n)))]
            theirs = lambda x, w, b: activation(F.linear(x, w, b))
            mine = lambda x, w, b: hpcdl.linear(x, w, b, activation=word)
            require_same("linear", mine(*sets[0]), theirs(*sets[0]))
            yield f"linear {m}x{n}x{k} {word}", {"hpcdl": [lambda s=s: mine(*s) for s in sets], "eager": [lambda s=s: theirs(*s) for s in sets]}
    for n, k in ((4096, 1000), (2048, 2048)):
        sets = [[randn(*shape, dtype=torch.float16) / scale for shape, scale in (((n, k), k**0.25), ((k, n), k**0.25), ((n, n), 1))] for _ in range(sets_for(2.0 * n * (2 * k + n)))]
        theirs = lambda a, b, c: torch.relu(torch.addmm(c, a, b))
        require_same("matmul_add_relu", hpcdl.matmul_add_relu(*sets[0]), theirs(*sets[0]))
        yield f"relu(AB+C) fp16 {n}x{n}x{k}", {"hpcdl": [lambda s=s: hpcdl.matmul_add_relu(*s) for s in sets], "eager": [lambda s=s: theirs(*s) for s in sets]}


def attention():
    for b, h, t, d in ATTENTION:
        sets = [(*heads.packed_qkv(b, h, t, d), randn(b, t, h, d).transpose(1, 2)) for _ in range(sets_for(8.0 * b * h * t * d))]
        require_same("attention", hpcdl.attention(*sets[0][:3], causal=True), F.scaled_dot_product_attention(*sets[0][:3], is_causal=True))
        for mine, other in zip(heads.our_backward(*sets[0], True)(), heads.their_backward(heads.BACKENDS["flash"], *sets[0], True)()):
            torch.cuda.synchronize()
            require_same("attention backward", mine, other)
        word = f"bf16 B{b} H{h} T{t} D{d} causal"
        forward = heads.forward_sides(sets, True)
        yield f"attention forward {word}", forward
        yield f"attention backward {word}", heads.backward_sides(sets, True)


def rows():
    for m, n in ROWS:
        xs = [randn(m, n) for _ in range(sets_for(4.0 * m * n))]
        w, b = randn(n), randn(n)
        each = lambda f: [lambda x=x: f(x) for x in xs]
        moved = copies(4.0 * m * n, len(xs))
        yield f"softmax bf16 {m}x{n}", {"hpcdl": each(hpcdl.softmax), "eager": each(lambda x: torch.softmax(x, -1)), "copy": moved}
        yield f"layer_norm bf16 {m}x{n}", {"hpcdl": each(lambda x: hpcdl.layer_norm(x, w, b)), "eager": each(lambda x: F.layer_norm(x, (n,), w, b)), "copy": moved}


def write_llama(folder):
    """Random weights of LLAMA in bf16: config.json and model.safetensors."""
    c = LLAMA
    width, ffn, kv = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"] * c["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], width), "lm_head.weight": (c["vocab_size"], width), "model.norm.weight": (width,)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes.update({p + "input_layernorm.weight": (width,), p + "post_attention_layernorm.weight": (width,)})
        shapes.update({p + f"self_attn.{name}_proj.weight": (kv if name in "kv" else width, width) for name in "qkvo"})
        shapes.update({p + f"mlp.{name}_proj.weight": (ffn, width) for name in ("gate", "up")} | {p + "mlp.down_proj.weight": (width, ffn)})
    header, at = {}, 0
    for name, shape in shapes.items():
        bytes_of = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + bytes_of]}
        at += bytes_of
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(c))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            x = torch.ones(shape, device="cuda") if len(shape) == 1 else torch.randn(shape, device="cuda") * 0.02
            f.write(x.bfloat16().view(torch.int16).cpu().numpy().tobytes())


def decode(program, tokens=256, prompt=1024):
    """Tokens per second of our program, and the first token's milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        write_llama(pathlib.Path(folder))
        torch.cuda.empty_cache()
        ids = ",".join(str(i * 37 % 31000 + 3) for i in range(prompt))
        out = subprocess.run([program, "generate", "--model", folder, "--device", "cuda", "--prompt-ids", ids, "--tokens", str(tokens), "--ignore-eos", "--json"],
                             check=True, capture_output=True, text=True).stdout
    result = json.loads(out)
    return {key: result[key] for key in ("tokens_per_second", "time_to_first_token_ms")}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", default="linear,attention,rows,decode")
    p.add_argument("--seconds", type=float, default=0.25, help="for one comparison at most")
    p.add_argument("--program", default=str(ROOT / "build" / "cuda" / "hpcdl"), help="what decodes")
    p.add_argument("--json")
    args = p.parse_args()
    measure.OPTIONS["limit"] = args.seconds
    only = args.only.split(",")
    found = []
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": found}
    save = lambda: pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n") if args.json else None
    for name, family in (("linear", linear), ("attention", attention), ("rows", rows)):
        if name not in only:
            continue
        try:
            for case, sides in family():
                m = Measured(sides, target=0.01)
                peer = m.best([s for s in sides if s not in ("hpcdl", "copy")])
                ratio = m.ratio(peer)["median"] if peer else None
                share = m.ratio("copy")["median"] if "copy" in m.us else None
                found.append({"case": case, "us": m.us, "peer": peer, "ratio": ratio, "of_copy": share, "missing": m.missing})
                print(f"{case:<46} {m.us['hpcdl']:9.1f} us  {peer or 'no peer':<6} {ratio or 0:6.3f}" + (f"  {share:.2f} of a copy" if share else ""), flush=True)
                save()
        except Exception as e:  # the other families still are measured
            print(f"{name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
            report.setdefault("failed", {})[name] = str(e)[:300]
    if "decode" in only:
        report["decode"] = decode(args.program)
        print("Llama 1.1 B bf16, batch 1: {tokens_per_second:.0f} tokens/s, first token {time_to_first_token_ms:.0f} ms".format(**report["decode"]))
    ratios = sorted((c["ratio"], c["case"]) for c in found if c["ratio"])
    if ratios:
        print(f"{len(ratios)} shapes: median {statistics.median(r for r, _ in ratios):.3f}; the worst:")
        for ratio, case in ratios[:10]:
            print(f"  {ratio:6.3f}  {case}")
    save()


if __name__ == "__main__":
    main()
