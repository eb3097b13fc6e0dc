#!/usr/bin/env python3
"""No measurement is typed by hand: fails when README.md, CONTRIBUTING.md or a page of docs/ holds a number that looks like one.

    scripts/typed_numbers.py            prints file:line of each, and what to do
    scripts/typed_numbers.py --planted  checks the check: plants measurements into pages, and wrong definitions, and finds them

These look like a measurement: a number with a unit (3.5 ms, 12 GB/s, 40 %, 2 MiB), a factor (1.8x, three times as fast, a tenth of the time), a count out of
others (8 of 79), a number with decimals, a row of a table with several bare numbers. Measurements belong into a file of bench/results, which a program wrote, and
scripts/results_pages.py fills them in: {{machine/file > key | format}}, tables, outputs. If a page has a NAME.in.md, that source is checked. Not checked are blocks
that tests compare with the code (<!-- quote FILE -->, the Python of docs/python.md), and the README between its markers.

A number that is defined and not measured (a limit, a default, a size) is listed in docs/given_numbers.txt with the place that defines it, one per line:

    page | words on the page | file of code | words in that file

Both must exist. Every number in the words of the page must be among those of the file, too (in its units: 0.75 % is 0.0075), so that a page that contradicts
the code fails.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
GIVEN = "docs/given_numbers.txt"
LONGEST = 60  # longest words on a page: a number and what it belongs to, never a paragraph

N = r"(?<![\w.#^-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
WORD = r"(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty|hundreds?|thousands?)"
PART = r"(?:half|thirds?|fourths?|quarters?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?)"
SECONDS = r"(?:(?:nano|micro|milli)?seconds?|minutes?|hours?)"
UNIT = (rf"(?:%|(?:per cent|percent|points?|ulp|ns|us|µs|ms|s|min|h|[kMG]?Hz|W|{SECONDS}|[KMGT]i?B|[kKMGTP]?FLOPS?)\b|(?:[kKMGT]?bit|[kKMGT]?i?B|[kKMGTP]?FLOP)/s"
        r"|[kKM]? ?(?:\w+(?: of \d+ x \d+)? )?(?:/s\b|a second|per second))")
THAN = (r"(?:faster|slower|larger|smaller|longer|shorter|less|more|higher|lower|as (?:fast|slow|long|large|many|much|high|low)"
        r"|(?:of )?(?:the |its |that |a |our )?(?:speed|bandwidth|times?|rate|bytes|roof|peak)\b|(?:PyTorch|MPI|NCCL|cuDNN|cuBLAS|oneDNN|ggml)\b)")
LOOKS = re.compile("|".join((
    rf"{N}(?:k|M)?(?: ?(?:to|-) ?[\d.,]+)?[ -]?{UNIT}", rf"{N} ?[x×](?![\w(])(?! ?\d)", rf"{N} times", r"(?<![\w.^-])\d+\.\d+(?!\d*\.\d)(?:e[+-]?\d+)?(?![\w.])", r"(?<![\w.^-])\d+e[+-]?\d+",
    r"\b\d[\d,]* (?:out )?of (?:the )?\d[\d,]*\b", r"\b\d+k\b", rf"\b{WORD}(?: to {WORD})? (?:{SECONDS}\b|per cent|times {THAN})",
    rf"\b{PART} {THAN}", rf"\b{PART} (?:an? |of an? )?{SECONDS}\b", rf"\b(?:twice|doubl\w+|halv\w+) {THAN}", r"\border of magnitude\b",
    r"(?m:^\|[^\n]*\| *[\d.,]+ *\|(?:[^\n]*\|)? *[\d.,]+ *\|)")).replace(" ", r"\s"))
UNITS = {"%": .01, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "KB": 1024, "KiB": 1024, "MB": 2**20, "MiB": 2**20, "GB": 2**30, "GiB": 2**30, "Gbit": 1000}


def blank(text, pattern, flags=re.S):
    """Replaces matches by the same number of empty lines, so that line numbers stay."""
    return re.sub(pattern, lambda m: "\n" * m[0].count("\n"), text, flags=flags)


def prose(path, text):
    """A page without the parts that are filled in or that a test compares with the code."""
    text = blank(text, r"<!-- measured: begin -->.*?<!-- measured: end -->")
    text = blank(text, r"<!-- quote \S+ -->\n```.*?^```", re.S | re.M)
    if path == "docs/python.md":
        text = blank(text, r"^```python\n.*?^```", re.S | re.M)
    text = re.sub(r"\{\{.+?\}\}", "(filled in)", text, flags=re.S)
    return blank(text, r"<!--.*?-->|\]\([^)\s]*\)")


def sources():
    """{path: text} of the hand-written pages."""
    docs = [f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")) if p.name.endswith(".in.md") or not p.with_suffix(".in.md").exists()]
    return {path: (ROOT / path).read_text() for path in ("README.md", "CONTRIBUTING.md", *docs)}


def numbers(words):
    return [(float(m[1].replace(",", "")), m[2] or "") for m in re.finditer(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)'?f?\s?([%A-Za-z]*)", words)]


def agree(said, defined):
    """Whether the numbers of a page are in the code, unchanged or in its units."""
    there = [n for n, _ in numbers(defined.replace("'", ""))]
    return all(any(abs(n * f - d) <= 1e-9 * abs(d) for d in there for f in (1, UNITS.get(unit, 1))) for n, unit in numbers(said))


def running_text(file):
    """Code on one line, so that the words of a comment are together even if it was wrapped."""
    return re.sub(r"\s*\n\s*(///?|#)?\s*", " ", file.read_text())


def given(pages, lines):
    """Removes the numbers of the list from the pages; reports entries that do not match."""
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [c.strip() for c in line.split(" | ")]
        page, said, file, defined = cells if len(cells) == 4 else (None,) * 4
        where = f"{GIVEN}:{number}: "
        if not page:
            yield where + "expected four cells: page | words on the page | file of code | words in that file"
        elif page not in pages:
            yield where + f"{page} is not a hand-written page"
        elif len(said) > LONGEST or not numbers(said):
            yield where + f"the words of the page hold a number and are {LONGEST} characters at most"
        elif pathlib.Path(file).parts[0] in ("docs", "README.md") or file.startswith("bench/results") or not (ROOT / file).is_file():
            yield where + f"{file} is not a file of code: a measurement comes from bench/results by {{{{machine/file > key | format}}}}"
        elif defined not in running_text(ROOT / file):
            yield where + f"{file} no longer has {defined!r}: check what it says now, and whether {page} still says the same"
        elif not agree(said, defined):
            yield where + f"{said!r} and {defined!r} have different numbers"
        else:
            pattern = r"\s+".join(map(re.escape, said.split()))
            if not re.search(pattern, pages[page]):
                yield where + f"{page} does not contain {said!r}: remove the line"
            pages[page] = blank(pages[page], pattern)


def measurements(path, text):
    for m in LOOKS.finditer(text):
        said = " ".join(m[0].split())
        yield f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {said!r} looks like a measurement that was typed by hand"


def complaints(texts, lines):
    pages = {path: prose(path, text) for path, text in texts.items()}
    yield from given(pages, lines)
    for path, text in pages.items():
        yield from measurements(path, text)


HELP = f"""A measurement: let a program write it into a file of bench/results and fill it in by {{{{machine/file > key | format}}}} or <!-- output machine/file -->, or say it in words.
What code defines: a line in {GIVEN}. The head of scripts/typed_numbers.py has both."""
PLANTED = ("takes 3.5 ms a step", "12 GB/s", "a gain of 40 %", "1.8x", "1.07 of it", "three times as fast", "twice the speed", "9 of 10 runs", "about 230,000 images of 32 x 32 a second", "`7 us`",
           "1161k tokens/s", "an eighth of its time", "an error of 3e-7", "450 TFLOP/s", "half a minute", "2 to 3 s", "| a | 17 | 3 |", "ten to twenty seconds", "some 7\nmicroseconds")


def planted():
    """The tree as it is must be clean, each of PLANTED found on the line of each page where it is put, and each wrong definition refused."""
    texts, lines = sources(), (ROOT / GIVEN).read_text().splitlines()
    bad = list(complaints(texts, lines))
    for path, text in texts.items():
        first = text.count("\n") + 2
        found = list(measurements(path, prose(path, text + "\n" + "\n\n".join(PLANTED))))
        at = first
        for words in PLANTED:
            if not any(f.startswith(f"{path}:{at}:") for f in found):
                bad.append(f"{path}: the check does not find {words!r}")
            at += 2 + words.count("\n")
    page, said, file, defined = next(line.split(" | ") for line in lines if line.startswith("docs/"))
    wrong = {"words that the code does not have": f"{page} | {said} | {file} | {defined} and more", "another number than the code's": f"{page} | 123 ms | {file} | {defined}",
             "results as a definition": f"{page} | {said} | bench/results/cpu-zen5/host.json | {{", "a line for nothing": f"{page} | no such words 1 | {file} | 1",
             "half a line": f"{page} | {said}", "a paragraph": f"{page} | {said * 10} | {file} | {defined}"}
    for why, line in wrong.items():
        if not list(given({p: prose(p, t) for p, t in texts.items()}, [line])):
            bad.append(f"{GIVEN}: the check does not find {why}")
    return bad


def main():
    found = planted() if "--planted" in sys.argv else list(complaints(sources(), (ROOT / GIVEN).read_text().splitlines()))
    sys.exit("\n".join((*found, HELP)) if found else 0)


if __name__ == "__main__":
    main()
