#!/usr/bin/env python3
"""Writes small random models of every family, as transformers saves them, with the logits that transformers computes.

Usage: make_models.py [OUT]   (needs torch, transformers, safetensors; OUT defaults to this folder)

Each folder NAME/ is a Hugging Face model folder plus golden.safetensors: tokens I32 (B, T), logits F32 (B, T, V), and
the mean cross-entropy of predicting tokens[:, 1:] from tokens[:, :-1] as `loss` F32 (1). Where asked for, also the
gradient of that loss with respect to each parameter NAME as `grad.NAME`.
"""
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file


def scrambled(model, seed):
    """Weights far from their initial values, so that a swapped or transposed tensor shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if p.dim() == 1 and "weight" in name else 0.15 * noise)
    return model.eval()


def write(out, model, vocab, dtype=torch.float32, shard="1GB", gradients=False):
    model.to(dtype).save_pretrained(out, max_shard_size=shard)
    model = type(model).from_pretrained(out, dtype=torch.float32)  # what is in the files, computed in float
    tokens = torch.randint(0, vocab, (2, 13), generator=torch.Generator().manual_seed(7))
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab), tokens[:, 1:].reshape(-1))
    golden = {"tokens": tokens.int(), "logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
    if gradients:
        loss.backward()
        golden |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    save_file(golden, str(out / "golden.safetensors"))
    generation = out / "generation_config.json"
    if generation.exists():
        generation.unlink()


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    gpt2 = dict(vocab_size=61, n_positions=24, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0,
                attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    make_gpt2 = lambda **k: transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**gpt2, **k}))
    write(out / "gpt2", scrambled(make_gpt2(), 1), 61, gradients=True)
    write(out / "gpt2_untied_gelu_wide", scrambled(make_gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=40), 2), 61)
    llama = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                 num_key_value_heads=2, max_position_embeddings=24, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2)
    make_llama = lambda **k: transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**llama, **k}))
    write(out / "llama", scrambled(make_llama(tie_word_embeddings=False), 3), 61, gradients=True)
    write(out / "llama_tied_bias_sharded", scrambled(make_llama(tie_word_embeddings=True, attention_bias=True, rope_theta=500000.0), 4), 61, shard="12KB")
    write(out / "gpt2_relu", scrambled(make_gpt2(activation_function="relu"), 6), 61)
    for kind in ("llama3", "linear"):  # of six frequencies, one stays, one is mixed, and four are divided
        scaling = dict(rope_type=kind, rope_theta=50.0, factor=4.0)
        if kind == "llama3":
            scaling |= dict(low_freq_factor=1.0, high_freq_factor=3.0, original_max_position_embeddings=20)
        write(out / f"llama_rope_{kind}", scrambled(make_llama(head_dim=12, mlp_bias=True, rope_parameters=scaling), 7), 61)
    write(out / "llama_head_dim_bf16", scrambled(make_llama(head_dim=8, tie_word_embeddings=False), 5), 61, dtype=torch.bfloat16)
    # Descendants of Llama. A window as long as the context hides nothing.
    make = lambda name, **k: getattr(transformers, name + "ForCausalLM")(getattr(transformers, name + "Config")(**{**llama, "tie_word_embeddings": False, **k}))
    write(out / "mistral", scrambled(make("Mistral", sliding_window=24), 8), 61)
    write(out / "phi3", scrambled(make("Phi3", pad_token_id=None), 9), 61, gradients=True)
    write(out / "qwen2", scrambled(make("Qwen2", tie_word_embeddings=True), 10), 61, gradients=True)
    write(out / "qwen3", scrambled(make("Qwen3", head_dim=8), 11), 61, gradients=True)


if __name__ == "__main__":
    main()
