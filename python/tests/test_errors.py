"""Bad input: always a ValueError or TypeError that says what was expected and found, never a crash."""

import inspect
import random
import re
import unittest

from common import Case, need

np = need("numpy")
import hpcdl

f32 = np.float32


def ones(*shape, dtype=f32):
    return np.ones(shape, dtype)


class Words(Case):
    def test_element_types(self):
        for dtype in (np.float64, np.float16, np.int32, np.complex64, bool):
            self.raises(
                TypeError,
                r"\[softmax\] x must be float32 or bfloat16, got|no kernel supports",
                hpcdl.softmax,
                ones(3, dtype=dtype),
            )
        self.raises(TypeError, "no kernel supports", hpcdl.softmax, np.array(["a", "b"]))
        self.raises(TypeError, "no kernel supports", hpcdl.softmax, np.ones(3, np.dtype(">f4")))
        self.raises(TypeError, "no kernel supports", hpcdl.softmax, np.array([object()]))
        self.raises(
            TypeError,
            r"\[cross_entropy\] targets must be int32 or int64, got F32",
            hpcdl.cross_entropy,
            ones(2, 3),
            ones(2),
        )

    def test_not_an_array(self):
        for thing in (1.0, [1.0], "x", object(), {}):
            self.raises(TypeError, r"\[softmax\] x", hpcdl.softmax, thing)
        self.raises(TypeError, r"\[softmax\] x must be a NumPy array.*, got None$", hpcdl.softmax, None)
        self.raises(TypeError, r'got list: pass numpy.array\(..., "float32"\)$', hpcdl.softmax, [1.0])
        self.raises(TypeError, "masked", hpcdl.softmax, np.ma.masked_array(ones(3), [0, 1, 0]))

    def test_shapes(self):
        self.raises(ValueError, r"at least one dimension", hpcdl.softmax, np.array(1, f32))
        self.raises(ValueError, r"at most 6 dimensions, got 7", hpcdl.softmax, ones(1, 1, 1, 1, 1, 1, 2))
        self.raises(ValueError, r"weight must have shape \(4\), got F32 \(5\)", hpcdl.layer_norm, ones(3, 4), ones(5))
        self.raises(ValueError, r"rows must not be empty", hpcdl.layer_norm, ones(3, 0), ones(0))
        self.raises(ValueError, r"weight must be \(N, 4\).*F32 \(4, 3\)", hpcdl.linear, ones(2, 4), ones(4, 3))
        self.raises(
            ValueError, r"expected a \(..., M, K\) and b \(K, N\)", hpcdl.matmul_add_relu, ones(2, 4), ones(3, 4)
        )
        self.raises(
            ValueError,
            r"c must be \(3\) or \(2, 3\), got F32 \(2\)",
            hpcdl.matmul_add_relu,
            ones(2, 4),
            ones(4, 3),
            ones(2),
        )
        self.raises(ValueError, r"causal needs", hpcdl.softmax, ones(4, 3), causal=True)
        self.raises(
            ValueError, r"k does not fit q", hpcdl.attention, ones(1, 2, 3, 4), ones(1, 2, 3, 5), ones(1, 2, 3, 5)
        )
        self.raises(ValueError, r"head dim must be 1 .. 256", hpcdl.attention, *[ones(1, 1, 2, 257)] * 3)
        self.raises(TypeError, r"pass heads=H", hpcdl.attention, *[ones(1, 2, 8)] * 3)
        self.raises(ValueError, r"heads must divide", hpcdl.attention, *[ones(1, 2, 8)] * 3, heads=3)
        self.raises(ValueError, r"scale must be positive", hpcdl.attention, *[ones(1, 1, 2, 8)] * 3, scale=-1.0)
        self.raises(
            ValueError, r"dy must be F32 \(3, 4\), got F32 \(4, 3\)", hpcdl.softmax_backward, ones(4, 3), ones(3, 4)
        )

    def test_packed(self):
        packed = hpcdl.pack_linear(ones(3, 4))
        self.raises(ValueError, r"weight must be \(N, 5\).*F32 \(3, 4\)", hpcdl.linear, ones(2, 5), packed)
        self.raises(ValueError, r"bias must have shape \(3\), got F32 \(4\)", hpcdl.linear, ones(2, 4), packed, ones(4))
        half = hpcdl.pack_linear(ones(3, 4), dtype="bfloat16")
        self.raises(ValueError, r"packed for x of BF16, got F32 \(2, 4\)", hpcdl.linear, ones(2, 4), half)
        self.raises(ValueError, r"w must be \(N, K\), got F32 \(4\)", hpcdl.pack_linear, ones(4))
        self.raises(ValueError, r"not empty, got F32 \(0, 4\)", hpcdl.pack_linear, ones(0, 4))
        self.raises(TypeError, r"dtype must be float32 or bfloat16 on the CPU, got float16", hpcdl.pack_linear, ones(3, 4), dtype="float16")
        self.raises(TypeError, r"w must be float32 or bfloat16, got F64", hpcdl.pack_linear, np.ones((3, 4)))
        self.raises(TypeError, r"gradients need the weight itself", hpcdl.linear_forward, ones(2, 4), packed)
        self.raises(TypeError, r"got .*PackedWeight", hpcdl.linear_backward, ones(2, 3), ones(2, 4), packed)

    def test_strides(self):
        x = ones(6, 8)
        for bad in (x.T, x[:, ::2], x[::-1], np.broadcast_to(ones(8), (4, 8))[:, ::-1]):
            self.raises(ValueError, r"dense rows.*strides.*contiguous\(\)", hpcdl.softmax, bad)
        self.raises(ValueError, r"weight.*be contiguous", hpcdl.layer_norm, x, ones(16)[::2])
        raw = np.frombuffer(bytearray(41), np.uint8)[1:]
        self.raises(ValueError, r"does not start at a multiple|not a multiple", hpcdl.softmax, raw.view(f32))

    def test_out(self):
        x = ones(4, 6)
        self.raises(ValueError, r"out must be F32 \(4, 6\), got F32 \(4, 5\)", hpcdl.softmax, x, out=ones(4, 5))
        self.raises(TypeError, r"out must be F32 \(4, 6\), got F64", hpcdl.softmax, x, out=np.ones((4, 6)))
        locked = ones(4, 6)
        locked.flags.writeable = False
        self.raises(ValueError, r"out is read-only", hpcdl.softmax, x, out=locked)
        self.raises(
            ValueError,
            r"out.*dense rows|broadcast",
            hpcdl.softmax,
            x,
            out=np.lib.stride_tricks.as_strided(ones(6), (4, 6), (0, 4)),
        )
        big = ones(5, 6)
        self.raises(ValueError, r"out overlaps x", hpcdl.softmax, big[:4], out=big[1:])
        w = ones(6)
        self.raises(ValueError, r"out overlaps x", hpcdl.layer_norm, x, w, out=x)
        self.raises(
            ValueError,
            r"out\[1\] overlaps out\[0\]",
            hpcdl.bias_gelu_backward,
            ones(1, 6),
            ones(1, 6),
            w,
            out=(big[:1], big[0]),
        )
        self.raises(ValueError, r"out must have 3 entries, got 2", hpcdl.layer_norm_forward, x, w, out=(None, None))
        self.raises(TypeError, r"out must be None or a tuple of 3", hpcdl.layer_norm_forward, x, w, out=x)
        self.raises(ValueError, r"needs must have 2 entries", hpcdl.rms_norm_backward, x, x, w, ones(4), needs=(True,))

    def test_words(self):
        self.raises(
            ValueError,
            r'approximate must be one of "none", "tanh", got "fast"',
            hpcdl.gelu,
            ones(3),
            approximate="fast",
        )
        self.raises(TypeError, r"approximate must be one of", hpcdl.gelu, ones(3), approximate=1)
        self.raises(
            ValueError,
            r'reduction must be one of "mean", "sum"',
            hpcdl.cross_entropy,
            ones(2, 3),
            np.zeros(2, np.int64),
            reduction="none",
        )
        self.raises(ValueError, r"activation must be one of", hpcdl.linear, ones(2, 3), ones(2, 3), activation="\0")
        self.raises(TypeError, r"\[gelu\] approximate must be one of .*, got int$", hpcdl.gelu, ones(3), approximate=1)
        self.raises(TypeError, r"\[softmax\] scale must be a number, got str$", hpcdl.softmax, ones(3), scale="1")
        self.raises(TypeError, r"causal must be True or False, got None$", hpcdl.softmax, ones(3), causal=None)
        self.raises(TypeError, r"incompatible function arguments", hpcdl.softmax, ones(3), skale=1)

    def test_every_wrong_type_is_told_in_our_words(self):
        """The error says what was expected and found, not that no overload accepts it."""
        for name in hpcdl.__all__:
            f = getattr(hpcdl, name)
            if not hasattr(f, "__nb_signature__"):
                continue
            parameters = f.__nb_signature__[0][0].split("(", 1)[1].rsplit(") ->", 1)[0]
            named = re.findall(r"(\w+): ", parameters)
            if not named:
                continue
            first = parameters.split("*")[0].count(": ")
            self.assertGreater(first, 0, name)
            for wrong in (None, object(), "?", 10**400):
                for keyword in [None, *named[first:]]:
                    extra = {} if keyword is None else {keyword: wrong}
                    if name == "adamw":
                        extra = {"lr": wrong, "step": wrong, **extra}
                    with self.assertRaises((TypeError, ValueError)) as caught:
                        f(*[wrong] * first, **extra)
                    self.assertTrue(str(caught.exception).startswith("["), f"{name}: {caught.exception}")

    def test_targets(self):
        for t, found in [(5, "got 5 at position 1"), (-1, "got -1 at position 1")]:
            for kind in (np.int32, np.int64):
                self.raises(
                    ValueError,
                    rf"targets must be 0 .. 4 or ignore_index -100, {found}",
                    hpcdl.cross_entropy,
                    ones(2, 5),
                    np.array([0, t], kind),
                )
        self.raises(ValueError, r"targets must be I32 \(2\)", hpcdl.cross_entropy, ones(2, 5), np.zeros(3, np.int64))

    def test_optimizer(self):
        p = lambda: [ones(3)]
        self.raises(
            ValueError,
            r"grads must have as many entries as params, 1, got 2",
            hpcdl.adamw,
            p(),
            p() * 2,
            p(),
            p(),
            lr=1.0,
            step=1,
        )
        self.raises(ValueError, r"gradient must have shape", hpcdl.adamw, p(), [ones(4)], p(), p(), lr=1.0, step=1)
        self.raises(ValueError, r"step must be at least 1", hpcdl.adamw, p(), p(), p(), p(), lr=1.0, step=0)
        self.raises(ValueError, r"betas", hpcdl.adamw, p(), p(), p(), p(), lr=1.0, step=1, betas=(0.9, 1.0))
        twice = ones(3)
        self.raises(
            ValueError,
            "listed twice",
            hpcdl.adamw,
            [twice, twice],
            *[[ones(3), ones(3)] for _ in range(3)],
            lr=1.0,
            step=1,
        )
        self.raises(TypeError, r"list or tuple of arrays, got .*ndarray", hpcdl.adamw, ones(3), p(), p(), p(), lr=1.0, step=1)
        self.raises(TypeError, r"betas\[0\] must be a number, got str", hpcdl.adamw, p(), p(), p(), p(), lr=1.0, step=1, betas=["a", 0])

    def test_int4(self):
        w = ones(4, 64)
        self.raises(
            ValueError,
            r"int4_quantize: group size 64 does not divide its K = 48",
            hpcdl.int4_quantize,
            ones(4, 48),
            group=64,
        )
        self.raises(ValueError, r"\(N, K\)", hpcdl.int4_quantize, ones(64))
        w[1, 2] = np.nan
        self.raises(ValueError, r"w", hpcdl.int4_quantize, w)
        q = hpcdl.int4_quantize(ones(4, 64))
        self.raises(ValueError, r"needs 64|weights need 64", hpcdl.int4_matmul, ones(2, 32), q)
        self.raises(TypeError, r"weight must be an Int4Weight, got .*ndarray: make one", hpcdl.int4_matmul, ones(2, 64), ones(4, 64))
        self.raises(TypeError, r"group must be an integer.*, got float", hpcdl.int4_quantize, w, group=0.5)
        self.raises(ValueError, "0 .. 15", hpcdl.int4_pack, np.full((2, 8), 16, np.uint8))
        self.raises(ValueError, "multiple of 8", hpcdl.int4_pack, np.zeros((2, 7), np.uint8))
        self.raises(ValueError, "scales", hpcdl.Int4Weight, q.packed, ones(4, 3))

    def test_runtime(self):
        self.raises(ValueError, "1 .. 1024", hpcdl.set_threads, -1)
        self.raises(ValueError, "number of bytes", hpcdl.set_cache_limit, -1)
        self.raises(ValueError, "expected op=way, such as attention=cudnn", hpcdl.set_ways, "cudnn")
        self.raises(ValueError, "there is only one way to compute \"relu\": the ops with several are attention, conv2d", hpcdl.set_ways, "relu=own")
        self.raises(TypeError, "ways must be a string.*, got int", hpcdl.set_ways, 3)
        hpcdl.set_ways("attention=own")
        hpcdl.set_ways("")
        self.raises(TypeError, r"\[set_threads\] n must be an integer.*, got str", hpcdl.set_threads, "2")
        self.raises(TypeError, r"bytes must be an integer.*, got int", hpcdl.set_cache_limit, 10**30)


