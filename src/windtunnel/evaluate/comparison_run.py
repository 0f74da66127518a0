"""A run's FLOPs-matched baselines: what it is compared with, and the report once all of these are trained."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.data import load_tokenizer, prepare
from windtunnel.files import write_atomic
from windtunnel.generate import load_run
from windtunnel.model import derive
from windtunnel.recipe import UserError
from windtunnel.run import MetricsReader, RunFolder, load_spent, of_step

from .comparison import ComparisonReport, Trained, weigh
from .flop_matched import SAME_FLOPS, WHOLE_BATCHES, Length, Member, flop_matched_members
from .held_out import held_out_units, measure, require_data

LATE = 10  # a tenth of the run's end is what its training losses are the medians of
RATES = ("matrix_lr", "embedding_lr")  # what recursive and plain models may differ in
# Times the run's own FLOPs above which trainings are to be confirmed; plain twins and fewer recurrences take about 2.2.
ASK_FROM = 3.0
LEAST_STEPS = 10  # of a comparison that is offered: --flop-matched-steps takes no fewer


OTHER_DATA = "bring back the corpus that the run was trained on, or remove that folder"


@dataclass(frozen=True)
class Comparison:
    """What a run is compared with.

    Attributes:
        members: the run's own model first. itself: whether that is the run as it is; else it too is trained, shorter or longer.
        seconds_per_flop: of the run's own training; None where it measured none.
        flops: of the run itself. notes: what limits the comparison.
    """

    run: Path
    members: tuple[Member, ...]
    length: Length
    itself: bool
    seconds_per_flop: float | None
    flops: float
    notes: tuple[str, ...]

    @property
    def by_weight(self) -> tuple[Member, ...]:
        """The members in the order in which they are trained: without the plain models there is no verdict."""
        first = ("recursive", SAME_FLOPS, WHOLE_BATCHES, "same-parameters")  # what is trained first is there if it is interrupted
        return tuple(sorted(self.members, key=lambda m: first.index(m.name) if m.name in first else len(first)))

    def member_flops(self, member: Member) -> float:
        """Training FLOPs of a member."""
        return member.shape.flops_per_token * self.length.batch_tokens * self.length.steps

    def steps_within(self) -> int | None:
        """Return the most steps, up to the run's, for which all can be trained, the run's own too, for ASK_FROM times its FLOPs.

        In two figures, rounded down; None where that is fewer than `LEAST_STEPS`.
        """
        each = [self.member_flops(member) / self.length.steps for member in self.members]
        most = min(int(ASK_FROM * self.flops / sum(each)), round(self.flops / each[0]))
        # 150 and not 153: it is a length to be typed.
        figures = 10 ** max(0, len(str(most)) - 2)
        return most // figures * figures if most >= LEAST_STEPS else None


def compare_run(folder: Path, steps: int | None = None) -> Comparison:
    """Return what a run that has come to its end is compared with, at as many steps as it took, or at `steps`.

    Raises:
        UserError: no run folder, a plain model, or a run that has not ended while `steps` is not given.
    """
    run = RunFolder.open(folder)
    taken = int((run.manifest.get("summary") or {}).get("step") or 0)
    ended = run.manifest.get("status") == "done" and run.manifest.get("exit_code") == 0 and taken > 0
    if steps is None and not ended:
        offered = _comparison(run, folder, taken, taken, itself=False).steps_within() if taken else None
        raise UserError(
            f"{folder} has not come to its end: its learning rate has not fallen, so its twins would have an advantage",
            f"windtunnel train --run {folder} --resume"
            + (f", or compare shorter trainings of all: --flop-matched-steps {offered}" if offered else ""),
        )
    return _comparison(run, folder, steps or taken, taken, itself=ended and steps in (None, taken))


def _comparison(run: RunFolder, folder: Path, steps: int, taken: int, *, itself: bool) -> Comparison:
    """Return the comparison of a run that took `taken` steps, at `steps`."""
    layout = run.manifest["plan"]["layout"]
    length = Length(steps, int(layout["batch_tokens"]), str(layout["precision"]), int(layout.get("data") or 1))
    vocab = load_tokenizer(run.tokenizer_path).vocab
    members = flop_matched_members(run.recipe, vocab, length)
    each = members[0].shape.flops_per_token * length.batch_tokens
    seconds = _step_seconds(run)
    return Comparison(
        run=folder,
        members=members,
        length=length,
        itself=itself,
        seconds_per_flop=None if seconds is None else seconds / each,
        flops=each * max(taken, 1),
        notes=_notes(run, members),
    )


def report_comparison(
    comparison: Comparison, runs: Mapping[str, Path], progress: Callable[[str], None] | None = None
) -> ComparisonReport:
    """Measure the trained members on the same held-out data, weigh them and write RUN/flop_matched.json.

    `runs` has the folder of each member's run.

    Raises:
        UserError: a member has no good checkpoint, or was trained on other data.
    """
    say = progress or (lambda what: None)
    own = RunFolder.open(comparison.run)
    data, tokens = prepare(own.recipe), own.recipe.evaluation.bits_per_byte_tokens
    require_data(own, data, OTHER_DATA)
    units = held_out_units(data, own.recipe.gpt.sequence, tokens)
    measured, trained = {}, {}
    for member in comparison.members:
        say(f"measuring {member.name}")
        folder = runs[member.name]
        require_data(RunFolder.open(folder), data, OTHER_DATA)
        loaded = load_run(folder, "best")
        measured[member.name] = measure(loaded.model, data, units)
        trained[member.name] = _trained(folder, member, loaded.checkpoint.step, data.tokenizer.vocab)
    assert own.recipe.trm is not None
    report = weigh(
        comparison.members,
        measured,
        run=comparison.run.resolve().name,
        units=units.words,
        trained=trained,
        preset=own.recipe.trm.preset,
        uniform=math.log(data.tokenizer.vocab),
        length=(comparison.length.steps, comparison.length.batch_tokens),
        notes=comparison.notes,
    )
    path = comparison.run / "flop_matched.json"
    try:
        write_atomic(path, json.dumps(report.to_json(), ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}", "name a file in a folder that is there and yours"
        ) from None
    return report


def _step_seconds(run: RunFolder) -> float | None:
    if not run.metrics_path.exists():
        return None
    with MetricsReader(run.metrics_path) as metrics:
        values = [p.value for p in metrics.series("step_seconds") if math.isfinite(p.value)]
    return statistics.median(values) if values else None


def _trained(folder: Path, member: Member, step: int, vocab: int) -> Trained:
    run, losses = RunFolder.open(folder), list[float]()
    steps = 0 if member.kind == "plain" else member.shape.supervision
    wanted = [of_step("loss", i) for i in range(steps)] or ["loss"]
    if run.metrics_path.exists():
        with MetricsReader(run.metrics_path) as metrics:
            series = [metrics.series(name) for name in wanted]
        late = [[p.value for p in points[-max(1, len(points) // LATE) :] if math.isfinite(p.value)] for points in series]
        # The median: single batches may be much harder.
        losses = [statistics.median(values) for values in late] if all(late) else []
    seconds = None
    with contextlib.suppress(OSError, UserError):
        seconds = load_spent(run.spent_path).seconds
    rates = derive(run.recipe, vocab)
    words = ", ".join(f"{name} {getattr(rates, name).value:.3g}" for name in RATES)
    return Trained(str(folder), step, seconds, tuple(losses), words)


def _notes(run: RunFolder, members: Sequence[Member]) -> tuple[str, ...]:
    own, same = members[0], next(m for m in members if m.name == "same-flops")
    notes = []
    share = same.shape.flops_per_token / own.shape.flops_per_token
    if abs(share - 1) >= 0.0005:
        notes.append(f"the plain model of the same FLOPs has {100 * share:.1f} % of them")
    fewest = min(m.updates for m in members if m.name != WHOLE_BATCHES)
    if any(m.name == WHOLE_BATCHES for m in members):
        notes.append(
            "trm.updates is each, so others learn in smaller batches with as many updates; the verdict is against the better of "
            "the two plain models of the same FLOPs"
        )
    if fewest < own.updates:
        notes.append(
            f"no whole sequences make batches small enough for as many updates: {fewest:,} against the run's {own.updates:,}. A "
            "gain may come of that rather than of recursion: compare a run with trm.updates=once"
        )
    before, after = (m.recipe.pretrain.optimizer for m in (own, same))
    if (before.matrix_lr, before.embedding_lr) != (after.matrix_lr, after.embedding_lr):
        assert own.recipe.trm is not None
        preset = own.recipe.trm.preset
        notes.append(f"recursive models have the learning rates of preset {preset}, plain ones those of a plain recipe")
    reason = str(run.manifest.get("reason") or "")
    if "overfit" in reason:
        notes.append(f"the run ended early ({reason}): its learning rate had not fallen to the end")
    return tuple(notes)
