#!/usr/bin/env python3
"""Tokens per second of one sequence: `hpcdl generate` against the same Llama in PyTorch with a static cache, as CUDA graphs of its eager and of its
compiled step, in turns.

    bench/gpu/decode.py [--program build/cuda/hpcdl] [--prompt 1024] [--tokens 256] [--rounds 3] [--quick] [--json FILE]

The model has 1.1 B parameters, random weights in bf16; "int4" is the same quantised by `hpcdl quantize`. Ours gives every token to the host;
PyTorch's stay on the GPU. --quick: without the compiled step.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
         "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1}


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


class Llama(torch.nn.Module):
    """One token a call, at the position that `at` holds."""

    def __init__(self, c, room):
        super().__init__()
        self.c, self.head_dim = c, c["hidden_size"] // c["num_attention_heads"]
        width, ffn, kv = c["hidden_size"], c["intermediate_size"], self.head_dim * c["num_key_value_heads"]
        weight = lambda *shape: torch.nn.Parameter(torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02, requires_grad=False)
        self.embed, self.head, self.norm = weight(c["vocab_size"], width), weight(c["vocab_size"], width), weight(width)
        shapes = {"n1": (width,), "q": (width, width), "k": (kv, width), "v": (kv, width), "o": (width, width), "n2": (width,),
                  "gate": (ffn, width), "up": (ffn, width), "down": (width, ffn)}
        self.layers = torch.nn.ModuleList(torch.nn.ParameterDict({n: weight(*s) for n, s in shapes.items()}) for _ in range(c["num_hidden_layers"]))
        angles = torch.outer(torch.arange(room, device="cuda"), c["rope_theta"] ** (-torch.arange(0, self.head_dim, 2, device="cuda") / self.head_dim))
        self.cos, self.sin = angles.cos(), angles.sin()
        cache = lambda: [torch.zeros(1, c["num_key_value_heads"], room, self.head_dim, device="cuda", dtype=torch.bfloat16) for _ in self.layers]
        self.keys, self.values = cache(), cache()
        self.places = torch.arange(room, device="cuda")

    def rope(self, x, at):
        a, b = x.float().chunk(2, -1)
        cos, sin = self.cos[at], self.sin[at]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def forward(self, token, at):
        norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5)
        x = F.embedding(token, self.embed)
        mask = (self.places <= at)[None, None, None]
        heads = lambda y: y.view(1, 1, -1, self.head_dim).transpose(1, 2)
        for w, keys, values in zip(self.layers, self.keys, self.values):
            h = norm(x, w["n1"])
            q, k, v = (heads(F.linear(h, w[n])) for n in "qkv")
            keys.index_copy_(2, at, self.rope(k, at)), values.index_copy_(2, at, v)
            y = F.scaled_dot_product_attention(self.rope(q, at), keys, values, attn_mask=mask, enable_gqa=True)
            x = x + F.linear(y.transpose(1, 2).reshape(1, 1, -1), w["o"])
            h = norm(x, w["n2"])
            x = x + F.linear(F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"]), w["down"])
        return F.linear(norm(x, self.norm), self.head).argmax(-1)


def stepper(model, step, prompt):
    """A CUDA graph of one step, and a function that runs `tokens` of them and returns tokens per second."""
    token, at = torch.zeros(1, 1, dtype=torch.long, device="cuda"), torch.full((1,), prompt, device="cuda")

    def once():
        token.copy_(step(token, at))
        at.add_(1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            once()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            once()

    def run(tokens):
        at.fill_(prompt)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(tokens):
            graph.replay()
        torch.cuda.synchronize()
        return tokens / (time.perf_counter() - start)

    return run


def ours(program, folder, prompt, tokens):
    ids = ",".join(str(i * 37 % 31000 + 3) for i in range(prompt))
    out = subprocess.run([program, "generate", "--model", folder, "--device", "cuda", "--prompt-ids", ids, "--tokens", str(tokens), "--ignore-eos", "--json"],
                         check=True, capture_output=True, text=True).stdout
    result = json.loads(out)
    return result["tokens_per_second"], result["time_to_first_token_ms"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=str(ROOT / "build" / "cuda" / "hpcdl"))
    p.add_argument("--prompt", type=int, default=1024)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, int4 = pathlib.Path(folder) / "bf16", pathlib.Path(folder) / "int4"
        plain.mkdir()
        write_llama(plain)
        subprocess.run([args.program, "quantize", "--model", str(plain), "--out", str(int4)], check=True, capture_output=True)
        model = Llama(LLAMA, args.prompt + args.tokens)
        sides = {"eager graph": stepper(model, model, args.prompt)}
        if not args.quick:
            sides["compiled graph"] = stepper(model, torch.compile(model, dynamic=False), args.prompt)
        found, first = {}, {}
        for _ in range(args.rounds):
            for name, path in (("hpcdl bf16", plain), ("hpcdl int4", int4)):
                speed, ms = ours(args.program, str(path), args.prompt, args.tokens)
                found.setdefault(name, []).append(speed), first.setdefault(name, []).append(ms)
            for name, run in sides.items():
                found.setdefault(name, []).append(run(args.tokens))
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "prompt": args.prompt, "tokens": args.tokens,
              "tokens_per_second": {n: statistics.median(v) for n, v in found.items()}, "first_token_ms": {n: statistics.median(v) for n, v in first.items()}}
    for name, speed in report["tokens_per_second"].items():
        print(f"{name:<16}{speed:8.0f} tokens/s" + (f"   first token {report['first_token_ms'][name]:.0f} ms" if name in first else ""))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
