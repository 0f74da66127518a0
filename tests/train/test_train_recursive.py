"""Recursive models train like any other: resumed, spread over ranks, healed, measured; nothing composite passes for a loss."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import events, final_weights, losses, prepared_run, set_ranks, train_in_processes
from waiting import HANG

from windtunnel.checkpoint import OPTIMIZER, CheckpointStore
from windtunnel.evaluate import evaluate_run
from windtunnel.launch import Options
from windtunnel.model import objective_of
from windtunnel.run import MetricsReader, RunFolder, step_values
from windtunnel.train import train
from windtunnel.train.gpt import GPTEngine

STEPS = 12
TINY = """
extends: charlm
name: tiny
model: {depth: 2, aspect: 16, head_dim: 16, sequence: 32, mlp: swiglu, value_embeddings: false}
trm: {preset: honest, loops: 1, supervision: 3}
data: {corpus: {kind: arithmetic, documents: 4000, digits: 1, terms: 2}, validation: 0.05}
stages:
  pretrain: {batch_tokens: 256, micro_batch: 8, validate_every: 5 steps, validation_tokens: 1024}
budget: {hours: null, steps: STEPS}
checkpoints: {every: 5 steps}
""".replace("STEPS", str(STEPS))
# What has most to remember: averaged weights, several updates a step. And what has the most terms: weights, reward, detaching.
EACH = ("trm.updates=each", "trm.ema=0.9")
REWARDED = ("trm.preset=aggressive", "trm.ema=0.95", "trm.detach_from=1")
NewRun = Callable[..., Path]
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.end_to_end]


@pytest.fixture
def new_run(tmp_path: Path) -> NewRun:
    """new_run('key=value', ..., ranks=1) -> the folder of a recursive run that is ready to train."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)

    def make(*sets: str, ranks: int = 1) -> Path:
        return prepared_run(path, sets, ranks, Options(root=tmp_path / "runs", yes=True))

    return make


def logged(folder: Path) -> dict[int, dict[str, float]]:
    """All metrics by step that do not depend on when they were looked at; validations only where the schedule has them."""
    timed = ("seconds", "tokens_per_second", "mfu", "data_wait_share", "utilisation", "dollars")
    found: dict[int, dict[str, float]] = {}
    with MetricsReader(RunFolder.open(folder).metrics_path) as reader:
        for name in reader.names():
            held_out = "validation" in name or "bits_per_byte" in name
            for point in reader.series(name):
                if not any(word in name for word in timed) and not (held_out and point.step % 5):
                    found.setdefault(point.step, {})[name] = point.value
    return found


def stop_at(step: int) -> Callable[[int, GPTEngine], None]:
    return lambda now, job: os.kill(os.getpid(), signal.SIGTERM) if now == step else None


def poison(*steps: int) -> Callable[[int, GPTEngine], None]:
    """Make a raw weight NaN after each of the steps, once."""
    left = list(steps)

    def after_step(now: int, engine: GPTEngine) -> None:
        if now in left:
            left.remove(now)
            with torch.no_grad():
                engine.model.head.weight[0, 0] = math.nan

    return after_step


@pytest.mark.parametrize("sets", [EACH, REWARDED], ids=["each", "rewarded"])
def test_a_stopped_run_resumes_as_if_it_had_never_stopped(new_run: NewRun, sets: tuple[str, ...]) -> None:
    whole, halted = new_run(*sets), new_run(*sets)
    assert train(whole) == 0
    assert train(halted, after_step=stop_at(7)) == 3
    assert train(halted) == 0
    assert "resumed" in events(halted)
    assert logged(whole) == logged(halted)
    stores = [CheckpointStore(folder / "checkpoints").newest_good(with_optimizer=True) for folder in (whole, halted)]
    one, other = (dict(store.part("optimizer").tensors()) for store in stores)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    averaged, again = (store.weights() for store in stores)
    for name in averaged:
        np.testing.assert_array_equal(averaged[name], again[name], err_msg=name)


def test_on_a_cpu_a_run_that_asks_for_recorded_passes_trains_as_any_other(new_run: NewRun) -> None:
    asked, usual = new_run("stages.pretrain.graphs=true", "budget.steps=3"), new_run("budget.steps=3")
    assert train(asked) == train(usual) == 0
    assert logged(asked) == logged(usual)
    assert events(asked) == events(usual)


@pytest.mark.timeout(300)
def test_two_ranks_give_the_losses_of_one_and_one_goes_on_from_them(new_run: NewRun) -> None:
    sets = (*EACH, "stages.pretrain.optimizer.clip=0.5")
    one, two = new_run(*sets), new_run(*sets, ranks=2)
    assert train(one) == 0
    process = train_in_processes(two, 2)
    output = process.communicate(timeout=HANG)[0]
    assert process.returncode == 0, output
    assert_close(one, two)
    # Back to the checkpoint of step 10, written by two ranks, and on with one.
    for path in (two / "checkpoints").glob("step-*"):
        if not path.name.startswith("step-00000010"):
            shutil.rmtree(path)
    with RunFolder.open(two, write=True) as run:
        set_ranks(run, 1)
    assert train(two) == 0
    assert "resumed" in events(two)
    assert_close(one, two)


