"""4-bit weights on NumPy arrays."""

import unittest

from common import Case, need, tolerance

np = need("numpy")
import hpcdl

rng = np.random.default_rng(4)


class Int4(Case):
    def test_pack_and_back(self):
        for n, k in [(1, 8), (16, 32), (19, 64), (0, 8)]:
            q = rng.integers(0, 16, (n, k)).astype(np.uint8)
            packed = hpcdl.int4_pack(q)
            self.assertEqual((packed.shape, packed.dtype), ((n, k // 2), np.uint8))
            np.testing.assert_array_equal(hpcdl.int4_unpack(packed), q)
            out = np.empty_like(q)
            self.assertIs(hpcdl.int4_unpack(packed, out=out), out)

    def test_quantize(self):
        w = rng.standard_normal((33, 128)).astype(np.float32)
        for group in (32, 64, 128):
            for symmetric in (True, False):
                q = hpcdl.int4_quantize(w, group=group, symmetric=symmetric, search=False)
                self.assertEqual((q.shape, q.group, q.symmetric), ((33, 128), group, symmetric))
                dense = hpcdl.int4_dequantize(q)
                # The error of every weight is at most half a step (and the rounding of the scale to bfloat16).
                blocks, error = w.reshape(33, -1, group), np.abs(dense - w).reshape(33, -1, group)
                span = np.abs(blocks).max(-1) / 7.5 if symmetric else np.ptp(blocks, -1) / 15
                self.assertLessEqual((error.max(-1) / span).max(), 0.5 * 16 / 15 + 8 * 2.0**-8)
                self.assertLess(q.relative_error, 0.15)
                self.assertLessEqual(
                    hpcdl.int4_quantize(w, group=group, symmetric=symmetric).relative_error, q.relative_error
                )
                self.assertEqual(q.nbytes, 33 * 64 + 33 * 128 // group * 2 * (1 if symmetric else 2))

    def test_matmul(self):
        x, b, r = (rng.standard_normal(s).astype(np.float32) for s in ((3, 128), (40,), (3, 40)))
        q = hpcdl.int4_quantize(rng.standard_normal((40, 128)).astype(np.float32), group=32, symmetric=False)
        w = hpcdl.int4_dequantize(q).astype(float)
        exact = hpcdl.int4_matmul(x, q, b, residual=r, activation="relu", exact=True)
        self.close(exact, np.maximum(x @ w.T + b, 0) + r, tolerance("float32", 128))
        steps = np.abs(x.reshape(3, 4, 32)).max(-1) / 127
        bound = (steps[:, None] / 2 * np.abs(w).reshape(1, 40, 4, 32).sum(-1)).sum(-1)
        error = np.abs(hpcdl.int4_matmul(x, q, b) - (x @ w.T + b))
        self.assertLessEqual((error - bound).max(), 1e-4)
        self.assertGreater(error.max(), 0)

    def test_weights_of_ones_own(self):
        for n in (3, 16, 37):
            for group in (32, 64):
                q = rng.integers(0, 16, (n, 128)).astype(np.uint8)
                scale, offset = (rng.standard_normal((n, 128 // group)).astype(np.float32) for _ in range(2))
                near = lambda a: np.repeat((a.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32), group, 1).astype(float)
                want = near(scale) * (q.astype(float) - 8)
                self.close(hpcdl.int4_dequantize(hpcdl.Int4Weight(hpcdl.int4_pack(q), scale)), want, 2.0**-20)
                both = hpcdl.Int4Weight(hpcdl.int4_pack(q), scale, offset)
                self.close(hpcdl.int4_dequantize(both), want + near(offset), 2.0**-20)
                x = rng.standard_normal((2, 128)).astype(np.float32)
                self.close(
                    hpcdl.int4_matmul(x, both, exact=True), x @ (want + near(offset)).T, tolerance("float32", 128)
                )

    def test_parts(self):
        q = hpcdl.int4_quantize(rng.standard_normal((20, 64)).astype(np.float32), symmetric=False)
        again = hpcdl.Int4Weight(q.packed, q.scale, q.offset, tiled=True)  # float32 scales are exact here, and rounded back
        np.testing.assert_array_equal(hpcdl.int4_dequantize(again), hpcdl.int4_dequantize(q))
        packed = q.packed
        self.assertFalse(packed.flags.writeable)
        self.assertIsNone(again.relative_error)
        want = packed.copy()
        del q, again
        np.testing.assert_array_equal(packed, want)


if __name__ == "__main__":
    unittest.main()
