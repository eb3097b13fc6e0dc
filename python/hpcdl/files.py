"""Reading safetensors files without copies."""

import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _hpcdl


class SafeTensors(Mapping):
    """Tensors by name. Each is a view into the mapped file, made when it is requested, and keeps the file alive."""

    def __init__(self, path: "str | os.PathLike[str]", framework: str = "numpy"):
        if not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        self._files = _hpcdl._Files(os.fspath(path), framework)
        self._path = os.fspath(path)
        self._names = dict.fromkeys(self._files.names())

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(self._files.missing(str(name)))
        return self._files.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __repr__(self) -> str:
        return f"<hpcdl.SafeTensors {self._path!r}: {len(self)} tensors>"

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def metadata(self) -> "dict[str, str]":
        """The strings in the file's `__metadata__`."""
        return self._files.metadata()

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all files."""
        return self._files.mapped_bytes()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the files that are in memory now: pages are read when they are first touched."""
        return self._files.resident_bytes()


def open_safetensors(path: "str | os.PathLike[str]", framework: str = "numpy") -> SafeTensors:
    """Maps a .safetensors file, or a model folder with one or several, and returns its tensors by name.

    framework: "numpy" or "torch". Nothing is copied or read ahead; arrays lie in the file's pages. NumPy arrays are
    read-only; PyTorch has no read-only tensors, so writes to one stay in this process and never reach the
    file. bfloat16 needs PyTorch, or NumPy with ml_dtypes (TypeError for that tensor otherwise). FileNotFoundError when
    there is no file, ValueError when it is not a valid safetensors file, KeyError, with the closest name, for a tensor
    it lacks.
    """
    return SafeTensors(path, framework)
