"""What a round's metrics say about the policy, from the first rounds on, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import new_run, series

from windtunnel.checkpoint import CheckpointStore
from windtunnel.generate import HFDecoder
from windtunnel.recipe import GRPO, UserError
from windtunnel.rl import train_policy
from windtunnel.rl.health import findings
from windtunnel.run import MetricsReader, RunFolder

WELL = {
    "reward": 1.0, "mismatch": 0.01, "mismatch_outside": 0.01, "staleness": 0.0, "equal_rewards": 0.0, "unknown": 0.0,
    "truncated": 0.0,
}  # fmt: skip


def words(**metrics: float) -> str | None:
    return next(one.message for one in findings(WELL | metrics) if one.band == "mismatch")


def test_weights_of_the_same_version_may_hardly_differ() -> None:
    assert words() is None
    assert "0.060 nats on average" in str(words(mismatch=0.06))
    assert "6.0% outside" in str(words(mismatch_outside=0.06))


@pytest.mark.parametrize("updates", [1.0, 4.0])
def test_each_update_between_them_allows_as_much_again(updates: float) -> None:
    allowed = 0.05 * (1 + updates)
    assert words(mismatch=0.99 * allowed, mismatch_outside=0.99 * allowed, staleness=updates) is None
    assert f"with {updates:g} updates between them" in str(words(mismatch=1.01 * allowed, staleness=updates))
    assert words(mismatch_outside=1.01 * allowed, staleness=updates) is not None


EQUAL = {"equal_rewards": 1.0}


@pytest.mark.parametrize(
    ("metrics", "advice"),
    [
        ({"right": 0.0}, "too hard, or the judges accept nothing"),
        ({"right": 1.0}, "too easy, or the judges accept everything"),
        ({"right": 0.5}, "a reward with more grades"),
        ({"right": 0.0, "truncated": 0.9}, "raise stages.rl.answer_tokens"),
        ({"right": 1.0, "truncated": 0.9}, "too easy, or the judges accept everything"),
    ],
)
def test_what_to_change_where_all_rewards_are_equal(metrics: dict[str, float], advice: str) -> None:
    (found,) = [one for one in findings(WELL | EQUAL | metrics) if one.band == "equal_rewards"]
    assert found.message is not None
    assert found.message.startswith("100% of the prompts")
    assert advice in found.advice


def test_what_the_recipe_has_already_is_not_advised() -> None:
    def advice(**keys: Any) -> str:
        (found,) = [one for one in findings(WELL | {"mismatch": 1.0}, GRPO(name="rl", **keys)) if one.band == "mismatch"]
        return found.advice

    assert "engine_weights=bf16" in advice(engine="vllm", engine_weights="fp8")
    assert "engine=in-turn" in advice(engine="vllm")
    assert "in-turn" not in advice()
    assert "mismatch=mask" not in advice(mismatch="mask")
    assert "overlap=1" in advice(engine="vllm", overlap=2)


def test_a_short_run_tells_of_equal_rewards_and_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is worth the same, and no more than five are written at once."""
    torch.set_num_threads(1)
    run = new_run(
        tmp_path, "budget.steps=3", "stages.rl.answers=null", "stages.rl.resamples=1",
        reward="def score(prompt, answer, truth):\n    return 0.5\n",
    )  # fmt: skip
    step, sizes = HFDecoder.step, list[int]()

    def short(self: HFDecoder, slots: list[int], tokens: list[int]) -> torch.Tensor:
        sizes.append(len(slots))
        if len(slots) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, slots, tokens)

    monkeypatch.setattr(HFDecoder, "step", short)
    assert train_policy(run) == 0
    assert series(run, "generation_halvings") == {1: 2.0, 2: 0.0, 3: 0.0}
    assert sum(size > 5 for size in sizes) == 2
    assert set(series(run, "answer_length").values()) != {0.0}
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        said = {event.message: str(event.data.get("advice")) for event in reader.events() if event.level == "warn"}
    assert any("half as many answers" in message for message in said)
    (advice,) = [advice for message, advice in said.items() if "the same reward for every answer" in message]
    assert "stages.rl." in advice


def test_a_sampler_that_is_another_model_than_the_learner_ends_the_run_at_its_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits are those of a model that is surer of itself, as where a temperature is forgotten on one side."""
    torch.set_num_threads(1)
    run, step = new_run(tmp_path, "budget.steps=4"), HFDecoder.step
    monkeypatch.setattr(HFDecoder, "step", lambda self, slots, tokens: 5 * step(self, slots, tokens))
    with pytest.raises(UserError, match="sampler and learner give tokens other probabilities") as error:
        train_policy(run)
    assert error.value.exit_code == 1
    assert "nats on average" in error.value.message
    assert "stages.rl.mismatch=mask" in (error.value.fix or "")
    assert series(run, "reward") == {}
    store = CheckpointStore(run / "checkpoints")
    assert [one.step for one in store.all()] == [0]  # nothing that learned from such answers
