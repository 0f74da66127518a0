"""Ways of recursing over Sudoku that `sudoku.py` and `sudoku_sweep.py` compare: a few keys of the recipe trm-sudoku each."""

from __future__ import annotations

from typing import Any

Keys = dict[str, Any]

BATCH = "stages.pretrain.batch_tokens"
RATE = "stages.pretrain.optimizer.matrix_lr"
CELLS = 81
FIRST: Keys = {
    "model.depth": 2, "model.aspect": 192, "trm.scheme": "two_latent", "trm.preset": "honest", "trm.loops": 2, "trm.cycles": 1,
    "trm.supervision": 8, "trm.updates": "once", "trm.gradient_cycles": "all", BATCH: 256 * CELLS,
}  # fmt: skip
"""Where the variants set out from: two latent states, gradients through all supervision steps, one update a batch. With this in
every variant a name means the same models whatever the recipe ships with."""
LOOPED: Keys = FIRST | {"trm.scheme": "looped", "trm.loops": 1}
EACH: Keys = FIRST | {"trm.updates": "each", BATCH: 512 * CELLS}
"""An update after every supervision step: the gradient ends there."""
VARIANTS: dict[str, Keys] = {
    "once": FIRST,
    # The same passes as a loop over the stack that sees the puzzle again each time, and answers after each.
    "looped": LOOPED | {"trm.supervision": 24},
    # Narrower, so that more puzzles are seen.
    "looped-narrow": LOOPED | {"trm.supervision": 24, "model.aspect": 128, BATCH: 512 * CELLS},
    # One layer, applied 32 times with an answer after each (arXiv:2307.04895 solves ordinary puzzles so).
    "looped-single": LOOPED | {"trm.supervision": 32, "model.depth": 1, "model.aspect": 256, BATCH: 512 * CELLS},
    "narrow": FIRST | {"model.aspect": 128, BATCH: 512 * CELLS},
    # Twice the rate that the batch has by rule.
    "fast": FIRST | {RATE: 0.008},
    "each": EACH,
    "each-small": EACH | {BATCH: 256 * CELLS},
    "each-narrow": EACH | {"model.aspect": 128},
    "each-fast": EACH | {RATE: 0.01},
    # The recipe as it ships.
    "each-long": EACH | {"trm.supervision": 16, "model.aspect": 128},
    # More, cheaper steps: most passes have no gradient.
    "deep-steps": EACH | {"trm.loops": 4, "trm.cycles": 3, "trm.gradient_cycles": "last", BATCH: 1024 * CELLS},
    # Samsung's numbers.
    "samsung": EACH | {
        "model.aspect": 256, "trm.loops": 6, "trm.cycles": 3, "trm.supervision": 16, "trm.gradient_cycles": "last",
        BATCH: 768 * CELLS,
    },
    "wide": FIRST | {"model.aspect": 256},
    # No recursion, as much depth as the FLOPs of one pass through the recursive model would buy parameters for.
    "plain": {"trm": "null", "model.depth": 12, "model.aspect": 32, BATCH: 256 * CELLS},
}  # fmt: skip
ONCE: Keys = {
    "trm.scheme": "looped", "trm.preset": "honest", "trm.loops": 1, "trm.cycles": 1, "trm.supervision": 1, "trm.updates": "once",
    "trm.gradient_cycles": "all", "trm.halting": "false",
}  # fmt: skip
"""A stack looped once: the plain transformer, with averaged weights like the recursive model's (without `trm` there are none)."""
PATIENT: Keys = {"stages.pretrain.validate_every": "500 steps", "bands.overfit_patience": 1000}
TWINS: dict[str, Keys] = {
    # For the FLOPs of `each-long` about as many updates as that makes (12,800), and four times the puzzles.
    "plain": ONCE | PATIENT | {"model.depth": 12, "model.aspect": 32, BATCH: 128 * CELLS},
    # Sudoku takes many steps of deduction, and a layer can be one: twice the layers, narrower, as many parameters.
    "plain-deep": ONCE | PATIENT | {"model.depth": 24, "model.aspect": 10, BATCH: 256 * CELLS},
}  # fmt: skip
"""What the recursive model is compared with."""

TINY: Keys = {
    "data.corpus.box": 2, "data.corpus.grade": "easy", "data.corpus.puzzles": 20000, "model.sequence": 16,
    "model.head_dim": 32, BATCH: 1024, RATE: 0.005,
    "stages.pretrain.validate_every": "20 steps", "stages.evaluate.exact_match_problems": 400,
}  # fmt: skip
TINY_SIZE: Keys = FIRST | {"model.aspect": 32, "trm.supervision": 4, BATCH: TINY[BATCH]}
TINY_RECURSIVE: Keys = TINY_SIZE | {"trm.updates": "each"}
TINY_LOOPED: Keys = TINY_SIZE | {"trm.scheme": "looped", "trm.loops": 1, "trm.supervision": 12}
TINY_PLAIN: Keys = {"trm": "null", "model.depth": 6, "model.aspect": 16, BATCH: TINY[BATCH]}
TINY_TWINS: dict[str, Keys] = {
    "plain": ONCE | {"model.depth": 6, "model.aspect": 16, BATCH: TINY[BATCH]},
    "plain-deep": ONCE | {"model.depth": 12, "model.aspect": 5, BATCH: TINY[BATCH]},
}
TINY_VARIANTS: dict[str, Keys] = {
    "once": TINY_SIZE,
    # As many updates as `each` has, by batches of a quarter.
    "parts": TINY_SIZE | {BATCH: 256},
    "each": TINY_RECURSIVE,
    "each-fast": TINY_RECURSIVE | {RATE: 0.01},
    "looped": TINY_LOOPED,
    "looped-each": TINY_LOOPED | {"trm.loops": 3, "trm.supervision": 4, "trm.updates": "each"},
    "plain": TINY_PLAIN,
    "plain-parts": TINY_PLAIN | {BATCH: 256},
}
