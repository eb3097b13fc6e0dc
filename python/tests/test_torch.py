"""hpcdl.torch against PyTorch: values, gradients, bfloat16, strides, and errors for unsupported tensors."""

import copy
import unittest
import warnings

from common import EPS, Case, need, tolerance

torch = need("torch")
import torch.nn.functional as F

import hpcdl
import hpcdl.torch as ht

torch.manual_seed(1)


DEVICE = "cpu"
HAS_GPU = hpcdl.cuda_devices() > 0 and torch.cuda.is_available()


def rand(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


class OnGpu:
    """Repeats the tests of a class with CUDA tensors."""

    def setUp(self):
        global DEVICE
        if not HAS_GPU:
            self.skipTest("no GPU, or a module without CUDA")
        DEVICE = "cuda"

    def tearDown(self):
        global DEVICE
        DEVICE = "cpu"


class Autograd(Case):
    def agree(self, ours, theirs, tensors, length, factor=8):
        """Values and all gradients of ours(*tensors) and theirs(*doubles); the incoming gradient is random, strided."""
        dtype = next(t.dtype for t in tensors if t is not None)
        doubles = [t.detach().double().requires_grad_(t.requires_grad) if t is not None else None for t in tensors]
        y, want = ours(*tensors), theirs(*doubles)
        tol = tolerance(dtype, length, factor)
        self.close(y, want, tol, "value")
        dy = (
            torch.randn(want.shape[::-1], device=DEVICE).permute(*range(want.ndim)[::-1]).to(y.dtype)
            if want.ndim
            else torch.tensor(0.5, device=DEVICE)
        )
        wanted = [(t, d) for t, d in zip(tensors, doubles) if t is not None and t.requires_grad]
        grads = torch.autograd.grad(y, [t for t, _ in wanted], dy)
        expected = torch.autograd.grad(want, [d for _, d in wanted], dy.double())
        for i, (g, e, (t, _)) in enumerate(zip(grads, expected, wanted)):
            self.assertEqual(g.dtype, t.dtype)
            self.close(g, e, tol, f"gradient {i}")

    def each(self, check):
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                check(dtype)

    def test_softmax(self):
        self.each(
            lambda d: self.agree(
                lambda x: ht.softmax(x, scale=0.5), lambda x: torch.softmax(0.5 * x, -1), [rand(3, 5, 70, dtype=d)], 70
            )
        )
        mask = torch.full((6, 6), float("-inf"), device=DEVICE).triu(1)
        self.agree(lambda x: ht.softmax(x, causal=True), lambda x: torch.softmax(x + mask, -1), [rand(2, 6, 6)], 6)

    def test_gelu(self):
        for form in ("none", "tanh"):
            self.each(
                lambda d: self.agree(
                    lambda x: ht.gelu(x, approximate=form),
                    lambda x: F.gelu(x, approximate=form),
                    [rand(4, 33, dtype=d)],
                    1,
                )
            )
            self.each(
                lambda d: self.agree(
                    lambda x, b: ht.bias_gelu(x, b, approximate=form),
                    lambda x, b: F.gelu(x + b, approximate=form),
                    [rand(4, 33, dtype=d), rand(33, dtype=d)],
                    4,
                )
            )

    def test_norms(self):
        self.each(
            lambda d: self.agree(
                lambda *a: ht.layer_norm(*a),
                lambda x, w, b: F.layer_norm(x, (48,), w, b),
                [rand(2, 9, 48, dtype=d), rand(48, dtype=d), rand(48, dtype=d)],
                48,
            )
        )
        self.agree(
            lambda x, w: ht.layer_norm(x, w), lambda x, w: F.layer_norm(x, (48,), w), [rand(9, 48), rand(48)], 48
        )
        self.each(
            lambda d: self.agree(
                lambda *a: ht.rms_norm(*a, eps=1e-6),
                lambda x, w: F.rms_norm(x, (48,), w, 1e-6),
                [rand(2, 9, 48, dtype=d), rand(48, dtype=d)],
                48,
            )
        )

    def test_cross_entropy(self):
        t = torch.randint(0, 50, (2, 9), device=DEVICE)
        t[1, 3] = -100
        flat = lambda f: lambda x: f(x.reshape(-1, 50), t.reshape(-1))
        for reduction in ("mean", "sum"):
            self.each(
                lambda d: self.agree(
                    lambda x: ht.cross_entropy(x, t, reduction=reduction),
                    flat(lambda x, i: F.cross_entropy(x, i, reduction=reduction)),
                    [rand(2, 9, 50, dtype=d)],
                    900,
                )
            )
        x = rand(4, 50)
        self.close(
            ht.cross_entropy(x, t.reshape(-1)[:4].int()),
            F.cross_entropy(x, t.reshape(-1)[:4]),
            tolerance("float32", 200),
        )

    def test_linear(self):
        for name, act in [
            ("none", lambda z: z),
            ("relu", torch.relu),
            ("gelu", F.gelu),
            ("gelu_tanh", lambda z: F.gelu(z, approximate="tanh")),
        ]:
            self.each(
                lambda d: self.agree(
                    lambda x, w, b, r: ht.linear(x, w, b, residual=r, activation=name),
                    lambda x, w, b, r: act(F.linear(x, w, b)) + r,
                    [
                        rand(3, 4, 24, dtype=d),
                        (rand(10, 24) / 5).to(d).detach().requires_grad_(),
                        rand(10, dtype=d),
                        rand(3, 4, 10, dtype=d),
                    ],
                    24,
                    16,
                )
            )
        self.agree(lambda x, w: ht.linear(x, w), F.linear, [rand(5, 24), rand(10, 24)], 24)

    def test_packed_linear(self):
        x, w, b = torch.randn(9, 40), torch.randn(20, 40), torch.randn(20)  # only on the CPU
        for dtype in (torch.float32, torch.bfloat16):
            for weight in (w, w.to(dtype)):
                packed = hpcdl.pack_linear(weight, dtype=dtype)
                self.assertEqual(packed.dtype, str(dtype).split(".")[1])
                y = ht.linear(x.to(dtype), packed, b, activation="gelu")
                self.assertTrue(torch.equal(y, ht.linear(x.to(dtype), weight, b, activation="gelu")))
        with torch.no_grad():
            self.assertTrue(torch.equal(ht.linear(x.requires_grad_(), packed := hpcdl.pack_linear(w)), hpcdl.linear(x.detach(), w)))
        self.raises(TypeError, "gradients need the weight itself", ht.linear, x, packed)
        self.raises(TypeError, "gradients need the weight itself", hpcdl.linear_forward, x.detach(), packed)

    def test_matmul_add_relu(self):
        for c in (None, (10,), (3, 4, 10)):
            self.each(
                lambda d: self.agree(
                    ht.matmul_add_relu,
                    lambda a, b, c: torch.relu(a @ b + (0 if c is None else c)),
                    [rand(3, 4, 24, dtype=d), rand(24, 10, dtype=d), None if c is None else rand(*c, dtype=d)],
                    24,
                )
            )
        w = rand(10, 24)
        self.agree(
            lambda a, w_: ht.matmul_add_relu(a, w_.t()), lambda a, w_: torch.relu(a @ w_.t()), [rand(4, 24), w], 24
        )

    def test_mlp(self):
        for form in ("none", "tanh"):
            theirs = lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1), approximate=form), w2, b2)
            self.each(
                lambda d: self.agree(
                    lambda *a: ht.bias_gelu_mlp(*a, approximate=form),
                    theirs,
                    [
                        rand(2, 5, 16, dtype=d),
                        (rand(32, 16) / 4).to(d).detach().requires_grad_(),
                        rand(32, dtype=d),
                        (rand(8, 32) / 4).to(d).detach().requires_grad_(),
                        rand(8, dtype=d),
                    ],
                    32,
                    16,
                )
            )

    def test_attention(self):
        for causal in (False, True):
            ours = lambda q, k, v: ht.attention(q, k, v, causal=causal)
            theirs = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            self.each(
                lambda d: self.agree(
                    ours,
                    theirs,
                    [rand(2, 4, 9, 16, dtype=d), rand(2, 2, 9, 16, dtype=d), rand(2, 2, 9, 16, dtype=d)],
                    9 * 16,
                    16,
                )
            )

    def test_attention_of_a_packed_qkv(self):
        """As in a GPT: one linear, three slices, heads transposed, and back. Nothing is copied."""

        def block(attend):
            def f(qkv):
                q, k, v = (t.view(2, 9, 4, 16).transpose(1, 2) for t in qkv.split(64, -1))
                return attend(q, k, v).transpose(1, 2).reshape(2, 9, 64)

            return f

        self.agree(
            block(lambda *a: ht.attention(*a, causal=True)),
            block(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True)),
            [rand(2, 9, 192)],
            9 * 16,
        )

    def test_only_what_is_needed(self):
        x, w = rand(4, 8, grad=False), rand(5, 8)
        y = ht.linear(x, w)
        (g,) = torch.autograd.grad(y.sum(), w)
        self.close(g, torch.ones(4, 5, device=DEVICE).t() @ x, tolerance("float32", 4))

    def test_no_gradient_of_gradients(self):
        x = rand(3, 4)
        (g,) = torch.autograd.grad(ht.gelu(x).square().sum(), x, create_graph=True)
        self.raises(RuntimeError, "", torch.autograd.grad, g.sum(), x)

    def test_gradcheck(self):
        """PyTorch's own checker, with steps for float32."""
        x, w, b = rand(3, 6), rand(6), rand(6)
        warnings.filterwarnings("ignore", message="Input #")  # warns that these are not doubles
        check = lambda f, *a: self.assertTrue(torch.autograd.gradcheck(f, a, eps=2e-2, atol=2e-2, rtol=2e-2))
        check(ht.softmax, x)
        check(ht.gelu, x)
        check(ht.layer_norm, x, w, b)
        check(ht.rms_norm, x, w)
        check(lambda *a: ht.bias_gelu(*a), x, b)


