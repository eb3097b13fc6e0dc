#!/usr/bin/env python3
"""Makes the golden files of the tokenizer tests with the `tokenizers` library (0.23 or later):

    odd_text/*.txt   texts that find mistakes
    corpus.txt       text to train on
    *.json           small tokenizers trained on them, one per feature set
    ids.json         {tokenizer: {text: {"ids": [...], "decoded": "..."}}}

Usage: python make_tokenizer_golden.py   (rewrites everything in its own folder)
"""
import base64
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
ODD = HERE / "odd_text"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

TEXTS = {
    "empty": "",
    "spaces": "   ",
    "one_space": " ",
    "trailing": "ends with spaces   ",
    "leading": "  two in front, three   inside\n\n",
    "contractions": "I'm you're he'll we've it's don't I'd 'S 'T 'Re 'VE 'LL 'D 'M '\u017fx 'sword 're' ''s '",
    "digits": "0 12 345 6789 1234567890 3.14159 1,000,000 \u00bd \u2167 \u0663\u0664 \u4e09 \U00011066 1st 2nd x86_64 0x1F",
    "crlf": "one\r\ntwo\r\rthree\n\r four \r\n\r\n  five\n \n\t\nsix\r",
    "tabs": "\tdef f(x):\n\t\treturn\tx \t \n    if x:\n        pass\n",
    "nul": "a\0b\0\0 \x01\x02\x1b[0m\x7f end",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 "
             "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \u263a\ufe0e ok\U0001f44cok",
    "combining": "e\u0301 \u00e9 n\u0303o a\u030a\u0323 Z\u0351\u036b\u0343\u036a\u0302algo \u1112\u1161\u11ab \ud55c \u0301alone \u212b \ufb01",
    "rtl": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u05e9\u05dc\u05d5\u05dd \u202babc\u202c \u200f12\u200e",
    "cjk": "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f\u3000\u30ab\u30bf\u30ab\u30ca\uff11\uff12 \uc548\ub155\ud558\uc138\uc694 \U00020000\U0002a6d6",
    "indic": "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u1019\u103c\u1014\u103a\u1019\u102c",
    "private": "\ue000\uf8ff\U000f0000\U0010fffd \ufffe\uffff \ufeffbom \ufffd",
    "new_letters": "\U00031350\U000323af \u1c89\ua7cb \U0001e4d0 \U000105c0x \u088e",
    "spaces_of_all_kinds": "a\u00a0b\u2003c\u2028d\u2029e\u3000f\u1680g\u180eh\u200bi\u0085j\x0bk\x0cl \u00a0 \u2003\u2003m \u00a0",
    "punctuation": "!!! ... --- ??? (a)[b]{c} <<x>> \u2018q\u2019 \u201cw\u201d \u2026 a.b,c;d:e/f\\g|h ~`@#$%^&*_+= \u20ac5 \u00a7\u00b6",
    "code": "int main(void) {\n  std::vector<int> v{1, 2};  // r\u00e9sum\u00e9\n\n\n  return v[0]!=1;\n}\n",
    "long_word": "a" * 700 + " " + "ab" * 300 + "Pneumono" * 40 + "!" * 200 + "\n" * 70 + " " * 130 + "x",
    "long_mixed": "".join(chr(0x4E00 + i * 7 % 500) for i in range(300)),
    "byte_alphabet": "\u0120hello \u010a\u0109 \u0100\u0143 \u00ad\u00a1\u00ff",
    "special": "<|endoftext|>a<|endoftext|><|endoftext|> b <|endoftext|> <|endoftext| > <|end <|begin_of_text|>x",
    "added": "a <mask> b <mask>c  <mask>\n<pad> <pad>x <pad>  y word words sword word. \u00e9word word\u0301 wo e\u0301t\u00e9 \u00e9t\u00e9 <ext>>",
    "mixed": "The quick brown fox jumps over the lazy dog. \u00dcber-gro\u00df \u0130stanbul na\u00efve caf\u00e9 \u0416\u0443\u043a \u03a9\u03bc\u03ad\u03b3\u03b1 \u01c5\u02b0 \u00aa\u00ba",
}
INVALID = b"ok \xff\xfe bad \xc3( \xe2\x82 cut \xed\xa0\x80 surrogate \xf0\x9f\x98 half \xc0\xaf over \xf4\x90\x80\x80 far \xe2\x82\xac fine \xf0\x9f"


