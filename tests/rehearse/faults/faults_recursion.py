"""Faults in recursion, in its stages and gates, and in puzzles."""

from __future__ import annotations

from typing import Any

import numpy as np
from planting import Plant, Site, group, sets

OVERFLOW = "8xH100 guide, troubleshooting: out of memory; the public fork runs out of 141 GB at its own shape"
GATES = "8xH100 guide: success criteria of stage 1; low refinement, inverted supervision order"
PRESETS = "8xH100 guide: presets edited by hand in the source"
PUZZLES = "Tiny Recursive Model: puzzles with one solution, test puzzles apart up to symmetries"


def trm(site: Site) -> None:
    """The shipped recipe with two stages, on a corpus that is large enough to be read once."""
    site.recipe = "trm"
    site.set("data.corpus={kind: counted, tokens: 5B}")


def sudoku(site: Site) -> None:
    """The shipped recipe."""
    site.recipe, site.on = "trm-sudoku", "1xH100"


def content(change: Any) -> Plant:
    """Change the puzzles of the prepared files: `change` takes a file and what reads one, and gives other puzzles."""

    def plant(site: Site) -> None:
        from windtunnel.data import PuzzleFile

        true = PuzzleFile.content.func  # type: ignore[attr-defined]
        site.patches.append((PuzzleFile, "content", property(lambda file: change(file, true))))

    return plant


def several_solutions(file: Any, read: Any) -> Any:
    puzzles = read(file)
    inputs = np.zeros_like(puzzles.inputs)
    return type(puzzles)(inputs, puzzles.solutions, puzzles.grades, puzzles.splits)


def other_solutions(file: Any, read: Any) -> Any:
    puzzles = read(file)
    return type(puzzles)(puzzles.inputs, np.roll(puzzles.solutions, 1, axis=0), puzzles.grades, puzzles.splits)


def turned_training_puzzles(file: Any, read: Any) -> Any:
    """Held-out puzzles are training puzzles, transposed."""
    if file.path.name != "validation.bin":
        return read(file)
    train = file.path.with_name("train.bin")
    many = train.stat().st_size // (2 * file.cells + 3)
    first = read(type(file)(train, file.dtype, many * file.cells, cells=file.cells)).take(np.arange(file.puzzles))
    side = int(file.cells**0.5)
    inputs, solutions = (
        grids.reshape(-1, side, side).transpose(0, 2, 1).reshape(-1, file.cells) for grids in (first.inputs, first.solutions)
    )
    return type(first)(np.ascontiguousarray(inputs), np.ascontiguousarray(solutions), first.grades, first.splits)


FAULTS = (
    *group("recipe", "plan", trm)(
        (
            "more supervision steps than memory holds", OVERFLOW, ("applications", "layout.recompute=step", "trm.supervision"),
            sets("trm.supervision=16", "trm.detach_from=64", "layout.recompute=none", "stages.pretrain.micro_batch=32"),
        ),
        (
            "more loops than memory holds", OVERFLOW, ("applications", "trm.loops"),
            sets("trm.loops=16", "layout.recompute=none", "stages.pretrain.micro_batch=32"),
        ),
    ),
    *group("recipe", "recipe", trm)(
        ("value embeddings in recursion layer by layer", PRESETS, "value_embeddings", sets("model.value_embeddings=true")),
        ("a halting head on text", PUZZLES, "halting", sets("trm.halting=true")),
        ("a preset that is none", PRESETS, ("preset", "extreme"), sets("trm.preset=extrem")),
        ("a key that no stage has", GATES, ("trm.lops", "loops"), sets("stages.quality.set.trm.lops=3")),
    ),
    *group("recipe", "gates", trm)(
        ("a gate that no loss can pass", GATES, "more than a loss can fall by", sets("stages.validation.gates.refinement=120")),
        ("a stage too short for its gates", GATES, "20 needed", sets("stages.validation.budget.steps=10")),
        ("order asked of one supervision step", GATES, "supervision=1", sets("trm.supervision=1")),
        ("no gates before the dear stage", GATES, "no gates", sets("stages.validation.gates=null")),
    ),
    *group("recipe", "recipe", sudoku)(
        ("a sequence that is no puzzle", PUZZLES, "81", sets("model.sequence=64")),
        ("puzzles read from left to right", PUZZLES, "causal", sets("model.causal=true")),
    ),
    *group("data", "puzzles", sudoku)(
        ("puzzles with several solutions", PUZZLES, "several solutions", content(several_solutions)),
        ("puzzles with another's solution", PUZZLES, "another solution than theirs", content(other_solutions)),
        ("training puzzles turned and held out", PUZZLES, "symmetries of training puzzles", content(turned_training_puzzles)),
    ),
)  # fmt: skip
