"""Trainings beside a run, in its own folder: ordinary runs, taken up again where they stopped, used again where they ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import Recipe, UserError
from windtunnel.run import RunFolder, first_difference, list_runs

from .local import train_run
from .trainable import Options

if TYPE_CHECKING:
    from windtunnel.train import View

FOLDER, FORMER = "flop_matched", "worth"
"""Of the trainings, in the run's own folder: now, and as it was called before."""


@dataclass(frozen=True)
class Beside:
    """A training beside a run.

    Attributes:
        root: folder of its runs. run: the newest run of the same recipe and length, if any. ended: it came to its end.
    """

    root: Path
    run: Path | None
    ended: bool


def find_beside(folder: Path, name: str, recipe: Recipe) -> Beside:
    """Find a training `name` beside the run in `folder`; runs of other recipes or lengths do not count.

    Raises:
        UserError: the trainings are in a folder of the former name: they would be done anew beside those that are there.
    """
    # Taken up under the new name without a word, finished trainings would be paid for a second time.
    former, now = folder / FORMER, folder / FOLDER
    if former.is_dir() and not now.exists():
        raise UserError(f"{former}: trainings beside a run are now in {now}", f"mv {former} {now}")
    root = now / name
    for summary in list_runs(root):
        if summary.status == "damaged":
            continue
        run = RunFolder.open(summary.path)
        if _same(run.recipe, recipe):
            ended = run.manifest.get("status") == "done" and run.manifest.get("exit_code") == 0
            return Beside(root, summary.path, ended)
    return Beside(root, None, False)


def train_beside(
    beside: Beside,
    recipe: Recipe,
    options: Options,
    view: View,
    *,
    as_json: bool = False,
    output: Any = None,
    isolated: bool = True,
) -> tuple[int, Path]:
    """Train to the end what is not there yet; return the exit code and the run's folder.

    Args:
        beside: what is there of it.
        recipe: what to train.
        options: price and GPUs; root, run and resume are this function's.
        view: shows the training.
        as_json: tell progress as JSON.
        output: where processes of their own print; None: where this one does.
        isolated: in a process of its own, with an empty GPU.

    Raises:
        UserError: it does not fit this machine, or another process trains it.
    """
    if beside.ended:
        assert beside.run is not None
        return 0, beside.run
    own = Options(run=beside.run, resume=beside.run is not None, yes=options.yes, root=beside.root, price=options.price,
                  gpus=options.gpus)  # fmt: skip
    return train_run(recipe, own, view, as_json=as_json, isolated=isolated, output=output, from_now=True)


def _same(trained: Recipe, asked: Recipe) -> bool:
    """Return whether both are the same training of the same length; what one leaves to be derived the other must too."""
    left, right = (json.dumps(r.budget.model_dump(mode="json"), sort_keys=True) for r in (trained, asked))
    # Either way round: a key that only one of them gives is a difference to the other.
    return left == right and first_difference(trained, asked) is None and first_difference(asked, trained) is None
