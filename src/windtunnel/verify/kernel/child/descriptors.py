"""What Triton's interpreter lacks of tensor descriptors: their atomics. Runs only in sandboxed children; imports triton."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton._C.libtriton import ir

# What one does to whole numbers with and without a sign.
_OF_SIGNED = {"MIN": ir.ATOMIC_OP.MIN, "MAX": ir.ATOMIC_OP.MAX}
_OF_UNSIGNED = {"MIN": ir.ATOMIC_OP.UMIN, "MAX": ir.ATOMIC_OP.UMAX}
_OF_BITS = {"AND": ir.ATOMIC_OP.AND, "OR": ir.ATOMIC_OP.OR, "XOR": ir.ATOMIC_OP.XOR}


def add_descriptor_atomics(builder: Any) -> None:
    """Descriptor atomics, done as the builder's own ones through pointers: where those are watched, these are too."""

    def reduce(kind: Any, descriptor: Any, value: Any, offsets: Any) -> Any:
        pointers, mask = descriptor.materialize_pointers(offsets)
        operation = _operation(str(kind).rsplit(".", 1)[-1].upper(), pointers.get_element_ty())
        held = type(value)(mask, tl.int1)
        return builder.create_atomic_rmw(operation, pointers, value, held, ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU)

    builder.create_descriptor_reduce = reduce


def _operation(kind: str, element: Any) -> Any:
    if kind == "ADD":
        return ir.ATOMIC_OP.FADD if element.is_floating() else ir.ATOMIC_OP.ADD
    table = _OF_BITS | (_OF_UNSIGNED if element.is_int_unsigned() else _OF_SIGNED)
    if kind not in table or element.is_floating():
        raise NotImplementedError(f"a descriptor's atomic {kind.lower()} of {element} on the interpreter")
    return table[kind]
