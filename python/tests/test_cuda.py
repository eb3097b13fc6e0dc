"""Guarantees of calls on CUDA tensors besides their results: no waiting, the current stream, PyTorch's allocator, graphs, and
clear errors.
"""

import unittest

from common import Case, need

torch = need("torch")

import hpcdl
import hpcdl.torch as ht

if hpcdl.cuda_devices() == 0 or not torch.cuda.is_available():
    raise SystemExit(77)

torch.manual_seed(1)
LONG = 400_000_000  # clock cycles: a fifth of a second


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)


def calls():
    """Every function on small tensors: name -> call."""
    x, g, b = rand(6, 64), rand(64), rand(64)
    w1, w2, c = rand(32, 64), rand(64, 32), rand(6, 32)
    q, k, v = (rand(2, 4, 16, 32) for _ in range(3))
    logits, targets = rand(6, 50), torch.randint(0, 50, (6,), device="cuda")
    w4 = hpcdl.int4_quantize(rand(32, 64), group=32)
    values = torch.randint(0, 16, (32, 64), dtype=torch.uint8, device="cuda")
    return {
        "softmax": lambda: hpcdl.softmax(x),
        "gelu": lambda: hpcdl.gelu(x),
        "bias_gelu": lambda: hpcdl.bias_gelu(x, b),
        "layer_norm": lambda: hpcdl.layer_norm(x, g, b),
        "layer_norm backward": lambda: hpcdl.layer_norm_backward(x, x, g, b, *hpcdl.layer_norm_forward(x, g, b)[1:])[0],
        "rms_norm": lambda: hpcdl.rms_norm(x, g),
        "linear": lambda: hpcdl.linear(x, w1, activation="gelu"),
        "matmul_add_relu": lambda: hpcdl.matmul_add_relu(x, w2, c),
        "bias_gelu_mlp": lambda: hpcdl.bias_gelu_mlp(x, w1, None, w2, None),
        "cross_entropy": lambda: hpcdl.cross_entropy(logits, targets),
        "cross_entropy_with_grad": lambda: hpcdl.cross_entropy_with_grad(logits, targets)[1],
        "attention": lambda: hpcdl.attention(q, k, v, causal=True),
        "int4_matmul": lambda: hpcdl.int4_matmul(x, w4),
        "int4_dequantize": lambda: hpcdl.int4_dequantize(w4),
        "int4_quantize": lambda: hpcdl.int4_quantize(w1, group=32).packed,
        "int4_pack": lambda: hpcdl.int4_pack(values),
        "int4_unpack": lambda: hpcdl.int4_unpack(w4.packed),
    }


class Streams(Case):
    def test_current_stream(self):
        """After the queued work of a busy stream, and not on the default one, which would read y too early."""
        x, side = rand(64, 64), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            y = torch.zeros_like(x)
            torch.cuda._sleep(LONG)
            y.copy_(x)
            z = hpcdl.softmax(y)
        side.synchronize()
        self.assertTrue(torch.equal(z, hpcdl.softmax(x)))

    def test_graphs(self):
        """A call that waits for the GPU, or queues elsewhere, cannot be captured."""
        for name, call in calls().items():
            with self.subTest(name):
                want = call().clone()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    y = call()
                y.zero_()
                graph.replay()
                torch.cuda.synchronize()
                self.assertTrue(torch.equal(y, want))

    def test_graph_of_a_training_step(self):
        """Forward, backward and update replayed: the same losses as without a graph."""

        def run(captured):
            torch.manual_seed(3)
            w, b = rand(32, 64).div_(8).requires_grad_(), torch.zeros(32, device="cuda", requires_grad=True)
            x, t = rand(16, 64), torch.randint(0, 32, (16,), device="cuda")

            def step():
                loss = ht.cross_entropy(ht.linear(x, w, b, activation="gelu_tanh"), t)
                for p, g in zip((w, b), torch.autograd.grad(loss, (w, b))):
                    p.data.sub_(g, alpha=0.1)
                return loss.detach()

            losses = []
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())  # which fills w, b, x and t
            with torch.cuda.stream(stream):
                losses += [step().clone(), step().clone()]
            stream.synchronize()
            if captured:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    loss = step()
                for _ in range(4):
                    graph.replay()
                    losses.append(loss.clone())
            else:
                with torch.cuda.stream(stream):
                    losses += [step().clone() for _ in range(4)]
            torch.cuda.synchronize()
            return torch.stack(losses)

        self.assertTrue(torch.equal(run(True), run(False)))


