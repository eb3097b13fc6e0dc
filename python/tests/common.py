"""Shared by the tests: skipping, and comparing with tolerances from the data type and the length of the reduction."""

import sys
import unittest

EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8}


def need(*modules):
    """Imports `modules`, or ends the test program as skipped (ctest: SKIP_RETURN_CODE 77)."""
    found = []
    for name in modules:
        try:
            found.append(__import__(name))
        except ImportError:
            print(f"skipped: this Python has no {name}")
            sys.exit(77)
    return found[0] if len(found) == 1 else found


def tolerance(dtype, length=1, factor=8):
    """`factor` roundings of results in `dtype`, and sums of `length` terms in float32."""
    return factor * EPS[str(dtype).split(".")[-1]] + (length**0.5 + 4) * 2.0**-23


class Case(unittest.TestCase):
    def close(self, got, want, tol, what=""):
        """|got - want| <= tol * max(1, |want|max), element by element in double. NaN matches NaN."""
        import numpy as np

        to = lambda t: np.asarray(t.detach().double().cpu().numpy() if hasattr(t, "detach") else t, dtype=np.float64)
        a, b = to(got), to(want)
        self.assertEqual(a.shape, b.shape, what)
        if a.size:
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=what)
            scale = max(1.0, np.nanmax(np.abs(b)))
            self.assertLessEqual(np.nanmax(np.abs(a - b)), tol * scale, what)

    def raises(self, kind, pattern, f, *args, **kwargs):
        with self.assertRaisesRegex(kind, pattern):
            f(*args, **kwargs)
