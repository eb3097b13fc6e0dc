"""Kernels of HPC-DL on NumPy arrays and PyTorch tensors, without copies.

Every function takes arrays that offer DLPack or the buffer protocol and returns arrays of the library that its first
argument came from. `hpcdl.torch` has the same functions with gradients for autograd. Bad arguments raise ValueError or
TypeError that says what was expected and what was found.
"""

import copyreg

from . import _hpcdl
from ._hpcdl import *  # noqa: F403
from . import _signatures
from .embedder import Embedder as Embedder
from .engine import End as End
from .engine import Engine as Engine
from .engine import Text as Text
from .files import SafeTensors as SafeTensors
from .files import open_safetensors as open_safetensors

# Pickled by name, like Python's own functions, because multiprocessing sends them to other processes.
copyreg.pickle(type(_hpcdl.softmax), lambda function: function.__name__)

_hpcdl._set_signature(type(_hpcdl.softmax), _signatures.of_function)
_hpcdl._set_signature(type(_hpcdl.Int4Weight.to), _signatures.of_function)

__version__: str = getattr(_hpcdl, "__version__")
__all__ = [n for n in dir() if not n.startswith("_") and n not in ("Array", "copyreg", "embedder", "engine", "files")] + ["__version__"]
