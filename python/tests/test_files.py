"""open_safetensors: views into the mapped file, for NumPy and PyTorch."""

import gc
import json
import os
import pathlib
import struct
import tempfile
import unittest

from common import Case, need

np = need("numpy")
import hpcdl

try:
    import torch
except ImportError:
    torch = None


def write(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


class Files(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "model.safetensors"
        self.a = np.arange(12, dtype=np.float32).reshape(3, 4)
        self.i = np.arange(5, dtype=np.int64)
        half = np.array([1.0, -2.0], np.float16)
        write(
            self.path,
            {
                "a": ("F32", (3, 4), self.a.tobytes()),
                "i": ("I64", (5,), self.i.tobytes()),
                "half": ("F16", (2,), half.tobytes()),
                "b": ("BF16", (2, 2), np.array([0x3F80, 0x4000, 0x4040, 0xC080], np.uint16).tobytes()),
                "none": ("F32", (0, 3), b""),
            },
            {"format": "pt", "who": "test"},
        )

    def test_numpy(self):
        f = hpcdl.open_safetensors(self.path)
        self.assertEqual((list(f), len(f), "a" in f, "x" in f), (["a", "i", "half", "b", "none"], 5, True, False))
        np.testing.assert_array_equal(f["a"], self.a)
        np.testing.assert_array_equal(f["i"], self.i)
        self.assertEqual(
            (f["half"].dtype, f["none"].shape, f.metadata), (np.float16, (0, 3), {"format": "pt", "who": "test"})
        )
        self.assertEqual(repr(f), f"<hpcdl.SafeTensors {str(self.path)!r}: 5 tensors>")
        self.assertFalse(f["a"].flags.writeable)
        self.assertEqual(f["a"].ctypes.data, f["a"].ctypes.data)  # no copies
        self.raises(ValueError, "read-only", f["a"].__setitem__, 0, 1)
        self.assertEqual(set(dict(f.items()) if has_bfloat16() else ["a"]) - set(f), set())
        if not has_bfloat16():
            self.raises(TypeError, "NumPy has no bfloat16: install ml_dtypes, or use PyTorch", f.__getitem__, "b")

    def test_views_keep_the_file(self):
        a = hpcdl.open_safetensors(self.path)["a"]
        gc.collect()
        os.remove(self.path)
        np.testing.assert_array_equal(a, self.a)
        self.close(hpcdl.softmax(a).sum(-1), np.ones(3), 1e-6)
        self.raises(ValueError, "out is read-only", hpcdl.softmax, a, out=a)

    @unittest.skipIf(torch is None, "no torch")
    def test_torch(self):
        before = self.path.read_bytes()
        f = hpcdl.open_safetensors(self.path, framework="torch")
        self.assertEqual(f["b"].tolist(), [[1, 2], [3, -4]])
        self.assertEqual((f["b"].dtype, f["i"].dtype, f["none"].shape), (torch.bfloat16, torch.int64, (0, 3)))
        self.assertEqual(f["a"].data_ptr(), f["a"].data_ptr())
        a = f["a"]
        a[0, 0] = 99  # PyTorch has no read-only tensors: neither a fault nor a changed file
        self.assertEqual(self.path.read_bytes(), before)
        del f
        gc.collect()
        self.assertEqual(a[2, 3].item(), 11)

    def test_a_folder_of_shards(self):
        other = self.path.parent / "model-00002-of-00002.safetensors"
        write(other, {"w": ("F32", (2,), np.ones(2, np.float32).tobytes())})
        first = self.path.rename(self.path.parent / "model-00001-of-00002.safetensors")
        index = {
            "metadata": {},
            "weight_map": {**{n: first.name for n in ("a", "i", "half", "b", "none")}, "w": other.name},
        }
        (self.path.parent / "model.safetensors.index.json").write_text(json.dumps(index))
        f = hpcdl.open_safetensors(self.path.parent)
        self.assertEqual(len(f), 6)
        self.assertEqual(f["w"].tolist(), [1, 1])
        self.assertGreater(f.mapped_bytes, 100)
        self.assertGreaterEqual(f.resident_bytes, 0)

    def test_errors(self):
        self.raises(FileNotFoundError, "nowhere", hpcdl.open_safetensors, self.path.parent / "nowhere")
        self.raises(
            ValueError,
            'framework must be one of "numpy", "torch", got "jax"',
            hpcdl.open_safetensors,
            self.path,
            framework="jax",
        )
        self.raises(TypeError, "framework must be one of .*, got int", hpcdl.open_safetensors, self.path, framework=3)
        f = hpcdl.open_safetensors(self.path)
        self.raises(KeyError, "half", f.__getitem__, "halff")
        self.assertIsNone(f.get("halff"))
        whole = self.path.read_bytes()
        for n in range(0, len(whole), 7):
            self.path.write_bytes(whole[:n])
            self.raises(ValueError, r"\[|model.safetensors", hpcdl.open_safetensors, self.path)


def has_bfloat16():
    try:
        import ml_dtypes  # noqa: F401

        return True
    except ImportError:
        return False


if __name__ == "__main__":
    unittest.main()
