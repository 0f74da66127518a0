"""Bands of recursion: a healthy run raises nothing, each fault raises its own band, once, and only that one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from functools import partial

import pytest

from windtunnel.recipe import Bands, load_recipe, stage_recipe
from windtunnel.run import Alert, BandWatch, Targets, described, judges_of, of_step, step_values
from windtunnel.train.advice import Settings, band_advice, settings_of
from windtunnel.train.health import SupervisionLimits, findings

VOCAB = 100
STEPS = 1000
Fault = Callable[[int, dict[str, float]], None]


def targets(refinement: float | None, settings: Settings) -> Targets:
    return Targets(judges=(partial(findings, limits=SupervisionLimits(VOCAB, refinement)),), advice=band_advice(settings))


def watcher(refinement: float | None = 15.0) -> BandWatch:
    return BandWatch(Bands(), targets(refinement, Settings()))


def healthy(step: int, seed: int = 0) -> dict[str, float]:
    """Losses from uniform downwards, each supervision step a little lower; refinement grows to 20 %."""
    noise = random.Random(step * 7919 + seed)
    base = 1.6 + 3.0 * math.exp(-step / 150) + noise.gauss(0, 0.02)
    gain = 0.20 * (1 - math.exp(-step / 200))
    losses = [base * (1 - gain * share) for share in (0.0, 0.5, 0.8, 1.0)]
    return with_losses({"gradient_norm": 0.8 * noise.lognormvariate(0, 0.2), "progress": step / STEPS}, losses)


def with_losses(metrics: dict[str, float], losses: list[float]) -> dict[str, float]:
    metrics |= {of_step("loss", i): loss for i, loss in enumerate(losses)}
    metrics |= {"loss": losses[-1], "refinement": 100 * (losses[0] - losses[-1]) / losses[0]}
    return metrics


def watch(fault: Fault | None = None, *, by: BandWatch | None = None, seed: int = 0, steps: int = STEPS) -> list[Alert]:
    by, found = by or watcher(), []
    for step in range(steps):
        metrics = healthy(step, seed)
        if fault:
            fault(step, metrics)
        found += by.observe(step, metrics)
    return found


def test_no_band_advises_what_the_recipe_has() -> None:
    honest, extreme = (
        band_advice(settings_of(stage_recipe(load_recipe("trm", [f"trm.preset={preset}"]), "quality")))
        for preset in ("honest", "extreme")
    )
    plain = band_advice(settings_of(load_recipe("charlm")))
    for texts, preset in ((honest, "honest"), (extreme, "extreme")):
        assert texts.keys() == plain.keys()
        for text in texts.values():
            assert f"trm.preset={preset}" not in text
            assert "clip=1" not in text
            assert not {"{", "}"} & set(text)
    assert "trm.preset=extreme" in honest["refinement"]
    assert "extreme" not in extreme["refinement"]
    assert "Or go back to trm.preset=aggressive" in extreme["not_finite"]
    assert "trm.preset" not in honest["not_finite"] + plain["not_finite"]
    assert "trm.improvement_reward=0 and trm.weight_base=1 (trm.preset=honest) take" in extreme["spoiled_first_step"]
    assert "rewards" not in honest["spoiled_first_step"]
    assert "weight_base" not in honest["spoiled_first_step"]


def test_a_run_is_advised_by_its_own_recipe() -> None:
    settings = settings_of(stage_recipe(load_recipe("trm", ["trm.preset=extreme"]), "quality"))
    by = BandWatch(Bands(), targets(50.0, settings))
    (alert,) = watch(by=by)
    assert alert.band == "refinement"
    assert "extreme" not in alert.advice
    assert "lower the learning rates (matrix_lr 0.0003)" in alert.advice


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_recursive_run_raises_nothing(seed: int) -> None:
    assert watch(seed=seed) == []


def inverted(step: int, metrics: dict[str, float]) -> None:
    if 400 <= step < 460:
        losses = step_values(metrics, "loss")
        with_losses(metrics, [losses[0], losses[0] * 1.01, losses[2], losses[3]])


def spoiled(step: int, metrics: dict[str, float]) -> None:
    if 400 <= step < 460:
        metrics["loss_step_0"] = 9.99
        metrics["refinement"] = 90.0


def steep(step: int, metrics: dict[str, float]) -> None:
    if 400 <= step < 460:
        metrics["gradient_norm"] = 25.0


def low(step: int, metrics: dict[str, float]) -> None:
    if 850 <= step < 900:
        losses = step_values(metrics, "loss")
        with_losses(metrics, [losses[3] * f for f in (1.06, 1.04, 1.02, 1.0)])


@pytest.mark.parametrize(
    ("fault", "band", "level"),
    [
        (inverted, "supervision_order", "bad"),
        (spoiled, "spoiled_first_step", "warn"),
        (steep, "gradient_norm_limit", "warn"),
        (low, "refinement", "warn"),
    ],
)
def test_a_fault_raises_its_band_once_and_no_other(fault: Fault, band: str, level: str) -> None:
    by = watcher()
    found = watch(fault, by=by)
    assert [(alert.band, alert.level, alert.action) for alert in found] == [(band, level, None)]
    assert found[0].message
    assert found[0].advice
    assert by.active == [], "it clears when things are good again"


def test_the_extreme_loss_of_one_memorised_batch_is_called_out_with_both_numbers() -> None:
    found = watch(spoiled)
    assert "9.99" in found[0].message
    assert "4.605" in found[0].message


def test_low_refinement_is_no_matter_early_or_where_nothing_was_promised() -> None:
    def early(step: int, metrics: dict[str, float]) -> None:
        if step < 700:
            low(850, metrics)

    assert watch(early) == []
    assert watch(low, by=watcher(refinement=None)) == []


def test_noise_about_equal_losses_is_no_inversion() -> None:
    def equal(step: int, metrics: dict[str, float]) -> None:
        if step > 300:
            base, noise = metrics["loss"], random.Random(step)
            with_losses(metrics, [base * (1 + noise.uniform(-0.002, 0.002)) for _ in range(4)])

    assert watch(equal, by=watcher(refinement=None)) == []


def test_a_plain_run_is_not_judged_for_recursion() -> None:
    assert watch(spoiled, by=BandWatch(Bands())) == []


def test_state_goes_through_json() -> None:
    whole = watch(inverted)
    first, second, found = watcher(), watcher(), []
    for step in range(STEPS):
        metrics = healthy(step)
        inverted(step, metrics)
        if step == 410:
            second.load_state(json.loads(json.dumps(first.state())))
        found += (first if step < 410 else second).observe(step, metrics)
    assert found == whole


def test_names_of_steps_are_described_and_read_back() -> None:
    assert of_step("validation_loss", 12) == "validation_loss_step_12"
    assert described("validation_loss_step_12")
    assert described("loss")
    assert described("mfu_step_1") is None
    assert described("step_seconds")
    assert step_values({"loss_step_0": 3.0, "loss_step_1": 2.0, "loss_step_3": 1.0}, "loss") == [3.0, 2.0]


def test_only_recursive_recipes_have_the_judge() -> None:
    assert judges_of(load_recipe("charlm"), VOCAB) == ()
    (judge,) = judges_of(stage_recipe(load_recipe("trm"), "quality"), VOCAB)
    assert [found.band for found in judge({"gradient_norm": 50.0}) if found.message] == ["gradient_norm_limit"]


def test_every_band_has_advice() -> None:
    advice = band_advice(Settings())
    found = watch(inverted)
    assert found
    assert all(alert.advice == advice[alert.band] != "" for alert in found)
