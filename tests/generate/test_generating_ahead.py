"""A generator that begins the next step before it has seen the last one's tokens says what one says that waits."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import Again
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from tiny_hf import tiny_llama

from windtunnel.generate import BatchedGenerator, Completion, GenerationFailed, GenerationJob, NoText, RecordedDecoder, load_hf

CPU = torch.device("cpu")
VOCAB = 300


class Waiting(RecordedDecoder):
    """The same decoder, whose steps the generator waits for."""

    ahead = False


class Single(RecordedDecoder):
    """The same decoder, which draws no tokens by itself."""

    draws = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("ahead") / "tiny", max_position_embeddings=600)


def decoder(kind: type[RecordedDecoder], folder: Path, capacity: int | None = None) -> RecordedDecoder:
    return kind(load_hf(folder, CPU, torch.float32), capacity, lambda: Again)


def crowd(seed: int, **more: Any) -> list[GenerationJob]:
    """Return jobs of all lengths, some of which share a prompt, greedy and drawn, cut in different ways."""
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(3, 290) for _ in range(draw.choice((1, 2, 7, 30, 90)))) for _ in range(6)]
    return [
        GenerationJob(
            draw.choice(prompts), draw.choice((1, 2, 9, 40)), seed=i, draws=True,
            temperature=draw.choice((0.0, 0.7, 1.0)),
            **({"top_p": draw.choice((1.0, 0.9)), "top_k": draw.choice((0, 20))} | more),
        )
        for i in range(24)
    ]  # fmt: skip


def said(
    kind: type[RecordedDecoder], folder: Path, jobs: Sequence[GenerationJob], slots: int, ends: tuple[int, ...]
) -> list[Completion]:
    engine = BatchedGenerator(decoder(kind, folder), NoText(VOCAB, ends), slots=slots)
    try:
        return engine.generate(jobs)
    finally:
        engine.close()


@pytest.mark.parametrize("whole", [False, True], ids=["cut off", "whole"])
@pytest.mark.parametrize("kind", [RecordedDecoder, Single])
@pytest.mark.parametrize("slots", [24, 5])
def test_ahead_is_as_waiting_whoever_ends_when(folder: Path, slots: int, kind: type[RecordedDecoder], whole: bool) -> None:
    # Where nothing is cut off, several steps are begun at a time.
    jobs, ends = crowd(1, **({"top_p": 1.0, "top_k": 0} if whole else {})), tuple(range(3, 40))  # an end comes now and then
    waited, ahead = (said(kind, folder, jobs, slots, ends) for kind in (Waiting, kind))
    assert [(one.tokens, one.finish) for one in ahead] == [(one.tokens, one.finish) for one in waited]
    assert {one.finish for one in ahead} == {"stop", "length"}
    for one, other in zip(ahead, waited, strict=True):
        assert [token for token, _ in one.drawn] == [token for token, _ in other.drawn]
        assert [p for _, p in one.drawn] == pytest.approx([p for _, p in other.drawn], abs=1e-4)


@pytest.mark.parametrize("more", [{}, {"top_p": 1.0, "top_k": 0}], ids=["cut off", "whole"])
def test_a_crowd_says_what_each_says_alone(folder: Path, more: dict[str, Any]) -> None:
    jobs = crowd(2, **more)
    together = said(RecordedDecoder, folder, jobs, 24, (5,))
    alone = [said(RecordedDecoder, folder, [job], 1, (5,))[0] for job in jobs]
    assert [one.tokens for one in together] == [one.tokens for one in alone]


def test_a_context_that_is_full_ends_a_sequence_where_it_ends_one_that_waits(folder: Path) -> None:
    jobs = [GenerationJob(tuple(range(3, 3 + length)), 100, temperature=0) for length in (20, 39, 40)]
    found = []
    for kind in (Waiting, RecordedDecoder):
        engine = BatchedGenerator(decoder(kind, folder, 40), NoText(VOCAB, ()), slots=3)
        found.append([one.tokens for one in engine.generate(jobs)])
        engine.close()
    assert found[0] == found[1]
    assert [len(tokens) for tokens in found[1]] == [21, 2, 1]


class Failing(RecordedDecoder):
    """Fails at a step: of everybody once, or of one slot always."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps, self.error = 0, dict[int, Exception]()
        self.sick: int | None = None

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        self.fail(slots)
        return super().step(slots, tokens)

    def draw(self, slots: Sequence[int], *given: Any) -> Any:
        self.fail(slots)
        return super().draw(slots, *given)

    def fail(self, slots: Sequence[int]) -> None:
        self.steps += 1
        if self.steps in self.error:
            raise self.error[self.steps]
        if self.sick in slots and self.steps > 2:
            raise ValueError("that slot")


