"""Every tensor's memory from birth to death while a step runs on tensors without data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

# What CUDA's caching allocator rounds sizes up to.
ROUND = 512
NEVER = 2**62


@dataclass
class Span:
    """One storage's memory: bytes, what they are, and the ticks of the clock between which they lived."""

    size: int
    kind: str
    born: int
    died: int = NEVER


@dataclass(frozen=True)
class Peak:
    """The moment of a phase at which most was alive: bytes by kind."""

    phase: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        """Return the bytes of all kinds together."""
        return sum(self.bytes.values())


class MemoryLedger(TorchDispatchMode):
    """Counts what operations allocate and free while it is entered, above a FakeTensorMode that was entered before.

    New memory is of the kind `kind`; `hold` says better of a tensor, also afterwards: a kind is read when
    `peaks` is called. Only tensors of the fake mode count: those of its own inner workings do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind = "other"
        self._spans: list[Span] = []
        self._at: WeakIdKeyDictionary = WeakIdKeyDictionary()  # storage -> (its span now, weak reference to it)
        self._clock = self._total = 0
        self._phase = "before"
        self._most: dict[str, tuple[int, int]] = {}  # phase -> (bytes, tick)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled functions run as they are; what they do is counted."""
        return True

    def begin(self, phase: str, kind: str | None = None) -> None:
        """Begin a phase, to which what follows belongs; one that comes again goes on. kind: of new memory from now on."""
        self._phase, self.kind = phase, kind or self.kind
        self._note()

    @contextmanager
    def allocating(self, kind: str) -> Iterator[None]:
        """Let new memory be of this kind meanwhile."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def hold(self, tensors: Tensor | Iterable[Tensor | None], kind: str) -> None:
        """Say of what kind these tensors' memory is; what was not known yet counts from now."""
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            for storage in [] if tensor is None else get_untyped_storages(tensor):
                found = self._at.get(storage)
                if found is None:
                    self._add(storage, kind)
                else:
                    found[0].kind = kind

    def peaks(self) -> list[Peak]:
        """Return the peak of every phase, in the order in which they first came."""
        return [Peak(phase, self._alive(tick)) for phase, (_, tick) in self._most.items()]

    def __enter__(self) -> MemoryLedger:
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._watched(self._resize)  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what is new in its results."""
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with its local tensor
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # it copies nothing
        result = func(*args, **(kwargs or {}))
        # By storages, not by tensors: views share their memory and must not count twice.
        for tensor in tree_iter(result):
            if isinstance(tensor, FakeTensor):
                for storage in get_untyped_storages(tensor):
                    if storage not in self._at:
                        self._add(storage, self.kind)
        return result

    def _add(self, storage: torch.UntypedStorage, kind: str) -> None:
        # A resize gives the storage another span, and its death must end that one: the callback looks here.
        holder = [self._span(storage, kind)]
        self._at[storage] = (holder[0], weakref.ref(storage, lambda _: self._end(holder[0])), holder)
        self._note()

    def _span(self, storage: torch.UntypedStorage, kind: str) -> Span:
        """Begin the life of a storage's memory."""
        self._clock += 1
        span = Span(_rounded(storage.nbytes()), kind, self._clock)
        self._spans.append(span)
        self._total += span.size
        return span

    def _end(self, span: Span) -> None:
        self._clock += 1
        span.died = self._clock
        self._total -= span.size

    def _note(self) -> None:
        if self._total >= self._most.get(self._phase, (-1, 0))[0]:
            self._most[self._phase] = (self._total, self._clock)

    def _watched(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """Return `resize_` with its changes counted: FSDP2 frees and makes again gathered weights' memory by it."""

        @wraps(resize)
        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            found = self._at.get(storage)
            if found is not None and found[0].size != _rounded(storage.nbytes()):
                span, reference, holder = found
                self._end(span)
                holder[0] = self._span(storage, span.kind)
                self._at[storage] = (holder[0], reference, holder)
                self._note()
            return result

        return resize_

    def _alive(self, tick: int) -> dict[str, int]:
        sums: dict[str, int] = {}
        for span in self._spans:
            if span.born <= tick < span.died:
                sums[span.kind] = sums.get(span.kind, 0) + span.size
        return sums


def _rounded(size: int) -> int:
    return -(-size // ROUND) * ROUND
