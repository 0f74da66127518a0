"""The callback that saves checkpoints: at its interval and at the end, retried after a full disk, never of spoiled weights."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from windtunnel.checkpoint import (
    MODEL,
    OPTIMIZER,
    Checkpoint,
    CheckpointStore,
    DiskFull,
    Facts,
    Group,
    Saver,
    SpoiledWeights,
    read_checkpoint,
)
from windtunnel.recipe import Every, UserError

from .callbacks import Callback, Decision, Timer, Values
from .engine import Engine, EngineState, parts_of
from .ranks import Ranks

if TYPE_CHECKING:
    from windtunnel.evaluate import Answered, Validation

    from .loop import Loop

DISK_BYTES_PER_SECOND = 500e6
"""A slow disk's pace, before the first save has been measured."""
RETRY_SECONDS = 60.0
PARTS_SECONDS = 15.0
"""For the parts of ranks that may be gone, beside the time that this rank's own part takes."""


def make_saver(engine: Engine, store: CheckpointStore, ranks: Ranks, **options: Any) -> Saver:
    """Return this rank's saver of an engine's state; all ranks call it together. The engine's steps then wait for copies.

    Args:
        engine: whose state is saved, where it lies.
        store: the run's checkpoints.
        ranks: which part of the state this process writes.
        options: see `Saver`.
    """
    saver = Saver(store, parts_of(engine.state_dict()), group=Group(ranks.rank, ranks.world, ranks.control), **options)
    engine.before_update = saver.before_update
    return saver