def assert_close(one: Path, two: Path) -> None:
    """The same losses, norms and averaged weights but for the order of sums."""
    alone, together = logged(one), logged(two)
    assert alone.keys() == together.keys()
    for step, values in alone.items():
        for name, value in values.items():
            if name not in ("supervision_order", "refinement"):
                assert together[step][name] == pytest.approx(value, rel=2e-3, abs=2e-4), (step, name)
    averages, others = final_weights(one), final_weights(two)
    for name, average in averages.items():
        np.testing.assert_allclose(others[name], average, atol=5e-3, err_msg=name)


def test_nan_goes_back_and_no_checkpoint_holds_it(new_run: NewRun) -> None:
    folder = new_run(*EACH, "bands.skip_batches=3")
    assert train(folder, after_step=poison(6, 10)) == 0  # between checkpoints, and where one is due
    assert events(folder).count("rewind") == 2
    curve = losses(folder)
    assert sorted(curve) == list(range(1, STEPS + 1))
    assert all(map(math.isfinite, curve.values()))
    for checkpoint in CheckpointStore(folder / "checkpoints").all():
        assert all(torch.isfinite(array).all() for array in checkpoint.weights().values())
        if checkpoint.has_optimizer:
            assert all(torch.isfinite(state).all() for _, state in checkpoint.part(OPTIMIZER).tensors())


def test_nan_before_any_checkpoint_starts_over_with_the_average_too(new_run: NewRun) -> None:
    folder = new_run(*EACH, "checkpoints.every=1000 steps", "budget.steps=8")
    assert train(folder, after_step=poison(3)) == 0
    assert sorted(losses(folder)) == list(range(1, 9))
    assert all(torch.isfinite(array).all() for array in final_weights(folder).values())


def test_the_loss_is_the_true_one_of_the_last_step_and_the_objective_its_own_metric(new_run: NewRun) -> None:
    folder = new_run(*REWARDED, "stages.pretrain.micro_batch=8")
    with RunFolder.open(folder, write=True) as run:  # one micro-batch: the reward is that of the batch's own losses
        plan = run.manifest["plan"]
        plan["layout"] |= {"micro_batch": 8, "accumulation": 1}
        run.update(plan=plan)
        trm = run.recipe.trm
        assert trm is not None
    assert train(folder) == 0
    weights, reward = objective_of(trm.resolved).weights, trm.resolved.improvement_reward
    found = logged(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    for step, values in found.items():
        steps = step_values(values, "loss")
        assert len(steps) == 3
        assert values["loss"] == steps[-1]
        gains = sum((before - after) / (before + 1e-8) for before, after in pairwise(steps))
        expected = (sum(weight * loss for weight, loss in zip(weights, steps, strict=True)) - reward * gains) / 3
        assert values["objective"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert values["refinement"] == pytest.approx(100 * (steps[0] - steps[2]) / steps[0], abs=1e-9)
        assert values["supervision_order"] == float(steps[0] > steps[1] > steps[2])
        assert not step_values(values, "gradient_norm"), "one update a step has one norm"
        if step % 5 == 0:
            held_out = step_values(values, "validation_loss")
            assert len(held_out) == 3
            assert values["validation_loss"] == held_out[-1]
            assert values["validation_bits_per_byte"] == step_values(values, "bits_per_byte")[-1]
    assert found[STEPS]["loss"] < found[1]["loss"] < math.log(25)


def test_each_supervision_step_updates_and_has_its_own_norm(new_run: NewRun) -> None:
    folder = new_run(*EACH, "stages.pretrain.optimizer.clip=0.01")
    assert train(folder) == 0
    assert CheckpointStore(folder / "checkpoints").newest_good().state["updates"] == 3 * STEPS
    for values in logged(folder).values():
        norms = step_values(values, "gradient_norm")
        assert len(norms) == 3
        assert min(norms) > 0
        assert values["gradient_norm"] == pytest.approx(math.sqrt(sum(n * n for n in norms) / 3), rel=1e-6)
    assert max(values["gradient_norm"] for values in logged(folder).values()) > 0.01, "it is that before clipping"


def test_what_is_evaluated_is_the_average_that_was_validated(new_run: NewRun) -> None:
    folder = new_run(*EACH)
    assert train(folder) == 0
    validated = logged(folder)[10]["validation_loss"]
    report = evaluate_run(folder, "newest", device="cpu")
    assert report.validation.loss == pytest.approx(validated, rel=0.05)  # more of the held-out text
    store = CheckpointStore(folder / "checkpoints").newest_good(with_optimizer=True)
    name = "head.weight"
    average = store.weights()[name]
    raw = dict(store.part("optimizer").tensors([f"raw.{name}"]))[f"raw.{name}"]
    assert raw.shape == average.shape
    assert not torch.equal(raw, average)


def test_recursing_once_is_the_plain_model_bit_for_bit(new_run: NewRun) -> None:
    plain = new_run("trm=null")
    once = new_run("trm.scheme=looped", "trm.loops=1", "trm.cycles=1", "trm.supervision=1", "stages.pretrain.optimizer.clip=null")
    assert train(plain) == 0
    assert train(once) == 0
    assert losses(plain) == losses(once)
    a, b = final_weights(plain), final_weights(once)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.slow
def test_a_budget_in_hours_ends_a_run(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_run(*EACH, "budget.steps=null", f"budget.hours={20 / 3600}", "checkpoints.every=100 s")
    monkeypatch.setenv("WINDTUNNEL_STARTED", repr(time.time()))
    assert train(folder) in (0, 3)
    with MetricsReader(folder / "metrics.sqlite") as reader:
        assert reader.latest()["progress"].value > 0.5
