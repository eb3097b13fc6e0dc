"""Every op on NumPy arrays, forward and backward, against the formula in double precision."""

import math
import unittest

from common import Case, need, tolerance

np = need("numpy")
import hpcdl

rng = np.random.default_rng(1)


def randn(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def erf(x):
    return np.vectorize(math.erf)(x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x, form):
    if form == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def slope(f, x, h=1e-5):
    return (f(x + h) - f(x - h)) / (2 * h)


def gradient(f, x, h=1e-5):
    """Central differences of the scalar function f at x, in double."""
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        g[i] = (f(up) - f(down)) / (2 * h)
    return g


class Rows(Case):
    def test_softmax(self):
        for shape in [(1,), (3, 7), (2, 3, 65), (4, 1000), (0, 8)]:
            x = randn(*shape)
            y = hpcdl.softmax(x, scale=0.5)
            self.assertIs(type(y), np.ndarray)
            self.assertEqual(y.dtype, np.float32)
            if x.size:
                self.close(y, softmax(0.5 * x.astype(float)), tolerance("float32", shape[-1]))
                self.assertTrue(y.flags.c_contiguous and y.flags.writeable)

    def test_softmax_causal(self):
        x = randn(2, 5, 9)
        seen = np.arange(9)[None] <= np.arange(5)[:, None] + 9 - 5
        want = softmax(np.where(seen, x.astype(float), -np.inf))
        self.close(hpcdl.softmax(x, causal=True), want, tolerance("float32", 9))

    def test_softmax_backward(self):
        x, dy = randn(6, 33), randn(6, 33)
        y = hpcdl.softmax(x, scale=2.0)
        yd = softmax(2.0 * x.astype(float))
        want = 2.0 * yd * (dy - (yd * dy).sum(-1, keepdims=True))
        self.close(hpcdl.softmax_backward(dy, y, scale=2.0), want, tolerance("float32", 33))

    def test_gelu(self):
        x, dy, b = 3 * randn(5, 130), randn(5, 130), randn(130)
        for form in ("none", "tanh"):
            f = lambda v: gelu(v, form)
            self.close(hpcdl.gelu(x, approximate=form), f(x.astype(float)), tolerance("float32"))
            self.close(
                hpcdl.gelu_backward(dy, x, approximate=form), dy * slope(f, x.astype(float)), tolerance("float32")
            )
            xb = x.astype(float) + b
            self.close(hpcdl.bias_gelu(x, b, approximate=form), f(xb), tolerance("float32"))
            dx, db = hpcdl.bias_gelu_backward(dy, x, b, approximate=form)
            self.close(dx, dy * slope(f, xb), tolerance("float32"))
            self.close(db, (dy * slope(f, xb)).sum(0), tolerance("float32", 5))

    def test_rows_with_gaps_and_results_with_gaps(self):
        wide = randn(6, 50)
        x = wide[:, 3:20]
        self.close(hpcdl.softmax(x), softmax(x.astype(float)), tolerance("float32", 17))
        buffer = np.zeros((6, 40), np.float32)
        out = buffer[:, 5:22]
        self.assertIs(hpcdl.softmax(x, out=out), out)
        self.close(out, softmax(x.astype(float)), tolerance("float32", 17))
        self.assertEqual(np.abs(buffer[:, :5]).max() + np.abs(buffer[:, 22:]).max(), 0)

    def test_in_place(self):
        for f in (hpcdl.softmax, hpcdl.gelu):
            x = randn(5, 64)
            want = f(x)
            self.assertIs(f(x, out=x), x)
            np.testing.assert_array_equal(x, want)


class Norms(Case):
    def reference(self, x, w, b, eps):
        x = x.astype(float)
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + eps) * w + b, mean[..., 0], 1 / np.sqrt(var[..., 0] + eps)

    def test_layer_norm(self):
        x, w, b = 2 + randn(3, 7, 48), randn(48), randn(48)
        want, mean, rstd = self.reference(x, w, b, 1e-5)
        tol = tolerance("float32", 48)
        self.close(hpcdl.layer_norm(x, w, b), want, tol)
        self.close(hpcdl.layer_norm(x, w), want - b, tol)
        got = hpcdl.layer_norm_forward(x, w, b)
        for g, e in zip(got, (want, mean, rstd)):
            self.close(g, e, tol)

    def test_layer_norm_backward(self):
        x, w, b, dy = randn(3, 9), randn(9), randn(9), randn(3, 9)
        _, mean, rstd = hpcdl.layer_norm_forward(x, w, b)
        dx, dw, db = hpcdl.layer_norm_backward(dy, x, w, b, mean, rstd)
        loss = lambda x_, w_: (self.reference(x_, w_, b.astype(float), 1e-5)[0] * dy).sum()
        xd, wd = x.astype(float), w.astype(float)
        tol = tolerance("float32", 27)
        self.close(dx, gradient(lambda v: loss(v, wd), xd), tol + 1e-6)
        self.close(dw, gradient(lambda v: loss(xd, v), wd), tol + 1e-6)
        self.close(db, dy.sum(0), tol)
        only = hpcdl.layer_norm_backward(dy, x, w, None, mean, rstd, needs=(False, True, True))
        self.assertIsNone(only[0])
        self.assertIsNone(only[2])
        np.testing.assert_array_equal(only[1], dw)

    def test_rms_norm(self):
        x, w, dy = randn(4, 11), randn(11), randn(4, 11)
        f = lambda x_, w_: x_ / np.sqrt((x_**2).mean(-1, keepdims=True) + 1e-6) * w_
        tol = tolerance("float32", 44)
        xd, wd = x.astype(float), w.astype(float)
        y, rstd = hpcdl.rms_norm_forward(x, w, eps=1e-6)
        self.close(y, f(xd, wd), tol)
        np.testing.assert_array_equal(y, hpcdl.rms_norm(x, w, eps=1e-6))
        dx, dw = hpcdl.rms_norm_backward(dy, x, w, rstd)
        self.close(dx, gradient(lambda v: (f(v, wd) * dy).sum(), xd), tol + 1e-6)
        self.close(dw, gradient(lambda v: (f(xd, v) * dy).sum(), wd), tol + 1e-6)


