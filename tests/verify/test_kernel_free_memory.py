"""What a kernel that strays from its tensors would find in the memory of a candidate's process."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from windtunnel.verify.kernel.child import memory  # noqa: E402
from windtunnel.verify.kernel.child.memory import (  # noqa: E402
    NAN_BYTE,
    FreeMemory,
    Masked,
)


def values(kind: str) -> torch.Tensor:
    return {
        "fp32": torch.randn(7, 5),
        "bf16": torch.randn(300, 40).to(torch.bfloat16).t(),
        "whole": torch.arange(1000).reshape(10, 100),
        "truth": torch.arange(9) % 2 == 0,
        "one": torch.tensor(3.25),
        "none": torch.empty(0, 4),
    }[kind]


@pytest.mark.parametrize("kind", ["fp32", "bf16", "whole", "truth", "one", "none"])
def test_a_right_answer_is_kept_whole_and_lies_nowhere_as_it_is(kind: str) -> None:
    right = values(kind)
    masked = Masked(right)
    again = masked.plain()
    assert again.dtype == right.dtype
    assert torch.equal(again, right)
    plain = right.contiguous().reshape(-1).view(torch.uint8)
    if plain.numel() > 100:
        assert (masked.bytes == plain).float().mean() < 0.05  # as random bytes agree, one of 256


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_all_free_memory_is_overwritten() -> None:
    sizes = [300, 4096, 900_000, 3 << 20, 7 << 20, 64 << 20]
    kept = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in (1000, 2 << 20)]
    held = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in sizes]
    free = FreeMemory()
    del held
    reserved = 0
    for turn in range(7):
        free.wipe()
        again = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
        assert all([bool((block == NAN_BYTE).all()) for block in again])
        assert all(bool((block == 7).all()) for block in kept), "what is in use stays"
        for block in again:
            block.fill_(7)
        del again, block
        if turn:
            assert torch.cuda.memory_reserved() == reserved, "it takes no new block"
        reserved = torch.cuda.memory_reserved()


@pytest.mark.parametrize("error", [None, RuntimeError("out of memory")], ids=["ends", "fails"])
def test_what_a_job_held_is_gone_when_memory_is_given_back(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    held, seen = list[Any](), list[Any]()
    monkeypatch.setattr(memory, "_give_back", lambda device: seen.append(held[0]()))

    def deeper(large: torch.Tensor) -> None:
        twice = large + large
        held.append(weakref.ref(twice))
        if error is not None:
            try:
                raise error
            except RuntimeError:
                raise ValueError("said in other words") from None

    with contextlib.suppress(ValueError), memory.giving_back("cpu"):
        deeper(torch.ones(1000))
    assert seen == [None]
