"""Which checkpoint of a run to use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from windtunnel.recipe import UserError

from .folder import RunFolder
from .store import Checkpoint, CheckpointStore

Which = Literal["best", "newest"] | int


def choose_checkpoint(run: Path, which: Which, purpose: str = "") -> tuple[RunFolder, Checkpoint]:
    """The run, and its checkpoint that is best by validation loss, the newest good one, or that of a step.

    Args:
        purpose: what it is for, as in "to serve", for the error's words.

    Raises:
        UserError: no run folder, no good checkpoint, or none of that step.
    """
    folder = RunFolder.open(run)
    store = CheckpointStore(folder.checkpoints_dir)
    if which == "best":
        chosen = store.best()
    elif which == "newest":
        chosen = store.newest_good()
    else:
        chosen = store.at(which)
    if chosen is None:
        found = "; ".join(store.problems[:2]) or "it has saved none"
        raise UserError(
            f"{run} has no {f'good checkpoint {purpose}'.rstrip()}: {found}",
            f"go on with: windtunnel train --resume --run {run}",
        )
    return folder, chosen