def corpus():
    rng = random.Random(7)
    nouns = "kernel tensor program buffer stream gradient matrix vector memory thread cluster network loss token batch step".split()
    verbs = "records plans executes merges splits reads writes loads trains measures computes scales".split()
    ends = [".", ".", ".", "!", "?", ";", ",", " - and", ", which isn't", ", that's why it"]
    out = []
    for line in range(420):
        words = []
        for _ in range(rng.randint(3, 14)):
            words.append(rng.choice(["the", "a", "every", "its", str(rng.randint(0, 4096)), "one's", "they're"]))
            words.append(rng.choice(nouns) + rng.choice(["", "", "s", "ing", "_" + rng.choice(nouns)]))
            words.append(rng.choice(verbs) + rng.choice(ends))
        text = " ".join(words)
        out.append(text.capitalize() if rng.random() < 0.6 else text)
        if line % 40 == 0:
            out.append(TEXTS["cjk"] + "\n\n" + TEXTS["rtl"] + TEXTS["emoji"] + "\taaaaaaaa aaaa aaab\n" + "ab" * 40)
    return "\n".join(out) + "\n"


def byte_level(vocab, pre, text, special, normalizer=None):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([text], trainer)
    return t


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def save(t, name, change=None):
    data = json.loads(t.to_str())
    # Tokens of bytes are trained as special ones, but are not.
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    if change:
        change(data)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("],[", "],\n[")
    (HERE / f"{name}.json").write_text(text, encoding="utf-8")
    return Tokenizer.from_str(text)


def old_merges(data):
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]


def make(text):
    eot = AddedToken("<|endoftext|>", special=True, normalized=False)
    all_text = text + "\n".join(TEXTS.values())
    out = {"gpt2": save(byte_level(700, pre_tokenizers.ByteLevel(add_prefix_space=False), text, [eot]), "gpt2")}

    llama = byte_level(620, split(LLAMA3), all_text, ["<|begin_of_text|>", "<|end_of_text|>"])
    llama.add_special_tokens([eot, AddedToken("<mask>", lstrip=True, special=True, normalized=False),
                              AddedToken("<pad>", rstrip=True, special=True, normalized=False)])
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))])])
    # A token that no merge reaches shows whether ignore_merges is followed.
    def orphan(data):
        data["model"]["ignore_merges"] = True
        data["model"]["vocab"]["\u0120lazy"] = 620
        for token in data["added_tokens"]:
            token["id"] += token["id"] >= 620
    out["llama3"] = save(llama, "llama3", orphan)

    qwen = byte_level(600, split(QWEN2), all_text, [eot], normalizers.NFC())
    qwen.add_tokens([AddedToken("word", single_word=True, normalized=True), AddedToken("\u00e9t\u00e9", normalized=True),
                     AddedToken("<ext>", normalized=False), AddedToken("<ext>>", normalized=False)])
    out["qwen2"] = save(qwen, "qwen2", old_merges)

    prefix = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    out["prefix_space"] = save(byte_level(560, prefix, all_text, [eot], normalizers.NFKC()), "prefix_space")
    out["gpt4o"] = save(byte_level(600, split(GPT4O), all_text, [eot]), "gpt4o")
    out.update(make_text_models(all_text))
    return out


BYTES = [f"<0x{b:02X}>" for b in range(256)]


def in_words(t, trainer, text, name, normalizer=None, change=None):
    """Trains on words that a Metaspace splits; the file then has what the family has."""
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.train_from_iterator(text.split("\n"), trainer)
    return save(t, name, change)


def bpe_trainer(vocab, special):
    return trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False, max_token_length=12,
                               limit_alphabet=120)


def charsmap():
    """A character map as SentencePiece makes them: a double array over a few texts, in base64."""
    pairs = {"\u00e9": "e", "e\u0301": "e", "\ufb01": "fi", "\u3000": " ", "\u00a0": " ", "\uff11": "1", "\u2026": "...",
             "\u200b": "", "\u1112\u1161": "H", "\t": " ", "\n": " ", "\U0001f600": ":)"}
    blob, at = b"", {}
    for key, value in pairs.items():
        at[key] = len(blob)
        blob += value.encode() + b"\0"
    tree = {}
    for key in pairs:
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = at[key]
    units, used = {0: 0}, {0}

    def place(node, index):
        labels = [0 if b is None else b for b in node]
        base = next(b for b in range(1, 1 << 21) if not any((index ^ b ^ c) in used for c in labels))
        used.update(index ^ base ^ c for c in labels)
        units[index] = units.get(index, 0) | base << 10 | (1 << 8 if None in node else 0)
        for byte, child in node.items():
            target = index ^ base ^ (0 if byte is None else byte)
            if byte is None:
                units[target] = child | 1 << 31
            else:
                units[target] = units.get(target, 0) | byte
                place(child, target)

    place(tree, 0)
    array = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range((max(units) | 255) + 1))
    return base64.b64encode(len(array).to_bytes(4, "little") + array + blob).decode()


