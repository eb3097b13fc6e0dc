"""Random models of every family, of odd geometry, and what transformers thinks of the texts that they write.

Usage: parity.py make OUT GOLDEN    (needs torch, transformers, safetensors; GOLDEN is hpcdl/models/golden)
       parity.py judge OUT GOLDEN

`make` writes Hugging Face folders OUT/NAME with prompts.json: 32 `prompts` of 1 to 200 tokens, the number of `new` tokens,
and `limit`: ids from there on may not be taken, as if the tokenizer lacked them. `judge` reads OUT/NAME/answers.json with
the `answers` to them and the `logprobs` of their tokens, and prints for each model a line of JSON: how many `tokens` there
are; how many of them are `best`, so that greedy decoding takes them, too; how far below the best one the logit of the worst
token is, as a share of the range of the logits (`gap`); and the largest difference of a logprob (`distance`).
"""
import json
import random
import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, sys.argv[3])
from make_models import scrambled  # noqa: E402

PROMPTS, NEW, CONTEXT = 32, 64, 300


@torch.no_grad()
def judged(model, prompt, answer, logprobs, limit):
    """One pass over the whole text: the logits before each new token, which no later token can change."""
    ids = torch.tensor([prompt + answer])
    logits = model(ids[:, :-1]).logits[0, len(prompt) - 1 :]
    taken, allowed = torch.tensor(answer)[:, None], logits[:, :limit]
    gaps = (allowed.amax(-1) - logits.gather(1, taken)[:, 0]) / (allowed.amax(-1) - allowed.amin(-1))
    distances = (logits.log_softmax(-1).gather(1, taken)[:, 0] - torch.tensor(logprobs)).abs()
    return len(answer), int((allowed.argmax(-1) == taken[:, 0]).sum()), float(gaps.max()), float(distances.max())


def judge(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    asked, told = (json.loads((folder / f"{name}.json").read_text()) for name in ("prompts", "answers"))
    # Row by row: the rotary angles of some families depend on the length of the pass.
    rows = [judged(model, *row, asked["limit"]) for row in zip(asked["prompts"], told["answers"], told["logprobs"])]
    tokens, best, gaps, distances = zip(*rows)
    print(json.dumps({"model": folder.name, "tokens": sum(tokens), "best": sum(best), "gap": max(gaps), "distance": max(distances)}), flush=True)


def write(folder, model, seed, limit=None):
    scrambled(model, seed).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    vocab = model.config.vocab_size
    draw = random.Random(seed)
    lengths = [1, 2, 7, 63, 64, 65, 128, 200] + [draw.randint(1, 200) for _ in range(PROMPTS - 8)]
    prompts = [[draw.randrange(vocab) for _ in range(n)] for n in lengths]
    (folder / "prompts.json").write_text(json.dumps({"prompts": prompts, "new": NEW, "limit": limit or vocab}))


def make_all(out):
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
    write(out / "llama_rope_dynamic", make("Llama", **{**odd, "max_position_embeddings": 280}, head_dim=12, rope_parameters=dynamic), 4)
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


def main():
    verb, out = sys.argv[1], Path(sys.argv[2])
    transformers.utils.logging.disable_progress_bar()
    if verb == "make":
        make_all(out)
    else:
        for folder in sorted(out.iterdir()):
            judge(folder)


if __name__ == "__main__":
    main()
