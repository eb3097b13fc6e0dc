"""Memory, threads and forks around calls."""

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import unittest
import weakref

from common import Case, need

np = need("numpy")
import hpcdl


class Memory(Case):
    def test_results_keep_their_memory(self):
        results = [hpcdl.softmax(np.full((64, 1024), i, np.float32)[:, : 64 + i]) for i in range(40)]
        gc.collect()
        for i, y in enumerate(results):
            np.testing.assert_allclose(y, 1 / (64 + i), rtol=1e-6)

    def test_freed_memory_is_used_again(self):
        x = np.zeros((256, 4096), np.float32)
        a = hpcdl.softmax(x)
        at, before = a.ctypes.data, hpcdl.cached_bytes()
        del a
        self.assertGreaterEqual(hpcdl.cached_bytes(), before + x.nbytes)
        self.assertEqual(hpcdl.softmax(x).ctypes.data, at)

    def test_cache_limit(self):
        x = np.zeros((256, 4096), np.float32)
        hpcdl.softmax(x)
        self.assertGreater(hpcdl.cached_bytes(), 0)
        hpcdl.set_cache_limit(0)
        self.assertEqual(hpcdl.cached_bytes(), 0)
        hpcdl.softmax(x)
        self.assertEqual(hpcdl.cached_bytes(), 0)
        hpcdl.set_cache_limit(1 << 30)

    def test_nothing_leaks(self):
        x, out = np.zeros((4, 16), np.float32), np.zeros((4, 16), np.float32)
        counts = lambda: (sys.getrefcount(x), sys.getrefcount(out), sys.getrefcount(None) // 1000)

        def calls():
            for _ in range(2000):
                hpcdl.softmax(x), hpcdl.softmax(x, out=out), hpcdl.layer_norm_forward(x, x[0].copy())
                for bad in (x.T, x.astype(float), [1]):
                    try:
                        hpcdl.softmax(bad, out=out)
                    except (ValueError, TypeError):
                        pass

        calls()
        gc.collect()
        before, rss = counts(), self.resident()
        calls()
        gc.collect()
        self.assertEqual(counts(), before)
        self.assertLess(self.resident() - rss, 4 << 20)

    def resident(self):
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def test_inputs_are_released(self):
        class Array(np.ndarray):
            pass

        x = np.zeros((4, 4), np.float32).view(Array)
        gone = weakref.ref(x)
        y = hpcdl.softmax(x)
        del x
        gc.collect()
        self.assertIsNone(gone())
        self.assertIs(type(y), np.ndarray)


class Threads(Case):
    def tearDown(self):
        hpcdl.set_threads(0)

    def test_results_do_not_depend_on_threads(self):
        rng = np.random.default_rng(0)
        x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((300, 256), (512, 256), (512,)))

        def all_results():
            y, mean, rstd = hpcdl.layer_norm_forward(x, b[:256])
            return [
                y,
                *hpcdl.layer_norm_backward(x, x, b[:256], None, mean, rstd)[:2],
                hpcdl.softmax(x),
                hpcdl.linear(x, w, b, activation="gelu"),
            ]

        hpcdl.set_threads(1)
        self.assertEqual(hpcdl.get_threads(), 1)
        one = all_results()
        for n in (2, 3, 5):
            hpcdl.set_threads(n)
            self.assertEqual(hpcdl.get_threads(), n)
            for a, c in zip(one, all_results()):
                np.testing.assert_array_equal(a, c)

    def test_many_python_threads_call_at_once(self):
        hpcdl.set_threads(2)
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((200, 300 + i)).astype(np.float32) for i in range(6)]
        wanted = [hpcdl.softmax(x) for x in inputs]
        wrong = []

        def work(i):
            for _ in range(60):
                if not np.array_equal(hpcdl.softmax(inputs[i]), wanted[i]):
                    wrong.append(i)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for w in workers:
            w.start()
        hpcdl.set_threads(3)
        for w in workers:
            w.join()
        self.assertEqual(wrong, [])

    def test_python_runs_while_a_kernel_does(self):
        """If the GIL were not released, the counter would stop during each call."""
        hpcdl.set_threads(1)
        x = np.random.default_rng(0).standard_normal((1200, 1200)).astype(np.float32)
        counts, stop, seen = [0], threading.Event(), []

        def count():
            while not stop.is_set():
                counts[0] += 1
                time.sleep(0)

        t = threading.Thread(target=count)
        t.start()
        for _ in range(40):
            before = counts[0]
            hpcdl.linear(x, x)
            seen.append(counts[0] > before)
        stop.set()
        t.join()
        self.assertTrue(any(seen))

    def test_fork(self):
        x = np.random.default_rng(0).standard_normal((500, 500)).astype(np.float32)
        hpcdl.set_threads(2)
        want = hpcdl.softmax(x)
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                ok = False
                try:
                    ok = np.array_equal(hpcdl.softmax(x), want) and hpcdl.get_threads() == 2
                finally:
                    os._exit(0 if ok else 1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            np.testing.assert_array_equal(hpcdl.softmax(x), want)

    def test_fork_while_another_thread_computes(self):
        x = np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32)
        hpcdl.set_threads(2)
        want, stop = hpcdl.softmax(x), threading.Event()

        def work():
            while not stop.is_set():
                hpcdl.softmax(x)

        t = threading.Thread(target=work)
        t.start()
        try:
            for _ in range(10):
                pid = os.fork()
                if pid == 0:
                    ok = False
                    try:
                        ok = np.array_equal(hpcdl.softmax(x), want)
                    finally:
                        os._exit(0 if ok else 1)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
        finally:
            stop.set()
            t.join()


class Module(Case):
    def test_every_function_is_documented_and_typed(self):
        import ast
        import pathlib

        tree = ast.parse((pathlib.Path(hpcdl._hpcdl.__file__).parent / "_hpcdl.pyi").read_text())
        typed = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        for name in hpcdl.__all__:
            thing = getattr(hpcdl, name)
            if not callable(thing):
                continue
            self.assertTrue(thing.__doc__, name)
            if thing.__module__ == "hpcdl._hpcdl":
                self.assertIn(name, typed)
                if isinstance(typed[name], ast.FunctionDef):
                    self.assertIsNotNone(typed[name].returns, name)
                    for a in typed[name].args.args + typed[name].args.kwonlyargs:
                        self.assertIsNotNone(a.annotation, f"{name}({a.arg})")

    def test_functions_are_pickled_by_name(self):
        for name in hpcdl.__all__:
            function = getattr(hpcdl, name)
            if callable(function):
                self.assertIs(pickle.loads(pickle.dumps(function)), function)

    def test_nothing_is_said_at_the_end_of_a_program(self):
        program = (
            "import hpcdl, numpy, threading, time\n"
            "packed = hpcdl.pack_linear(numpy.ones((4, 4), 'f'))\n"
            "threading.Thread(target=lambda: time.sleep(100), daemon=True).start()\n"  # keeps its references
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_version(self):
        self.assertRegex(hpcdl.__version__, r"^\d+\.\d+\.\d+$")
        self.assertIn(hpcdl.instruction_set(), ("scalar", "avx2", "avx512", "amx"))


if __name__ == "__main__":
    unittest.main()
