"""Each callback by itself: what it proposes and settles, and that its state survives a session."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import until

from windtunnel.checkpoint import CheckpointStore
from windtunnel.evaluate import Validation
from windtunnel.model import out_of_memory
from windtunnel.recipe import Bands, Every, Layout, Schedule
from windtunnel.recipe import Budget as Limits
from windtunnel.run import BandWatch, BudgetClock, StopRequest
from windtunnel.train import Ranks, telemetry
from windtunnel.train.callbacks import Budget, Decision, Health, Timer, ValidateEvery
from windtunnel.train.checkpoints import Checkpoints, make_saver
from windtunnel.train.engine import EngineState, StepResult
from windtunnel.train.failures import lighter, short_of


class Journal:
    """Keeps what happened."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, *rest: Any) -> None:
        self.kinds.append(kind)


def loop(step: int = 0, newest: int = 5) -> Any:
    """What callbacks see of a loop."""
    batches = SimpleNamespace(position=160, step_sequences=16)
    return SimpleNamespace(
        step=step, journal=Journal(), engine=SimpleNamespace(feed=SimpleNamespace(batches=batches)),
        checkpoints=SimpleNamespace(newest=lambda: newest, was_saving=lambda step: step == 40), reserve=lambda: 1.0,
    )  # fmt: skip


def health(**limits: int) -> Health:
    bands = Bands(**limits)  # type: ignore[arg-type]
    made = Health(BandWatch(bands), bands)
    made.start(loop())
    return made


def result(step: int, loss: float = 1.0) -> StepResult:
    return StepResult(step, loss, 1.0, 0.1)


def budget(tmp_path: Path, seconds: list[float], **limits: float) -> Budget:
    clock = BudgetClock(
        Limits(**limits),
        dollars_per_hour=None,
        batch_tokens=100,
        epoch_tokens=1000,
        clock=lambda: seconds[0],  # type: ignore[arg-type]
    )
    made = Budget(clock, StopRequest(notice=""), tmp_path / "spent.json")
    made.start(loop())
    return made


def asked(callback: Any, step: int, decision: Decision | None = None) -> Decision:
    decision = decision or Decision()
    callback.propose(step, decision)
    callback.settle(step, decision)
    return decision


def test_a_timer_is_due_once_a_step() -> None:
    timer = Timer(Every(steps=5))
    assert not timer.due(0)
    assert timer.due(5)
    timer.done(5)
    assert not timer.due(5)
    assert timer.due(10)
    now = [0.0]
    timer = Timer(Every(seconds=3.0), clock=lambda: now[0], last=0.0)
    assert not timer.due(1)
    now[0] = 3.0
    assert timer.due(1)


def test_what_is_not_finite_goes_back_and_too_often_ends() -> None:
    watch = health(rewinds=1, skip_batches=3)
    watch.after_step(result(7), {"loss": float("nan")})
    assert watch.rewind_due
    decision = asked(watch, 7, Decision(validate=True, save=True, stop="budget"))
    assert decision.rewind == {"step": 5, "position": 160 + 3 * 16}
    assert (decision.settled, decision.validate, decision.save, decision.stop) == (True, False, False, None)
    assert watch.loop.journal.kinds == ["band:not_finite", "rewind"]
    assert asked(watch, 5).rewind is None
    watch.go_back("again")
    decision = asked(watch, 6)
    assert decision.rewind is None
    assert decision.exit_code == 1
    assert "went back 1 times already" in (decision.stop or "")


def test_overfitting_asks_for_the_end_with_the_best_step() -> None:
    watch = health(overfit_patience=2)
    for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0)):
        watch.validated(step, Validation(loss, 1.0, 1, 1), {"validation_loss": loss}, 0.1)
    decision = asked(watch, 3)
    assert "the checkpoint to use is of step 1" in (decision.stop or "")
    assert decision.exit_code == 0


def test_the_state_of_health_survives() -> None:
    one, other = health(), health()
    for step in range(1, 40):
        one.after_step(result(step), {"loss": 1.0, "gradient_norm": 1.0})
    one.rewinds = 2
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.state_dict() == one.state_dict()
    assert other.rewinds == 2


