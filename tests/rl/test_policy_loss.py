"""Advantages, losses and packing against cases worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import learner

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO
from windtunnel.rl import (
    LossSettings,
    PolicyLoss,
    Reward,
    Sample,
    Tokens,
    all_equal,
    answer_means,
    group_advantages,
    micro_batches,
    token_losses,
)
from windtunnel.train import HFJob, ObjectiveBatch

CPU = torch.device("cpu")


def test_advantages_of_a_group_by_hand() -> None:
    # Mean 0.5, sample deviation sqrt(4 * 0.25 / 3) = 0.57735.
    assert group_advantages([1, 0, 1, 0]) == pytest.approx([0.8659, -0.8659, 0.8659, -0.8659], abs=2e-4)
    assert group_advantages([1, 0, 1, 0], scale="none") == [0.5, -0.5, 0.5, -0.5]
    # Each against the mean of the three others: 1 - 1/3, 0 - 2/3.
    assert group_advantages([1, 0, 1, 0], "leave-one-out", "none") == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])
    assert group_advantages([3, 3, 3]) == [0, 0, 0]


def test_what_nothing_is_known_of_counts_in_no_mean() -> None:
    found = group_advantages([1.0, math.nan, 0.0], "leave-one-out", "none")
    assert (found[0], found[2]) == (1.0, -1.0)
    assert math.isnan(found[1])
    assert all(math.isnan(a) for a in group_advantages([1.0, math.nan, math.nan]))
    assert all_equal([1.0, math.nan, 1.0])
    assert all_equal([math.nan, math.nan])
    assert not all_equal([1.0, math.nan, 0.0])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_advantages_of_a_group_add_up_to_nothing(rewards: list[float]) -> None:
    for baseline in ("group", "leave-one-out"):
        for scale in ("group", "none"):
            assert math.fsum(group_advantages(rewards, baseline, scale)) == pytest.approx(0, abs=1e-6)  # type: ignore[arg-type]


def losses_of(ratio: float, advantage: float, settings: LossSettings, sampler: float = 0.0) -> tuple[float, float]:
    """Return a token's loss and its derivative, of a token whose probability was 1/2 before."""
    old = math.log(0.5)
    new = torch.tensor([old + math.log(ratio)], requires_grad=True)
    one = torch.tensor([1.0])
    tokens = Tokens(one, advantage * one, (old - sampler) * one, old * one)
    loss = token_losses(new, tokens, settings).sum()
    return float(loss.detach()), float(torch.autograd.grad(loss, new)[0])


def test_the_clip_by_hand() -> None:
    settings = LossSettings(low=0.2, high=0.3)
    assert losses_of(1.1, 2.0, settings) == pytest.approx((-2.2, -2.2))
    # Past 1 + high nothing more is gained by a better answer's token, and past 1 - low nothing by a worse one's.
    assert losses_of(1.5, 2.0, settings) == pytest.approx((-2.6, 0.0))
    assert losses_of(0.5, -2.0, settings) == pytest.approx((1.6, 0.0))
    # On the other side the gradient leads back, however far it is.
    assert losses_of(0.5, 2.0, settings) == pytest.approx((-1.0, -1.0))
    assert losses_of(1.5, -2.0, settings) == pytest.approx((3.0, 3.0))


def test_weights_for_the_sampler_by_hand() -> None:
    """The policy before gave the token e^0.5 = 1.649 times the probability that the sampler had."""
    truncate, mask = LossSettings(mismatch="truncate", cap=1.5), LossSettings(mismatch="mask", band=(0.5, 1.6))
    assert losses_of(1.0, 1.0, truncate, 0.5)[0] == pytest.approx(-1.5)
    assert losses_of(1.0, 1.0, truncate, 0.2)[0] == pytest.approx(-math.exp(0.2))
    assert losses_of(1.0, 1.0, mask, 0.5) == (0.0, 0.0)
    assert losses_of(1.0, 1.0, mask, 0.4)[0] == pytest.approx(-math.exp(0.4))


