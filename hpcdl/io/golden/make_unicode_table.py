#!/usr/bin/env python3
"""Writes unicode_table.inc: the code points that the `tokenizers` library takes for letters (\\p{L}) and numbers (\\p{N}),
and those that its BertNormalizer, BertPreTokenizer and StripAccents take for control characters, marks and punctuation.

Asking the library itself keeps both in step: its Unicode version decides where a word ends.
Usage: python make_unicode_table.py > ../unicode_table.inc
"""
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for low in range(0, 0x110000, 0x1000):
        text = "".join(chr(c) for c in range(low, low + 0x1000) if not 0xD800 <= c < 0xE000)
        for piece, _ in split.pre_tokenize_str(text) if text else []:
            yield from map(ord, piece)


def ranges(points):
    out = []
    for point in sorted(set(points)):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def dropped(normalizer):
    """The code points that a normalizer drops."""
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000 and normalizer.normalize_str("a" + chr(point) + "a") == "aa":
            yield point


def separate(pre_tokenizer):
    """The code points that end a word and make one of their own."""
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000 and len(pre_tokenizer.pre_tokenize_str("a" + chr(point) + "a")) == 3:
            yield point


def bert(**steps):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**dict(off, **steps))


def table(name, points):
    rows = ranges(points)
    print(f"constexpr CodeRange {name}[] = {{")
    line = ""
    for low, high in rows:
        item = f"{{0x{low:X}, 0x{high:X}}}, "
        if len(line) + len(item) > 116:
            print("    " + line.rstrip())
            line = ""
        line += item
    print("    " + line.rstrip())
    print("};")


print(f"// Made by golden/make_unicode_table.py with tokenizers {tokenizers.__version__}.")
table("kLetters", members(r"\p{L}"))
table("kNumbers", members(r"\p{N}"))
table("kControls", dropped(bert(clean_text=True)))
table("kNonspacing", dropped(bert(strip_accents=True)))
table("kMarks", dropped(normalizers.StripAccents()))
table("kPunctuation", separate(pre_tokenizers.BertPreTokenizer()))
