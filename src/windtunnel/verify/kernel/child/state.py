"""Whether anything of a candidate lasts from one call to the next: its module's names and its model, before and after.

Runs only in sandboxed children: imports torch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import secrets
import types
from collections.abc import Iterator
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
DEEPEST = 40
# What a kernel, its heuristics, its tuner and a configuration hold of what the candidate gave them.
GIVEN = (
    "fn",
    "values",
    "keys",
    "configs",
    "kwargs",
    "value",
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "pre_hook",
    "post_hook",
    "perf_model",
    "early_config_prune",
    "_do_bench",
)
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)
CANDIDATE = "candidate"  # the name it is imported under
FACTORS = 1 << 20
# Of Python's own kinds these do not change, beside the plain ones; a view of a dictionary or an exception may hold what does.
UNCHANGING = (
    range,
    object,
    type(...),
    type(NotImplemented),
    types.ModuleType,
    types.CodeType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


class Lasting(Exception):
    """Something that cannot but keep state; its text says where."""


class State:
    """Looks at everything that a candidate's own code can reach and change. names: of its module, as they were on import."""

    def __init__(self, module: types.ModuleType) -> None:
        self.space = vars(module)
        self.names = [name for name in self.space if not name.startswith("__")]

    def look(self, model: torch.nn.Module, *, closely: bool = True) -> dict[str, object]:
        """Place → what is there, in a form that can be compared. Raises Lasting for an iterator. closely: the contents of tensors
        too; otherwise how often host code changed them, which a kernel's writes do not count for."""
        found: dict[str, object] = {}
        seen: dict[int, object] = {}  # holds what it names, so that no number is used again
        for path, value in [("self", model), *((name, self.space.get(name)) for name in self.names)]:
            for place, token in _walk(path, value, seen, 0, closely):
                found[place] = token
        return found


def changed(before: dict[str, object], after: dict[str, object]) -> str | None:
    """The first place that is not what it was, or None."""
    for place in [*before, *after]:
        if before.get(place, before) != after.get(place, after):
            return place
    return None


class _Same:
    """Equal to what is the very same object, which it holds, so that no other one gets its address."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _walk(path: str, value: Any, seen: dict[int, object], depth: int, closely: bool) -> Iterator[tuple[str, object]]:
    if type(value) in PLAIN:
        yield path, repr(value)
        return
    yield f"{path} itself", _Same(value)
    if id(value) in seen:
        return
    if depth > DEEPEST:
        raise Lasting(f"{path} lies too deep to be looked at")
    seen[id(value)] = value
    if type(value).__module__ == CANDIDATE:
        yield from _walk(f"{path}.class", type(value), seen, depth + 1, closely)
    if isinstance(value, torch.Tensor):
        yield path, (*_form(value), _digest(value) if closely else _changes(value))
    elif isinstance(value, dict):
        yield path, len(value)
        for number, (key, entry) in enumerate(list(value.items())):
            yield from _walk(f"{path}[key {number}]", key, seen, depth + 1, closely)
            yield from _walk(f"{path}[{number}]", entry, seen, depth + 1, closely)
    elif isinstance(value, list | tuple | set | frozenset):
        yield path, len(value)
        for number, entry in enumerate(value):
            yield from _walk(f"{path}[{number}]", entry, seen, depth + 1, closely)
    elif hasattr(type(value), "__next__"):
        raise Lasting(f"{path} is an iterator, which remembers how far it is")
    else:
        yield from _parts(path, value, seen, depth, closely)


def _parts(path: str, value: Any, seen: dict[int, object], depth: int, closely: bool) -> Iterator[tuple[str, object]]:
    """What lies behind functions, partials, modules, and objects and classes of the candidate's own."""
    parts: dict[str, Any] = {}
    if isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, types.MethodType):
        parts = {"self": value.__self__, "function": value.__func__}
    elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        parts = {"self": value.__self__}  # [].append holds its list, tensor.view its tensor
    elif isinstance(value, slice):
        parts = {"start": value.start, "stop": value.stop, "step": value.step}
    elif isinstance(value, types.GenericAlias | types.UnionType):
        parts = {"origin": getattr(value, "__origin__", None), "arguments": value.__args__}
    elif isinstance(value, property):
        parts = {"get": value.fget, "set": value.fset, "delete": value.fdel}
    elif isinstance(value, staticmethod | classmethod):
        parts = {"function": value.__func__}
    elif isinstance(value, types.FunctionType):
        parts = _of_function(value) if value.__module__ == CANDIDATE else {}
    elif isinstance(value, type):
        parts = _of_class(value) if value.__module__ == CANDIDATE else {}
    elif isinstance(value, dataclasses.Field):
        parts = {"default": value.default, "factory": value.default_factory}
    elif isinstance(value, torch.nn.Module) or type(value).__module__ == CANDIDATE:
        parts = {**getattr(value, "__dict__", {}), **_slots(value)}
    elif type(value).__module__.startswith("triton."):
        parts = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if name in GIVEN}
    elif type(value).__module__ == "builtins" and type(value) not in UNCHANGING:
        raise Lasting(f"{path} is a {type(value).__name__}, which may hold something that changes")
    for name, entry in parts.items():
        yield from _walk(f"{path}.{name}", entry, seen, depth + 1, closely)