class AutogradOnGpu(OnGpu, Autograd):
    pass


class Tensors(Case):
    def test_results_are_tensors(self):
        y = hpcdl.softmax(torch.randn(3, 4, dtype=torch.bfloat16))
        self.assertIs(type(y), torch.Tensor)
        self.assertEqual((y.dtype, y.requires_grad, y.is_contiguous()), (torch.bfloat16, False, True))
        y.add_(1)

    def test_out(self):
        x = torch.randn(3, 4)
        y = torch.empty(3, 4)
        self.assertIs(hpcdl.softmax(x, out=y), y)
        self.assertTrue(torch.equal(y, hpcdl.softmax(x)))

    def test_views_are_read_in_place(self):
        x = torch.randn(5, 40)
        self.close(hpcdl.softmax(x[:, 3:20]), torch.softmax(x[:, 3:20].double(), -1), tolerance("float32", 17))
        self.close(hpcdl.softmax(x[1:2, 3:20]), torch.softmax(x[1:2, 3:20].double(), -1), tolerance("float32", 17))
        self.close(hpcdl.softmax(x[0]), torch.softmax(x[0].double(), -1), tolerance("float32", 40))

    def test_parameters_under_no_grad(self):
        m = torch.nn.LayerNorm(8)
        x = torch.randn(3, 8)
        with torch.no_grad():
            self.close(hpcdl.layer_norm(x, m.weight, m.bias), m(x), tolerance("float32", 8))
        self.raises(ValueError, r"requires a gradient.*use hpcdl.torch", hpcdl.layer_norm, x, m.weight, m.bias)

    def test_tensors_without_plain_memory(self):
        for t, text in [
            (torch.zeros(3, 4).to_sparse(), "cannot be read"),
            (torch.zeros(3, 4, device="meta"), "cannot be read"),
            (torch.zeros(3, 1, dtype=torch.complex64).conj().imag, "resolve_neg"),
            (torch._neg_view(torch.ones(3, 4)), "resolve_neg"),
            (torch.zeros(3, 4).t(), "dense rows"),
        ]:
            self.raises(ValueError, text, hpcdl.softmax, t)
        for t in (torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.complex64)):
            self.raises((TypeError, ValueError), "hpcdl|softmax", hpcdl.softmax, t)

    @unittest.skipUnless(torch.cuda.is_available() and hpcdl.cuda_devices() == 0, "no GPU, or a module with CUDA")
    def test_cuda_in_a_module_without_it(self):
        self.raises(ValueError, "built without CUDA", hpcdl.softmax, torch.zeros(3, device="cuda"))

    def test_without_the_function_table(self):
        """PyTorch before 2.10 has only __dlpack__."""

        class Old(torch.Tensor):
            __dlpack_c_exchange_api__ = None

        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(3, 40).to(dtype)
            y = hpcdl.softmax(x.as_subclass(Old))
            self.assertIsInstance(y, torch.Tensor)
            self.assertTrue(torch.equal(y, hpcdl.softmax(x)))
        q = torch.randn(2, 9, 4, 16).transpose(1, 2)
        self.assertTrue(torch.equal(hpcdl.attention(*[q.as_subclass(Old)] * 3), hpcdl.attention(q, q, q)))
        self.assertEqual(hpcdl.softmax(torch.zeros(0, 4).as_subclass(Old)).shape, (0, 4))