def test_the_penalty_has_the_gradient_of_the_divergence() -> None:
    """Over all tokens of a small vocabulary, each as often as the policy draws it: d KL / d logits, exactly."""
    logits = torch.tensor([0.3, -0.7, 1.1], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, -0.2]), 0)
    new = torch.log_softmax(logits, 0)
    probability = new.detach().exp()
    tokens = Tokens(torch.ones(3), torch.zeros(3), new.detach(), new.detach(), reference)
    estimated = (probability * token_losses(new, tokens, LossSettings(kl=1.0))).sum()
    exact = (new.exp() * (new - reference)).sum()
    (mine,) = torch.autograd.grad(estimated, logits, retain_graph=True)
    (true,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(mine, true)
    assert float(estimated.detach()) == pytest.approx(float(exact.detach()))


def answer(number: int, length: int, advantage: float) -> Sample:
    """Return an answer of random tokens to a prompt of random ones."""
    draw = np.random.default_rng(number)
    tokens, prompt = draw.integers(2, 128, length), Prompt(number, draw.integers(2, 128, 1 + number % 4), "", None, {})
    reward = Reward(0.0, (0.0,), False)
    return Sample(prompt, 0, tokens, np.full(length, -1.0, np.float32), "", False, 0, reward, advantage)


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("rows", [1, 3])
def test_packed_answers_have_the_loss_and_gradient_of_each_alone(loss: str, rows: int) -> None:
    """One answer is not learned from; all of them are in the mean over answers."""
    samples = [
        answer(i, length, advantage) for i, (length, advantage) in enumerate([(5, 1.0), (9, -0.5), (3, math.nan), (7, 2.0)])
    ]
    stage = GRPO(name="rl", loss=loss, answer_tokens=10)  # type: ignore[arg-type]
    with learner() as job:
        packed = micro_batches(samples, stage, sequence=32, rows=rows, fixed=True, device=CPU)
        taken: dict[str, torch.Tensor] = {}

        def take() -> None:
            taken.update({name: p.grad.clone() for name, p in job.trained.items() if p.grad is not None})

        sums = job.step(packed, 32, 0.0, before_update=take)
        share = {"dapo": 21, "grpo": 4, "dr_grpo": 40}[loss]
        assert float(sums[1]) == share
        total = torch.zeros(())
        for sample in samples:
            ids = torch.from_numpy(np.concatenate([sample.prompt.ids, sample.tokens]))[None]
            logits = job.network.model(inputs_embeds=job.network.model.get_input_embeddings()(ids), use_cache=False).logits
            chosen = torch.log_softmax(logits[0, :-1], -1).gather(1, ids[0, 1:, None])[-len(sample.tokens) :, 0]
            if not math.isnan(sample.advantage):
                each = -sample.advantage * torch.exp(chosen - chosen.detach()) * torch.exp(chosen.detach() + 1.0).clamp(max=2.0)
                total = total + (each.mean() if loss == "grpo" else each.sum()) / share
        total.backward()  # type: ignore[no-untyped-call]
        assert float(sums[0] / sums[1]) == pytest.approx(float(total.detach()), rel=1e-5)
        for name, gradient in taken.items():
            torch.testing.assert_close(gradient * 32 / share, job.trained[name].grad, rtol=1e-4, atol=1e-6, msg=name)


def test_ranks_that_have_fewer_answers_take_part_with_empty_batches() -> None:
    samples = [answer(0, 4, 1.0)]
    stage = GRPO(name="rl", answer_tokens=10)
    batches = micro_batches(samples, stage, sequence=32, rows=1, fixed=True, device=CPU, least=3)
    assert [batch.objective.share for batch in batches] == [4.0, 0.0, 0.0]  # type: ignore[union-attr]
    with learner() as job:
        alone = job.step(micro_batches(samples, stage, sequence=32, rows=1, fixed=True, device=CPU), 32, 0.0)
        padded = job.step([replace(batch) for batch in batches], 32, 0.0)
    torch.testing.assert_close(alone, padded)


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_prime_number_of_sequences_in_micro_batches_of_four_has_the_gradient_of_all_at_once(loss: str, fixed: bool) -> None:
    """No two of these answers fit one sequence, so that there are seven."""
    samples = [answer(i, 20 + i % 3, 1.0 if i % 2 else -0.5) for i in range(7)]
    stage = GRPO(name="rl", loss=loss, answer_tokens=24)  # type: ignore[arg-type]

    def packed(rows: int) -> list[ObjectiveBatch]:
        return micro_batches(samples, stage, sequence=32, rows=rows, fixed=fixed, device=CPU)

    assert [len(batch.input_ids) for batch in packed(4)] == ([4, 4] if fixed else [4, 3])

    def gradient(rows: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with learner() as job:
            found: dict[str, torch.Tensor] = {}

            def take() -> None:
                found.update({name: p.grad.clone() for name, p in job.trained.items() if p.grad is not None})

            return job.step(packed(rows), 7 * 32, 0.0, before_update=take), found

    (sums, some), (together, every) = gradient(4), gradient(7)
    torch.testing.assert_close(sums, together)
    assert sums[3] == sum(len(sample.tokens) for sample in samples)
    assert some.keys() == every.keys()
    for name, one in some.items():
        torch.testing.assert_close(one, every[name], rtol=1e-4, atol=1e-6, msg=name)


def with_old(batches: list[ObjectiveBatch], job: HFJob, moved: list[float]) -> None:
    """Give the losses log-probabilities of before: each answer's tokens were less likely by so many nats, more or less."""
    noise = torch.Generator().manual_seed(3)
    for batch, now in zip(batches, job.score(batches), strict=True):
        loss = batch.objective
        assert isinstance(loss, PolicyLoss)
        flat = now.reshape(-1)
        each = torch.tensor([*moved, 0.0])[loss.owner]
        old = flat - each - 0.3 * torch.randn(flat.shape, generator=noise)
        loss.tokens = replace(loss.tokens, old=old, moved=answer_means(flat - old, loss.owner))


def test_of_gspo_an_answer_has_one_ratio_and_its_gradient_is_the_sequences() -> None:
    """exp of the mean of log-ratios, clipped, times the advantage, mean over answers (arXiv:2507.18071, equations 5 to 7)."""
    samples = [answer(i, length, advantage) for i, (length, advantage) in enumerate([(5, 1.0), (9, -0.5), (3, 0.7), (7, -2.0)])]
    stage = GRPO(name="rl", loss="gspo", answer_tokens=10, updates=2, clip=0.1, clip_higher=0.15, mismatch="ignore")
    with learner() as job:
        packed = micro_batches(samples, stage, sequence=32, rows=2, fixed=True, device=CPU)
        with_old(packed, job, [0.5, 0.02, -0.05, -0.4])  # past the clip above, between, between, past it below
        before: dict[int, torch.Tensor] = {}
        for batch in packed:
            loss = batch.objective
            assert isinstance(loss, PolicyLoss)
            assert loss.tokens.old is not None
            before |= {n: loss.tokens.old[loss.owner == n] for n in {int(i) for i in loss.owner if i >= 0}}
        taken: dict[str, torch.Tensor] = {}

        def take() -> None:
            taken.update({name: p.grad.clone() for name, p in job.trained.items() if p.grad is not None})

        sums = job.step(packed, 32, 0.0, before_update=take)
        assert float(sums[1]) == len(samples)
        total = torch.zeros(())
        for number, sample in enumerate(samples):
            ids = torch.from_numpy(np.concatenate([sample.prompt.ids, sample.tokens]))[None]
            logits = job.network.model(inputs_embeds=job.network.model.get_input_embeddings()(ids), use_cache=False).logits
            chosen = torch.log_softmax(logits[0, :-1], -1).gather(1, ids[0, 1:, None])[-len(sample.tokens) :, 0]
            ratio = torch.exp((chosen - before[number]).mean())
            total = total - torch.min(ratio * sample.advantage, ratio.clamp(0.9, 1.15) * sample.advantage) / len(samples)
        total.backward()  # type: ignore[no-untyped-call]
        assert float(sums[0] / sums[1]) == pytest.approx(float(total.detach()), rel=1e-5)
        for name, gradient in taken.items():
            torch.testing.assert_close(gradient * 32 / len(samples), job.trained[name].grad, rtol=1e-4, atol=1e-6, msg=name)
    # All of an answer's tokens are past the clip, or none: here those of the first and of the last answer.
    assert sum(float(batch.objective.clipped) for batch in packed) == 5 + 7  # type: ignore[union-attr]


@pytest.mark.parametrize("loss", ["cispo", "sapo"])
def test_a_loss_without_a_clip_counts_nothing_as_clipped(loss: str) -> None:
    samples = [answer(i, 5, 1.0 if i else -1.0) for i in range(2)]
    stage = GRPO(name="rl", loss=loss, answer_tokens=10, updates=2)  # type: ignore[arg-type]
    with learner() as job:
        packed = micro_batches(samples, stage, sequence=32, rows=1, fixed=True, device=CPU)
        with_old(packed, job, [2.0, -2.0])
        job.step(packed, 32, 0.0)
    assert [batch.objective.clipped for batch in packed] == [None]  # type: ignore[union-attr]


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo"])
def test_an_update_makes_better_answers_likelier_than_worse_ones(loss: str) -> None:
    samples = [answer(i, 4 + i, 1.0 if i % 2 else -1.0) for i in range(8)]
    stage = GRPO(name="rl", loss=loss, answer_tokens=16, mismatch="ignore")  # type: ignore[arg-type]

    def packed() -> list[ObjectiveBatch]:
        return micro_batches(samples, stage, sequence=32, rows=2, fixed=True, device=CPU)

    def preferred(job: HFJob) -> float:
        total = 0.0
        for batch, scores in zip(packed(), job.score(packed()), strict=True):
            advantage = batch.objective.tokens.advantage  # type: ignore[union-attr]
            total += float((advantage * scores.reshape(-1)).sum())
        return total

    with learner() as job:
        before = preferred(job)
        for _ in range(3):
            job.step(packed(), 64, 1e-3)
        assert preferred(job) > before + 1.0
