"""hpcdl.bench: the protocol over Python calls, and the cases that `hpcdl bench --vs torch` runs. Times are not checked."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from common import Case, need

np = need("numpy")

from hpcdl import _hpcdl, bench  # noqa: E402

try:
    import torch

    from hpcdl import _bench_torch
except ImportError:
    torch = None

SHAPES = {"RxC": "6x64", "N": "4096", "BxTxT": "2x16x16", "MxNxK": "16x32x64", "BxHxTxD": "2x3x16x32", "BxHxSxD": "2x3x32x32",
          "BxTxC": "2x8x64", "BxTxHxD": "2x8x4x32", "VxCxT": "96x64x16", "TxV": "8x320", "TxVxC": "8x320x64", "TxCxF": "16x64x96",
          "NxHxWxC": "2x8x8x16", "NxSxIxO": "2x9x3x16",
          "MxBxQxP": "16x3x8x10"}
TRAINING_ONLY = ("mlp", "lm_head_gradient")


class TestCompare(Case):
    def test_returns_what_it_says(self):
        calls = {"a": 0, "b": 0}

        def count(name):
            calls[name] += 1

        r = bench.compare({"a": lambda: count("a"), "b": lambda: count("b")}, rounds=5, target=1e-4)
        self.assertEqual((r["rounds"], r["cache"]), (5, "warm"))
        for name, n in calls.items():
            self.assertEqual(len(r["seconds"][name]), 5)
            self.assertGreaterEqual(n, 5 * r["sides"][name]["calls"])
        pairs = [b / a for a, b in zip(r["seconds"]["a"], r["seconds"]["b"])]
        means = sorted((pairs[i] * pairs[k]) ** 0.5 for i in range(5) for k in range(i, 5))  # Hodges and Lehmann, over logarithms
        self.assertEqual(list(r["ratios"]), ["b"])
        self.assertAlmostEqual(r["ratios"]["b"]["median"], means[7], places=12)
        self.assertEqual(bench.compare({"a": lambda: None}, rounds=np.int64(3), limit=float("inf"), target=np.float32(1e-4))["rounds"], 3)
        self.assertIn("flushed", bench.compare({"a": lambda: None}, rounds=3, target=1e-4, cache="flushed")["cache"])

    def test_refuses_nonsense(self):
        for option in ({"limit": -1}, {"target": 0}, {"half_width": float("nan")}):
            self.raises(ValueError, f"{next(iter(option))} must be more than 0", bench.compare, {"a": lambda: None}, **option)
        self.raises(ValueError, "at least one side", bench.compare, {})
        self.raises(TypeError, "round", bench.compare, {"a": print}, round=3)
        self.raises(ValueError, "hot", bench.compare, {"a": print}, cache="hot")
        self.raises(TypeError, "cache must be", bench.compare, {"a": print}, cache=3)
        for option in ({"rounds": 2.5}, {"seed": "x"}, {"limit": "4"}, {"settle": None}):
            self.raises(TypeError, f"{next(iter(option))} must be a", bench.compare, {"a": print}, **option)
        for option in ({"rounds": -1}, {"settle": -1}, {"patience": float("nan")}):
            self.raises(ValueError, f"{next(iter(option))} must not be negative", bench.compare, {"a": print}, **option)
        self.raises(ValueError, "units: expected names of sides, got 'b'", bench.compare, {"a": print}, units={"b": 2})

        def broken():
            raise KeyError("of the call")

        self.raises(KeyError, "of the call", bench.compare, {"a": broken}, rounds=3)

    def test_copy(self):
        lines = lambda: (a := np.zeros(4112, np.float32))[-a.ctypes.data // 4 % 16 :][:4096]  # streaming stores need whole cache lines
        x, y = lines(), lines()
        x[:] = range(4096)
        for streaming in (False, True):
            y[:] = 0
            bench.copy(y, x, streaming)
            np.testing.assert_array_equal(x, y)
        self.raises(ValueError, "64 bytes", bench.copy, y[:100], x)


@unittest.skipIf(torch is None, "this Python has no torch")
class TestCases(Case):
    def test_every_case_agrees_with_torch(self):
        seen, without = set(), set()
        for op, dims in _hpcdl._bench_ops():
            for dtype in ("f32", "bf16"):
                for backward in (False, True):
                    try:
                        case = _hpcdl._BenchCase(op, SHAPES[dims], dtype, backward)
                    except ValueError:
                        self.assertTrue(backward or op in TRAINING_ONLY, op)
                        continue
                    peer = _bench_torch.counterpart(case, op, SHAPES[dims], dtype, backward)  # raises if results differ
                    if isinstance(peer, str):
                        without.add(f"{op} {dtype}")
                    else:
                        peer.call()
                        seen.add(op)
        self.assertGreater(len(seen), 30)
        self.assertLessEqual({w.split("+")[0].split()[0] for w in without}, {"fill", "fp8_cast", "fp8_layer", "fp8_linear", "fp8_quantize", "mx4_layer", "int4_linear", "int4_embedding", "quant_linear", "quant_embedding", "norm_qkv", "norm_swiglu", "logit_rules", "sample", "chunk_attention", "document_attention", "expert_balance", "adapter_rows", "adamw", "adamw8", "sgd", "lm_head_gradient", "loss_scale", "wire_codes"})

    def test_a_wrong_result_is_seen(self):
        y = torch.ones(8)
        self.assertEqual(_bench_torch._difference(y, torch.ones(8), "x", "f32"), 0)
        self.raises(SystemExit, "differs from PyTorch", _bench_torch._difference, y, y + 1e-3, "x", "f32")
        self.raises(SystemExit, "differs from PyTorch", _bench_torch._difference, y, y * float("nan"), "x", "bf16")

    def test_the_module_answers_a_request(self):
        case = {"op": "softmax", "shape": "64x256", "dtype": "f32", "backward": False}
        cases = [case, dict(case, op="int4_linear", shape="1x64x64")]
        with tempfile.TemporaryDirectory() as folder:
            request, answer = pathlib.Path(folder, "request.json"), pathlib.Path(folder, "answer.json")
            protocol = {"rounds": 3, "target": 1e-3, "limit": 1}
            request.write_text(json.dumps({"vs": ["torch", "triton"], "threads": 2, "cases": cases, "protocol": protocol}))
            subprocess.run([sys.executable, "-W", "ignore", "-m", "hpcdl.bench", str(request), str(answer)], check=True)
            a = json.loads(answer.read_text())
        self.assertIn("--device cuda", a["missing"]["triton"])
        self.assertEqual(a["peers"]["torch"]["threads"], 2)
        self.assertIn("MALLOC_TRIM_THRESHOLD_", a["peers"]["torch"]["environment"])  # restarted in the environment in which PyTorch is fastest
        self.assertEqual(list(a["cases"][0]["ratios"]), ["torch"])
        self.assertLess(a["cases"][0]["differences"]["torch"], 1e-5)
        self.assertIn("torch", a["cases"][1]["missing"])


if __name__ == "__main__":
    unittest.main()