class Optimizer(Case):
    def test_adamw(self):
        def run(kind, **options):
            torch.manual_seed(3)
            model = torch.nn.Sequential(
                torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 5), torch.nn.Linear(7, 7)
            ).to(DEVICE)
            o = kind(model.parameters(), lr=1e-2, weight_decay=0.1, **options)
            x, y = torch.randn(16, 20).to(DEVICE), torch.randn(16, 5).to(DEVICE)
            for _ in range(5):
                o.zero_grad()
                F.mse_loss(model[:3](x), y).backward()
                o.step()
            return torch.cat([p.detach().flatten() for p in model.parameters()]), o

        ours, o = run(ht.AdamW)
        theirs, _ = run(torch.optim.AdamW)
        self.close(ours, theirs, 5 * 8 * EPS["float32"] + 5 * 1e-2 * 16 * EPS["float32"])
        self.assertEqual(set(o.state_dict()), {"state", "param_groups"})
        self.raises(ValueError, "lr must be", ht.AdamW, [torch.zeros(3)], lr=-1)

    def test_adamw_goes_on_from_its_state(self):
        def go(p, o, steps):
            for i in steps:
                p.grad = torch.full_like(p, 0.1 * (i + 1))
                o.step()

        for dtype in (torch.float32, torch.bfloat16):  # torch casts loaded tensors to the type of the parameter
            torch.manual_seed(3)
            p = torch.randn(50, device=DEVICE).to(dtype)
            o = ht.AdamW([p], lr=1e-2)
            go(p, o, range(3))
            q, saved = p.clone(), copy.deepcopy(o.state_dict())
            other = ht.AdamW([q], lr=1)
            other.load_state_dict(saved)
            go(p, o, range(3, 6)), go(q, other, range(3, 6))
            self.assertTrue(torch.equal(p, q))
            self.assertEqual(saved["state"][0]["step"], 3)
            self.assertLess(saved["state"][0]["exp_avg"].max(), o.state[p]["exp_avg"].max())  # a copy was loaded


