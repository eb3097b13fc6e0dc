"""inspect.signature() of all functions of the package."""

import inspect
import unittest

import hpcdl
from hpcdl import _hpcdl
from hpcdl._signatures import signature_of


class Signatures(unittest.TestCase):
    def test_every_function_has_one(self):
        functions = [n for n in hpcdl.__all__ if callable(getattr(hpcdl, n)) and not isinstance(getattr(hpcdl, n), type)]
        self.assertGreater(len(functions), 30)
        for name in functions:
            with self.subTest(name):
                signature = inspect.signature(getattr(hpcdl, name))
                compiled = getattr(getattr(hpcdl, name), "__nb_signature__", None)
                if compiled:
                    for parameter in signature.parameters:
                        self.assertIn(parameter + ":", compiled[0][0])
        for name in dir(_hpcdl):
            with self.subTest(name):
                if type(getattr(_hpcdl, name)) is type(hpcdl.softmax) and len(getattr(_hpcdl, name).__nb_signature__) == 1:
                    inspect.signature(getattr(_hpcdl, name))

    def test_it_says_what_calls_take(self):
        softmax = inspect.signature(hpcdl.softmax)
        self.assertEqual(list(softmax.parameters), ["x", "scale", "causal", "out"])
        self.assertEqual(softmax.parameters["scale"].default, 1.0)
        self.assertEqual(softmax.parameters["causal"].kind, inspect.Parameter.KEYWORD_ONLY)
        self.assertEqual(softmax.return_annotation, "Array")
        softmax.bind([0], scale=2.0)
        with self.assertRaises(TypeError):
            softmax.bind([0], sclae=2.0)
        adamw = inspect.signature(hpcdl.adamw).parameters
        self.assertEqual(adamw["betas"].default, (0.9, 0.999))
        self.assertIs(adamw["lr"].default, inspect.Parameter.empty)

    def test_methods_and_classes(self):
        self.assertEqual(list(inspect.signature(hpcdl.Int4Weight.to).parameters), ["self", "device"])
        self.assertEqual(list(inspect.signature(hpcdl.Int4Weight).parameters), ["packed", "scale", "offset", "tiled"])
        self.assertEqual(list(inspect.signature(hpcdl.PackedWeight).parameters), ["w", "dtype"])
        classes = [n for n in hpcdl.__all__ if isinstance(getattr(hpcdl, n), type)]
        self.assertGreater(len(classes), 1)
        for name in classes:
            with self.subTest(name):
                inspect.signature(getattr(hpcdl, name))

    def test_what_nanobind_may_write(self):
        text = "def f(a: int, /, b: str = \\0, *args, c: list[int] = [1, 2], **kwargs) -> None"
        self.assertEqual(
            str(signature_of(text, ("x",))), "(a: 'int', /, b: 'str' = 'x', *args, c: 'list[int]' = [1, 2], **kwargs) -> 'None'"
        )


if __name__ == "__main__":
    unittest.main()