class Loss(Case):
    def reference(self, x, t, ignore=-100):
        x, valid = x.astype(float), t != ignore
        lse = np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
        rows = (lse - np.take_along_axis(x, np.where(valid, t, 0)[..., None], -1)[..., 0]) * valid
        p = np.exp(x - lse[..., None])
        np.put_along_axis(
            p, np.where(valid, t, 0)[..., None], np.take_along_axis(p, np.where(valid, t, 0)[..., None], -1) - 1, -1
        )
        return rows.sum(), valid.sum(), p * valid[..., None], lse

    def test_cross_entropy(self):
        x = randn(2, 5, 37)
        for kind in (np.int32, np.int64):
            t = rng.integers(0, 37, (2, 5)).astype(kind)
            for ignore, skipped in [(-100, -100), (3, 3), (-1, -1)]:
                t[0, 1] = skipped
                total, count, grad, lse = self.reference(x, t, ignore)
                tol = tolerance("float32", 370)
                for reduction, share in [("mean", 1 / count), ("sum", 1)]:
                    options = {"reduction": reduction, "ignore_index": ignore}
                    loss = hpcdl.cross_entropy(x, t, **options)
                    self.assertEqual((loss.shape, loss.dtype), ((), np.float32))
                    self.close(loss, total * share, tol)
                    loss2, kept = hpcdl.cross_entropy_forward(x, t, **options)
                    self.assertEqual(loss2, loss)
                    valid = t != ignore
                    self.close(kept[valid], lse[valid], tol)
                    dx = hpcdl.cross_entropy_backward(0.5, x, t, kept, **options)
                    self.close(dx, 0.5 * grad * share, tol)
                    loss3, dx3 = hpcdl.cross_entropy_with_grad(x, t, **options)
                    self.assertEqual(loss3, loss)
                    self.close(dx3, grad * share, tol)
                t[0, 1] = 5

    def test_nothing_valid(self):
        x, t = randn(3, 5), np.full(3, -100)
        self.assertTrue(np.isnan(hpcdl.cross_entropy(x, t)))
        self.assertEqual(hpcdl.cross_entropy(x, t, reduction="sum"), 0)
        self.assertEqual(np.abs(hpcdl.cross_entropy_with_grad(x, t)[1]).max(), 0)