class Memory(Case):
    def test_results_come_from_pytorchs_allocator(self):
        x = rand(1024, 1024)
        before = torch.cuda.memory_allocated()
        y = hpcdl.softmax(x)
        self.assertEqual(torch.cuda.memory_allocated() - before, 4 << 20)
        y.record_stream(torch.cuda.Stream())
        del y
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_views_in_place(self):
        x = rand(8, 96)
        self.assertTrue(torch.equal(hpcdl.softmax(x[:, 8:72]), hpcdl.softmax(x[:, 8:72].contiguous())))
        qkv = rand(2, 16, 3, 4, 32)
        q, k, v = (z.transpose(1, 2) for z in qkv.unbind(2))
        self.assertTrue(torch.equal(hpcdl.attention(q, k, v), hpcdl.attention(*(z.contiguous() for z in (q, k, v)))))
        out = torch.empty_like(x)
        self.assertIs(hpcdl.softmax(x, out=out), out)
        hpcdl.softmax(x, out=x)
        self.assertTrue(torch.equal(x, out))

    def test_without_the_function_table(self):
        class Old(torch.Tensor):
            __dlpack_c_exchange_api__ = None

        x = rand(3, 40)
        self.assertTrue(torch.equal(hpcdl.softmax(x.as_subclass(Old)), hpcdl.softmax(x)))

    def test_empty(self):
        self.assertEqual(hpcdl.softmax(rand(0, 4)).shape, (0, 4))


class Quantize(Case):
    def test_as_good_as_on_the_host(self):
        for shape in ((33, 128), (64, 256)):
            w = rand(*shape) * torch.rand(shape[0], 1, device="cuda").exp()
            for group in (32, 64, 128):
                for symmetric in (True, False):
                    for search in (True, False):
                        here = hpcdl.int4_quantize(w, group=group, symmetric=symmetric, search=search)
                        host = hpcdl.int4_quantize(w.cpu(), group=group, symmetric=symmetric, search=search)
                        self.assertLess(abs(here.relative_error / host.relative_error - 1), 1e-3)
                        dense = hpcdl.int4_dequantize(here).double()
                        found = ((dense - w.double()).square().sum() / w.double().square().sum()).sqrt().item()
                        self.assertLess(abs(here.relative_error / found - 1), 1e-4)
                        self.close(dense, hpcdl.int4_dequantize(host.to("cuda")), 0.05)

    def test_dtypes_and_not_finite(self):
        w = rand(32, 64)
        for dtype in (torch.bfloat16, torch.float16):
            q = hpcdl.int4_quantize(w.to(dtype), group=32)
            self.assertTrue(torch.equal(q.packed, hpcdl.int4_quantize(w.to(dtype).float(), group=32).packed))
        w[3, 40] = float("nan")
        q = hpcdl.int4_quantize(w, group=32)
        self.assertEqual(hpcdl.int4_dequantize(q).isnan().sum().item(), 32)
        self.assertNotEqual(q.relative_error, q.relative_error)


    def test_frozen_weights_multiply_to_the_same_bits(self):
        """Each layer reads the output of the previous kernel, alone and in a graph."""
        layers = [hpcdl.int4_quantize(rand(256, 256) / 16, group=64) for _ in range(6)]

        def chain(x):
            for w in layers:
                x = hpcdl.int4_matmul(x, w)
            return x

        inputs = [rand(rows, 256) for rows in (1, 5, 40)]
        wanted = [chain(x) for x in inputs]
        for w in layers:
            self.assertIs(w.freeze(), w)
        for x, want in zip(inputs, wanted):
            self.assertTrue(torch.equal(chain(x), want))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = chain(x)
            for _ in range(3):
                y.zero_()
                graph.replay()
                self.assertTrue(torch.equal(y, want))


class Errors(Case):
    def test_two_devices(self):
        x, w = rand(3, 8), torch.ones(8)
        self.raises(ValueError, r"x is on cuda:0 and weight on cpu: bring them to one device", hpcdl.rms_norm, x, w)
        self.raises(ValueError, r"x is on cpu and weight on cuda:0", hpcdl.rms_norm, x.cpu(), w.cuda())
        self.raises(ValueError, r"out on cpu", hpcdl.softmax, x, out=x.cpu())
        w4 = hpcdl.int4_quantize(torch.randn(32, 64), group=32)
        self.raises(ValueError, "only the CPU", hpcdl.pack_linear, rand(3, 4))
        self.raises(ValueError, "packed for the CPU", hpcdl.linear, rand(2, 4), hpcdl.pack_linear(torch.ones(3, 4)))
        self.raises(ValueError, r"weight\.to\(x\.device\)", hpcdl.int4_matmul, rand(2, 64), w4)
        self.assertTrue(torch.equal(hpcdl.int4_matmul(rand(2, 64) * 0 + 1, w4.to("cuda")), hpcdl.int4_matmul(rand(2, 64) * 0 + 1, w4.to("cuda"))))

    def test_targets_outside_make_the_loss_nan(self):
        x = rand(4, 10)
        for bad in (10, -1, 2**40):
            t = torch.tensor([1, 2, bad, 3], device="cuda")
            self.assertTrue(hpcdl.cross_entropy(x, t).isnan().item(), bad)

    def test_other_libraries(self):
        class Other:
            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **options):
                return self.x.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        self.raises(ValueError, r"torch\.from_dlpack\(x\)", hpcdl.softmax, Other(rand(3, 4)))


if __name__ == "__main__":
    unittest.main()
