"""Every op over views of 3 to 6 dims with dims of one, gaps, expanded and transposed dims and negative steps.

For any view, an op gives the same result as for a copy of it, or raises a clear error; `out=` writes the
elements of the view and no others. A larger run: test_views.py cases=5000 seed=7 (views of each op)."""

import sys
import unittest

from common import Case, need

np = need("numpy")
import hpcdl

try:
    import torch

    import hpcdl.torch as ht
except ImportError:
    torch = None


def option(name, otherwise):
    for given in sys.argv[1:]:
        if given.startswith(name + "="):
            sys.argv.remove(given)
            return int(given.split("=")[1])
    return otherwise


CASES = option("cases", 60)
rng = np.random.default_rng(option("seed", 1))


def lead():
    """Some dims above the columns, many of them one."""
    return tuple(int(rng.choice([1, 1, 2, 3])) for _ in range(rng.integers(2, 6)))


def parent(shape, dense):
    """A view of `shape` in memory that is NaN around it, and that memory. dense: rows that kernels take."""
    order = list(range(len(shape)))
    if not dense and rng.random() < 0.3:
        rng.shuffle(order)
    gap_at = int(rng.integers(0, len(shape))) if rng.random() < 0.7 else -1
    outer, cut = [], []
    for i in order:
        n, extra, step = shape[i], 0, 1
        if i == gap_at or (not dense and rng.random() < 0.2):
            extra = int(rng.integers(1, 4))
            if not dense and rng.random() < 0.3:
                step = int(rng.choice([-1, 2]))
        start = int(rng.integers(0, extra + 1))
        size = (n - 1) * abs(step) + 1 + extra
        outer.append(size)
        first = start if step > 0 else start + n - 1
        stop = first + step * n
        cut.append(slice(first, stop if stop >= 0 else None, step))
    memory = np.full(outer, np.nan, np.float32)
    view = memory[tuple(cut)].transpose(np.argsort(order))
    assert view.shape == tuple(shape), (view.shape, shape)
    return view, memory


def view_of(shape):
    view, _ = parent(shape, rng.random() < 0.6)
    if rng.random() < 0.15:  # some dims of it are one element, repeated
        cut = tuple(slice(0, 1) if rng.random() < 0.3 else slice(None) for _ in shape)
        view[...] = rng.standard_normal(shape)
        return np.broadcast_to(view[cut], shape)
    view[...] = rng.standard_normal(shape)
    return view


