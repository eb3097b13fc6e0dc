"""Vectors of texts, for search and clustering."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

from . import _hpcdl

if TYPE_CHECKING:
    import numpy as np


class Embedder:
    """A text encoder: a Hugging Face folder of BERT, also one of sentence-transformers, or a name in the local cache.

    dtype: f32, bf16 or f16, to which weights are converted and in which texts are computed; auto: weights stay as they
    are. Safe from many threads, which take turns.

        embedder = hpcdl.Embedder("all-MiniLM-L6-v2")
        vectors = embedder.embed(["a text", "another"])  # (2, 384) f32
    """

    def __init__(self, model: "str | os.PathLike[str]", *, device: str = "cpu", threads: int = 0, dtype: str = "auto"):
        self._encoder = _hpcdl._Encoder.load(os.fspath(model), device, threads, dtype)

    def embed(self, texts: "Union[str, Sequence[str]]", *, truncate: bool = False) -> "np.ndarray":
        """A vector for each text, pooled and normalised as the folder says: (texts, dimensions) f32.

        A single string gives one vector. truncate: cut texts that are longer than `longest`; without it, ValueError.
        """
        import numpy as np

        one = isinstance(texts, str)
        vectors = np.frombuffer(self._encoder.embed([texts] if one else list(texts), truncate), np.float32)
        vectors = vectors.reshape(-1, self.dimensions)
        return vectors[0] if one else vectors

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return self._encoder.dimensions

    @property
    def longest(self) -> int:
        """The most tokens of a text, with those that the tokenizer adds."""
        return self._encoder.longest
