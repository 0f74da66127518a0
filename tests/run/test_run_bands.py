"""Bands: a healthy run raises nothing; every injected fault raises its band, once, and only that one."""

import json
import math
import random
from collections.abc import Callable

import pytest

from windtunnel.recipe import Bands
from windtunnel.run import Alert, BandWatch, Targets
from windtunnel.train.advice import Settings, band_advice

TARGETS = Targets(tokens_per_second=1000.0, dollars=100.0, advice=band_advice(Settings()))
Fault = Callable[[int, dict[str, float]], None]


def healthy(step: int, seed: int = 0) -> dict[str, float]:
    noise = random.Random(step * 7919 + seed)
    loss = 1.2 + 3 * math.exp(-step / 150) + noise.gauss(0, 0.03)
    metrics = {
        "loss": loss,
        "gradient_norm": (0.3 + math.exp(-step / 50)) * noise.lognormvariate(0, 0.2),
        "tokens_per_second": (300.0 if step < 3 else 1010.0) * noise.uniform(0.93, 1.07),
        "memory_share": 0.91,
        "gpu_utilisation": noise.uniform(94, 100),
        "data_wait_share": noise.uniform(0, 0.02),
        "dollars_forecast": 99.0 + noise.uniform(-1, 1),
    }
    if step % 50 == 49:
        metrics["validation_loss"] = 1.3 + 3 * math.exp(-step / 150) + noise.gauss(0, 0.003)
    return metrics


def watch(
    fault: Fault | None = None, steps: int = 1000, seed: int = 0, watcher: BandWatch | None = None, first: int = 0
) -> list[Alert]:
    watcher = watcher or BandWatch(Bands(), TARGETS)
    found = []
    for step in range(first, steps):
        metrics = healthy(step, seed)
        if fault:
            fault(step, metrics)
        found += watcher.observe(step, metrics)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_raises_nothing(seed: int) -> None:
    assert watch(steps=2500, seed=seed) == []


def at(name: str, change: Callable[[float, int], float], first: int = 400, last: int = 450) -> Fault:
    def fault(step: int, metrics: dict[str, float]) -> None:
        if first <= step < last and name in metrics:
            metrics[name] = change(metrics[name], step)

    return fault


FAULTS: dict[str, tuple[Fault, str, str, str | None]] = {
    "nan loss": (at("loss", lambda v, s: math.nan, last=401), "not_finite", "bad", "rewind"),
    "infinite gradient": (at("gradient_norm", lambda v, s: math.inf, last=401), "not_finite", "bad", "rewind"),
    "nan validation": (at("validation_loss", lambda v, s: math.nan, last=450), "not_finite", "bad", "rewind"),
    "one spike": (at("loss", lambda v, s: v + 1, last=401), "loss_spike", "warn", None),
    "gradient": (at("gradient_norm", lambda v, s: v * 20, last=404), "gradient_norm", "warn", None),
    "slow": (at("tokens_per_second", lambda v, s: v * 0.75), "throughput", "warn", None),
    "crawling": (at("tokens_per_second", lambda v, s: v * 0.3), "throughput", "bad", None),
    "memory": (at("memory_share", lambda v, s: 0.99), "memory", "warn", None),
    "utilisation": (at("gpu_utilisation", lambda v, s: 70), "gpu_utilisation", "warn", None),
    "data": (at("data_wait_share", lambda v, s: 0.1), "data_wait", "warn", None),
    "gap": (at("validation_loss", lambda v, s: v * 1.6, 900, 901 + 49), "gap", "warn", None),
    "dollars": (at("dollars_forecast", lambda v, s: 120.0), "dollars", "warn", None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_raises_its_band_once_and_no_other(name: str) -> None:
    fault, band, level, action = FAULTS[name]
    watcher = BandWatch(Bands(), TARGETS)
    found = watch(fault, watcher=watcher)
    assert [(a.band, a.level, a.action) for a in found] == [(band, level, action)]
    assert found[0].advice
    assert found[0].message
    assert watcher.active == [], "it clears when things are good again"


def test_spikes_past_the_limit_go_back_and_are_judged_afresh_after_it() -> None:
    watcher = BandWatch(Bands(spike_limit=3), TARGETS)
    found = watch(at("loss", lambda v, s: v + 1, last=403), steps=403, watcher=watcher)
    assert [(a.step, a.level, a.action) for a in found] == [(400, "warn", None), (402, "bad", "rewind")]
    watcher.rewound(380)
    assert watcher.active == []
    assert watch(first=380, steps=600, watcher=watcher) == []


def test_nan_asks_to_go_back_every_time() -> None:
    found = watch(at("loss", lambda v, s: math.nan, last=403))
    assert [a.action for a in found] == ["rewind"] * 3


def test_overfitting_stops_and_names_the_best_step() -> None:
    def rising(step: int, metrics: dict[str, float]) -> None:
        if step > 600 and "validation_loss" in metrics:
            metrics["validation_loss"] = healthy(599)["validation_loss"] * (1 + 0.0004 * (step - 600))

    found = watch(rising, steps=840)
    assert {a.band for a in found} == {"overfit"}
    assert [a.level for a in found] == ["warn", "bad"]
    assert found[-1].action == "stop_overfit"
    assert "step 599" in found[-1].message
    assert found[-1].step == 599 + 4 * 50


def test_a_plateau_of_validation_is_not_overfitting() -> None:
    def flat(step: int, metrics: dict[str, float]) -> None:
        if step > 600 and "validation_loss" in metrics:
            metrics["validation_loss"] = healthy(599)["validation_loss"] * 1.005

    assert watch(flat) == []


def test_flapping_around_a_limit_is_one_alert() -> None:
    found = watch(at("memory_share", lambda v, s: 0.985 if s % 2 else 0.975, 300, 900))
    assert [a.band for a in found] == ["memory"]


def test_a_gradient_that_is_mostly_zero_is_no_measure_of_one_that_is_not() -> None:
    """As of a policy whose answers mostly earn the same: its median was divided by."""
    assert watch(at("gradient_norm", lambda v, s: v if s % 7 == 0 else 0.0, 0, 1000)) == []


def test_no_targets_no_judgement() -> None:
    watcher = BandWatch(Bands())
    assert watch(at("tokens_per_second", lambda v, s: 1.0), watcher=watcher) == []


def test_state_goes_through_json_and_the_watch_goes_on() -> None:
    fault = FAULTS["slow"][0]
    whole = watch(fault, steps=1000)
    first = BandWatch(Bands(), TARGETS)
    before = watch(fault, steps=420, watcher=first)
    second = BandWatch(Bands(), TARGETS)
    second.load_state(json.loads(json.dumps(first.state())))
    assert second.active == first.active
    assert before + watch(fault, first=420, watcher=second) == whole
    assert second.best_validation is not None


def test_the_speed_of_steps_beside_a_checkpoint_is_not_judged() -> None:
    """Saved every ten steps, for six of them: slow as they are, they neither raise the band nor count as good ones."""
    watcher, found = BandWatch(Bands(), TARGETS), []
    for step in range(400):
        metrics, saving = healthy(step), step % 10 < 6
        if saving:
            metrics["tokens_per_second"] *= 0.4
        found += watcher.observe(step, metrics, saving=saving)
    assert found == []
    for step in range(400, 450):
        slow = healthy(step) | {"tokens_per_second": 500.0}
        found += watcher.observe(step, slow, saving=step % 10 < 2)
    assert [alert.band for alert in found] == ["throughput"], "the other steps are judged as ever"
