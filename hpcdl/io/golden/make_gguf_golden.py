#!/usr/bin/env python3
"""Makes the golden files of gguf.test.cpp with gguf-py (needs gguf, numpy and safetensors).

types.gguf holds random blocks of every type, types.safetensors what gguf-py decodes them to. kinds.gguf holds a value of
every kind; split-*.gguf is one model in two files.
"""
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent / "gguf"
TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K MXFP4".split()
# Where a block has its half-precision numbers, which random bytes would make infinite.
HALVES = {"F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
ROWS = 3


def blocks_of(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    per_row = 2 if elements > 32 else 3 if elements > 1 else 5
    raw = rng.integers(0, 256, (ROWS * per_row, size), dtype=np.uint8)
    if name in ("F32", "BF16"):
        values = rng.standard_normal(ROWS * per_row).astype(np.float32).view(np.uint8).reshape(-1, 4)
        raw = values if name == "F32" else values[:, 2:]
    halves = rng.standard_normal((ROWS * per_row, 2)).astype(np.float16)
    halves[0] = [6e-8, -6e-8]  # subnormal
    halves[1] = 0
    for i, at in enumerate(HALVES.get(name, [])):
        raw[:, at:at + 2] = halves[:, i:i + 1].view(np.uint8)
    if name == "MXFP4":
        raw[:3, 0] = [0, 1, 254]
    return np.ascontiguousarray(raw.reshape(ROWS, per_row * size)), kind


def make_types():
    rng = np.random.default_rng(20)
    writer = gguf.GGUFWriter(str(HERE / "types.gguf"), "llama")
    decoded = {}
    for name in TYPES:
        raw, kind = blocks_of(name, rng)
        if name == "F32":
            writer.add_tensor(name, raw.view(np.float32))
        elif name == "F16":
            writer.add_tensor(name, raw.view(np.float16))
        else:
            writer.add_tensor(name, raw, raw_dtype=kind)
        decoded[name] = np.ascontiguousarray(dequantize(raw, kind))
    finish(writer)
    save_file(decoded, str(HERE / "types.safetensors"))


def make_kinds():
    writer = gguf.GGUFWriter(str(HERE / "kinds.gguf"), "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4000000000)
    writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -2**63)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", -0.25)
    writer.add_bool("bool", True)
    writer.add_string("text", "one \u00e9")
    writer.add_array("texts", ["a", "", "ccc"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    finish(writer)


def make_split():
    for part in range(2):
        writer = gguf.GGUFWriter(str(HERE / f"split-{part + 1:05}-of-00002.gguf"), "llama")
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 3)
        for name in [["a", "b"], ["c"]][part]:
            writer.add_tensor(name, np.full((2, 4), ord(name), np.float32))
        finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


HERE.mkdir(exist_ok=True)
make_types()
make_kinds()
make_split()
