"""Up the ladder: ten steps of the full-size model on one GPU, then on all of this machine's, beside what was planned."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from windtunnel.check import Check, CheckFailed, Evidence, Say
from windtunnel.launch import Trial, try_steps
from windtunnel.plan import Plan, make_plan
from windtunnel.rig import Rig

from .context import Context, Rehearsal

STEPS = 10
GATE = 0.10
"""Most that memory and step time may exceed the plan, relative; as much below it is worth a warning."""
TIMEOUT_SECONDS = 900.0
_WORDS = {"memory": "memory", "step": "step time"}
_CALIBRATE = "`windtunnel plan --calibrate` puts what was measured into the plans"


def one_gpu(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Ten full-size steps on one GPU."""
    return _steps(rehearsal, _alone(rehearsal.here), say)


def node(rehearsal: Rehearsal, say: Say) -> Evidence:
    """The same on all GPUs of this machine."""
    return _steps(rehearsal, rehearsal.here, say)


def _steps(rehearsal: Rehearsal, rig: Rig, say: Say) -> Evidence:
    recipe = rehearsal.resolved  # a depth left to the planner is the target's, not what one GPU would get
    say("planning")
    plan = make_plan(recipe, rig)
    if not plan.fits:
        return Evidence(
            f"the full-size model does not fit {rig.gpus} x {_gpu(rig)}: {plan.reasons[0]}", absent=_elsewhere(rehearsal)
        )
    if recipe.rl is not None or plan.layout.engine != "windtunnel":
        what = "reinforcement learning" if recipe.rl else f"a layout of {plan.layout.engine}"
        return Evidence(f"{what} is planned, not tried", absent=_elsewhere(rehearsal))
    trial = try_steps(recipe, plan.layout, steps=STEPS, vocab=plan.vocab, timeout=TIMEOUT_SECONDS, say=say)
    if trial.failure is not None:
        fix = "--set stages.pretrain.micro_batch=..., half of the plan's" if trial.out_of_memory else None
        raise CheckFailed(f"{rig.gpus} x {_gpu(rig)}, {plan.layout.describe()}: {trial.failure}", fix)
    return _judge(plan, trial, rig)


def _judge(plan: Plan, trial: Trial, rig: Rig) -> Evidence:
    """Measured against planned."""
    measured = {"memory": trial.reserved_gib or 0.0, "step": trial.step_seconds or 0.0}
    planned = {"memory": plan.reserved_gib, "step": plan.step_seconds}
    off = {name: value / planned[name] - 1 for name, value in measured.items()}
    memory = f"{measured['memory']:.1f} GiB reserved ({off['memory']:+.1%} of the plan)"
    step = f"{1000 * measured['step']:,.0f} ms a step ({off['step']:+.1%}), {trial.tokens_per_second or 0:,.0f} tokens/s"
    text = f"{trial.steps} steps on {rig.gpus} x {_gpu(rig)}: {memory}, {step}"
    facts = {"measured": measured, "planned": planned, "off": off, "losses": list(trial.losses), "layout": trial.layout}
    worse = [_WORDS[name] for name in off if off[name] > GATE]
    better = [_WORDS[name] for name in off if off[name] < -GATE]
    if worse:
        raise CheckFailed(
            f"{text}: {' and '.join(worse)} above the plan by more than {GATE:.0%}",
            f"{_CALIBRATE}; look at hours and dollars again",
        )
    remark = f"{' and '.join(better)} below the plan by more than {GATE:.0%}: {_CALIBRATE}"
    return Evidence(text, facts, [remark] if better else [])


def _alone(rig: Rig) -> Rig:
    dollars = None if rig.dollars_per_hour is None else rig.dollars_per_hour / max(1, rig.gpus)
    return replace(rig, gpus_per_node=1, dollars_per_hour=dollars)


def _gpu(rig: Rig) -> str:
    return rig.gpu.name if rig.gpu else "CPU"


def _elsewhere(rehearsal: Rehearsal) -> str:
    return f"the first minutes on {rehearsal.rig.name} will show it: rehearse there before training"


def _has_gpu(context: Context) -> bool:
    return context.here.gpu is not None


def _has_gpus(context: Context) -> bool:
    return context.here.gpus > 1


_Climb = partial(Check, apart=False, shows="first steps")
CHECKS = (
    _Climb(
        "one gpu",
        f"{STEPS} full-size steps on one GPU take the planned memory and time",
        "look at nvidia-smi for other work on this GPU, then at `windtunnel plan`",
        one_gpu,
        rung="gpu",
        needs=("recipe", "rig", "gpu", "plan"),
        applies=_has_gpu,
    ),
    _Climb(
        "node",
        f"{STEPS} full-size steps on all GPUs of this machine take the planned memory and time",
        "look at NVLink (nvidia-smi topo -m) and NCCL's variables",
        node,
        rung="node",
        needs=("one gpu",),
        applies=_has_gpus,
    ),
)
