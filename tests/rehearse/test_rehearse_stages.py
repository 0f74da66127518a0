"""The order of a rehearsal, what its stages leave out, and the scale model's shape."""

from pathlib import Path

import pytest

from windtunnel.check import CheckFailed, all_checks
from windtunnel.launch import Trial
from windtunnel.plan import make_plan
from windtunnel.recipe import load_recipe, scale_model
from windtunnel.rehearse.after import saving
from windtunnel.rehearse.climbing import GATE, _judge
from windtunnel.rehearse.conduct import rehearsal_checks, stages
from windtunnel.rehearse.context import Rehearsal
from windtunnel.rig import parse_rig
from windtunnel.run import Metrics, RunFolder


def test_checks_come_first_and_what_a_stage_proves_is_left_out(tmp_path: Path) -> None:
    gpt = Rehearsal("charlm", folder=tmp_path)
    names = [check.name for check in rehearsal_checks(gpt)]
    own = [stage.name for stage in stages()]
    assert names[-len(own) :] == own
    assert names.count("kill") == names.count("evaluate") == 1
    assert names.index("plan") < names.index("kill")
    kept = [check.run for check in rehearsal_checks(gpt)]
    proven = {stage.name for stage in stages() if stage.applies(gpt)}
    for check in all_checks():
        assert (check.run in kept) is (check.stage not in proven)


def test_every_need_is_a_check_that_comes_before() -> None:
    seen: set[str] = set()
    known = {check.name for check in [*all_checks(), *stages()]}
    for check in [*all_checks(), *stages()]:
        for need in check.needs:
            assert need in seen or need not in known, f"{check.name} needs {need}, which comes later"
        seen.add(check.name)


def test_stages_need_data(tmp_path: Path) -> None:
    kill = next(stage for stage in stages() if stage.name == "kill")
    steps = next(stage for stage in stages() if stage.name == "one gpu")
    gpt = Rehearsal("charlm", folder=tmp_path)
    assert kill.applies(gpt)
    assert not kill.applies(Rehearsal("sft", folder=tmp_path))
    assert kill.applies(Rehearsal("finetune", folder=tmp_path))
    gpt.here = parse_rig("4xH100")
    assert steps.applies(gpt)
    gpt.here = parse_rig("cpu")
    assert not steps.applies(gpt)


@pytest.mark.parametrize(
    ("memory", "step", "expected"),
    [(1.0, 1.0, "ok"), (1.09, 0.95, "ok"), (1.2, 1.0, "fail"), (1.0, 1.11, "fail"), (0.8, 0.7, "warn")],
)
def test_steps_on_a_gpu_are_held_against_the_plan(memory: float, step: float, expected: str) -> None:
    rig = parse_rig("H100")
    plan = make_plan(load_recipe("charlm", ["model.depth=12"]), rig)
    trial = Trial(
        plan.layout.as_dict(), steps=10, reserved_gib=memory * plan.reserved_gib, step_seconds=step * plan.step_seconds,
        tokens_per_second=1e6,
    )  # fmt: skip
    if expected == "fail":
        with pytest.raises(CheckFailed, match=f"above the plan by more than {GATE:.0%}"):
            _judge(plan, trial, rig)
        return
    evidence = _judge(plan, trial, rig)
    assert bool(evidence.warnings) is (expected == "warn")
    assert evidence.facts["off"]["step"] == pytest.approx(step - 1)


@pytest.mark.parametrize(
    ("sets", "heads", "kv"),
    [
        (("model.depth=12",), 3, None),
        (("model.depth=12", "model.kv_heads=6"), 3, 3),
        (("model.depth=12", "model.kv_heads=3"), 4, 2),
        (("model.depth=24", "model.kv_heads=3"), 4, 1),
        (("model.kv_heads=2",), 3, 1),
    ],
)
def test_scale_model_keeps_the_ratio_of_query_to_key_heads(sets: tuple[str, ...], heads: int, kv: int | None) -> None:
    from windtunnel.model import gpt_shape

    small = scale_model(load_recipe("charlm", sets))
    shape = gpt_shape(small.gpt, 18)
    assert (shape.heads, small.gpt.kv_heads) == (heads, kv)
    assert shape.dim == 32 * heads


def test_steps_are_taken_as_planned_on_a_cpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.rehearse import climbing

    monkeypatch.setattr(climbing, "GATE", 1e9)  # other tests run on these cores
    monkeypatch.setattr(climbing, "STEPS", 3)
    sets = (
        "model.depth=2",
        "model.sequence=64",
        "stages.pretrain.batch_tokens=256",
        "stages.pretrain.micro_batch=4",
        "budget.steps=60",
    )
    rehearsal = Rehearsal("charlm", sets, ("cpu",), tmp_path)
    evidence = climbing._steps(rehearsal, parse_rig("cpu"), lambda text: None)
    assert evidence.absent is None
    assert len(evidence.facts["losses"]) >= 3
    assert evidence.facts["measured"]["step"] > 0


def test_what_cannot_be_tried_here_says_what_can(tmp_path: Path) -> None:
    from windtunnel.rehearse.climbing import _steps

    rehearsal = Rehearsal("charlm", ("model.depth=48",), ("8xH100",), tmp_path)
    evidence = _steps(rehearsal, parse_rig("A10G"), lambda text: None)
    assert "does not fit 1 x A10G" in evidence.text
    assert "8xH100" in (evidence.absent or "")


@pytest.mark.parametrize(("rig", "beside", "expected"), [("cpu", 1.0, "ok"), ("cpu", 5.0, "warn"), ("H100", 5.0, "fail")])
def test_what_a_save_costs_is_held_against_gpus_alone(tmp_path: Path, rig: str, beside: float, expected: str) -> None:
    """A CPU's cores write and compute, and a GPU's step does not wait for them."""
    context = Rehearsal("finetune", folder=tmp_path)
    context.here = parse_rig(rig)
    with RunFolder.create(tmp_path / "runs", load_recipe("finetune"), rig={}) as run, Metrics(run.metrics_path) as metrics:
        context.run = run.path
        for step in range(1, 9):
            metrics.log(step, {"step_seconds": beside if step == 7 else 1.0})
        metrics.event("checkpoint", 6, "saved")
    if expected == "fail":
        with pytest.raises(CheckFailed, match="at most 5%"):
            saving(context, print)
    else:
        assert bool(saving(context, print).warnings) == (expected == "warn")
