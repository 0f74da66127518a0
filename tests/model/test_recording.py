"""Recorded work gives what the work itself gives: losses, gradients, updates after each supervision step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from random_models import tokens
from recordings import Again, Recorder
from recursive_reference import random_model, recursive_shape
from torch import Tensor

from windtunnel.model import Objective, RecursiveGPT, Replay, Supervision
from windtunnel.model.recording import RUNS_BEFORE
from windtunnel.model.shape import RecursionShape

SCHEMES = [RecursionShape("layerwise", 2, 1, 3), RecursionShape("two_latent", 2, 1, 3), RecursionShape("looped", 1, 1, 3)]


def test_work_is_recorded_once_and_sees_what_it_is_given() -> None:
    recorded, seen = [], torch.zeros(2)

    def record(work: Callable[[], None]) -> Again:
        recorded.append(work)
        return Again(work)

    def work(x: Tensor) -> None:
        seen[: len(x)].add_(x)

    run = Replay(record)
    for i in range(6):
        run("sum", work, torch.full((2,), 10.0**i))
    assert seen.tolist() == [111_111.0] * 2
    assert len(recorded) == 1
    run("sum", work, torch.ones(1))
    assert seen.tolist() == [111_112.0, 111_111.0]
    assert len(recorded) == 1
    run.forget()
    run("sum", work, torch.ones(2))
    assert len(recorded) == 1


def test_what_leaves_something_where_recordings_write_has_them_made_again() -> None:
    recorder, seen = Recorder(leaves=(3,)), torch.zeros(1)
    run = Replay(recorder, launch=recorder.launch)

    def work(x: Tensor) -> None:
        seen.add_(x.sum())

    for i in range(4):
        run("one", work, torch.full((2,), 10.0**i))
    assert (len(recorder.made), recorder.launched) == (1, 2)
    run("other", work, torch.ones(3))
    run("one", work, torch.ones(2))
    assert len(recorder.made) == 2  # the first would overwrite what the other work left
    run("other", work, torch.ones(3))
    run("one", work, torch.ones(2))
    assert (len(recorder.made), recorder.launched) == (2, 4)
    assert seen.item() == 2 * 1111.0 + 6 + 4


def test_works_of_the_same_shapes_share_their_places() -> None:
    places: dict[str, set[int]] = {"one": set(), "other": set(), "wider": set()}
    run, total = Replay(Again), torch.zeros(1)

    def work(name: str, x: Tensor) -> None:
        places[name].add(x.data_ptr())
        total.add_(x.sum())

    given = {
        name: [torch.full((size,), float(10**i)) for i in range(5)] for name, size in (("one", 2), ("other", 2), ("wider", 3))
    }
    for i in range(5):
        for name, tensors in given.items():
            run(name, partial(work, name), tensors[i])
    assert total.item() == 7 * 11_111.0
    own = {name: places[name] - {t.data_ptr() for t in tensors} for name, tensors in given.items()}
    assert own["one"] == own["other"]
    assert own["one"].isdisjoint(own["wider"])
    assert all(len(addresses) == 1 for addresses in own.values())


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("updates", ["once", "each"])
@pytest.mark.parametrize("recursion", SCHEMES, ids=lambda r: r.scheme)
def test_recorded_steps_are_those_that_are_not(recursion: RecursionShape, updates: str, micro_batches: int) -> None:
    objective = Objective((0.2, 0.3, 0.5), 0.7 if updates == "once" else 0.0, 1, updates)
    shape = recursive_shape(recursion=recursion)
    curves = []
    for record in (None, Again):
        model = random_model(shape)
        assert isinstance(model, RecursiveGPT)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        torch.manual_seed(0)
        batches = [[tokens(shape) for _ in range(micro_batches)] for _ in range(RUNS_BEFORE + 3)]
        work = Supervision(model, objective, 1 / sum(int((y >= 0).sum()) for _, y in batches[0]), Replay(record))

        def update(_: int, model: RecursiveGPT = model) -> None:
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
                    p.grad.zero_()

        curve = []
        for batch in batches:
            sums = work.step(batch, update if updates == "each" else None)
            curve.append((sums.losses.clone(), sums.objective.clone(), sums.targets.clone(), sums.sequences))
            if updates == "once":
                update(0)
        curves.append((curve, [p.detach().clone() for p in model.parameters()]))
    (plain, weights), (recorded, others) = curves
    for a, b in zip(plain, recorded, strict=True):
        assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
