"""Fences around what forward allocates, and drawing that leaves nothing behind in a process that serves many jobs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windtunnel.verify import find_task  # noqa: E402
from windtunnel.verify.kernel.child.draw import Drawn  # noqa: E402
from windtunnel.verify.kernel.child.watch import fenced, first_broken  # noqa: E402


def test_a_write_on_either_side_of_any_tensor_is_found() -> None:
    made = [fenced(torch.empty(shape), f"tensor {number}") for number, shape in enumerate([(3, 5), (7,), (2, 2, 2)])]
    fences = [fence for _, fence in made]
    for tensor, _ in made:
        tensor.fill_(float("nan"))  # to its own last element
    assert first_broken(fences) is None
    assert first_broken([]) is None
    for number, fence in enumerate(fences):
        for at in (0, fence.start - 1, fence.end, len(fence.base) - 1):
            before = int(fence.base[at])
            fence.base[at] = before ^ 1
            assert first_broken(fences) is fences[number]
            fence.base[at] = before
    assert first_broken(fences) is None


def test_one_seed_draws_the_same_again_and_keeps_no_call_for_later() -> None:
    task = find_task("softmax")
    case = {"factor": 1.0, "offset": 0.0, "sign": 0.0}
    queued = len(torch.cuda._queued_calls)
    first, again, other = (Drawn(task.at("tiny"), "float32", seed, [], "cpu").inputs(case, seed + 1)[0] for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(torch.cuda._queued_calls) == queued
