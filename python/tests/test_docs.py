"""Runs every block of docs/python.md, in order. If a block sets `want`, it is compared with `y`."""

import contextlib
import io
import pathlib
import re
import unittest

from common import Case, need, tolerance

np = need("numpy")
try:
    import torch
except ImportError:
    torch = None

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


class Docs(Case):
    def test_blocks(self):
        text = PAGE.read_text()
        blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
        names, ran, compared, printed = {}, 0, 0, io.StringIO()
        for block in blocks:
            code, line = block[1], text[: block.start()].count("\n") + 2
            if torch is None and not re.search(r"\bnp\.|numpy", code):
                continue
            names.pop("want", None)
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)
            ran += 1
            if "want" in names:
                y, want = names["y"].detach(), names["want"].detach()
                self.close(y, want, tolerance(want.dtype, 3072, 16), f"line {line}")
                compared += 1
        self.assertGreaterEqual(ran, 5)
        if torch is not None:
            self.assertEqual(ran, len(blocks))
            self.assertGreater(compared, 15)
        for said in printed.getvalue().splitlines():
            self.assertIn("    " + said, text)

    def test_every_function_is_mentioned(self):
        import hpcdl

        text = PAGE.read_text()
        for name in hpcdl.__all__:
            plain = re.sub(r"_(forward|backward)$", "", name)
            if name not in ("instruction_set", "adamw", "SafeTensors", "__version__"):
                self.assertIn(plain, text)


if __name__ == "__main__":
    unittest.main()
