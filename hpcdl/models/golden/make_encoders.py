#!/usr/bin/env python3
"""Writes small random text encoders as folders of sentence-transformers, with what transformers computes for them.

Usage: make_encoders.py [OUT]   (needs torch, transformers, tokenizers, safetensors; OUT defaults to this folder)

Each folder NAME/ holds golden.safetensors: texts of different lengths, packed as tokens I32 (T) and starts I32 (R + 1);
states F32 (T, C), the last states of each text alone; vectors F32 (R, C), pooled as the folder says. Its metadata holds
the texts, as a JSON list.
"""
import json
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

WORDS = "the a river stone fox sees ##s ##es over lazy dog map text vector . , ! ##ing run be 東 京 is ##t un ##able".split()
TEXTS = ["", "a", "The fox sees!", "Running dogs, unable.", "東京 is the river map", "a lazy dog is over the stone " * 3, "the fox xylophone."]


def tokenizer():
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    t = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    t.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = tokenizers.decoders.WordPiece()
    t.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return t


def write(out, model, pooling, normalise, dtype=torch.float32):
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if "LayerNorm.weight" in name else 0.15 * noise)
    model.to(dtype).save_pretrained(out)
    encoder = transformers.BertModel.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = tokenizer()
    tokens.save(str(out / "tokenizer.json"))
    prefix = "sentence_transformers.models."
    modules = ["Transformer", "Pooling"] + ["Normalize"] * normalise
    (out / "modules.json").write_text(json.dumps([{"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{m}", "type": prefix + m} for i, m in enumerate(modules)], indent=1))
    (out / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{m}": m == pooling for m in ("cls_token", "mean_tokens", "max_tokens")}
    (out / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": model.config.hidden_size, **modes}, indent=1))
    (out / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40, "do_lower_case": False}))
    ids = [tokens.encode(t).ids for t in TEXTS]
    with torch.no_grad():
        states = [encoder(torch.tensor([i])).last_hidden_state[0] for i in ids]
    pooled = torch.stack([{"cls_token": s[0], "mean_tokens": s.mean(0), "max_tokens": s.max(0).values}[pooling] for s in states])
    if normalise:
        pooled = torch.nn.functional.normalize(pooled, dim=-1)
    starts = torch.cumsum(torch.tensor([0] + [len(i) for i in ids]), 0)
    golden = {"tokens": torch.tensor(sum(ids, [])).int(), "starts": starts.int(), "states": torch.cat(states), "vectors": pooled}
    save_file(golden, str(out / "golden.safetensors"), metadata={"texts": json.dumps(TEXTS)})


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    sizes = dict(vocab_size=5 + len(WORDS), hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=48)
    write(out / "bert", transformers.BertModel(transformers.BertConfig(**sizes)), "mean_tokens", True)
    odd = {**sizes, "hidden_size": 35, "num_attention_heads": 5, "num_hidden_layers": 3, "hidden_act": "gelu_new"}
    write(out / "bert_masked_bf16", transformers.BertForMaskedLM(transformers.BertConfig(**odd)), "cls_token", False, torch.bfloat16)


if __name__ == "__main__":
    main()
