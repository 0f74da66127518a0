"""Gates of a stage: each fails on its own fault and only on it, and says which number and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.recipe import Gates, Recipe, load_recipe, stage_recipe
from windtunnel.run import GateResult, Point
from windtunnel.train import judge_gates

STEPS = 200
ALL = ["order", "refinement", "gradient_norm", "decreasing", "utilisation"]
Series = dict[str, list[Point]]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return stage_recipe(load_recipe("trm"), "validation")


def points(value: Callable[[int], float], every: int = 1) -> list[Point]:
    return [Point(step, value(step), float(step)) for step in range(every, STEPS + 1, every)]


def good() -> Series:
    """A run that the aggressive preset promises: losses fall, each supervision step is below the last."""
    series = {f"validation_loss_step_{i}": points(lambda step, i=i: 8.0 - i - step / 100, every=50) for i in range(4)}
    series["loss"] = points(lambda step: 8.0 - step / 50 + 0.01 * (step % 3))
    series["refinement"] = points(lambda step: step / 10)
    series["gradient_norm"] = points(lambda step: 4.0 if step < 50 else 1.0)
    series["gpu_utilisation"] = points(lambda step: 97.0)
    return series


def judged(series: Series, recipe: Recipe, gates: Gates | None = None, *, gpus: bool = True) -> dict[str, GateResult]:
    return {result.name: result for result in judge_gates(gates or Gates(), recipe, series, gpus=gpus)}


def test_a_good_run_passes_all_gates(recipe: Recipe) -> None:
    results = judged(good(), recipe)
    assert list(results) == ALL
    assert all(result.held and result.advice is None for result in results.values())
    assert results["refinement"].limit == "at least 15 %"
    assert results["gradient_norm"].limit == "0.5 to 1.5"


def test_percents_of_a_loss_near_nothing_are_noise() -> None:
    """Of a fine-tuning that has learnt all there is: 3 % of 0.001 nats is no sign of anything."""
    kernels = stage_recipe(load_recipe("kernels"), "sft")
    gates = Gates(utilisation=None)
    learnt = {"loss": points(lambda step: max(2.0 * 0.9**step, 0.001 * (1.03 if step % 40 < 20 else 1.0)))}
    assert judged(learnt, kernels, gates)["decreasing"].held
    by_heart = {"loss": points(lambda step: max(0.0, 2.0 - step / 40))}
    assert judged(by_heart, kernels, gates)["decreasing"].held
    rising = {"loss": points(lambda step: 1.0 + (0.05 if 80 < step <= 100 else -step / 1000))}
    found = judged(rising, kernels, gates)["decreasing"]
    assert not found.held
    assert "stages.sft.batch_tokens" in str(found.advice)


def test_the_loss_of_reinforcement_learning_need_not_fall() -> None:
    kernels = load_recipe("kernels")
    series = good() | {
        "loss": points(lambda step: 0.1 + 0.01 * (-1) ** (step // 20)),
        "answers_right": points(lambda step: step / 1000, every=20),
    }
    asked = Gates(answers=0.3, utilisation=None)
    results = judged(series, stage_recipe(kernels, "rl"), asked)
    assert [(name, result.held) for name, result in results.items()] == [("answers", False)]
    assert results["answers"].limit == "at least 30.0%"
    assert not judged(series, stage_recipe(kernels, "sft"), asked)["decreasing"].held


def test_losses_that_differ_little_are_shown_as_different(recipe: Recipe) -> None:
    series = good() | {f"validation_loss_step_{i}": points(lambda step, i=i: 2.887 - i * 2e-5, every=50) for i in range(4)}
    assert judged(series, recipe)["order"].measured == "2.88700 > 2.88698 > 2.88696 > 2.88694"


@pytest.mark.parametrize(
    ("gate", "fault", "measured", "advice"),
    [
        ("order", {"validation_loss_step_2": lambda step: 7.5}, "6.000, 5.000, 7.500, 3.000", "halve the learning rates"),
        ("order", {"validation_loss_step_0": lambda step: math.nan}, "nan", "halve"),
        ("refinement", {"refinement": lambda step: 9.0}, "9.0 %", "preset extreme"),
        ("gradient_norm", {"gradient_norm": lambda step: 31.0}, "31.00 (above 20)", "clip harder"),
        ("gradient_norm", {"gradient_norm": lambda step: 0.1}, "0.10", "warm-up"),
        ("gradient_norm", {"gradient_norm": lambda step: math.nan if step == 195 else 1.0}, "nan", "preset aggressive"),
        ("decreasing", {"loss": lambda step: 3.0 + step / 100}, "% down", "too high"),
        ("decreasing", {"loss": lambda step: 8.0 - step / 50 + (2.0 if 80 < step <= 100 else 0.0)}, "% up", "larger batch"),
        ("decreasing", {"loss": lambda step: math.nan if step == 199 else 8.0 - step / 50}, "not finite", "preset aggressive"),
        ("utilisation", {"gpu_utilisation": lambda step: 60.0}, "60 %", "bottleneck"),
    ],
)
def test_each_fault_fails_its_own_gate(
    recipe: Recipe, gate: str, fault: dict[str, Callable[[int], float]], measured: str, advice: str
) -> None:
    series = good()
    for name, value in fault.items():
        series[name] = points(value, every=50 if name.startswith("validation") else 1)
    results = judged(series, recipe)
    assert [name for name, result in results.items() if not result.held] == [gate]
    assert measured in results[gate].measured
    assert advice in (results[gate].advice or "")


@pytest.mark.parametrize("preset", ["moderate", "aggressive", "extreme", "honest"])
def test_no_gate_advises_what_the_recipe_has(preset: str) -> None:
    own = stage_recipe(load_recipe("trm", [f"trm.preset={preset}"]), "validation")
    asked = Gates(refinement=99, gradient_norm=(2, 3))
    faults = [{"gradient_norm": math.nan, "loss": math.nan}, {"gradient_norm": 31.0, "refinement": 5.0}, {"refinement": math.nan}]
    told = []
    for fault in faults:
        series = good() | {name: points(lambda step, value=value: value) for name, value in fault.items()}
        series["validation_loss_step_3"] = points(lambda step: 9.0, every=50)
        told += [result.advice for result in judged(series, own, asked).values() if result.advice]
    text = "; ".join(told)
    assert f"trm.preset={preset}" not in text
    assert "clip=1" not in text  # every preset clips there
    assert ("trm.preset=extreme" in text) == (preset != "extreme")
    softer = {"extreme": "aggressive", "aggressive": "moderate"}.get(preset)
    for name in ("aggressive", "moderate", "honest"):
        assert (f"go back to trm.preset={name}" in text) == (name == softer)
    assert ("raise trm.weight_base" in text) == (preset != "extreme")
    assert {"moderate": "(5, 7, 10)", "aggressive": "(7, 10)", "extreme": "(matrix_lr 0.0003)"}.get(preset, "") in text


@pytest.mark.parametrize("missing", ["validation_loss_step_3", "refinement", "gradient_norm", "gpu_utilisation", "loss"])
def test_what_was_not_measured_does_not_hold(recipe: Recipe, missing: str) -> None:
    series = good()
    del series[missing]
    failed = [result for result in judged(series, recipe).values() if not result.held]
    assert len(failed) == 1
    assert failed[0].value is None
    assert failed[0].advice


def test_a_run_too_short_to_judge_does_not_hold(recipe: Recipe) -> None:
    series = good()
    series["loss"] = series["loss"][:19]
    assert judged(series, recipe)["decreasing"].measured == "19 steps, 20 needed"


def test_gates_follow_the_preset_and_apply_where_they_can(recipe: Recipe) -> None:
    extreme = stage_recipe(load_recipe("trm", ["trm.preset=extreme"]), "validation")
    results = judged(good(), extreme)
    assert (results["refinement"].limit, results["gradient_norm"].limit) == ("at least 50 %", "2 to 15")
    honest = stage_recipe(load_recipe("trm"), "quality")
    assert list(judged(good(), honest, gpus=False)) == ["order", "decreasing"]
    once = load_recipe("trm", ["trm.supervision=1", "stages={}"])
    assert list(judged(good(), once, gpus=False)) == ["gradient_norm", "decreasing"]
    assert list(judged(good(), load_recipe("charlm"), gpus=False)) == ["decreasing"]
    nothing = Gates(order=False, refinement=None, gradient_norm=None, decreasing=False, utilisation=None)
    assert judged(good(), recipe, nothing) == {}


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=4))
def test_order_holds_exactly_where_losses_fall(losses: list[float]) -> None:
    series = {f"validation_loss_step_{i}": [Point(10, loss, 0.0)] for i, loss in enumerate(losses)}
    gates = Gates(refinement=None, gradient_norm=None, decreasing=False)
    own = load_recipe("trm", ["stages={}"])
    (result,) = judge_gates(gates, own, series, gpus=False)
    assert result.held == (losses == sorted(set(losses), reverse=True))
    assert result.value == losses


def test_the_best_validation_loss_is_what_a_limit_on_it_judges(recipe: Recipe) -> None:
    series = good() | {"validation_loss": [Point(50, 3.0, 1.0), Point(100, 2.0, 2.0), Point(150, 2.4, 3.0)]}
    assert judged(series, recipe, Gates(validation_loss=2.1))["validation_loss"].held
    refused = judged(series, recipe, Gates(validation_loss=1.9))["validation_loss"]
    assert (refused.held, refused.measured, refused.limit) == (False, "2.0000", "at most 1.9")
    assert not judged(good(), recipe, Gates(validation_loss=1.9))["validation_loss"].held


def test_the_loss_of_the_checkpoint_with_the_best_answers_is_judged(recipe: Recipe) -> None:
    losses = {"validation_loss": [Point(50, 2.0, 1.0), Point(100, 2.4, 2.0), Point(150, 2.3, 3.0)]}
    series = good() | losses | {"answers_right": [Point(50, 0.2, 1.0), Point(100, 0.6, 2.0), Point(150, 0.5, 3.0)]}
    found = judged(series, recipe, Gates(validation_loss=2.1, answers=0.6))
    assert (found["validation_loss"].held, found["validation_loss"].measured) == (False, "2.4000")
    assert (found["answers"].held, found["answers"].measured) == (True, "60.0%")
    assert not judged(series, recipe, Gates(answers=0.61))["answers"].held
    assert judged(good(), recipe, Gates(answers=0.1))["answers"].measured == "not measured"