def test_a_budget_in_steps_ends_and_a_signal_comes_first(tmp_path: Path) -> None:
    spent = budget(tmp_path, [0.0], steps=10)
    assert asked(spent, 4).stop is None
    assert asked(spent, 4).progress == pytest.approx(0.4)
    decision = asked(spent, 10)
    assert decision.stop
    assert decision.exit_code == 0
    spent._stop.request("SIGTERM")
    decision = asked(spent, 4)
    assert (decision.stop, decision.exit_code) == ("SIGTERM", 3)
    assert asked(spent, 4, Decision(stop="overfit")).stop == "overfit", "what was asked for before stays"


def test_a_budget_in_hours_ends_before_the_next_step_would_not_fit(tmp_path: Path) -> None:
    now = [0.0]
    spent = budget(tmp_path, now, hours=100 / 3600)
    for step in range(1, 20):
        now[0] += 2.0
        spent.measure(result(step), {})
    assert asked(spent, 19).stop is None
    now[0] = 97.5
    decision = asked(spent, 19, Decision(seconds=1.0))  # 2 s a step, 1 s to validate, 1 s reserved
    assert decision.stop
    assert decision.exit_code == 0, "its schedule had come to the end"
    spent.close()
    assert json.loads((tmp_path / "spent.json").read_text())["seconds"] == pytest.approx(97.5)


def test_a_budget_that_is_nearly_spent_is_told_once(tmp_path: Path) -> None:
    now = [0.0]
    spent = budget(tmp_path, now, hours=100 / 3600)
    seen = spent.loop.journal.kinds
    for second in (10.0, 79.0):
        now[0] = second
        spent.after_step(result(1), {})
    assert seen == []
    for second in (81.0, 90.0):
        now[0] = second
        spent.after_step(result(2), {})
    assert seen == ["band:budget"]
    again = budget(tmp_path, now, hours=100 / 3600)
    again.load_state_dict(spent.state_dict())
    again.after_step(result(3), {})
    assert again.loop.journal.kinds == [], "nor by a resumed run"
    raised = budget(tmp_path, now, hours=200 / 3600)
    raised.load_state_dict(spent.state_dict())
    now[0] = 165.0 + now[0]
    raised.after_step(result(4), {})
    assert raised.loop.journal.kinds == ["band:budget"], "another limit is another matter"


def test_validation_is_due_at_its_interval_at_the_end_and_before_a_save_by_the_clock() -> None:
    every = ValidateEvery(Every(steps=5), with_saves=True)
    every.start(loop(step=5))
    assert not asked(every, 5).validate, "what a run goes on from is validated"
    assert asked(every, 10).validate
    assert asked(every, 10).seconds > 0
    assert asked(every, 7, Decision(save=True)).validate
    assert asked(every, 7, Decision(stop="end")).validate
    every.validated(7, Validation(1.0, 1.0, 1, 1), {}, 4.0)
    assert not asked(every, 7, Decision(stop="end")).validate
    assert every.reserve() == 4.0
    by_steps = ValidateEvery(Every(steps=5), with_saves=False)
    by_steps.start(loop())
    assert not asked(by_steps, 7, Decision(save=True)).validate


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), " (2.50 GiB more were not there)"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."),
         " (4.00 GiB more were not there)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes."),
         " (4.00 MiB more were not there)"),
        (MemoryError(), ""),
    ],
)  # fmt: skip
def test_running_out_of_memory_is_told_whatever_says_so(error: BaseException, short: str) -> None:
    assert out_of_memory(error)
    assert short_of(error) == short
    assert not out_of_memory(RuntimeError("shape mismatch"))


def test_a_shells_limit_of_memory_is_told_beside_what_was_lacking() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**50, limits[1]))
    try:
        assert short_of(MemoryError()) == " (this shell allows 1,073,741,824 MiB of addresses: ulimit -v unlimited)"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_what_needs_less_memory() -> None:
    layout, run = Layout(1, 12, 2, 64, "fp32", False, "cpu"), Path("runs/my run")
    again = "windtunnel train --resume --run 'runs/my run' --set "
    assert f": {again}stages.pretrain.micro_batch=6" in lighter(run, layout, "pretrain", recomputes=False)
    one = Layout(1, 1, 24, 64, "fp32", False, "cpu")
    assert f": {again}layout.recompute=block" in lighter(run, one, "sft", recomputes=True)
    assert "more GPUs" in lighter(run, one, "sft", recomputes=False)


