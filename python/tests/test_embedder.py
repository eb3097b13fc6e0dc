"""hpcdl.Embedder: vectors of texts, against the golden files of the encoders."""

import json
import pathlib
import struct
import threading
import unittest

from common import Case, need

np = need("numpy")
import hpcdl

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "hpcdl" / "models" / "golden"


class Embedders(Case):
    def test_vectors_are_those_of_transformers(self):
        for name, tolerance, dtype in (("bert", 1e-5, "auto"), ("bert_masked_bf16", 1e-5, "f32"), ("bert", 0.08, "bf16")):
            file = GOLDEN / name / "golden.safetensors"
            data = file.read_bytes()
            header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
            texts = json.loads(header["__metadata__"]["texts"])
            want = np.asarray(hpcdl.open_safetensors(file)["vectors"])
            embedder = hpcdl.Embedder(GOLDEN / name, threads=2, dtype=dtype)
            self.assertEqual((embedder.dimensions, embedder.longest), (want.shape[1], 40))
            got = embedder.embed(texts)
            self.assertEqual((got.shape, got.dtype), (want.shape, np.float32))
            self.assertLessEqual(np.abs(got - want).max(), tolerance)
            self.assertLessEqual(np.abs(embedder.embed(texts[2]) - want[2]).max(), tolerance)
        self.assertEqual(embedder.embed([]).shape, (0, want.shape[1]))

    def test_threads_take_turns(self):
        embedder = hpcdl.Embedder(GOLDEN / "bert", threads=1)
        texts = ["a", "the fox", "maps, texts"]
        want, found = embedder.embed(texts), {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: embedder.embed(texts)})) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(4):
            self.assertTrue(np.array_equal(found[i], want))

    def test_mistakes(self):
        embedder = hpcdl.Embedder(GOLDEN / "bert")
        with self.assertRaisesRegex(ValueError, "102 tokens, and the model takes 40"):
            embedder.embed("fox " * 100)
        self.assertEqual(embedder.embed("fox " * 100, truncate=True).shape, (24,))
        with self.assertRaises(TypeError):
            embedder.embed([1, 2])
        with self.assertRaisesRegex(ValueError, "expected auto, f32, bf16, f16"):
            hpcdl.Embedder(GOLDEN / "bert", dtype="f64")
        with self.assertRaisesRegex(ValueError, "holds a model that continues texts"):
            hpcdl.Embedder(GOLDEN / "llama")


if __name__ == "__main__":
    unittest.main()
