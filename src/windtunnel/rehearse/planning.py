"""The recipe's plans: for this machine, and on paper for the rigs it is meant for."""

from __future__ import annotations

from windtunnel.plan import Plan, make_plan
from windtunnel.rig import Rig

from .checks import CheckFailed, Evidence, Say
from .state import Rehearsal


def plan_here(rehearsal: Rehearsal, say: Say) -> Evidence:
    """What this machine would make of the whole recipe. That it does not fit here is no failure."""
    plan = _plan(rehearsal, rehearsal.here)
    rehearsal.plan_here = plan
    if not plan.fits:
        return Evidence(f"only the scale model runs here: {plan.reasons[0]}", {"fits": False})
    return Evidence(_summary(plan), {"fits": True, "depth": plan.depth, "hours": plan.hours})


def plan_target(rehearsal: Rehearsal, rig: Rig, say: Say) -> Evidence:
    """Whether the recipe fits a rig, and for how many hours and dollars."""
    plan = _plan(rehearsal, rig)
    rehearsal.plans[rig.name] = plan
    if not plan.fits:
        options = "; or ".join(f"{a.change} ({a.why})" for a in plan.alternatives)
        raise CheckFailed("does not fit: " + "; ".join(plan.reasons), options or None)
    numbers = {"fits": True, "depth": plan.depth, "hours": plan.hours, "dollars": plan.dollars, "epochs": plan.epochs}
    return Evidence(_summary(plan), numbers, warning="; ".join(plan.warnings) or None)


def _plan(rehearsal: Rehearsal, rig: Rig) -> Plan:
    vocab, tokens = rehearsal.corpus or (None, None)
    return make_plan(rehearsal.recipe, rig, vocab, corpus_tokens=tokens)


def _summary(plan: Plan) -> str:
    size = f"{plan.params / 1e6:,.1f} M parameters" if plan.params < 1e9 else f"{plan.params / 1e9:,.2f} B parameters"
    cost = "" if plan.dollars is None else f", ${plan.dollars:,.2f}"
    memory = f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank"
    return f"depth {plan.depth}, {size}, {memory}; {plan.steps:,} steps in {plan.hours:.2f} h{cost}"
