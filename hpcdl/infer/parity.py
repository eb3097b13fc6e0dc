"""Writes random models of every family, of odd geometry, with what transformers makes of 32 ragged prompts.

Usage: parity.py OUT   (needs torch, transformers)

Each folder OUT/NAME is a Hugging Face folder with parity.json: `prompts`; `answers`, the 64 tokens of largest logits that
follow each; `logprobs` of these; `seconds`, the tokens of the second largest logits; `gaps`, how far those are below,
as a share of the range of the logits; and `limit`: ids from there on are never taken, as if the tokenizer lacked them.
"""
import json
import random
import sys
from pathlib import Path

import torch
import transformers

PROMPTS, NEW, CONTEXT = 32, 64, 300


def scrambled(model, seed):
    """Weights so large that the best token is clear, and so different that a swapped tensor shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if p.dim() == 1 and "weight" in name else 0.15 * noise)
    return model.eval()


def last_logits(model, ids, lengths):
    """Those of the last token of each row, by a whole pass without a cache. What comes after a row's end is not seen."""
    hidden = model.base_model(ids).last_hidden_state
    logits = model.lm_head(hidden[torch.arange(len(lengths)), lengths - 1])
    cap = getattr(model.config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


@torch.no_grad()
def continued(model, prompts, limit):
    """Answers and their facts; rows of the same call are as long as the longest one."""
    lengths = torch.tensor([len(p) for p in prompts])
    ids = torch.zeros(len(prompts), int(lengths.max()) + NEW, dtype=torch.long)
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = torch.tensor(prompt)
    facts = {"answers": [], "logprobs": [], "seconds": [], "gaps": []}
    for _ in range(NEW):
        logits = last_logits(model, ids[:, : int(lengths.max())], lengths)
        logprobs = logits.log_softmax(-1)
        allowed = logits[:, :limit]
        two = allowed.topk(2)
        best = two.indices[:, 0]
        facts["answers"].append(best)
        facts["seconds"].append(two.indices[:, 1])
        facts["logprobs"].append(logprobs.gather(1, best[:, None])[:, 0])
        facts["gaps"].append((two.values[:, 0] - two.values[:, 1]) / (allowed.amax(-1) - allowed.amin(-1)))
        ids[torch.arange(len(prompts)), lengths] = best
        lengths += 1
    return {name: torch.stack(values, 1).tolist() for name, values in facts.items()}


def write(folder, model, seed, limit=None, alone=False):
    """`alone`: what a row's angles are depends on the length of its pass, so that each has its own."""
    model = scrambled(model, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    vocab = model.config.vocab_size
    draw = random.Random(seed)
    lengths = [1, 2, 7, 63, 64, 65, 128, 200] + [draw.randint(1, 200) for _ in range(PROMPTS - 8)]
    prompts = [[draw.randrange(vocab) for _ in range(n)] for n in lengths]
    limit = limit or vocab
    groups = [[p] for p in prompts] if alone else [prompts]
    parts = [continued(model, group, limit) for group in groups]
    facts = {name: [row for part in parts for row in part[name]] for name in parts[0]}
    (folder / "parity.json").write_text(json.dumps({"prompts": prompts, "limit": limit, **facts}))
    print(folder.name, flush=True)


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)

    def make(name, **keys):
        config = getattr(transformers, name + ("TextConfig" if name == "Gemma3" else "Config"))
        # A text ends after 64 tokens only: no id of the vocabulary stands for the end.
        ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
        return getattr(transformers, name + "ForCausalLM")(config(**{**ends, **keys}))

    odd = dict(vocab_size=211, hidden_size=28, intermediate_size=52, num_hidden_layers=3, num_attention_heads=7,
               num_key_value_heads=1, max_position_embeddings=CONTEXT, rms_norm_eps=1e-6, tie_word_embeddings=False)
    window = ["sliding_attention", "full_attention", "sliding_attention"]
    gpt2 = transformers.GPT2Config(vocab_size=211, n_positions=CONTEXT, n_embd=35, n_layer=3, n_head=5, n_inner=52,
                                   bos_token_id=None, eos_token_id=None)
    write(out / "gpt2", transformers.GPT2LMHeadModel(gpt2), 1)
    write(out / "llama_7_to_1_heads_of_80", make("Llama", **odd, head_dim=80, attention_bias=True, mlp_bias=True), 2)
    large = dict(odd, vocab_size=50001, tie_word_embeddings=True)
    write(out / "llama_vocabulary_50001", make("Llama", **large, head_dim=12), 3, limit=49990)
    dynamic = dict(rope_type="dynamic", factor=2.0, rope_theta=100.0)
    write(out / "llama_rope_dynamic", make("Llama", **{**odd, "max_position_embeddings": 280}, head_dim=12, rope_parameters=dynamic), 4, alone=True)
    yarn = dict(rope_type="yarn", rope_theta=50.0, factor=3.0, original_max_position_embeddings=100)
    write(out / "llama_rope_yarn", make("Llama", **odd, head_dim=12, rope_parameters=yarn), 5)
    write(out / "mistral_window_7", make("Mistral", **odd, head_dim=80, sliding_window=7), 6)
    write(out / "qwen2_tied", make("Qwen2", **{**odd, "tie_word_embeddings": True}, use_sliding_window=True, sliding_window=7, max_window_layers=1), 7)
    write(out / "qwen3", make("Qwen3", **odd, head_dim=10, use_sliding_window=True, sliding_window=70, layer_types=window), 8)
    phi3 = {**odd, "num_attention_heads": 3, "hidden_size": 24}
    write(out / "phi3_window_7", make("Phi3", **phi3, sliding_window=7), 9)
    gemma = {**odd, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    write(out / "gemma2_heads_of_256", make("Gemma2", **gemma, head_dim=256, sliding_window=7, query_pre_attn_scalar=256, attn_logit_softcapping=4.0, final_logit_softcapping=6.0), 10)
    ropes = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 200.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
    write(out / "gemma3", make("Gemma3", **gemma, head_dim=20, sliding_window=7, query_pre_attn_scalar=30, layer_types=window, rope_parameters=ropes), 11)
    write(out / "mixtral", make("Mixtral", **odd, num_local_experts=5, num_experts_per_tok=2, head_dim=8, sliding_window=7), 12)
    write(out / "qwen3_moe", make("Qwen3Moe", **odd, head_dim=10, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12), 13)


if __name__ == "__main__":
    main()