class OptimizerOnGpu(OnGpu, Optimizer):
    pass


class Int4(Case):
    def test_gradients(self):
        w = hpcdl.int4_quantize(rand(24, 64, grad=False), group=32)
        dense = hpcdl.int4_dequantize(w).double()
        for dtype in (torch.float32, torch.bfloat16):
            x, b, r = rand(2, 3, 64, dtype=dtype), rand(24, dtype=dtype), rand(2, 3, 24, dtype=dtype)
            dy = rand(2, 3, 24, dtype=dtype, grad=False)
            dx, db, dr = torch.autograd.grad(ht.int4_matmul(x, w, b, residual=r, exact=True), (x, b, r), dy)
            self.close(dx, dy.double() @ dense, tolerance(dtype, 24))
            self.close(db, dy.double().sum((0, 1)), tolerance(dtype, 6))
            self.assertTrue(torch.equal(dr, dy))
            one = [t[0, 0].detach().requires_grad_() for t in (x, r)]  # a single row
            dx, db = torch.autograd.grad(ht.int4_matmul(one[0], w, b, residual=one[1], exact=True), (one[0], b), dy[0, 0])
            self.assertEqual((dx.shape, db.shape), ((64,), (24,)))
            self.assertTrue(torch.equal(db, dy[0, 0]))

    def test_arrays_that_are_no_tensors(self):
        x = rand(3, 5, grad=False).cpu().numpy()
        self.assertTrue((ht.softmax(x) == hpcdl.softmax(x)).all())  # without gradients
        self.raises(TypeError, r"\[softmax\] x must be a NumPy array", ht.softmax, [1.0])

    def test_parts_go_through_torch(self):
        w = rand(48, 128, grad=False)
        for symmetric in (True, False):
            q = hpcdl.int4_quantize(w, group=32, symmetric=symmetric)
            self.assertEqual(
                (q.packed.dtype, q.scale.dtype, q.offset is None), (torch.uint8, torch.bfloat16, symmetric)
            )
            again = hpcdl.Int4Weight(*(None if t is None else t.clone() for t in (q.packed, q.scale, q.offset)), tiled=True)  # keeps it alive
            x = rand(3, 128, grad=False)
            self.assertTrue(torch.equal(hpcdl.int4_matmul(x, q), hpcdl.int4_matmul(x, again)))
            dense = hpcdl.int4_dequantize(q, dtype=torch.bfloat16)
            self.assertEqual(dense.dtype, torch.bfloat16)
            self.close(
                hpcdl.int4_matmul(x, q, exact=True),
                x.double() @ hpcdl.int4_dequantize(q).double().t(),
                tolerance("float32", 128),
            )


class Int4OnGpu(OnGpu, Int4):
    pass


if __name__ == "__main__":
    unittest.main()