def restore_engine(engine: Engine, checkpoint: Checkpoint, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load a checkpoint of any number of ranks into an engine; all ranks call it together.

    Args:
        engine: whose state is filled, where it lies.
        checkpoint: that is known to be good.
        changes: facts that are to be others than those saved.

    Returns:
        What was kept beside the engine's own facts, and these.

    Raises:
        UserError: the checkpoint is of another model, or its states lie on another number of ranks and cannot be moved.
    """
    state = engine.state_dict()
    for part, values in parts_of(state).items():
        # A state may lack what the checkpoint has (optimizer states of another kind), weights may not.
        opened = checkpoint.part(part)
        unknown = opened.entries.keys() - values.keys() if part == MODEL else set()
        if unknown:
            raise UserError(
                f"checkpoint {checkpoint.path}: only the checkpoint has {min(unknown)}",
                "go on with the recipe that it was saved by",
            )
        if part == OPTIMIZER:
            _require_ranks(checkpoint, values.keys() - opened.entries.keys())
        opened.load(values)
    facts = checkpoint.state | dict(changes or {})
    engine.load_state_dict(EngineState(state.tensors, facts))
    return facts


def begin_with(engine: Engine, checkpoint: Checkpoint) -> None:
    """Give an engine at step 0 a checkpoint's weights and nothing else of it; all ranks call it together.

    Raises:
        UserError: the checkpoint is of another model.
    """
    state = engine.state_dict()
    parts, opened = parts_of(state), checkpoint.part(MODEL)
    if opened.entries.keys() != parts[MODEL].keys():
        differs = min(opened.entries.keys() ^ parts[MODEL].keys())
        raise UserError(
            f"checkpoint {checkpoint.path} is of another model: {differs} is not in both",
            "begin with a run of the same model; one that trained an adapter, or all of a model that now gets one, is exported "
            "first: windtunnel export RUN --to FOLDER, init_from: FOLDER",
        )
    opened.load(parts[MODEL])
    # Where averages are kept they are the model's weights above, and the raw ones stand among the states.
    raw = {name.removeprefix("raw."): value for name, value in parts[OPTIMIZER].items() if name.startswith("raw.")}
    if raw:
        opened.load(raw)
    engine.load_state_dict(state)


def _require_ranks(checkpoint: Checkpoint, missing: AbstractSet[str]) -> None:
    """Refuse states that belong to one rank among as many as there were, where there are now others."""
    for name in sorted(missing):
        what, _, of = name.partition(".")[0].partition("@")
        if of:
            raise UserError(
                f"checkpoint {checkpoint.path}: {what} of its int8 moments lies on {checkpoint.world} ranks, here it is {of}",
                "go on with as many GPUs, or begin with other states: --set stages.sft.states=bf16 (stages.rl.states)",
            )


@dataclass
class _Save:
    """A save: begun after so many steps, and seen to have ended after so many; None: it may be under way."""

    after: int
    ended: int | None = None


class Checkpoints(Callback):
    """Saves checkpoints, and goes back to them. There is one on every rank; rank 0's says when.

    Args:
        engine: whose state is saved.
        saver: this rank's, of that engine.
        every: the interval.
        facts: gives what the other callbacks want to find again.
        spoiled: told where weights that were to be saved are not finite.
        initial: finds the checkpoint of another run whose weights this one begins with; None: the engine's own. It is asked
            when they are needed only: a run that has saved goes on without the other one.
    """

    def __init__(
        self, engine: Engine, saver: Saver, ranks: Ranks, every: Every, *, facts: Callable[[], dict[str, Any]] = dict,
        spoiled: Callable[[str], None] = lambda why: None, initial: Callable[[], Checkpoint | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._engine, self._saver, self._ranks, self._facts, self._spoiled = engine, saver, ranks, facts, spoiled
        self._timer = Timer(every)
        self._saved: set[int] = set()
        self._seconds: float | None = None
        self._retry_at = 0.0
        self._loss: tuple[int, float] | None = None
        self._score: tuple[int, float] | None = None
        self._unsaved: str | None = None
        self._initial = initial
        self._saves: deque[_Save] = deque(maxlen=2)

    def go_on_from(self, step: int | None) -> dict[str, Any] | None:
        """Load the checkpoint of a step, or take the weights that the run begins with; all ranks call it together.

        Returns:
            What was kept beside the engine's own facts; None at the beginning.

        Raises:
            UserError: the checkpoint is damaged, or the weights to begin with are not there any more.
        """
        if step is not None:
            self._ranks.heartbeat.beat("loading the checkpoint")
            return self.load(step)
        initial = self._initial()
        if initial is not None:
            begin_with(self._engine, initial)
        return None

    def start_over(self, position: int) -> None:
        """Go back to the weights that the run began with, with the data from `position` on. Raises as `go_on_from`."""
        self._engine.start_over(position)
        self.go_on_from(None)

    def start(self, loop: Loop) -> None:
        """Begin; what a run goes on from is saved already."""
        super().start(loop)
        self._timer.step = loop.step
        self._saved = {loop.step} if loop.step else set()

    # Deciding, on rank 0

    def propose(self, step: int, decision: Decision) -> None:
        """Ask for a save when one is due and none is under way."""
        self._take(self._saver.poll)
        # One at a time: a second would wait for the first one's buffers, and the step with it.
        if self._timer.due(step) and not self._saver.busy and time.monotonic() >= self._retry_at:
            decision.save = True

    def settle(self, step: int, decision: Decision) -> None:
        """Ask for one at the end, unless this step is saved; drop it where there is no room.

        For the last one older checkpoints make room, and if need be its optimizer states are left out.
        """
        if step and decision.stop is not None and step not in self._saved:
            decision.save = True
        if not decision.save:
            return
        try:
            if decision.stop is None:
                self._saver.check_room()
            else:
                decision.weights_only = self._saver.room_for_last() == (MODEL,)
        except DiskFull as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self.loop.journal.event("disk_full", error.message, "bad", {"advice": error.fix or ""})
            decision.save = False
            if decision.stop is not None:
                decision.stop = f"{decision.stop}; the last checkpoint could not be saved: no room on the disk"
                decision.exit_code = 1

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Remember the loss that checkpoints carry until the next one."""
        self._loss = step, result.loss

    def answered(self, step: int, result: Answered, values: Values, seconds: float) -> None:
        """Remember their score, likewise; where nothing is known of any it says nothing."""
        if result.n:
            self._score = step, result.score

    def reserve(self) -> float:
        """Return the seconds of the last save."""
        return self._seconds if self._seconds is not None else 1.0 + self._saver.bytes() / DISK_BYTES_PER_SECOND

    def newest(self) -> int:
        """Wait for a save under way; the step of the newest good checkpoint, 0 where there is none."""
        self._take(self._saver.wait)
        checkpoint = self._saver.store.newest_good(with_optimizer=True)
        return checkpoint.step if checkpoint else 0

    def was_saving(self, step: int) -> bool:
        """Return whether a checkpoint was being saved while a step was taken; it may be one of the last few."""
        return any(save.after < step and (save.ended is None or step <= save.ended) for save in self._saves)

    # Doing, on every rank

    def begin(self, step: int, decision: Decision) -> None:
        """Begin to save the present state."""
        self._take(self._saver.wait)
        state = self._engine.state_dict().facts | self._facts()
        # A checkpoint between two validations has no loss of its own; the one before it still ranks it among the others.
        last, loss = self._loss or (None, None)
        answered, score = self._score or (None, None)
        facts = Facts(step, state, loss if last == step else None, loss, score if answered == step else None, score)
        self._timer.done(step)
        self._saved.add(step)
        self._saves.append(_Save(step))
        self._saver.save(facts, (MODEL,) if decision.weights_only else None)

    def finish(self) -> str | None:
        """Wait for the last checkpoint; why it could not be saved, if it could not."""
        self._unsaved = None
        self._take(self._saver.wait)
        return self._unsaved

    def hurry(self) -> None:
        """Wait for a save under way, of other ranks' parts, which may be gone, for a short time only."""
        self._saver.wait_for_parts(PARTS_SECONDS)
        self.finish()

    def last(self, step: int, *, alone: bool = False) -> str | None:
        """Save `step`, unless it is saved, and wait; why that failed, if it did.

        Args:
            step: optimizer steps that the state has seen.
            alone: others may be gone. Rank 0 then waits for their parts for a short time only, and saves what it has whole:
                everything where each rank has all of it, else the weights.
        """
        if step in self._saved:
            return self.finish()
        if not alone:
            self.begin(step, Decision())
            return self.finish() or (None if step in self._saved else "its weights are not finite")
        self.hurry()
        self.begin(step, Decision())
        # A note of every rank came in time, so that all of them live; or this rank has written its own part, which is all it
        # can do.
        if (unsaved := self.finish()) is None or not self._ranks.first:
            return unsaved if step in self._saved else "its weights are not finite"
        parts = parts_of(self._engine.state_dict())
        # Where ranks have copies of everything rank 0's alone is a checkpoint: DTensors and slices are parts that others
        # hold.
        whole = {part: values for part, values in parts.items() if all(type(v) in (Tensor, Parameter) for v in values.values())}
        if MODEL not in whole:
            return unsaved
        self._saver = self._saver.alone(whole)
        self.begin(step, Decision(weights_only=OPTIMIZER not in whole))
        lacking = None if OPTIMIZER in whole else "its weights alone are, and training goes on from the checkpoint before"
        return self.finish() or lacking

    def load(self, step: int, **changes: Any) -> dict[str, Any]:
        """Load the checkpoint of a step into the engine, from any number of ranks; all ranks call it together.

        Args:
            step: of the checkpoint, which the store has.
            changes: facts that are to be others than those saved.

        Returns:
            What was kept beside the engine's own facts, and these.

        Raises:
            UserError: the checkpoint is damaged or of another model.
        """
        # A save under way still copies the tensors that are about to be filled.
        self._saver.before_update()
        return restore_engine(self._engine, self._verified(step), changes)

    def rewound(self, step: int) -> None:
        """Forget what was saved and measured after `step`."""
        self._saved = {saved for saved in self._saved if saved <= step}
        self._saves.clear()
        self._loss = None if self._loss is not None and self._loss[0] > step else self._loss
        self._score = None if self._score is not None and self._score[0] > step else self._score

    def state_dict(self) -> dict[str, Any]:
        """Return the steps of the last validation and of the last answers, with loss and score."""
        return {"validated": self._loss} | ({} if self._score is None else {"answered": self._score})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was measured last."""
        self._loss = tuple(state["validated"]) if state.get("validated") else None  # type: ignore[assignment]
        self._score = tuple(state["answered"]) if state.get("answered") else None  # type: ignore[assignment]

    def _verified(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step: rank 0 reads all of it to see that it is good, the others trust it."""
        store, found, error = self._saver.store, "", None
        if self._ranks.first:
            try:
                found = store.at(step).path.name
            except UserError as problem:
                error = problem
        # Reading gigabytes to verify them once is enough, and all ranks must take the same folder even where a save of the
        # step came twice.
        name = self._ranks.share(found)
        if not name:
            raise error or UserError(f"{store.folder}: no good checkpoint of step {step}")
        return read_checkpoint(store.folder / name)

    def _take(self, outcome: Callable[[], Any]) -> None:
        """Take note of how a save ended. Where it failed training goes on, and it is tried again later."""
        try:
            saved = outcome()
        except SpoiledWeights as spoiled:
            # The step counts as not saved, so that the end of the run does not take it for safe.
            self._saved.discard(spoiled.step)
            self._spoiled(str(spoiled))
            return
        except UserError as error:
            self._unsaved = error.message
            self.loop.journal.event("checkpoint_failed", error.message, "bad", {"advice": error.fix or ""})
            return
        # The thread that writes may fail in ways nobody foresaw: training is worth more than one checkpoint.
        except Exception as error:
            self._unsaved = str(error)
            self.loop.journal.event("checkpoint_failed", f"checkpoint not saved: {error}", "bad")
            return
        finally:
            if self._saves and self._saves[-1].ended is None and not self._saver.busy:
                self._saves[-1].ended = self.loop.step
        if saved is not None:
            self._seconds = saved.seconds
