"""Signatures of compiled functions for inspect.signature(): nanobind stores them as text."""

import ast
import re
from typing import Any


def signature_of(text: str, values: Any = None):
    """The inspect.Signature of "def f(x: Array, *, eps: float = 1e-5) -> Array"; `values`: defaults written as \\0, \\1."""
    import inspect

    text = re.sub(r"\\(\d+)", r"_value_\1", text)
    function = ast.parse(text + ": ...").body[0]
    if not isinstance(function, ast.FunctionDef):
        raise ValueError(f"no signature of a function: {text}")
    names = function.args

    def default(node: Any) -> Any:
        if node is None:
            return inspect.Parameter.empty
        if isinstance(node, ast.Name) and node.id.startswith("_value_"):
            return values[int(node.id[len("_value_") :])]
        return ast.literal_eval(node)

    def parameter(arg: ast.arg, kind: Any, node: Any = None) -> inspect.Parameter:
        annotation = ast.unparse(arg.annotation) if arg.annotation else inspect.Parameter.empty
        return inspect.Parameter(arg.arg, kind, default=default(node), annotation=annotation)

    kinds = inspect.Parameter
    plain = [(a, kinds.POSITIONAL_ONLY) for a in names.posonlyargs] + [(a, kinds.POSITIONAL_OR_KEYWORD) for a in names.args]
    nodes = [None] * (len(plain) - len(names.defaults)) + list(names.defaults)
    found = [parameter(arg, kind, node) for (arg, kind), node in zip(plain, nodes)]
    if names.vararg:
        found.append(parameter(names.vararg, kinds.VAR_POSITIONAL))
    found += [parameter(arg, kinds.KEYWORD_ONLY, node) for arg, node in zip(names.kwonlyargs, names.kw_defaults)]
    if names.kwarg:
        found.append(parameter(names.kwarg, kinds.VAR_KEYWORD))
    returns = ast.unparse(function.returns) if function.returns else inspect.Signature.empty
    return inspect.Signature(found, return_annotation=returns)


def _signature(function: Any):
    overloads = getattr(function, "__nb_signature__", ())
    if len(overloads) != 1:  # inspect has no notion of overloads
        raise AttributeError("__signature__")
    text, _, values = overloads[0]
    try:
        return signature_of(text, values)
    except (SyntaxError, ValueError, TypeError, IndexError) as e:
        raise AttributeError("__signature__") from e


of_function = property(_signature)