@pytest.mark.parametrize("more", [{}, {"top_p": 1.0, "top_k": 0}], ids=["cut off", "whole"])
def test_memory_that_runs_out_ahead_halves_the_batch_and_changes_no_text(folder: Path, more: dict[str, Any]) -> None:
    jobs = crowd(3, **more)
    whole = said(RecordedDecoder, folder, jobs, 24, ())
    failing = decoder(Failing, folder)
    assert isinstance(failing, Failing)
    failing.error = {4: torch.OutOfMemoryError("CUDA out of memory"), 9: torch.OutOfMemoryError("CUDA out of memory")}
    engine = BatchedGenerator(failing, NoText(VOCAB, ()), slots=24)
    found = engine.generate(jobs)
    assert engine.stats.halvings == 2
    engine.close()
    assert [one.tokens for one in found] == [one.tokens for one in whole]


def test_one_whose_step_fails_is_given_up_alone(folder: Path) -> None:
    failing = decoder(Failing, folder)
    assert isinstance(failing, Failing)
    failing.sick = 2
    engine = BatchedGenerator(failing, NoText(VOCAB, ()), slots=4)
    jobs = [GenerationJob((7 + i, 8, 9), 30, temperature=0) for i in range(4)]
    tickets = engine.submit(jobs)
    results: list[int | str] = []
    for ticket in tickets:
        try:
            results.append(len(ticket.result(60).tokens))
        except GenerationFailed:
            results.append("given up")
    engine.close()
    assert results == [30, 30, "given up", 30]


def test_weights_are_renewed_between_steps_and_tokens_have_the_version_that_gave_them(folder: Path) -> None:
    one = decoder(RecordedDecoder, folder)
    engine = BatchedGenerator(one, NoText(VOCAB, ()), slots=4)
    tickets = engine.submit([GenerationJob((7 + i, 8, 9), 400, temperature=1, seed=i, draws=True) for i in range(4)])
    while min(len(ticket.tokens) for ticket in tickets) < 20:
        time.sleep(0.001)
    engine.renew(lambda: None, 1)
    for ticket in tickets:
        ticket.result(60)
    engine.close()
    for ticket in tickets:
        assert len(ticket.versions) == len(ticket.drawn) == 400
        assert ticket.versions == sorted(ticket.versions)
        assert set(ticket.versions) == {0, 1}


def test_cancelled_in_flight_nothing_more_is_said_and_its_slot_serves_the_next(folder: Path) -> None:
    jobs = [GenerationJob((7 + i, 8, 9), 200, temperature=1, seed=i) for i in range(3)]
    alone = said(RecordedDecoder, folder, [jobs[2]], 1, ())[0].tokens
    engine = BatchedGenerator(decoder(RecordedDecoder, folder), NoText(VOCAB, ()), slots=2)
    first, second, third = engine.submit(jobs, bounded=False)
    while len(first.tokens) < 10:
        time.sleep(0.001)
    first.cancel()
    assert third.result(60).tokens == alone
    assert len(first.tokens) < 200
    assert len(second.result(60).tokens) == 200
    engine.close()


def test_a_decoder_serves_one_generator_after_another_with_the_recordings_of_the_first(folder: Path) -> None:
    made: list[Again] = []

    def record(work: Any) -> Again:
        made.append(Again(work))
        return made[-1]

    one = RecordedDecoder(load_hf(folder, CPU, torch.float32), None, lambda: record)
    jobs = crowd(4, top_p=1.0, top_k=0)
    found, counts = [], []
    for _ in range(3):
        engine = BatchedGenerator(one, NoText(VOCAB, ()), slots=24)
        found.append([done.tokens for done in engine.generate(jobs)])
        engine.close()
        counts.append(len(made))
    assert found[0] == found[1] == found[2]
    assert counts[0] > 0
    assert counts[1] == counts[2]  # what ran too seldom to be recorded the first time may be the second


def test_how_a_ticket_ended_is_known_without_its_text(folder: Path) -> None:
    engine = BatchedGenerator(decoder(RecordedDecoder, folder), NoText(VOCAB, range(3, 40)), slots=8)
    tickets = engine.submit([GenerationJob((7 + i, 8), 20, temperature=1, seed=i) for i in range(8)])
    results = [ticket.result(60).finish for ticket in tickets]
    again = engine.submit([GenerationJob((7 + i, 8), 20, temperature=1, seed=i) for i in range(8)])
    while not all(ticket.over for ticket in again):
        time.sleep(0.001)
    assert [ticket.ended() for ticket in again] == results
    assert set(results) == {"stop", "length"}
    engine.close()
