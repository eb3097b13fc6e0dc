#!/usr/bin/env python3
"""Writes regex.json: how the `tokenizers` library reads patterns, and normalises text.

    "words"  [pattern, text, [what it finds in the text]]
    "forms"  [text, NFC, NFD, NFKC, NFKD]

Only characters that every Unicode since 9 has: the two libraries are of different ages.
Usage: python make_regex_golden.py   (rewrites regex.json in its own folder)
"""
import json
import pathlib
import random

from tokenizers import Regex, normalizers, pre_tokenizers

SCRIPTS = ("Han Hani Hiragana Katakana Hira Kana Latin Greek Cyrillic Arabic Devanagari Thai Hangul Hebrew Common "
           "Inherited Bengali Tamil Armenian Bopomofo han").split()
# Many are used by several scripts, so they are in Script_Extensions of scripts that are not their Script.
LETTERS = ("a\u00aa\u00b7\u02c7\u0301\u0342\u0345\u0363\u03b1\u0436\u0483\u0484\u0531\u0589\u05d0\u060c\u0627\u0640"
           "\u064b\u0660\u0905\u0951\u0964\u0966\u09ac\u0ba4\u0e01\u1100\u1cd0\u1cf2\u1dc0\u20f0\u3001\u3003\u3005"
           "\u3007\u3013\u3021\u302a\u3031\u303c\u3042\u3099\u309b\u30a0\u30a2\u30fb\u30fc\u3105\u31c0\u3220\u3280"
           "\u4e2d\uac00\uff0d\uff65\uff66\uff70\uff9e\U0001f250\U00020000")
WORDS = [
    (r"(?m:a.b)", "a\nb axb a\n\nb"), (r"(?m)a.b", "a\nb axb"), (r"a.b", "a\nb axb"), (r"(?m-i:a.b)", "a\nb A\nB"),
    (r"(?i-m:a.b)", "a\nb AXB"), (r"(?mi:a.b)", "A\nb"), (r"(?m)a(?-m).b", "a\nb axb"),
    (r"\p{N}{,3}", "12345 {,3}"), (r"a{,2}b", "aaab {,2}b a{,2}b"), (r"a{,}", "a{,} aa"), (r"a{ 1 }", "a{ 1 } aa"),
    (r"a{,2}?b", "aaab"), (r"a{2,}", "aaaa"), (r"a{1,2}?", "aaaa"), (r"\{,3}", "{,3}"), (r"[{,3}]", "{,3}"),
    (r"a(?i)b|c", "aB C ac aC c"), (r"(a(?i)b|c)d", "aBd Cd aCd cd abD"), (r"a(?i)", "aA"), (r"(?i)", "a"),
    (r"(?i:a(?-i)b|c)", "AB ab aB C c Ac"), (r"x|a(?i)b|c(?-i)d|e", "aB acd aCD aCd aE ae X x"),
    (r"(?i)a(?m).|b", "A\nB b"), (r"((?i)a|b)c|d", "Ac Bc BC d D"), (r"(?=(?i)a|b).", "A b B C"),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'S 't 'RE 'Ve 'LL '\u017f"), (r"(?i:k)", "K k \u212a"),
    (r"(?i:[a-c]+)", "aBcD"), ("(?i:\u01c6)", "\u01c5 \u01c6 \u01c4"), (r"(?i:\p{Lu})", "aB"),
    (r"(?#a(b|)c|d", "c d"), (r"(?<n>a|b)c", "ac bc"), (r"(?'n'a|b)c", "ac bc"), (r"(?>a+)b", "aab"),
    (r"\p{^Han}+", "a\u4e2db"), (r"\P{^Han}+", "a\u4e2db"), (r"\P{Han}+", "a\u4e2db"), 
    (r"[\p{Han}\s]+", "\u3005 \u3001\u30fc"),
    (r"[^\p{Han}]+", "\u3005 \u3001\u30fc"), (r"\p{ Han }+", "\u4e2d"),
    (r"\p{Alphabetic}+", "ab1"), (r"\x{4e2d}|\x41", "\u4e2dA"), (r"[\x41-\x{43}]+", "ABCD"), (r"^a$", "a\nb\na"),
]
FORMS = ["\uac00\u11a7", "\uac00\u11a7\u11a8", "\u1100\u1161\u11a7", "\u1100\u1161\u11a8", "\uac00\u11a8",
         "\uac00\u11c2", "\uac00\u11c3", "\u11a7\u0301", "\uac00\u0301\u11a8", "\uac01\u11a8", "\u11a7\u11a7",
         "e\u11a7\u0301", "\u1112\u1175", "\u1112\u1176", "a\u0323\u0301", "a\u0301\u0323", "\u1e9b\u0323", "\u212b", "\u0344", "\ufb01",
         "\u09c7\u09be", "\u0f71\u0f72\u0f74", "\ufdfa", "\U0001d15e", "\u0301\u0323", "o\u0308\u0304\u0328", "\u0958", "\u2adc"]
POOL = ("ae\u0301\u0323\u0302\u0345\u0334\u3099\u304b\u1100\u1161\u11a7\u11a8\uac00\uac01\u11c2\u1175\u1176\u03b1"
        "\u0f71\u0f72\u0f74")


def words(pattern, text):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [word for word, _ in split.pre_tokenize_str(text)]


cases = WORDS + [(p % s, LETTERS) for s in SCRIPTS for p in (r"\p{%s}+", r"[^\p{%s}]+")]
found = [[p, t, words(p, t)] for p, t in cases]
rng = random.Random(11)
texts = FORMS + ["".join(rng.choices(POOL, k=rng.randint(2, 9))) for _ in range(100)]
ways = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
golden = {"words": found, "forms": [[t] + [w.normalize_str(t) for w in ways] for t in texts]}
lines = [f' "{key}": [\n' + ",\n".join("  " + json.dumps(v) for v in vs) + "\n ]" for key, vs in golden.items()]
(pathlib.Path(__file__).parent / "regex.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
