"""Writes the golden archives and pictures beside it:  python make_images.py   (needs numpy and Pillow)

Tiny versions of the four archives of CIFAR. Pixel (file f, image i, channel c, row y, column x) is (37 f + 11 i + 80 c + 5 y + 3 x) mod 256 and
the class 2 f + i mod 10 (CIFAR-100: 7 f + 13 i), where the test file is the last one. CIFAR-10's pickles are as Python 2 wrote them,
CIFAR-100's as Python 3 writes protocol 2.
"""
import gzip
import io
import pathlib
import pickle
import struct
import tarfile
import zlib

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE = [f"fine_{i}" for i in range(100)]


def pixels(f, n):
    i, c, y, x = np.ogrid[:n, :3, :32, :32]
    return ((37 * f + 11 * i + 80 * c + 5 * y + 3 * x) % 256).astype(np.uint8).reshape(n, 3072)


def py2_string(s):
    s = s if isinstance(s, bytes) else s.encode()
    return b"U" + bytes([len(s)]) + s if len(s) < 256 else b"T" + struct.pack("<i", len(s)) + s


def py2_number(n):
    return b"K" + bytes([n]) if n < 256 else b"M" + struct.pack("<H", n)


class Python2:
    """The output of cPickle of Python 2 for protocol 2: byte strings, and a memo entry for each object."""

    def __init__(self):
        self.out, self.memo = b"\x80\x02", 0

    def put(self, code):
        self.memo += 1
        self.out += code + b"q" + bytes([self.memo])

    def array(self, a):
        self.put(b"cnumpy.core.multiarray\n_reconstruct\n")
        self.put(b"cnumpy\nndarray\n")
        self.put(b"K\x00\x85")
        self.put(py2_string("b"))
        self.put(b"\x87")
        self.put(b"R")
        self.out += b"(K\x01"
        self.put(py2_number(a.shape[0]) + py2_number(a.shape[1]) + b"\x86")
        self.put(b"cnumpy\ndtype\n")
        self.put(py2_string("u1"))
        self.put(b"K\x00K\x01\x87")
        self.put(b"R")
        self.out += b"(K\x03" + py2_string("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
        self.put(b"t")
        self.out += b"b\x89"
        self.put(py2_string(a.tobytes()))
        self.put(b"t")
        self.out += b"b"

    def value(self, v):
        if isinstance(v, np.ndarray):
            self.array(v)
        elif isinstance(v, list):
            self.put(b"]")
            self.out += b"("
            for item in v:
                self.value(item)
            self.out += b"e"
        elif isinstance(v, str):
            self.put(py2_string(v))
        else:
            self.out += py2_number(v)

    def dump(self, d):
        self.put(b"}")
        self.out += b"("
        for k, v in d.items():
            self.value(k)
            self.value(v)
        return self.out + b"u."


def archive(name, folder, files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        top = tarfile.TarInfo(folder)
        top.type = tarfile.DIRTYPE
        tar.addfile(top)
        for file, data in files:
            info = tarfile.TarInfo(f"{folder}/{file}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (HERE / name).write_bytes(gzip.compress(raw.getvalue(), mtime=0))


def cifar10():
    train = [(f"data_batch_{f + 1}", f) for f in range(5)]
    files = train[3:] + [("test_batch", 5)] + train[:3]  # the published archives have no order, either
    binary, python = [], []
    for name, f in files:
        data, labels = pixels(f, 2), [(2 * f + i) % 10 for i in range(2)]
        binary.append((name + ".bin", b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, data))))
        batch = {"batch_label": name, "labels": labels, "data": data, "filenames": [f"image_{f}_{i}.png" for i in range(2)]}
        python.append((name, Python2().dump(batch)))
    binary.insert(1, ("batches.meta.txt", ("\n".join(NAMES) + "\n\n").encode()))
    meta = {"num_cases_per_batch": 2, "label_names": NAMES, "num_vis": 3072}
    python.insert(2, ("batches.meta", Python2().dump(meta)))
    python.insert(0, ("readme.html", b"<meta HTTP-EQUIV='REFRESH'>"))
    archive("cifar10-binary.tar.gz", "cifar-10-batches-bin", binary)
    archive("cifar10-python.tar.gz", "cifar-10-batches-py", python)


def cifar100():
    binary, python = [], []
    for f, (name, n) in enumerate([("train", 3), ("test", 2)]):
        data, fine = pixels(f, n), [(7 * f + 13 * i) % 100 for i in range(n)]
        coarse = [label // 5 for label in fine]
        binary.append((name + ".bin", b"".join(bytes([c, label]) + row.tobytes() for c, label, row in zip(coarse, fine, data))))
        python.append((name, pickle.dumps({"filenames": [f"{i}.png" for i in range(n)], "batch_label": name, "fine_labels": fine, "coarse_labels": coarse, "data": data}, protocol=2)))
    binary.append(("fine_label_names.txt", ("\n".join(FINE) + "\n").encode()))
    python.append(("meta", pickle.dumps({"fine_label_names": FINE, "coarse_label_names": ["c"] * 20}, protocol=2)))
    archive("cifar100-binary.tar.gz", "cifar-100-binary", binary)
    archive("cifar100-python.tar.gz", "cifar-100-python", python)


def write_png16(path, picture):
    """Each byte b as the 16 bits b * 257, which Pillow does not write in colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = picture.shape
    rows = b"".join(b"\0" + (row.astype(">u2") * 257).astype(">u2").tobytes() for row in picture)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def pictures():
    y, x = np.mgrid[:24, :36]
    colour = np.stack([128 + 100 * np.sin(x / 5), 10 * y % 256, 255 - 3 * x - 3 * y], axis=-1).clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(colour)
    picture.save(HERE / "colour.png")
    write_png16(HERE / "colour16.png", colour)
    picture.save(HERE / "colour.jpg", quality=90)
    Image.open(HERE / "colour.jpg").convert("RGB").save(HERE / "colour_jpg.png")  # the pixels that Pillow decodes
    grey = picture.convert("L")
    grey.save(HERE / "grey.png")
    grey.save(HERE / "grey.jpg", quality=90)
    Image.open(HERE / "grey.jpg").convert("RGB").save(HERE / "grey_jpg.png")
    picture.quantize(16).save(HERE / "palette.png")
    picture.quantize(16).convert("RGB").save(HERE / "palette_rgb.png")
    alpha = np.concatenate([colour, (7 * x % 256).astype(np.uint8)[..., None]], axis=-1)
    Image.fromarray(alpha).save(HERE / "alpha.png")
    for name, size, box in [("smaller", (10, 7), (0, 0, 36, 24)), ("larger", (50, 31), (0, 0, 36, 24)), ("part", (8, 8), (5, 3, 27, 20))]:
        picture.crop(box).resize(size, Image.Resampling.BILINEAR).save(HERE / f"resized_{name}.png")
    Image.fromarray(np.zeros((4, 4, 4), np.uint8), "CMYK").save(HERE / "cmyk.jpg")


cifar10()
cifar100()
pictures()
