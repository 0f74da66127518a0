"""A recursive run beside its FLOPs-matched baselines, as rows and remarks for a terminal."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

from windtunnel.run import apart

from .comparison import ComparisonReport, Row, best_twin
from .recurrence_fit import Phi

COLUMNS = ("model", "size", "params", "FLOPs", "nats", "bits/byte", "above this run (95 %)")
PUZZLE_COLUMNS = ("model", "size", "params", "FLOPs", "nats", "solved", "less than this run (95 %)")


def comparison_columns(report: ComparisonReport) -> tuple[str, ...]:
    """Headings of `comparison_rows`."""
    return PUZZLE_COLUMNS if report.rows[0].solved is not None else COLUMNS


def comparison_rows(report: ComparisonReport) -> list[list[str]]:
    """Return a row a model: size, FLOPs, held-out loss, and how much that is above the run's."""
    return [_cells(row) for row in report.rows]


def comparison_remarks(report: ComparisonReport) -> list[tuple[str, str]]:
    """Return (label, text): the verdict first, refinement with what it is worth, phi, and what limits the comparison."""
    remarks = [("verdict", report.verdict)]
    remarks += [("spoilt", item.words) for item in report.spoilt]
    own = report.rows[0]
    if own.step_losses:
        falls = all(later < earlier for earlier, later in pairwise(own.step_losses))
        # A chain of 'greater than' only where it is true.
        chain = (" > " if falls else ", ").join(apart(own.step_losses))
        remarks.append(("by step", f"{chain} nats; knowing nothing: {report.uniform:.3f}"))
    if own.refinement is not None:
        same = next(row for row in report.rows if row.name == "same-parameters")
        earned = 100 * (same.loss.value - own.loss.value) / same.loss.value
        remarks.append(
            ("refinement", f"{own.refinement:.1f} % (last step against its own first); against the plain model of the same "
             f"parameters {earned:+.1f} %")
        )  # fmt: skip
    remarks += in_training(report)
    remarks.append(("phi", phi_words(report.phi)))
    held_out = f"{report.targets:,} targets in {report.unit_count:,} {report.units}"
    length = f"{report.steps:,} steps of {report.batch_tokens:,} tokens"
    if len({row.batch_tokens for row in report.rows}) > 1:
        length += ", or as many tokens in smaller batches"
    remarks.append(("measured", f"{held_out}; each model trained for {length}"))
    return remarks + [("note", note) for note in report.notes]


def in_training(report: ComparisonReport) -> list[tuple[str, str]]:
    """Refinement on the training batches, which a run's gates go by, beside what the plain model of the same FLOPs loses."""
    own, same = report.rows[0].trained, best_twin(report.rows).trained
    if own is None or len(own.losses) < 2 or not own.losses[0]:
        return []
    refinement = 100 * (own.losses[0] - own.losses[-1]) / own.losses[0]
    words = f"refinement {refinement:.1f} % on the training batches: {', '.join(apart(own.losses))} nats"
    if same is not None and same.losses:
        words += f"; the plain model of the same FLOPs: {same.losses[-1]:.3f}"
    return [("in training", words)]


def phi_words(phi: Phi) -> str:
    """Return the exponent with its interval, or why there is none."""
    if phi.value is None:
        return f"not known: {phi.words}"
    sign = {"=": "", "<=": "at most ", ">=": "at least "}[phi.bound]
    ends = ["?" if end is None else f"{end:.2f}" for end in (phi.low, phi.high)]
    interval = f" (95 % {ends[0]} to {ends[1]})" if phi.bound == "=" else ""
    meaning = "blocks applied r times count as r^phi times their parameters; 1: as good as more blocks, 0: worth nothing"
    return f"{sign}{phi.value:.2f}{interval}: {meaning}" + (f"; {phi.words}" if phi.words else "")


def _cells(row: Row) -> list[str]:
    above = f"{row.behind.value:+.3f} ({row.behind.low:+.3f} to {row.behind.high:+.3f})"
    measure = "-" if row.bits_per_byte is None else f"{row.bits_per_byte:.4f}"
    if row.solved is not None and row.solved_behind is not None:
        measure = f"{100 * row.solved.value:.1f} %"
        above = "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * v for v in astuple(row.solved_behind)))
    return [
        row.role,
        f"{row.layers} x {row.dim}",
        count_text(row.parameters),
        f"{row.flops:.2f}",
        f"{row.loss.value:.4f}",
        measure,
        "" if row.kind == "run" else above,
    ]


def count_text(count: float) -> str:
    """Return a count in at most four digits."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{count:.3g}") >= size:  # what three digits round to 1,000 k is 1 M
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"
