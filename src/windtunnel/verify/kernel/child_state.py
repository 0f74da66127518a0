"""Whether anything of a candidate lasts from one call to the next: its module's names and its model, before and after.

Runs only in sandboxed children: imports torch.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
DEEPEST = 12
# What a kernel, its heuristics, its tuner and a configuration hold of what the candidate gave them.
GIVEN = ("fn", "values", "configs", "kwargs", "pre_hook", "post_hook", "perf_model", "early_config_prune", "_do_bench")
CANDIDATE = "candidate"  # the name it is imported under


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


def _walk(path: str, value: Any, seen: dict[int, object], depth: int, closely: bool) -> Iterator[tuple[str, object]]:
    if isinstance(value, PLAIN):
        yield path, repr(value)
        return
    if id(value) in seen or depth > DEEPEST:
        return
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        yield path, (id(value), tuple(value.shape), _digest(value) if closely else _changes(value))
    elif isinstance(value, dict):
        yield path, len(value)
        for key, entry in list(value.items()):
            yield from _walk(f"{path}[{key!r:.40}]", entry, seen, depth + 1, closely)
    elif isinstance(value, list | tuple):
        yield path, len(value)
        for number, entry in enumerate(value):
            yield from _walk(f"{path}[{number}]", entry, seen, depth + 1, closely)
    elif isinstance(value, set | frozenset):
        yield path, sorted(map(repr, value))
    elif hasattr(type(value), "__next__"):
        raise Lasting(f"{path} is an iterator, which remembers how far it is")
    else:
        yield from _parts(path, value, seen, depth, closely)


def _parts(path: str, value: Any, seen: dict[int, object], depth: int, closely: bool) -> Iterator[tuple[str, object]]:
    """What lies behind functions, partials, modules, and objects and classes of the candidate's own."""
    if isinstance(value, functools.partial):
        parts: dict[str, Any] = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, types.MethodType):
        parts = {"self": value.__self__}
    elif isinstance(value, types.FunctionType):
        if value.__module__ != CANDIDATE:
            return
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        parts = {"defaults": value.__defaults__, "keywords": value.__kwdefaults__, "closure": cells, "attributes": vars(value)}
    elif isinstance(value, type):
        if value.__module__ != CANDIDATE:
            return
        parts = {name: entry for name, entry in vars(value).items() if not name.startswith("__")}
    elif isinstance(value, torch.nn.Module) or type(value).__module__ == CANDIDATE:
        parts = dict(getattr(value, "__dict__", {}))
    elif type(value).__module__.startswith("triton."):
        parts = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if name in GIVEN}
    else:
        return  # PyTorch's own objects, out of the candidate's reach
    for name, entry in parts.items():
        yield from _walk(f"{path}.{name}", entry, seen, depth + 1, closely)


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _changes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _digest(tensor: torch.Tensor) -> object:
    """Of its contents: exact on a CPU, a sum of its bits on a GPU, where weights are large."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if tensor.device.type == "cpu":
        return hashlib.blake2b(raw.numpy().tobytes(), digest_size=16).hexdigest()
    whole = raw[: raw.numel() // 4 * 4].view(torch.int32) if raw.numel() >= 4 else raw
    return int(whole.sum(dtype=torch.int64))
