"""The budget on a simulated clock: it ends where it should, whatever the machine does."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from windtunnel.recipe import Budget, UserError
from windtunnel.run import BudgetClock, BudgetSpent, Spent, epochs_over_data, load_spent


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, price: float | None = None, spent: Spent | None = None, **limits: float) -> BudgetClock:
    budget = Budget(**limits)  # type: ignore[arg-type]
    return BudgetClock(budget, dollars_per_hour=price, batch_tokens=1000, epoch_tokens=50_000, clock=clock, spent=spent)


def simulate(
    budget: BudgetClock, clock: Clock, seconds_of: Callable[[int], float], *, step: int = 0, final: float = 20.0
) -> tuple[int, list[float]]:
    """A training loop: re-plans every 10 steps, ends with a save of `final` seconds, of which 1.2 x was reserved."""
    progress = []
    while budget.exhausted(step, reserve_seconds=final * 1.2) is None:
        clock.now += seconds_of(step)
        step += 1
        budget.tick()
        if step % 10 == 0 or step < 10:
            budget.replan(step, reserve_seconds=final * 1.2)
        progress.append(budget.progress(step))
    clock.now += final
    return step, progress


PACES: dict[str, Callable[[int], float]] = {
    "steady": lambda step: 2.0,
    "noisy": lambda step: random.Random(step).lognormvariate(0.6, 0.3),
    "compiles first": lambda step: 120.0 if step < 2 else 1.5,
    "validates": lambda step: 25.0 if step % 250 == 249 else 1.5,
    "slows down": lambda step: 1.0 if step < 1500 else 5.0,
    "speeds up": lambda step: 4.0 if step < 300 else 1.0,
}


def test_dollars_on_a_rig_that_costs_nothing_limit_nothing() -> None:
    clock = Clock()
    budget = make(clock, 0.0, dollars=5.0, steps=3)
    steps, _ = simulate(budget, clock, lambda step: 3600.0)
    assert steps == 3
    assert budget.dollars_spent == 0
    with pytest.raises(UserError, match="no known price"):
        make(clock, None, dollars=5.0)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("limits", [{"hours": 1.5}, {"dollars": 36.0}])
def test_time_and_money_are_used_and_never_exceeded(pace: str, limits: dict[str, float]) -> None:
    clock = Clock()
    budget = make(clock, 24.0, **limits)
    _, progress = simulate(budget, clock, PACES[pace])
    assert budget.seconds <= 5400 * 1.01
    assert budget.seconds >= 5400 * 0.98
    assert (budget.dollars_spent or 0) <= 36 * 1.01
    assert progress == sorted(progress)
    assert progress[-1] > 0.97, "the warm-down finishes with the money"
    assert progress[-1] <= 1.0


def test_a_slowdown_at_the_very_end_is_still_within_one_percent() -> None:
    clock = Clock()
    budget = make(clock, hours=1.5)
    simulate(budget, clock, lambda step: 1.0 if clock.now < 6300 else 9.0, final=30.0)
    assert budget.seconds <= 5400 * 1.01


def test_steps_tokens_and_epochs_are_a_pure_function_of_the_step() -> None:
    for limits in ({"steps": 100}, {"tokens": 100_999}, {"epochs": 2.0}):
        clock = Clock()
        budget = make(clock, **limits)
        assert not budget.timed
        assert budget.total_steps == 100
        before = [budget.progress(s) for s in range(101)]
        steps, progress = simulate(budget, clock, PACES["noisy"])
        assert steps == 100
        assert [0.0, *progress] == before == [s / 100 for s in range(101)]


def test_whichever_ends_first() -> None:
    clock = Clock()
    assert simulate(make(clock, 24.0, hours=10.0, steps=50, epochs=100.0), clock, lambda s: 1.0)[0] == 50
    clock = Clock()
    budget = make(clock, 24.0, hours=0.25, steps=50_000, dollars=100.0)
    simulate(budget, clock, lambda s: 1.0)
    assert 0.24 * 3600 < budget.seconds <= 900
    assert "budget.hours" in (budget.exhausted(budget.total_steps, reserve_seconds=24.0) or "")


def test_a_budget_without_limits_takes_the_default() -> None:
    budget = BudgetClock(Budget(), dollars_per_hour=None, batch_tokens=1000, epoch_tokens=1, default_tokens=12_500)
    assert budget.total_steps == 12
    with pytest.raises(UserError, match="no limit"):
        BudgetClock(Budget(), dollars_per_hour=None, batch_tokens=1000, epoch_tokens=1)


def test_dollars_need_a_price() -> None:
    with pytest.raises(UserError, match="no known price") as error:
        make(Clock(), dollars=5.0)
    assert "WINDTUNNEL_PRICE" in (error.value.fix or "")


def test_earlier_sessions_count_and_so_does_their_lost_work(tmp_path: Path) -> None:
    clock = Clock()
    first = make(clock, 24.0, dollars=36.0)
    for _ in range(500):
        clock.now += 2.0
        first.tick()
    first.replan(500, reserve_seconds=10)
    state = json.loads(json.dumps(first.state()))
    clock.now += 600  # lost when the session is killed
    first.save_spent(tmp_path / "spent.json")
    clock = Clock()
    second = make(clock, 12.0, spent=load_spent(tmp_path / "spent.json", state), dollars=36.0)  # a cheaper rig
    second.load_state(state)
    assert second.total_steps == first.total_steps
    assert second.progress(500) == first.progress(500)
    assert second.seconds == pytest.approx(1600)
    _, progress = simulate(second, clock, lambda s: 3.0, step=500)
    assert 35.5 < (second.dollars_spent or 0) <= 36 * 1.01
    assert progress == sorted(progress)
    for text in (
        "half{",
        '{"seconds": 2000, "dollars": "much"}',
        '{"seconds": NaN, "dollars": 0}',
        '{"seconds": -1, "dollars": 0}',
    ):
        (tmp_path / "spent.json").write_text(text)
        assert load_spent(tmp_path / "spent.json", state).seconds == pytest.approx(1000)
        assert load_spent(tmp_path / "spent.json") == Spent()
    assert load_spent(tmp_path / "none.json") == Spent()


def test_a_spent_budget_is_refused_naming_limit_and_spent() -> None:
    with pytest.raises(BudgetSpent, match=r"budget.steps is already spent: the run has done 100 steps of 100"):
        make(Clock(), steps=100).require_left(100)
    with pytest.raises(BudgetSpent, match=r"budget.dollars is already spent: \$40.00 of 36"):
        make(Clock(), 24.0, Spent(6000, 40.0), dollars=36.0).require_left(5)
    with pytest.raises(BudgetSpent, match=r"budget.hours is already spent: 2.00 h of 1.5"):
        make(Clock(), None, Spent(7200), hours=1.5).require_left(5)
    make(Clock(), 24.0, Spent(60, 1.0), hours=1.5, dollars=36.0, steps=10).require_left(9)


@pytest.mark.parametrize(
    ("name", "limit", "spent", "step"),
    [("steps", 100, Spent(), 100), ("steps", 100, Spent(), 205), ("steps", 3, Spent(), 100), ("tokens", 2048, Spent(), 900)]
    + [("hours", 0.5, Spent(seconds), 5) for seconds in (1800, 7200, 100_000)]
    + [("dollars", 1.0, Spent(7200, dollars), 5) for dollars in (1.0, 2.4, 99.0)],
)
def test_what_is_advised_for_a_spent_budget_is_enough(name: str, limit: float, spent: Spent, step: int) -> None:
    """A run may be gone on with under a budget that is far below what it has used."""
    with pytest.raises(BudgetSpent) as refused:
        make(Clock(), 24.0, spent, **{name: limit}).require_left(step)
    advised = re.search(rf"--set budget\.{name}=([\d.e+]+)", refused.value.fix or "")
    assert advised is not None
    make(Clock(), 24.0, spent, **{name: type(limit)(advised[1])}).require_left(step)


def test_forecast_is_what_is_spent_in_the_end() -> None:
    clock = Clock()
    budget = make(clock, 24.0, steps=1000)
    assert budget.forecast_dollars(0) is None
    for _ in range(100):
        clock.now += 2.0
        budget.tick()
    assert budget.forecast_dollars(100, reserve_seconds=20.0) == pytest.approx(2020 * 24 / 3600)
    assert budget.seconds_to_go(100) == pytest.approx(1800)


@pytest.mark.parametrize(("epochs", "level"), [(1, "ok"), (4, "ok"), (5, "warn"), (16, "warn"), (17, "confirm")])
def test_epochs_over_data(epochs: int, level: str) -> None:
    verdict = epochs_over_data(epochs * 1000, 1000)
    assert (verdict.epochs, verdict.level) == (epochs, level)
    assert "epochs over 1,000" in verdict.message


def test_a_stage_is_told_the_keys_that_give_it_more() -> None:
    stage = {"dollars_per_hour": 24.0, "batch_tokens": 1, "epoch_tokens": 100, "stage": "quality"}
    with pytest.raises(BudgetSpent) as steps:
        BudgetClock(Budget(steps=100), **stage).require_left(100)
    assert "--set stages.quality.budget.steps=200" in str(steps.value.fix)
    with pytest.raises(BudgetSpent) as dollars:  # what is left of a budget for all stages says nothing about the whole
        BudgetClock(Budget(dollars=1.0), **stage, spent=Spent(3600, 2.0)).require_left(5)
    assert "--set budget.dollars=..." in str(dollars.value.fix)
