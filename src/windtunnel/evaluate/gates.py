"""Gates on an evaluation: what must hold before the next stage, as the recipe's evaluate stage asks."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.recipe import EvaluationGates
from windtunnel.run import GateResult

from .loss import Validation
from .report import EvaluationReport


def judge_evaluation(gates: EvaluationGates | None, report: EvaluationReport) -> tuple[GateResult, ...]:
    """Judge an evaluation by the gates of the recipe's evaluate stage; none where it has none."""
    return () if gates is None else tuple(_judged(gates, report))


def _judged(gates: EvaluationGates, report: EvaluationReport) -> Iterator[GateResult]:
    if gates.bits_per_byte is not None:
        yield _bits_gate(gates.bits_per_byte, report.validation)
    if gates.exact_match is not None:
        yield _match_gate(gates.exact_match, report)
    if gates.gain is not None:
        yield _gain_gate(gates.gain, report)
    if gates.macro_f1 is not None:
        yield _f1_gate(gates.macro_f1, report)
    if gates.above_majority is not None:
        yield _majority_gate(gates.above_majority, report)


def _unmeasured(name: str, limit: str, why: str) -> GateResult:
    """Return the result of a gate without a number: it does not hold, since nobody knows."""
    return GateResult(name, False, None, "not measured", limit, why)


def _bits_gate(most: float, found: Validation | None) -> GateResult:
    limit = f"at most {most:g}"
    if found is None:
        return _unmeasured("bits_per_byte", limit, "prompts have no targets: --set stages.evaluate.gates.bits_per_byte=null")
    # By its value: held-out text is so much that the interval hardly matters.
    held = found.bits_per_byte <= most
    advice = None if held else "more tokens or a larger model: see `windtunnel plan`; or look at the data"
    return GateResult("bits_per_byte", held, found.bits_per_byte, f"{found.bits_per_byte:.4f}", limit, advice)


def _match_gate(least: float, report: EvaluationReport) -> GateResult:
    limit, match = f"at least {least:.1%}", report.answers
    if match is None:
        off = "nothing judges answers of this corpus: --set stages.evaluate.gates.exact_match=null, or give stages.sft.answers"
        return _unmeasured("exact_match", limit, off)
    held = match.share >= least
    advice = None if held else "train longer, or ask for less: the interval says how sure the number is"
    return GateResult("exact_match", held, match.share, str(match), limit, advice)


def _gain_gate(least: float, report: EvaluationReport) -> GateResult:
    limit = f"above {100 * least:g} points for sure"
    untuned = None if report.tuned is None else report.tuned.untuned
    gain = None if untuned is None else untuned.gain
    if gain is None:
        off = "no untuned model was asked the same questions: --set stages.evaluate.gates.gain=null, or give stages.sft.answers"
        return _unmeasured("gain", limit, off)
    # The interval's lower end decides: a gain that may be chance opens no gate.
    held = gain.low > least
    advice = None if held else "train longer, look at data and learning rate, or ask more questions: exact_match_problems"
    return GateResult("gain", held, gain.low, str(gain), limit, advice)


_MORE = "train longer, look at the confusion matrix, or at more theses of more dates: exact_match_problems"


def _no_actions(name: str, limit: str) -> GateResult:
    off = f"no actions were predicted: --set stages.evaluate.gates.{name}=null, or data.corpus.kind=theses"
    return _unmeasured(name, limit, off)


def _f1_gate(least: float, report: EvaluationReport) -> GateResult:
    limit, found = f"at least {least:g}", None if report.tuned is None else report.tuned.actions
    if found is None:
        return _no_actions("macro_f1", limit)
    f1 = found.scores.macro_f1
    held = f1.value >= least
    return GateResult(
        "macro_f1", held, f1.value, f"{f1.value:.3f} (95 % {f1.low:.3f} to {f1.high:.3f})", limit, None if held else _MORE
    )


def _majority_gate(least: float, report: EvaluationReport) -> GateResult:
    limit, found = f"above {100 * least:g} points for sure", None if report.tuned is None else report.tuned.actions
    if found is None:
        return _no_actions("above_majority", limit)
    ahead = found.base.ahead
    held = ahead.low > least  # NaN, of one date, is above nothing
    ends = f"{100 * ahead.low:+.1f} to {100 * ahead.high:+.1f}"
    measured = f"{100 * ahead.value:+.1f} points (95 % {ends})"
    return GateResult("above_majority", held, ahead.low, measured, limit, None if held else _MORE)
