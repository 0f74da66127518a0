"""Check kernel tasks: what is held out of any stage, or kept for an evaluation, is trained on in none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.recipe import KernelTasks, Recipe

from .kernels_alike import HeldOut, Profile, profile
from .kernels_files import TaskReader, kernels_of

NAMED = 5


@dataclass
class Sides:
    """Kernel tasks of a recipe's stages, each text once.

    Attributes:
        train, held_out: by text. unusable, like: what was left out of either, named.
    """

    train: dict[str, Profile] = field(default_factory=dict)
    held_out: dict[str, Profile] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    like: list[str] = field(default_factory=list)


def kernel_sides(recipes: Iterable[Recipe]) -> Sides:
    """Return what the stages train on and hold out, told apart as `prepare` does.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    found, read = Sides(), list[tuple[KernelTasks, int, float]]()
    for recipe in recipes:
        for asked in kernels_of(recipe):
            same = (asked, recipe.seed, recipe.data.validation)
            if same in read:  # as fine-tuning and reinforcement learning have them
                continue
            read.append(same)
            reader = TaskReader(asked, recipe.seed)
            for task in reader.read():
                # As `split_by_key` does where the threshold may not be moved.
                held = task.side < int(recipe.data.validation * 2**64)
                side, source = found.held_out if held else found.train, task.record["task"]["source"]
                if source not in side:
                    side[source] = profile(source, task.where)
            found.unusable += [one for one in reader.dropped if one not in found.unusable]
            found.like += [one for one in reader.like if one not in found.like]
    return found


def contamination(sides: Sides) -> list[str]:
    """Name each task trained on that is like a held-out one, or has all of its operators."""
    held, operators = HeldOut(list(sides.held_out.values())), {one.operators: one for one in sides.held_out.values()}
    said = []
    for one in sides.train.values():
        why = held.like(one)
        if why is None and one.operators in operators:
            why = f"fuses what {operators[one.operators].where} does: {one.combination}"
        if why is not None:
            said.append(f"{one.where} {why}")
    return said


def kernel_tasks(context: Context, say: Say) -> Evidence:
    """Read the tasks of every stage, and compare what is trained on with what is held out."""
    say("reading the tasks of every stage")
    sides, found = kernel_sides(context.stages), Findings()
    say("comparing them")
    mixed = contamination(sides)
    if mixed:
        found.problem(
            f"{len(mixed):,} tasks are trained on and are like held-out ones: {_named(mixed)}",
            "give every stage the same data.validation, so that all hold out the same combinations",
            shows="end",
        )
    if sides.unusable:
        found.warn(f"{len(sides.unusable):,} tasks of files cannot be used: {_named(sides.unusable)}")
    if sides.like:
        found.warn(f"{len(sides.like):,} tasks are like those kept for the evaluation, and are left out: {_named(sides.like)}")
    fused = {one.operators for one in sides.held_out.values()}
    text = (
        f"{len(sides.train):,} tasks to train on; {len(sides.held_out):,} held out, with {len(fused):,} combinations of "
        "operators that no stage trains on; none is a near copy of another side's"
    )
    facts = {"train": len(sides.train), "held_out": len(sides.held_out), "unusable": sides.unusable, "like_held_out": sides.like}
    return found.evidence(text, facts)


def _named(listed: list[str]) -> str:
    return "; ".join(listed[:NAMED]) + ("; ..." if len(listed) > NAMED else "")


def _has_kernels(context: Context) -> bool:
    return any(kernels_of(recipe) for recipe in context.stages)


CHECKS = (
    Check(
        "kernel-tasks", "no stage trains on a kernel task like one that is held out: operators, shapes, near copies",
        "look at data.corpus.kernels and data.validation of every stage", kernel_tasks, shows="end", needs=("recipe",),
        applies=_has_kernels, limit=300.0,
    ),
)  # fmt: skip
