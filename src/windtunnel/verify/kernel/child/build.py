"""Makes kernels of a plan's texts, in a process that never saw the candidate's module. Imports torch and triton.

What a text is given is what its plan says that its names mean, all of it Triton's or a constant; the text itself is of the closed
grammar, which the judge has checked.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from windtunnel.verify.kernel.plan.grammar import function_of
from windtunnel.verify.kernel.plan.schema import (
    Descriptor,
    DescriptorValue,
    DeviceValue,
    DtypeValue,
    FloatValue,
    Kernel,
    KernelValue,
    Language,
    LayoutValue,
    ListValue,
    Tensor,
    TensorValue,
    TupleValue,
    Value,
)

LANGUAGE = "__language"  # a module that Triton's interpreter wants to see; no kernel can name it
TORCH = "torch_"


def build(kernels: Sequence[Kernel]) -> list[Any]:
    """Return a @triton.jit function for each, in order; interpreted ones where Triton's interpreter is switched on.

    One that the compiler computes with is a @triton.constexpr_function.
    """
    # One for each kernel: the same name may mean something else in another.
    spaces = [{LANGUAGE: tl, "__builtins__": __builtins__, "__name__": f"plan_{number}"} for number in range(len(kernels))]
    made = [_function(kernel, number, space) for number, (kernel, space) in enumerate(zip(kernels, spaces, strict=True))]
    for kernel, space in zip(kernels, spaces, strict=True):
        for name, meaning in kernel.names.items():
            if isinstance(meaning, KernelValue):
                space[name] = made[meaning.kernel]
    return made


def _function(kernel: Kernel, number: int, space: dict[str, Any]) -> Any:
    interpreted = triton.knobs.runtime.interpret
    for name, meaning in kernel.names.items():
        if isinstance(meaning, Language):
            space[name] = _language(meaning.language)
            if interpreted and space[name] is tl.constexpr:
                from windtunnel.verify.kernel.child.scalars import constant

                space[name] = constant
        elif not isinstance(meaning, KernelValue):
            value = plain(meaning.constant)
            space[name] = tl.constexpr(value) if meaning.constexpr and not interpreted else value
    defined = function_of(kernel)
    kinds = {**kernel.types, **dict.fromkeys(kernel.constexprs, "constexpr")}
    for argument in defined.args.args:
        if argument.arg in kinds:
            argument.annotation = ast.Constant(kinds[argument.arg])
    # A text by itself says nothing, and Triton's interpreter would look for a 'def' in it.
    defined.body = [node for node in defined.body if not _says_nothing(node)] or [ast.Pass()]
    text = ast.unparse(ast.fix_missing_locations(defined)) + "\n"
    path = f"<kernel {number} of the plan>"
    # Triton asks for a function's text where Python would: in its file.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    exec(compile(text, path, "exec"), space)
    function = space.pop(kernel.name) if kernel.name not in kernel.names else space[kernel.name]
    assert isinstance(function, types.FunctionType)
    if kernel.computed:
        return triton.constexpr_function(function)
    return triton.jit(
        function,
        do_not_specialize=list(kernel.do_not_specialize),
        do_not_specialize_on_alignment=list(kernel.aligned_or_not),
        noinline=kernel.noinline or None,
    )


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _language(dotted: str) -> Any:
    """Return what a name of Triton's language is; the judge has checked that it is one."""
    try:
        return importlib.import_module(dotted)
    except ImportError:
        module, _, name = dotted.rpartition(".")
        return getattr(_language(module), name)


def plain(value: Value, kernels: Sequence[Any] = ()) -> Any:
    """Return a plan's value where it is no tensor."""
    match value:
        case FloatValue(float=text):
            return float(text)
        case DtypeValue(dtype=name):
            return getattr(torch, name.removeprefix(TORCH)) if name.startswith(TORCH) else tl.dtype(name)
        case KernelValue(kernel=number):
            return kernels[number]
        case ListValue(list=inner):
            return [plain(entry, kernels) for entry in inner]
        case TupleValue(tuple=inner):
            return tuple(plain(entry, kernels) for entry in inner)
        case DeviceValue():
            return torch.device("cpu")
        case LayoutValue(memory_format=name):
            return getattr(torch, name)
    return value


def argument(value: Value, kernels: Sequence[Any], view: Callable[[Tensor], Any]) -> Any:
    """Return an argument of a kernel or an operation.

    view: what shows a tensor.
    """
    match value:
        case TensorValue(tensor=tensor):
            return view(tensor)
        case DescriptorValue(descriptor=made):
            return described(made, view)
        case ListValue(list=inner):
            return [argument(entry, kernels, view) for entry in inner]
        case TupleValue(tuple=inner):
            return tuple(argument(entry, kernels, view) for entry in inner)
    return plain(value, kernels)


def described(made: Descriptor, view: Callable[[Tensor], Any]) -> TensorDescriptor:
    """Return the host's descriptor of a tensor."""
    return TensorDescriptor(view(made.base), list(made.shape), list(made.strides), list(made.block_shape), made.padding)
