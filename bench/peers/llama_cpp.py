#!/usr/bin/env python3
"""Continuing texts on a CPU: `hpcdl bench decode` against llama.cpp, in turns, with random weights of a Llama of 1.24 B parameters.

    bench/peers/llama_cpp.py [--source FOLDER] [--program build/release/hpcdl] [--threads 2] [--rounds 3] [--parts int4,bf16] [--depth 4096]
                             [--cpus 0,1] [--json FILE]

--source: a checkout of llama.cpp; default: the one in the source package llama-cpp-python, from PyPI. It is built natively in build/llama.cpp. Needs
numpy. INT4 is compared with Q4_0: both have groups of 32 with a 16-bit scale, and here all matrices, also the table of tokens. llama.cpp keeps keys and
values in 16 bits, as we do with bf16.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import common

PACKAGE = "llama-cpp-python==0.3.36"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
          "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 16384,
          "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
          "bos_token_id": 0, "eos_token_id": 1}
BUILD = common.ROOT / "build" / "llama.cpp"
PROMPT = 512


def fetched():
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", BUILD, PACKAGE], check=True)
    with tarfile.open(next(BUILD.glob("*.tar.gz"))) as archive:
        archive.extractall(BUILD / "source", filter="data")
    return next((BUILD / "source").glob("*/vendor/llama.cpp"))


def build(source, jobs):
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF",
               "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["cmake", "-S", source, "-B", BUILD / "build", *options], **quiet)
    subprocess.run(["cmake", "--build", BUILD / "build", f"-j{jobs}", "--target", "llama-bench", "llama-batched-bench"], **quiet)


def write_model(source, kind):
    """A GGUF file with random weights of CONFIG: kind q4_0 or bf16. Returns its path."""
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf

    c, path, draw = CONFIG, BUILD / f"{kind}.gguf", np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_rope_dimension_count(c["head_dim"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, columns):
        if kind == "q4_0":
            blocks = np.empty((rows, columns // 32, 18), np.uint8)
            blocks[..., :2] = np.frombuffer(np.float16(0.005).tobytes(), np.uint8)
            blocks[..., 2:] = draw.integers(0, 256, (rows, columns // 32, 16), np.uint8)
            writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        else:
            bits = (draw.standard_normal((rows, columns), np.float32) * np.float32(0.02)).view(np.uint32) >> 16
            writer.add_tensor(name, bits.astype(np.uint16).view(np.uint8).reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.BF16)

    width, ffn, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    norm = lambda name: writer.add_tensor(name, np.ones(width, np.float32))
    matrix("token_embd.weight", c["vocab_size"], width)
    norm("output_norm.weight")
    for i in range(c["num_hidden_layers"]):
        for name in ("attn_norm", "ffn_norm"):
            norm(f"blk.{i}.{name}.weight")
        for name, rows, columns in (("attn_q", width, width), ("attn_k", kv, width), ("attn_v", kv, width), ("attn_output", width, width),
                                    ("ffn_gate", ffn, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn)):
            matrix(f"blk.{i}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Sides:
    def __init__(self, program, threads, tokens, cpus):
        self.program, self.threads, self.tokens = str(program), str(threads), str(tokens)
        self.pinned = ["taskset", "-c", cpus] if cpus else []

    def run(self, command):
        command = [*self.pinned, *command]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
        return done

    def ours(self, dtype, texts, depth):
        out = json.loads(self.run([self.program, "bench", "decode", "--config", BUILD / "config.json", "--dtype", dtype, "--group", "32", "--kv", "bf16",
                                   "--threads", self.threads, "--tokens", self.tokens, "--rounds", "1", "--batch", str(texts), "--depth", str(depth), "--json"]).stdout)
        return out["rows"][0]

    def bench(self, model, prompt, tokens, depth=0):
        out = json.loads(self.run([BUILD / "build/bin/llama-bench", "-m", model, "-t", self.threads, "-p", str(prompt), "-n", str(tokens), "-d", str(depth),
                                   "-r", "1", "-o", "json"]).stdout)
        return out[0]["avg_ts"]

    def batched(self, model, texts):
        command = [BUILD / "build/bin/llama-batched-bench", "-m", model, "-t", self.threads, "-tb", self.threads, "-c", "2048", "-npp", "8", "-ntg",
                   self.tokens, "-npl", str(texts), "--output-format", "jsonl"]
        for _ in range(5):  # its log may lose the last lines
            out = self.run(command)
            found = re.search(r"\{.*\}", out.stdout + out.stderr)
            if found:
                return json.loads(found[0])["speed_tg"]
        raise SystemExit(f"llama-batched-bench printed no result:\n{out.stdout}{out.stderr}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--source", type=pathlib.Path)
    p.add_argument("--program", type=pathlib.Path, default=common.ROOT / "build/release/hpcdl")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--depth", type=int, default=4096, help="0: only short texts")
    p.add_argument("--parts", default="int4,bf16")
    p.add_argument("--cpus", help="the processors for both sides, as taskset takes them")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    source = a.source or fetched()
    build(source, a.jobs)
    (BUILD / "config.json").write_text(json.dumps(CONFIG))
    sides, rows = Sides(a.program, a.threads, a.tokens, a.cpus), {}

    def turns(name, rounds, ours, theirs):
        """ours(): the row of bench decode, and its number; theirs(): their number."""
        pairs, shares, trusted = [], [], []
        for r in range(rounds):
            mine = peer = None
            for side in ("ours", "theirs") if r % 2 == 0 else ("theirs", "ours"):
                if side == "ours":
                    row, mine = ours()
                    shares.append(row["share_of_read_rate"])
                    trusted.append(row["disturbance"]["trusted"])
                else:
                    peer = theirs()
            pairs.append((mine, peer))
        rows[name] = {"tokens_per_second": statistics.median(m for m, _ in pairs), "llama.cpp": statistics.median(q for _, q in pairs),
                      "ratio": common.ratio([m for m, _ in pairs], [q for _, q in pairs]), "share_of_read_rate": statistics.median(shares),
                      "trusted": all(trusted)}
        print(name, json.dumps(rows[name]), flush=True)

    for dtype, kind in (("int4", "q4_0"), ("bf16", "bf16")):
        if dtype not in a.parts.split(","):
            continue
        model = write_model(source, kind)

        def decoding(texts, depth):
            row = sides.ours(dtype, texts, depth)
            return row, row["tokens_per_second"]

        def reading():
            row = sides.ours(dtype, 1, PROMPT)
            return row, row["prompt_tokens_per_second"]

        turns(f"{dtype}, one text", a.rounds, lambda: decoding(1, 0), lambda: sides.bench(model, 0, a.tokens))
        turns(f"{dtype}, 8 texts", a.rounds, lambda: decoding(8, 0), lambda: sides.batched(model, 8))
        turns(f"{dtype}, prompt of {PROMPT}", a.rounds, reading, lambda: sides.bench(model, PROMPT, 0))
        if a.depth and dtype == "int4":
            turns(f"{dtype}, one text after {a.depth} tokens", 1, lambda: decoding(1, a.depth), lambda: sides.bench(model, 0, a.tokens, a.depth))
        model.unlink()
    if a.json:
        case = f"Llama of 1.24 B parameters, random weights: hpcdl bench decode against llama.cpp of {PACKAGE}, built natively, in turns, medians"
        a.json.write_text(json.dumps({"machine": common.machine() | {"threads": a.threads}, "case": case, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
