"""The checks of a rehearsal, in order, with what each proves and what to do when it fails."""

from __future__ import annotations

from functools import partial

from . import after, comparing, corpus, environment, learning, modelling, planning, serving, training
from .checks import Check
from .state import Rehearsal


def checks_for(rehearsal: Rehearsal) -> list[Check]:
    """Every check of a rehearsal; they share what they find through it."""
    return [*_before(rehearsal), *_training(rehearsal), *_afterwards(rehearsal)]


def _before(rehearsal: Rehearsal) -> list[Check]:
    plans = [
        Check(
            f"plan {rig.name}",
            f"the recipe fits {rig.name}; its hours and dollars are known",
            "choose a smaller model or a larger rig: windtunnel plan",
            "start",
            partial(planning.plan_target, rehearsal, rig),
        )
        for rig in rehearsal.targets
    ]
    return [
        Check(
            "environment",
            "interpreter, torch, disk, clock and limits are as the package needs them",
            "put right what the evidence names, then rehearse again",
            "start",
            partial(environment.environment, rehearsal),
        ),
        Check(
            "data",
            "the corpus reads and tokenizes; no document is in both splits",
            "look at data.corpus and data.tokenizer in the recipe",
            "start",
            partial(corpus.data, rehearsal),
        ),
        Check(
            "plan here",
            "the planner can size the recipe for this machine",
            "look at model, stages and budget in the recipe",
            "start",
            partial(planning.plan_here, rehearsal),
        ),
        *plans,
        Check(
            "model",
            "it has the planned size, starts at ln V, and every tensor learns",
            "look at the recipe's model; a package that was changed: make test",
            "first steps",
            partial(modelling.model, rehearsal),
            needs=("environment", "data"),
        ),
    ]


def _training(rehearsal: Rehearsal) -> list[Check]:
    return [
        Check(
            "kill",
            "SIGKILL inside a checkpoint costs only the steps since the one before",
            "read killed.log in the rehearsal's folder; runs need a local or POSIX-conforming file system",
            "first interruption",
            partial(training.kill, rehearsal),
            needs=("environment", "data", "model"),
        ),
        Check(
            "resume",
            "the same command goes on from the last whole checkpoint",
            "read resumed.log in the rehearsal's folder",
            "first interruption",
            partial(training.resume, rehearsal),
            needs=("kill",),
        ),
        Check(
            "learning",
            "the loss falls clearly below that of a model that knows nothing",
            "look at the loss in report.html; lower stages.pretrain.optimizer's rates, or check the data",
            "end",
            partial(learning.learning, rehearsal),
            needs=("resume",),
        ),
        Check(
            "bit-exact",
            "a run that was killed and resumed is the run that was not, to the last bit",
            "something outside the package decides results: look for other software on this GPU or changed files",
            "first interruption",
            partial(comparing.bit_exact, rehearsal),
            needs=("resume",),
        ),
        Check(
            "saving",
            "checkpoints are written beside training, not in its way",
            "use a faster or local disk for --root",
            "first steps",
            partial(learning.saving, rehearsal),
            needs=("resume",),
        ),
        Check(
            "ranks",
            "a checkpoint goes on with another number of ranks, and they compute the same",
            "read ranks.log in the rehearsal's folder; torchrun must be able to open ports on localhost",
            "start",
            partial(comparing.ranks, rehearsal),
            needs=("bit-exact",),
        ),
    ]


def _afterwards(rehearsal: Rehearsal) -> list[Check]:
    return [
        Check(
            "export",
            "the exported weights alone give the same model",
            "look at the free disk and the rehearsal's folder",
            "end",
            partial(after.export, rehearsal),
            needs=("resume",),
        ),
        Check(
            "evaluate",
            "the best checkpoint can be measured on held-out data",
            "look at stages.evaluate in the recipe",
            "end",
            partial(after.evaluate, rehearsal),
            needs=("resume",),
        ),
        Check(
            "serve",
            "over HTTP it answers what the model generates, to several clients",
            "read serve.log in the rehearsal's folder; the server must be able to open a port on 127.0.0.1",
            "end",
            partial(serving.serve, rehearsal),
            needs=("resume",),
        ),
    ]
