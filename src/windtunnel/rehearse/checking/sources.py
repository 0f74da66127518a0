"""Whether what was asked for means anything: the recipe loads, the names are rigs, this machine can be looked at."""

from __future__ import annotations

from windtunnel.recipe import recipe_notes
from windtunnel.rig import Rig

from .context import Context
from .types import Check, Evidence, Say


def _recipe(context: Context, say: Say) -> Evidence:
    recipe = context.recipe
    model = recipe.gpt.depth if context.is_gpt else None
    what = f"a GPT of depth {model}" if context.is_gpt else f"Hugging Face model {getattr(recipe.model, 'config', '')}"
    if recipe.trm is not None:
        how = f"{recipe.trm.scheme}, {recipe.trm.loops} loops, {recipe.trm.supervision} supervision steps"
        what = f"{what} that recurses ({how}, preset {recipe.trm.preset})"
    data = recipe.data.corpus.kind
    changed = f", {len(context.overrides)} keys overridden" if context.overrides else ""
    if context.loaded.phases:
        changed = f", phases {' then '.join(phase.name for phase in context.loaded.phases)}{changed}"
    notes = recipe_notes(context.loaded)
    if notes:
        changed = f"{changed}; {'; '.join(notes)}"
    return Evidence(f"{recipe.name}: {what} on {data} data{changed}", {"name": recipe.name, "corpus": data})


def _rig(context: Context, say: Say) -> Evidence:
    rigs = context.rigs
    text = "; ".join(f"{rig.name}: {rig.describe()}{_price(rig)}" for rig in rigs)
    unpriced = [rig.name for rig in rigs if rig.dollars_per_hour is None and rig.rung != "cpu"]
    warnings = [f"no price is known for {name}: what a failure costs cannot be said (write {name}@$2.50)" for name in unpriced]
    return Evidence(text, {"rigs": [rig.name for rig in rigs]}, warnings)


def _price(rig: Rig) -> str:
    return "" if rig.dollars_per_hour is None else f", ${rig.dollars_per_hour:,.2f} an hour"


def _machine(context: Context, say: Say) -> Evidence:
    here = context.here
    facts = {"gpus": here.gpus, "cpu_cores": here.cpu_cores, "ram_gib": here.ram_gib, "rung": here.rung}
    return Evidence(f"{here.describe()}{_price(here)}", facts, here.notes)


CHECKS = (
    Check("recipe", "the recipe loads: every key is known, every value possible", "correct the key that is named", _recipe),
    Check("rig", "the rigs that were named exist", "name a rig as `windtunnel plan --help` shows", _rig),
    Check("machine", "this machine can be looked at", "correct the variable or file that is named", _machine),
)