class Shown:
    """A view that keeps what it is shown."""

    def __init__(self) -> None:
        self.moments: list[dict[str, Any]] = []

    def update(self, snapshot: Any) -> None:
        self.moments.append(snapshot)

    def say(self, text: str) -> None:
        pass


def test_time_and_dollars_go_on_while_no_step_is_taken() -> None:
    seconds = [0.0]
    clock = BudgetClock(
        Limits(steps=10), dollars_per_hour=36.0, batch_tokens=100, epoch_tokens=1000, clock=lambda: seconds[0]
    )  # fmt: skip
    view = Shown()
    journal = telemetry.Journal(view=view)
    made = telemetry.Telemetry(
        "a run", gpus=0, flops_per_token=1.0, peak_flops=None, clock=clock, bands=BandWatch(Bands()), dollars=None
    )  # fmt: skip
    made.start(SimpleNamespace(step=10, journal=journal))
    try:
        seconds[0] = 100.0
        journal.phase("answering")
        assert (view.moments[-1]["elapsed"], view.moments[-1]["dollars"]) == (100.0, pytest.approx(1.0))
        seconds[0] = 300.0
        until(lambda: view.moments[-1]["elapsed"] == 300.0)
        assert view.moments[-1]["dollars"] == pytest.approx(3.0)
        assert view.moments[-1]["phase"] == "answering"
    finally:
        made.close()
    seconds[0] = 400.0
    journal.phase("finished")
    assert view.moments[-1]["elapsed"] == 400.0


def test_a_step_knows_whether_a_checkpoint_was_saved_beside_it(tmp_path: Path) -> None:
    weights = {"model.weight": torch.ones(4)}
    engine: Any = SimpleNamespace(state_dict=lambda: EngineState(dict(weights), {}))
    ranks = Ranks(0, 1, torch.device("cpu"), None)
    made = Checkpoints(engine, make_saver(engine, CheckpointStore(tmp_path), ranks), ranks, Every(steps=5))
    around = loop()
    made.start(around)
    around.step = 5
    assert asked(made, 5).save
    made.begin(5, Decision())
    assert made.was_saving(6), "however long it takes"
    around.step = 7
    made.newest()
    assert [step for step in range(3, 12) if made.was_saving(step)] == [6, 7]
    around.step = 10
    made.begin(10, Decision())
    made.newest()
    assert [step for step in range(3, 12) if made.was_saving(step)] == [6, 7]
    made.rewound(5)
    assert not made.was_saving(6)


@pytest.mark.parametrize(("peak", "shown"), [(1e9, 1e3 * 100 / 0.1 / 1e9), (1e3, None), (None, None)])
def test_utilisation_beyond_what_a_machine_can_do_is_not_shown(peak: float | None, shown: float | None) -> None:
    made = telemetry.Telemetry(
        "a run", gpus=0, flops_per_token=1e3, peak_flops=peak, bands=BandWatch(Bands()), dollars=None,
        clock=BudgetClock(Limits(steps=10), dollars_per_hour=None, batch_tokens=100, epoch_tokens=1000),
    )  # fmt: skip
    layout = Layout(1, 1, 1, 100, "fp32", False, "cpu")
    feed = SimpleNamespace(batches=SimpleNamespace(wait_seconds=0.0, epochs=0.0))
    around: Any = SimpleNamespace(
        epochs={},
        engine=SimpleNamespace(layout=layout, schedule=Schedule(), feed=feed), progress=lambda step: 0.0,
        journal=telemetry.Journal(),
    )  # fmt: skip
    made.loop = around
    values: dict[str, float] = {}
    made.measure(result(1), values)
    assert values.get("mfu") == (None if shown is None else pytest.approx(shown))