def make_text_models(text):
    """Tokenizers of text rather than of bytes, each with the parts of a family of models."""
    out = {}
    replace = decoders.Replace("\u2581", " ")

    def llama2(data):
        data["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
            "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        data["pre_tokenizer"] = None
        data["decoder"] = json.loads(decoders.Sequence([
            replace, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]).__getstate__())

    t = Tokenizer(models.BPE(unk_token="<unk>"))
    out["llama2"] = in_words(t, bpe_trainer(800, ["<unk>", "<s>", "</s>"] + BYTES), text, "llama2", change=llama2)
    out["llama2"].post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    out["llama2"] = save(out["llama2"], "llama2")

    def gemma(data):
        data["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
        data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        data["decoder"] = json.loads(decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse()]).__getstate__())

    t = Tokenizer(models.BPE(unk_token="<unk>"))
    out["gemma"] = in_words(t, bpe_trainer(800, ["<pad>", "<eos>", "<bos>", "<unk>"] + BYTES), text, "gemma", change=gemma)

    def mistral(data):
        data["model"].update(unk_token="<unk>")
        data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
        data["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}

    t = Tokenizer(models.BPE(unk_token="<unk>"))
    out["mistral"] = in_words(t, bpe_trainer(500, ["<unk>", "<s>", "</s>", "[INST]", AddedToken("[/INST]", rstrip=True)]), text,
                              "mistral", change=mistral)

    def t5(data):
        data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]}
        data["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}

    latin = "".join(c for c in text if ord(c) < 0x250)  # every character becomes a token
    unigram = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                      show_progress=False, max_piece_length=10)
    out["t5"] = in_words(Tokenizer(models.Unigram()), unigram, latin, "t5", change=t5)
    out["t5"].post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    out["t5"] = save(out["t5"], "t5")

    def unigram_bytes(data):
        data["model"]["byte_fallback"] = True
        data["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "Strip", "strip_left": False, "strip_right": True}]}
        data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False}
        data["decoder"] = json.loads(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(
            prepend_scheme="never")]).__getstate__())

    unigram = trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, unk_token="<unk>",
                                      show_progress=False, max_piece_length=10)
    out["unigram_bytes"] = in_words(Tokenizer(models.Unigram()), unigram, latin, "unigram_bytes", change=unigram_bytes)

    for name, lowercase in (("bert", True), ("bert_cased", False)):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
        t.normalizer = normalizers.BertNormalizer(lowercase=lowercase, clean_text=True, handle_chinese_chars=True)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece(prefix="##", cleanup=lowercase)
        t.train_from_iterator(text.split("\n"), trainers.WordPieceTrainer(
            vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=150))
        t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                         special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        out[name] = save(t, name)
    return out


def of_bytes(t):
    return '"ByteLevel"' in t.to_str()


def main():
    ODD.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (ODD / f"{name}.txt").write_bytes(text.encode("utf-8"))
    (ODD / "invalid_utf8.txt").write_bytes(INVALID)
    text = corpus()
    (HERE / "corpus.txt").write_bytes(text.encode("utf-8"))
    texts = dict(TEXTS, invalid_utf8=INVALID.decode("utf-8", errors="replace"), corpus=text)
    golden = {}
    for name, t in make(text).items():
        golden[name] = {}
        for key, value in texts.items():
            ids = t.encode(value, add_special_tokens=False).ids
            golden[name][key] = {"ids": ids, "with_special": t.encode(value).ids, "decoded": t.decode(ids, skip_special_tokens=False)}
            if key == "corpus":
                kept = 4000 if of_bytes(t) else 400
                golden[name][key] = {"ids": ids[:kept], "count": len(ids)}
            elif key == "added" and of_bytes(t):
                # The library reads added tokens in the byte-level alphabet too, and so breaks those beyond ASCII.
                del golden[name][key]["decoded"]
            if key != "corpus" and golden[name][key]["with_special"] == ids:
                del golden[name][key]["with_special"]
    dump = json.dumps(golden, ensure_ascii=True, separators=(",", ":")).replace("},", "},\n")
    (HERE / "ids.json").write_text(dump + "\n")


main()