def ops():
    """name: (shapes of inputs that may be views, shapes of results, function of inputs and out). Drawn again each time."""
    top, c = lead(), int(rng.choice([1, 3, 8, 17, 130]))
    x, rows = (*top, c), top
    n, k = int(rng.choice([1, 5, 16])), c
    r = {
        "softmax": ([x], [x], lambda a, out: hpcdl.softmax(*a, out=out)),
        "softmax_backward": ([x, x], [x], lambda a, out: hpcdl.softmax_backward(*a, out=out)),
        "gelu": ([x], [x], lambda a, out: hpcdl.gelu(*a, out=out)),
        "gelu_backward": ([x, x], [x], lambda a, out: hpcdl.gelu_backward(*a, out=out)),
        "bias_gelu": ([x, (c,)], [x], lambda a, out: hpcdl.bias_gelu(*a, out=out)),
        "bias_gelu_backward": ([x, x, (c,)], [x, (c,)], lambda a, out: hpcdl.bias_gelu_backward(*a, out=out)),
        "layer_norm": ([x, (c,), (c,)], [x, rows, rows], lambda a, out: hpcdl.layer_norm_forward(*a, out=out)),
        "layer_norm_backward": (
            [x, x, (c,), (c,), rows, rows],
            [x, (c,), (c,)],
            lambda a, out: hpcdl.layer_norm_backward(*a, out=out),
        ),
        "rms_norm": ([x, (c,)], [x, rows], lambda a, out: hpcdl.rms_norm_forward(*a, out=out)),
        "rms_norm_backward": ([x, x, (c,), rows], [x, (c,)], lambda a, out: hpcdl.rms_norm_backward(*a, out=out)),
        "linear": (
            [x, (n, k), (n,), (*top, n)],
            [(*top, n)],
            lambda a, out: hpcdl.linear(*a[:3], residual=a[3], out=out),
        ),
        "linear_forward": (
            [x, (n, k), (n,)],
            [(*top, n), (*top, n)],
            lambda a, out: hpcdl.linear_forward(*a, activation="gelu", out=out),
        ),
        "linear_backward": (
            [(*top, n), x, (n, k), (n,)],
            [x, (n, k), (n,)],
            lambda a, out: hpcdl.linear_backward(*a, out=out),
        ),
        "packed": ([x, (n, k)], [(*top, n)], lambda a, out: hpcdl.linear(a[0], hpcdl.pack_linear(a[1]), out=out)),
        "matmul_add_relu": (
            [x, (k, n), (*top, n)],
            [(*top, n)],
            lambda a, out: hpcdl.matmul_add_relu(*a, out=out),
        ),
        "matmul_add_relu_backward": (
            [(*top, n), x, (k, n), (*top, n), (*top, n)],
            [x, (k, n), (*top, n)],
            lambda a, out: hpcdl.matmul_add_relu_backward(*a, out=out),
        ),
        "bias_gelu_mlp": (
            [x, (n, k), (n,), (7, n), (7,)],
            [(*top, 7), (*top, n), (*top, n)],
            lambda a, out: hpcdl.bias_gelu_mlp_forward(*a, out=out),
        ),
        "bias_gelu_mlp_backward": (
            [(*top, 7), x, (n, k), (n,), (7, n), (7,), (*top, n), (*top, n)],
            [x, (n, k), (n,), (7, n), (7,)],
            lambda a, out: hpcdl.bias_gelu_mlp_backward(*a, out=out),
        ),
        "cross_entropy": ([x], [], lambda a, out: hpcdl.cross_entropy_forward(a[0], targets(top, c))),
        "cross_entropy_backward": (
            [x, rows],
            [x],
            lambda a, out: hpcdl.cross_entropy_backward(1.5, a[0], targets(top, c), a[1], out=out),
        ),
    }
    b, t, h, g = (int(rng.choice([1, 2, 3])) for _ in range(4))
    q, kv = (b, h * g, t, 8), (b, g, t + 1, 8)
    lse = (b, h * g, t)
    r["attention"] = ([q, kv, kv], [q, lse], lambda a, out: hpcdl.attention_forward(*a, causal=False, out=out))
    r["attention_backward"] = (
        [q, q, kv, kv, q, lse],
        [q, kv, kv],
        lambda a, out: hpcdl.attention_backward(*a, causal=False, out=out),
    )
    return r


def targets(top, c):
    return np.arange(int(np.prod(top)), dtype=np.int64).reshape(top) * 7 % c


def several(result):
    return list(result) if isinstance(result, tuple) else [result]


class Views(Case):
    taken = refused = 0

    def call(self, f, inputs, out=None):
        """The results, or None if the views are refused with a clear error."""
        try:
            result = several(f(inputs, out))
        except ValueError as e:
            self.assertRegex(str(e), r"dense rows|contiguous|share memory|stored by (rows|columns)|overlaps")
            Views.refused += 1
            return None
        Views.taken += 1
        return result

    def same(self, got, want, what):
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4, err_msg=what, equal_nan=False)

    def try_op(self, name, make):
        for _ in range(CASES):
            shapes, results, f = make()[name]
            # One input at a time is a view, or all: the refusal of one would hide the others.
            which = int(rng.integers(0, len(shapes) + 1))
            plain = [rng.standard_normal(s).astype(np.float32) for s in shapes]
            views = [view_of(s) if which in (i, len(shapes)) else p for i, (s, p) in enumerate(zip(shapes, plain))]
            copies = [np.array(v, order="C") for v in views]
            want = several(f(copies, None))
            what = f"{name}: {[(v.shape, v.strides) for v in views]}"
            got = self.call(f, views)
            if got is not None:
                self.same(got, want, what)
            if not results:
                continue
            which = int(rng.integers(0, len(results)))
            view, memory = parent(results[which], rng.random() < 0.6)
            view[...] = 7
            before = memory.copy()
            out = view if len(results) == 1 else tuple(view if i == which else None for i in range(len(results)))
            what = f"{name}, out[{which}]: {view.shape}, {view.strides}"
            got = self.call(f, copies, out)
            if got is not None:
                self.same(got, want, what)
                self.same([view], [want[which]], what)
                view[...] = 7
            np.testing.assert_array_equal(memory, before, err_msg=what + ": memory next to it was written")

    def test_every_function_is_here(self):
        here = " ".join(ops()) + " attention_forward cross_entropy_forward cross_entropy_with_grad adamw"
        for name in dir(hpcdl):
            if name.endswith("_backward"):
                self.assertIn(name, here)

    def test_slices_of_one(self):
        big = rng.standard_normal((4, 3, 1, 8)).astype(np.float32)
        x = big[:, :1]  # rows at one distance, three of the whole
        np.testing.assert_array_equal(hpcdl.softmax(x), hpcdl.softmax(x.copy()))
        out = np.full_like(big, 7)
        hpcdl.gelu(x.copy(), out=out[:, :1])
        np.testing.assert_array_equal(out[:, :1], hpcdl.gelu(x.copy()))
        self.assertTrue((out[:, 1:] == 7).all())
        big = np.full((4, 3, 5, 8), 7, np.float32)  # rows at two distances
        self.raises(ValueError, "dense rows at a constant distance", hpcdl.softmax, big[:, :1])
        self.raises(ValueError, "dense rows", hpcdl.gelu, big[:, :1].copy(), out=big[:, :1])
        self.assertTrue((big == 7).all())
        many = np.broadcast_to(big[:1, :1], (200000, 1, 5, 8))
        self.raises(ValueError, "dense rows", hpcdl.softmax, many)

    def test_statistics_have_their_own_places(self):
        x = rng.standard_normal((3, 4, 8)).astype(np.float32)
        w = np.ones(8, np.float32)
        big = np.full((3, 9), 7, np.float32)
        self.raises(ValueError, "contiguous", hpcdl.layer_norm_forward, x, w, None, out=(None, big[:, :4], None))
        self.raises(ValueError, "contiguous", hpcdl.rms_norm_forward, x, w, out=(None, big[:, :4]))
        self.assertTrue((big == 7).all())

    def test_elements_that_share_memory(self):
        x = rng.standard_normal((4, 3, 5, 8)).astype(np.float32)
        line = np.zeros(400, np.float32)
        windows = np.lib.stride_tricks.as_strided(line, (1, 2, 5, 8), (0, 32, 8, 4))
        q = x[:1, :2]
        self.raises(ValueError, "share memory", hpcdl.attention, q, q, q, out=windows)


