"""Gradients of a rank that is alone: one buffer a module, and right."""

from __future__ import annotations

import pytest
import torch
from hf_models import batch, job_of
from torch.distributed.tensor import DTensor

from windtunnel.train.hf.shards import OneBuffer

CPU = torch.device("cpu")


def test_the_second_of_two_calls_gets_the_first_ones_buffer() -> None:
    buffers = OneBuffer()
    first = buffers.allocate((8,), dtype=torch.float32, device=CPU)
    assert not buffers.paired
    assert buffers.allocate((8,), dtype=torch.float32, device=CPU) is first
    assert buffers.paired
    following = buffers.allocate((8,), dtype=torch.float32, device=CPU)
    assert following.data_ptr() != first.data_ptr()


@pytest.mark.parametrize(("size", "dtype"), [((4,), torch.float32), ((8,), torch.bfloat16)])
def test_what_does_not_match_is_a_buffer_of_its_own(size: tuple[int], dtype: torch.dtype) -> None:
    buffers = OneBuffer()
    first = buffers.allocate((8,), dtype=torch.float32, device=CPU)
    second = buffers.allocate(size, dtype=dtype, device=CPU)
    assert second.data_ptr() != first.data_ptr()
    assert second.shape == size
    assert second.dtype == dtype


def test_gradients_lie_where_they_were_cast_to(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, torch.Tensor]] = []
    allocate = OneBuffer.allocate

    def noted(self: OneBuffer, size: tuple[int, ...], **chosen: object) -> torch.Tensor:
        made = allocate(self, size, **chosen)  # type: ignore[arg-type]
        given.append((id(self), made))
        return made

    monkeypatch.setattr(OneBuffer, "allocate", noted)
    with job_of("llama") as job:
        x, y = batch(2)
        job.network(x, y)[1].backward()
        gradients = [p.grad for p in job.network.model.parameters()]
        assert len(given) == 2 * (2 + 1)  # both blocks and the root, each asked twice
        for (one, before), (other, after) in zip(given[::2], given[1::2], strict=True):
            assert one == other
            assert before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        held = {made.untyped_storage().data_ptr() for _, made in given}
        assert len(held) == 3
        assert all(isinstance(g, DTensor) and g.to_local().untyped_storage().data_ptr() in held for g in gradients)
