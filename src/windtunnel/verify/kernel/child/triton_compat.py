"""What Triton's interpreter does otherwise than its compiler, slowly or not at all, put right.

Runs only in sandboxed children.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType, SimpleNamespace
from typing import Any

import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter, jit

from windtunnel.verify.kernel.child.replay import Misfit
from windtunnel.verify.kernel.child.together import as_numbers
from windtunnel.verify.kernel.plan.language import LANGUAGE_MATH

# What one does to whole numbers with and without a sign.
_OF_SIGNED = {"MIN": ir.ATOMIC_OP.MIN, "MAX": ir.ATOMIC_OP.MAX}
_OF_UNSIGNED = {"MIN": ir.ATOMIC_OP.UMIN, "MAX": ir.ATOMIC_OP.UMAX}
_OF_BITS = {"AND": ir.ATOMIC_OP.AND, "OR": ir.ATOMIC_OP.OR, "XOR": ir.ATOMIC_OP.XOR}


def patch_interpreter(builder: Any) -> None:
    """Patch the interpreter before a candidate is imported. builder: the interpreter's."""
    _constexpr_by_any_name()
    _spread_booleans(builder)
    _quicken(builder)
    _remember_types()
    _mathematics_as_methods()
    _add_descriptor_atomics(builder)


class _Kept:
    def restore(self) -> None:
        """Undo nothing."""


def _quicken(builder: Any) -> None:
    """Leave out what most of the interpreter's time goes into: patching, and overflow checks.

    A GPU makes those only in debug builds.
    """
    original, done = interpreter._patch_lang, set()

    def patch_once(function: Any) -> Any:
        """Patch the language and leave it so: restoring it after every call of tl.sum takes longer than the sum."""
        # The interpreter patches the modules that a kernel's own file names, so each set of them once.
        modules = frozenset(id(v) for v in function.__globals__.values() if isinstance(v, ModuleType))
        if modules not in done:
            done.add(modules)
            original(function)
            as_numbers(tl.core.tensor)
            tl.static_assert = _static_assert
        return _Kept()

    interpreter._patch_lang = patch_once
    # What a candidate imports by name, `from triton.language.math import rsqrt`, has to be the interpreter's already.
    patch_once(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _remember_types() -> None:
    """Make each type of a block once, and what a tensor says of its type: half of the interpreter's time goes into these."""
    block, tensor = tl.core.block_type.__init__, tl.core.tensor.__init__
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def made(self: Any, element: Any, shape: Any) -> None:
        extents = [getattr(extent, "value", extent) for extent in shape]
        key = element.name, getattr(element, "address_space", 0), *extents
        # True would find the key of 1: what is no plain whole number is left to the original.
        if all(type(extent) is int for extent in extents) and key in known:
            self.__dict__ = known[key]
            return
        block(self, element, shape)
        known[key] = self.__dict__

    def filled(self: Any, handle: Any, kind: Any) -> None:
        said = kind.__dict__.get("said")
        if said is None:
            tensor(self, handle, kind)
            kind.said = {name: value for name, value in self.__dict__.items() if name not in ("handle", "type")}
            return
        self.__dict__.update(said)
        self.handle, self.type = handle, kind

    tl.core.block_type.__init__, tl.core.tensor.__init__ = made, filled


def _spread_booleans(builder: Any) -> None:
    """Have `(total > 0) & (cols < n)` spread as booleans.

    The interpreter would spread what one number's comparison says in the number's own type.
    """
    original = builder.create_splat

    def splat(*given: Any) -> Any:
        spread = original(*given)
        if any(isinstance(value, interpreter.TensorHandle) and value.data.dtype == bool for value in given):
            spread.data = spread.data.astype(bool)
        return spread

    builder.create_splat = splat


def _mathematics_as_methods() -> None:
    """Add `x.exp()`, which the interpreter calls without its semantics."""
    for name in LANGUAGE_MATH & vars(tl.tensor).keys():
        setattr(tl.tensor, name, getattr(tl.math, name))


def _static_assert(condition: Any, message: str = "") -> None:
    """Fail as on a GPU, where Triton's tuner takes another configuration then."""
    if not condition:
        raise Misfit(message or "tl.static_assert")


def _constexpr_by_any_name() -> None:
    """Take `BLOCK: L.constexpr` and `BLOCK: "tl.constexpr"` for constants.

    They reach the interpreter as text, of which it only knows 'tl.constexpr', without quotation marks of its own.
    """
    original = jit._normalize_ty

    def normalize(kind: Any) -> Any:
        if isinstance(kind, str) and kind.strip(" '\"").rsplit(".", 1)[-1] == "constexpr":
            return "constexpr"
        return original(kind)

    jit._normalize_ty = normalize


def _add_descriptor_atomics(builder: Any) -> None:
    """Do descriptor atomics as the builder's own ones through pointers: where those are watched, these are too."""

    def reduce(kind: Any, descriptor: Any, value: Any, offsets: Any) -> Any:
        pointers, mask = descriptor.materialize_pointers(offsets)
        operation = _operation(str(kind).rsplit(".", 1)[-1].upper(), pointers.get_element_ty())
        # What lies outside of the descriptor's tensor stays as it is, as on a GPU.
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
