#!/usr/bin/env python3
"""Writes adapters of the models in this folder, as peft saves them, with the logits that transformers and peft compute.

Usage: make_adapters.py [OUT]   (needs torch, transformers, peft, safetensors; OUT defaults to this folder)

Each folder NAME/ is an adapter of the model BASE/ next to it, plus golden.safetensors: tokens I32 (B, T) and logits
F32 (B, T, V).
"""
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
ADAPTERS = {
    "llama_lora": ("llama", dict(r=3, lora_alpha=5, target_modules="all-linear", modules_to_save=["lm_head"])),
    "gpt2_lora": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "mlp.c_proj"], use_rslora=True,
                               fan_in_fan_out=True, bias="lora_only")),
}


def write(out, base, options):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / base, dtype=torch.float32)
    vocab = model.config.vocab_size
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if p.requires_grad:
                p.copy_(0.15 * torch.randn(p.shape, generator=generator))
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    tokens = torch.randint(0, vocab, (2, 13), generator=torch.Generator().manual_seed(7))
    save_file({"tokens": tokens.int(), "logits": model(tokens).logits.detach().contiguous()},
              str(out / "golden.safetensors"))


for name, (base, options) in ADAPTERS.items():
    write(Path(sys.argv[1] if len(sys.argv) > 1 else HERE) / name, base, options)
