#!/usr/bin/env python3
"""Makes the golden files of safetensors.test.cpp with the `safetensors` package (needs torch and safetensors).

Element i of a tensor of n elements is i - n/2 (floats: divided by 4; unsigned: i; bool: i % 3 == 0), so that the test can
compute what it must find.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def tensor(dtype, *shape):
    n = 1
    for d in shape:
        n *= d
    i = torch.arange(n, dtype=torch.int64)
    if dtype == torch.bool:
        values = i % 3 == 0
    elif dtype == torch.uint8:
        values = i
    elif dtype.is_floating_point:
        values = (i - n // 2).to(torch.float64) / 4
    else:
        values = i - n // 2
    return values.to(dtype).reshape(shape)


def main():
    save_file(
        {
            "f64": tensor(torch.float64, 3), "f32": tensor(torch.float32, 2, 3), "f16": tensor(torch.float16, 5),
            "bf16": tensor(torch.bfloat16, 2, 2, 3), "i64": tensor(torch.int64, 4), "i32": tensor(torch.int32, 1, 7),
            "i16": tensor(torch.int16, 3), "i8": tensor(torch.int8, 9), "u8": tensor(torch.uint8, 11),
            "bool": tensor(torch.bool, 5), "empty": tensor(torch.float32, 0, 4), "scalar": tensor(torch.float32),
            'odd "name" \u00e9': tensor(torch.float32, 1),
        },
        str(HERE / "all_dtypes.safetensors"), metadata={"format": "pt", "made by": "make_safetensors.py"})
    shards = HERE / "sharded"
    shards.mkdir(exist_ok=True)
    weight_map = {}
    for k, names in enumerate((("a", "b"), ("c",)), 1):
        file = f"model-{k:05}-of-00002.safetensors"
        save_file({n: tensor(torch.float32, 2, ord(n) - 90) for n in names}, str(shards / file), metadata={"format": "pt"})
        weight_map.update({n: file for n in names})
    index = {"metadata": {"total_size": 4 * 2 * (7 + 8 + 9)}, "weight_map": weight_map}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


main()