class LyingProducer:
    """A DLPack producer that returns invalid data."""

    def __init__(self, result):
        self.result = result

    def __dlpack__(self, **_):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def __dlpack_device__(self):
        return (1, 0)


class Fuzz(Case):
    """Random arguments for every function: it returns, or raises one of the two errors."""

    KINDS = (np.float64, np.int64, np.int32, np.uint8)

    def argument(self, r):
        if r.random() < 0.02:
            return r.choice(
                [
                    None,
                    1,
                    -1,
                    0.5,
                    "none",
                    "tanh",
                    (None, None, None),
                    [],
                    float("nan"),
                    LyingProducer(3),
                    LyingProducer(OSError("x")),
                ]
            )
        rank = r.choice([1, 2, 2, 2, 3, 4, 4])
        dims = [r.choice([0, 1, 3, 32, 32, 32]) for _ in range(rank)]
        dtype = r.choice(self.KINDS) if r.random() < 0.3 else f32
        x = (np.random.default_rng(r.randrange(99)).standard_normal(dims) * 4).astype(dtype)
        change = r.randrange(16)
        if change == 0:
            x = x.T
        elif change == 1 and x.shape[-1] > 1:
            x = x[..., 1:]
        elif change == 2 and rank > 1:
            x = x[::2]
        elif change == 3:
            x.flags.writeable = False
        return x

    def test_every_function(self):
        r = random.Random(5)
        functions = [
            f
            for n, f in vars(hpcdl).items()
            if n in hpcdl.__all__
            and callable(f)
            and not inspect.isclass(f)
            and n
            not in (
                "set_threads",
                "set_cache_limit",
                "get_threads",
                "cached_bytes",
                "instruction_set",
                "set_ways",
                "open_safetensors",
            )
        ]
        self.assertGreater(len(functions), 25)
        done = 0
        for i in range(8000):
            f = r.choice(functions)
            pool = [self.argument(r) for _ in range(2)]  # repeated arguments, and their rows, match more often
            pool += [a[0] for a in pool if isinstance(a, np.ndarray) and a.ndim > 1 and len(a)]
            wanted = f.__nb_signature__[0][0].split("*")[0].split("->")[0].count(": Array")
            count = wanted if r.random() < 0.9 else r.randrange(7)
            args = [r.choice(pool) if r.random() < 0.9 else self.argument(r) for _ in range(count)]
            options = {}
            if r.random() < 0.3:
                options["out"] = self.argument(r)
            if r.random() < 0.1:
                options[r.choice(["scale", "causal", "eps", "needs", "heads", "layout", "activation"])] = self.argument(
                    r
                )
            try:
                f(*args, **options)
                done += 1
            except (ValueError, TypeError):
                pass
            except OSError as e:
                self.assertEqual(str(e), "x")  # an error of the producer
        self.assertGreater(done, 200)

    def test_rows_without_columns(self):
        for shape in ((3, 0), (0, 3), (0, 0), (2, 0, 5)):
            for f in (hpcdl.softmax, hpcdl.gelu):
                self.assertEqual(f(ones(*shape)).shape, shape)
            self.assertEqual(hpcdl.softmax_backward(ones(*shape), ones(*shape)).shape, shape)

    def test_buffers_of_other_types(self):
        import array
        import ctypes

        want = hpcdl.softmax(np.array([1, 2, 3, 4], f32))
        for thing in (array.array("f", [1, 2, 3, 4]), (ctypes.c_float * 4)(1, 2, 3, 4), memoryview(np.array([1, 2, 3, 4], f32))):
            self.assertTrue((hpcdl.softmax(thing) == want).all(), type(thing))
        square = ((ctypes.c_float * 2) * 2)((1, 2), (3, 4))
        self.assertTrue((hpcdl.softmax(square) == hpcdl.softmax(np.array([[1, 2], [3, 4]], f32))).all())

    def test_lying_producers(self):
        for thing in (3, None, "x", object()):
            self.raises(TypeError, "returned no DLPack capsule", hpcdl.softmax, LyingProducer(thing))
        self.raises(OSError, "x", hpcdl.softmax, LyingProducer(OSError("x")))

    def test_capsules_of_numpy(self):
        """An array that only has __dlpack__ is read, too."""
        x = np.random.default_rng(2).standard_normal((3, 8)).astype(f32)

        class Plain:
            def __dlpack__(self, **options):
                return x.__dlpack__(**options)

        np.testing.assert_array_equal(hpcdl.softmax(Plain()), hpcdl.softmax(x))


if __name__ == "__main__":
    unittest.main()