class Products(Case):
    def test_linear(self):
        x, w, b, r = randn(2, 3, 20), randn(7, 20), randn(7), randn(2, 3, 7)
        z = x.astype(float) @ w.T.astype(float) + b
        tol = tolerance("float32", 20)
        for name, f in [
            ("none", lambda v: v),
            ("relu", lambda v: np.maximum(v, 0)),
            ("gelu", lambda v: gelu(v, "none")),
            ("gelu_tanh", lambda v: gelu(v, "tanh")),
        ]:
            self.close(hpcdl.linear(x, w, b, activation=name), f(z), tol)
            self.close(hpcdl.linear(x, w, activation=name, residual=r), f(z - b) + r, tol)
            y, kept = hpcdl.linear_forward(x, w, b, activation=name)
            dy = randn(2, 3, 7)
            dz = dy * slope(f, z)
            dx, dw, db = hpcdl.linear_backward(dy, x, w, b, kept, activation=name)
            self.close(dx, dz @ w, tolerance("float32", 7))
            self.close(dw, dz.reshape(6, 7).T @ x.reshape(6, 20), tolerance("float32", 6))
            self.close(db, dz.sum((0, 1)), tolerance("float32", 6))

    def test_packed_linear(self):
        for rows, n, k in [(1, 5, 3), (6, 40, 70), (7, 40, 70), (33, 130, 600)]:
            x, w, b, r = randn(rows, k), randn(n, k), randn(n), randn(rows, n)
            packed = hpcdl.pack_linear(w)
            self.assertEqual((packed.shape, packed.dtype), ((n, k), "float32"))
            self.assertGreaterEqual(packed.nbytes, w.nbytes)
            by_columns = hpcdl.pack_linear(np.asfortranarray(w))
            for name in ("none", "relu", "gelu", "gelu_tanh"):
                y = hpcdl.linear(x, packed, b, residual=r, activation=name)
                plain = hpcdl.linear(x, w, b, residual=r, activation=name)
                self.close(y, plain, tolerance("float32", k))
                if rows > 6:
                    np.testing.assert_array_equal(y, plain)
                np.testing.assert_array_equal(y, hpcdl.linear(x, by_columns, b, residual=r, activation=name))
        want = hpcdl.linear(x, packed)
        w[:] = np.nan  # it is a copy
        out = np.empty_like(want)
        self.assertIs(hpcdl.linear(x, packed, out=out), out)
        np.testing.assert_array_equal(out, want)
        self.assertEqual(hpcdl.linear(x.reshape(3, 11, k), packed).shape, (3, 11, n))
        self.assertEqual(hpcdl.linear(x[:0], packed).shape, (0, n))

    def test_matmul_add_relu(self):
        a, dd = randn(2, 9, 30), randn(2, 9, 17)
        for b in (randn(30, 17), randn(17, 30).T):
            for c in (None, randn(17), randn(2, 9, 17)):
                z = a.astype(float) @ b.astype(float) + (0 if c is None else c)
                d = hpcdl.matmul_add_relu(a, b, c)
                self.close(d, np.maximum(z, 0), tolerance("float32", 30))
                dz = dd * (d > 0)
                da, db, dc = hpcdl.matmul_add_relu_backward(dd, a, b, d, c)
                self.close(da, dz @ b.T, tolerance("float32", 17))
                self.close(db, np.einsum("bmk,bmn->kn", a.astype(float), dz), tolerance("float32", 18))
                self.assertEqual(db.flags.c_contiguous, b.flags.c_contiguous)
                if c is None:
                    self.assertIsNone(dc)
                else:
                    self.close(dc, dz if c.ndim == 3 else dz.sum((0, 1)), tolerance("float32", 18))

    def test_matmul_add_relu_onto_c(self):
        a, b, c = randn(8, 5), randn(5, 6), randn(8, 6)
        want = hpcdl.matmul_add_relu(a, b, c)
        self.assertIs(hpcdl.matmul_add_relu(a, b, c, out=c), c)
        np.testing.assert_array_equal(c, want)

    def test_mlp(self):
        x, w1, b1, w2, b2, dy = randn(5, 12), randn(24, 12), randn(24), randn(8, 24), randn(8), randn(5, 8)
        for form in ("none", "tanh"):
            z = x.astype(float) @ w1.T + b1
            h = gelu(z, form)
            y, kept_h, kept_z = hpcdl.bias_gelu_mlp_forward(x, w1, b1, w2, b2, approximate=form)
            tol = tolerance("float32", 24)
            self.close(y, h @ w2.T + b2, tol)
            np.testing.assert_array_equal(y, hpcdl.bias_gelu_mlp(x, w1, b1, w2, b2, approximate=form))
            dh = dy.astype(float) @ w2
            dz = dh * slope(lambda v: gelu(v, form), z)
            got = hpcdl.bias_gelu_mlp_backward(dy, x, w1, b1, w2, b2, kept_h, kept_z, approximate=form)
            for g, e in zip(got, (dz @ w1, dz.T @ x, dz.sum(0), dy.T @ h, dy.sum(0))):
                self.close(g, e, tol)