def _of_function(value: types.FunctionType) -> dict[str, Any]:
    cells = {f"closure {at}": cell.cell_contents for at, cell in enumerate(value.__closure__ or ()) if _filled(cell)}
    return {"defaults": value.__defaults__, "keywords": value.__kwdefaults__, **cells, **vars(value)}


def _of_class(value: type) -> dict[str, Any]:
    """What the candidate wrote there, its functions and fields too, and not what Python adds."""
    added = {name for name in vars(value) if name.startswith("__") and name != "__dataclass_fields__"}
    return {name: entry for name, entry in vars(value).items() if name not in added or isinstance(entry, FUNCTIONS)}


def _slots(value: object) -> dict[str, Any]:
    """What an object holds beside its dictionary, as those of `dataclass(slots=True)` do."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ == CANDIDATE]
    names = {name for kind in kinds for name, entry in vars(kind).items() if isinstance(entry, types.MemberDescriptorType)}
    return {f"slot {name}": getattr(value, name) for name in sorted(names) if hasattr(value, name)}


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a tensor is beside its contents. requires_grad: host code may set it."""
    if tensor.layout is not torch.strided:
        raise Lasting(f"a tensor with layout {tensor.layout} cannot be looked into")
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad


def _changes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _digest(tensor: torch.Tensor) -> object:
    """Of the contents of its whole storage, of which it may show a part: exact on a CPU, by sums on a GPU, where weights are
    large."""
    if tensor.layout is not torch.strided or not tensor.untyped_storage().nbytes():
        return ""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    if tensor.device.type == "cpu":
        return hashlib.blake2b(raw.numpy().tobytes(), digest_size=16).hexdigest()
    return sums(raw)


def sums(raw: torch.Tensor) -> tuple[list[int], list[int]]:
    """Of bytes: for each part the sum of its bits times numbers that were drawn here, so that nothing can be changed to make up
    for a change; then what is left at the end."""
    rest = raw.numel() % 4
    parts = raw[: raw.numel() - rest].view(torch.int32).split(FACTORS)
    return [int((part * _drawn(part.device)[: part.numel()]).sum()) for part in parts], raw[raw.numel() - rest :].tolist()


@functools.cache
def _drawn(device: torch.device) -> torch.Tensor:
    dice = torch.Generator().manual_seed(secrets.randbits(62))
    return torch.randint(-(1 << 62), 1 << 62, (FACTORS,), dtype=torch.int64, generator=dice).to(device)
