#!/usr/bin/env python3
"""Writes small random models of every family, as transformers saves them, with the logits that transformers computes.

Usage: make_models.py [OUT [NAME...]]   (needs torch, transformers, safetensors; OUT defaults to this folder)

Each folder NAME/ is a Hugging Face model folder plus golden.safetensors: tokens I32 (B, T), logits F32 (B, T, V), and
the mean cross-entropy of predicting tokens[:, 1:] from tokens[:, :-1] as `loss` F32 (1). Where asked for, also the
gradient of that loss with respect to each parameter NAME as `grad.NAME`, and `greedy` I32 (8): the tokens of largest
logits after the first 11 tokens of the first row.

With names, writes only the models whose names begin with one of them.
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


def wanted(name):
    return len(sys.argv) < 3 or any(name.startswith(start) for start in sys.argv[2:])


def greedy(model, text, count):
    for _ in range(count):
        two = model(text).logits[0, -1].topk(2).values
        assert two[0] - two[1] > 1e-3, "the two best tokens are too close"
        text = torch.cat([text, model(text).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return text[0, -count:].int()


def write(out, model, vocab, dtype=torch.float32, shard="1GB", gradients=False, tokens_after=False):
    if not wanted(out.name):
        return
    model.to(dtype).save_pretrained(out, max_shard_size=shard)
    model = type(model).from_pretrained(out, dtype=torch.float32)  # what is in the files, computed in float
    tokens = torch.randint(0, vocab, (2, 13), generator=torch.Generator().manual_seed(7))
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab), tokens[:, 1:].reshape(-1))
    golden = {"tokens": tokens.int(), "logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
    if tokens_after:
        with torch.no_grad():
            golden["greedy"] = greedy(model, tokens[:1, :11], 8)
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
    # Windows shorter than the texts, one key head for seven heads, three layers.
    odd = dict(num_hidden_layers=3, num_attention_heads=7, num_key_value_heads=1)
    both = dict(gradients=True, tokens_after=True)
    write(out / "mistral_window", scrambled(make("Mistral", **odd, hidden_size=16, head_dim=80, sliding_window=7), 12), 61, tokens_after=True)
    write(out / "qwen2_window", scrambled(make("Qwen2", **{**odd, "hidden_size": 28}, use_sliding_window=True, sliding_window=5, max_window_layers=1), 13), 61, **both)
    write(out / "qwen3_window", scrambled(make("Qwen3", **odd, head_dim=6, use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"]), 14), 61, tokens_after=True)
    write(out / "phi3_window", scrambled(make("Phi3", pad_token_id=None, sliding_window=3), 15), 61, tokens_after=True)
    gemma = dict(num_hidden_layers=3, num_key_value_heads=1, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)
    write(out / "gemma2", scrambled(make("Gemma2", **gemma, num_attention_heads=3, head_dim=20, sliding_window=7, query_pre_attn_scalar=50, attn_logit_softcapping=4.0, final_logit_softcapping=6.0), 16), 61, **both)
    write(out / "gemma2_wide_heads", scrambled(make("Gemma2", **gemma, hidden_size=14, num_attention_heads=2, head_dim=256, sliding_window=2, query_pre_attn_scalar=256, attn_logit_softcapping=None, final_logit_softcapping=None), 17), 61, tokens_after=True)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    ropes = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 200.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
    write(out / "gemma3_text", scrambled(transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**{**llama, **gemma, "num_attention_heads": 3, "head_dim": 20, "sliding_window": 5, "query_pre_attn_scalar": 30, "layer_types": types, "rope_parameters": ropes})), 18), 61, **both)
    # Rotary angles that are scaled otherwise, and parts of heads that are rotated.
    yarn = dict(rope_type="yarn", rope_theta=50.0, factor=3.0, original_max_position_embeddings=8, beta_fast=4.0)
    write(out / "llama_rope_yarn", scrambled(make_llama(head_dim=12, rope_parameters=yarn), 19), 61, **both)
    write(out / "llama_rope_dynamic", scrambled(make_llama(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=100.0)), 20), 61, tokens_after=True)
    for length, original, context in (("short", 64, 128), ("long", 8, 24)):  # of texts of 13 tokens
        rope = dict(rope_type="longrope", rope_theta=50.0, partial_rotary_factor=0.75, original_max_position_embeddings=original,
                    short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.5, 4.0])
        write(out / f"phi3_longrope_{length}", scrambled(make("Phi3", pad_token_id=None, num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=context,
                                                         original_max_position_embeddings=original, rope_parameters=rope), 21), 61, **both)
    # Mixtures of experts.
    write(out / "mixtral", scrambled(make("Mixtral", num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, sliding_window=6), 22), 61, tokens_after=True)
    write(out / "qwen3_moe", scrambled(make("Qwen3Moe", **odd, head_dim=10, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12), 23), 61, tokens_after=True)
    write(out / "qwen3_moe_sum_to_one", scrambled(make("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True), 24), 61, tokens_after=True)


if __name__ == "__main__":
    main()