class Attention(Case):
    def reference(self, q, k, v, causal, scale):
        """(B, H, T, D) in double."""
        q, k, v = (t.astype(float) for t in (q, k, v))
        k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
        s = scale * q @ k.swapaxes(-1, -2)
        if causal:
            t, n = s.shape[-2:]
            s = np.where(np.arange(n)[None] <= np.arange(t)[:, None] + n - t, s, -np.inf)
        return softmax(s) @ v

    def test_layouts(self):
        q, k, v = randn(2, 4, 9, 16), randn(2, 2, 13, 16), randn(2, 2, 13, 16)
        turn = lambda t: t.transpose(0, 2, 1, 3)
        flat = lambda t: np.ascontiguousarray(turn(t)).reshape(2, t.shape[2], -1)
        for causal in (False, True):
            for scale in (None, 0.3):
                want = self.reference(q, k, v, causal, scale or 0.25)
                options = {"causal": causal, "scale": scale}
                tol = tolerance("float32", 13 * 16)
                self.close(hpcdl.attention(q, k, v, **options), want, tol)
                self.close(turn(hpcdl.attention(turn(q), turn(k), turn(v), layout="bthd", **options)), want, tol)
                self.close(hpcdl.attention(flat(q), flat(k), flat(v), heads=4, **options), flat(want), tol)

    def test_result_lies_as_q_does(self):
        q = np.ascontiguousarray(randn(2, 9, 4, 16)).transpose(0, 2, 1, 3)
        y = hpcdl.attention(q, q, q)
        self.assertEqual(y.strides, q.strides)
        self.close(y, self.reference(q, q, q, False, 0.25), tolerance("float32", 9 * 16))

    def test_backward(self):
        q, k, v, dy = randn(1, 2, 3, 4), randn(1, 1, 4, 4), randn(1, 1, 4, 4), randn(1, 2, 3, 4)
        y, lse = hpcdl.attention_forward(q, k, v, causal=True)
        got = hpcdl.attention_backward(dy, q, k, v, y, lse, causal=True)
        args = [t.astype(float) for t in (q, k, v)]
        for i, g in enumerate(got):
            f = lambda t: (self.reference(*args[:i], t, *args[i + 1 :], True, 0.5) * dy).sum()
            self.close(g, gradient(f, args[i]), tolerance("float32", 32) + 1e-6)
        self.assertEqual(
            [g is None for g in hpcdl.attention_backward(dy, q, k, v, y, lse, causal=True, needs=(True, False, False))],
            [False, True, True],
        )


class Optimizer(Case):
    def test_adamw(self):
        shapes = [(3, 5), (7,), (20000,)]
        p, g, m, v = ([randn(*s) for s in shapes] for _ in range(4))
        v = [np.abs(t) for t in v]
        want = [t.astype(float) for t in p]
        wm, wv = [0.9 * a.astype(float) + 0.1 * b for a, b in zip(m, g)], [
            0.99 * a.astype(float) + 0.01 * b.astype(float) ** 2 for a, b in zip(v, g)
        ]
        for i in range(3):
            decay = 0 if i == 1 else 0.1
            want[i] = want[i] * (1 - 0.01 * decay) - 0.01 * (wm[i] / (1 - 0.9**3)) / (
                np.sqrt(wv[i] / (1 - 0.99**3)) + 1e-8
            )
        hpcdl.adamw(p, g, m, v, lr=0.01, step=3, betas=(0.9, 0.99), weight_decay=0.1, decay=[True, False, True])
        for got, expected in zip(p + m + v, want + wm + wv):
            self.close(got, expected, tolerance("float32"))


if __name__ == "__main__":
    unittest.main()