def add_tests():
    for name in ops():
        setattr(Views, f"test_{name}", lambda self, name=name: self.try_op(name, ops))


add_tests()


def tearDownModule():
    assert CASES < 50 or Views.taken > Views.refused > 0, (Views.taken, Views.refused)


@unittest.skipIf(torch is None, "no PyTorch")
class Torch(Case):
    """The same, for autograd: inputs and upstream gradients are views."""

    def grads(self, f, inputs, up):
        leaves = [i.detach().requires_grad_() for i in inputs]
        y = f(*leaves)
        y.backward(up)
        return [y, *(leaf.grad for leaf in leaves)]

    def view(self, shape):
        return torch.from_numpy(view_of(shape).copy()) if rng.random() < 0.3 else self.strided(shape)

    def strided(self, shape):
        wide = torch.randn(*(n + int(rng.integers(0, 3)) for n in shape[:-1]), shape[-1])
        v = wide[tuple(slice(0, n) for n in shape)]
        return v[:1].expand(shape) if rng.random() < 0.2 else v

    def test_gradients(self):
        for _ in range(CASES):
            top, c = lead(), int(rng.choice([1, 3, 8, 17]))
            x, n = (*top, c), int(rng.choice([1, 5, 16]))
            w, b, m = torch.randn(c), torch.randn(c), torch.randn(n, c)
            for name, f, shape in [
                ("softmax", ht.softmax, x),
                ("gelu", ht.gelu, x),
                ("bias_gelu", lambda v: ht.bias_gelu(v, b), x),
                ("layer_norm", lambda v: ht.layer_norm(v, w, b), x),
                ("rms_norm", lambda v: ht.rms_norm(v, w), x),
                ("linear", lambda v: ht.linear(v, m), (*top, n)),
                ("matmul_add_relu", lambda v: ht.matmul_add_relu(v, m.T.contiguous()), (*top, n)),
            ]:
                given, up = self.view(x), self.view(shape)
                want = self.grads(f, [given.clone(memory_format=torch.contiguous_format)], up.contiguous().clone())
                try:
                    got = self.grads(f, [given], up)
                except ValueError as e:
                    self.assertRegex(str(e), "dense rows|contiguous")
                    continue
                for a, e in zip(got, want):
                    self.close(a, e.numpy(force=True), 2e-4, f"{name} {given.shape} {given.stride()} {up.stride()}")

    def test_expanded_rows_in_great_number(self):
        x = torch.randn(1, 1, 64, 64).expand(200000, 1, 64, 64)
        self.raises(ValueError, "dense rows", hpcdl.softmax, x)


if __name__ == "__main__":
    unittest.main()
