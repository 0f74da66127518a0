"""What comes back from a candidate's children, judged: how they ended, and what the plans computed."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.verify.kernel.arrays import Array, array_from
from windtunnel.verify.kernel.compare import OF_VALUES, difference, is_rough, nearby_of, unmoved_share, worst_error
from windtunnel.verify.kernel.plan.schema import TOO_LONG
from windtunnel.verify.kernel.prepared import Ready
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.sandbox import Limits, MiB, Outcome

# CPU time is what counts: on a busy machine the same work takes several times as long by the clock on the wall.
LIMITS = Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=2048 * MiB, processes=0, idle_seconds=30)
UNMOVED_AT_MOST = 0.001
# What a task does not allow, whatever comes out; every other refusal says that what came out, or how, is wrong.
POLICY = (
    "host-compute", "reads-values", "tf32", "kernel-call", "too-large", "too-many-configurations", "memory", "grid",
    "never-launched", "output-not-from-kernel", "too-much-output",
)  # fmt: skip
RAISED = ("raised", "import-failed", "construction-failed", "infrastructure")
# Elsewhere, and where kernels are compiled.
SLOW = (
    "Look for an endless loop or a huge grid. At tiny sizes one program runs after the other: larger blocks help, and one that "
    "waits for another (a lock that is passed on) may wait for ever.",
    "Look for an endless loop, or for tiles and unrolled loops that a compiler is never done with.",
)
CRASHED = (
    "Look for a kernel that reads or writes far outside its tensors (mask its accesses), and for recursion without an end.",
    "Nothing runs there but the compiler: look for tiles too large for it, and use smaller blocks.",
)
ALIGNED = (
    "A tensor descriptor needs every stride but the last to be a multiple of 16 bytes, on a GPU too. Load shapes that are not so "
    "through pointers with a mask, or view the tensor as one dimension."
)
TOO_MUCH = "The candidate printed or returned too much."
REPLY = "the reply's message"


@dataclass(frozen=True)
class Finding:
    """What a stage found wrong. reason 'infrastructure': the machinery failed, nothing is known."""

    stage: str
    reason: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def judge_compile(outcome: Outcome) -> Finding | None:
    """Return what is wrong with the candidate according to the compiling child, or None."""
    # What the compiling child exits with where one kernel takes too long.
    if outcome.exit_code == signal.SIGXCPU:
        return Finding("compile", "timeout", f"Kernel {outcome.phase.partition(': ')[2]} takes too long to compile. {SLOW[True]}")
    if not outcome.finished:
        return unbegun(outcome, "compile") or ended(outcome, "compile")
    return wrong_of(outcome, "compile")


def wrong_of(outcome: Outcome, stage: str) -> Finding | None:
    """Return what a child says is wrong, or None."""
    wrong = outcome.message.get("wrong")
    if not isinstance(wrong, dict):
        return None
    text, reason = str(wrong.get("message", "")), str(wrong.get("reason", "raised"))
    if reason in RAISED and outcome.log_full:  # the print that did not fit is what raised
        return Finding(stage, "too-much-output", TOO_MUCH)
    if "must be 16-byte aligned" in text:
        text = f"{text} {ALIGNED}"
    # What the machinery failed at is never for a candidate's process to say.
    return Finding(stage, "raised" if reason == "infrastructure" else reason, text[:1].upper() + text[1:])


def judge_tiny(outcome: Outcome, task: Task, order: Sequence[Ready], fragile: list[str] | None = None) -> Finding | None:
    """Return what is wrong with the candidate according to what its child returned, or None. Trusts nothing in it.

    order: the cases as the child runs them. fragile: to be extended by what is wrong with values alone that the task calls
    fragile.
    """
    stage = "tiny"
    if not outcome.finished:
        return unbegun(outcome, stage) or ended(outcome, stage)
    runs = outcome.message.get("runs")
    if not isinstance(runs, list):
        return Finding(stage, "no-answer", "the candidate's process did not report its runs.")
    for run, ready in [*zip(runs, order, strict=False), *_run_again(outcome, order)]:
        found = _judge_run(run, ready, outcome, task)
        if found is not None and (is_fragile(found, task) or _is_doubtful(run, ready, outcome, task)):
            if fragile is not None:
                fragile.append(f"{found.reason}: {found.message}")
        elif found is not None:
            return found
    wrong = wrong_of(outcome, stage)
    if wrong is not None:
        return replace(wrong, evidence=_of_case(order[len(runs)])) if len(runs) < len(order) else wrong
    if len(runs) != len(order):
        return Finding("tiny", "no-answer", "the candidate's process did not run every case.")
    return _judge_knocked(outcome, task, order[0])


def is_fragile(found: Finding, task: Task) -> bool:
    """Return whether what is wrong shows with such values alone as the task names and does not refuse for."""
    return found.reason in OF_VALUES and found.evidence.get("variation") in task.fragile


def _is_doubtful(run: object, ready: Ready, outcome: Outcome, task: Task) -> bool:
    """Return whether too few digits are right with values or sizes alone that are not the task's own, as of its reference."""
    own = ready.case.variation == "plain" and not ready.case.size.startswith("tiny_long")
    if own or not is_rough(ready, task):
        return False
    return _judge_run(run, ready, outcome, task, capped=False) is None


def errors_of(outcome: Outcome, task: Task, order: Sequence[Ready]) -> dict[str, dict[str, float]]:
    """By dtype the largest error of what was judged right: absolute, and as a share of what is allowed. Integers have none.

    Left out are values that the task calls fragile.
    """
    found: dict[str, dict[str, float]] = {}
    for run, ready in zip(outcome.message["runs"], order, strict=True):
        if ready.case.variation in task.fragile:
            continue
        outputs = outputs_of(run, outcome.buffers) or ()
        for number, (given, own, exact) in enumerate(zip(outputs, ready.own, ready.exact, strict=True)):
            if own.floating:
                error, share = worst_error(given, own, exact, task)
                if share > 1:
                    error, share = worst_error(given, own, exact, task, nearby_of(ready, number))
                known = found.setdefault(ready.case.dtype, {"largest": 0.0, "share_of_allowed": 0.0})
                known["largest"], known["share_of_allowed"] = max(known["largest"], error), max(known["share_of_allowed"], share)
    return found


def _run_again(outcome: Outcome, order: Sequence[Ready]) -> list[tuple[object, Ready]]:
    """Judge further runs of some cases, for configurations that had not been run."""
    again = outcome.message.get("again", [])
    pairs: list[tuple[object, Ready]] = []
    for run in again if isinstance(again, list) else [None]:
        at = run.get("at") if isinstance(run, dict) else None
        if type(at) is int and 0 <= at < len(order):
            pairs.append((run, order[at]))
        else:
            pairs.append((None, order[0]))  # no description of a run
    return pairs


def _judge_run(run: object, ready: Ready, outcome: Outcome, task: Task, *, capped: bool = True) -> Finding | None:
    if not isinstance(run, dict):
        return Finding("tiny", "no-answer", "the candidate's process did not report its runs.")
    outputs = outputs_of(run, outcome.buffers)
    if outputs is None:
        return Finding("tiny", "no-answer", "what the candidate returned does not fit its own description.")
    found = difference(outputs, str(run.get("kind")), ready, task, capped=capped)
    if found is None:
        return None
    text = f"{found.message[:1].upper()}{found.message[1:]} ({ready.case.label()})"
    return Finding("tiny", found.reason, text, _of_case(ready))


def _of_case(ready: Ready) -> dict[str, str]:
    return {"case": ready.case.label(), "variation": ready.case.variation}


def _judge_knocked(outcome: Outcome, task: Task, ready: Ready) -> Finding | None:
    knocked = outcome.message.get("knocked")
    if not isinstance(knocked, dict):
        return None
    outputs = outputs_of(knocked, outcome.buffers)
    if outputs is None:
        return Finding("tiny", "no-answer", "what the candidate returned does not fit its own description.")
    share = unmoved_share(outputs, ready)
    if share <= UNMOVED_AT_MOST:
        return None
    if task.operations != "none" and difference(outputs, str(knocked.get("kind")), ready, task) is not None:
        return None  # what PyTorch may compute is there without a kernel
    return Finding(
        "tiny",
        "output-not-from-kernel",
        f"With every kernel knocked out, {share:.0%} of the output is still there: it does not come from a kernel.",
        {"share": share},
    )


def outputs_of(run: Mapping[str, Any], buffers: Sequence[bytes]) -> list[Array] | None:
    """Return the arrays that a child describes, None where the description does not fit."""
    heads = run.get("outputs")
    if not isinstance(heads, list):
        return None
    arrays = []
    for head in heads:
        at = head.get("at") if isinstance(head, dict) else None
        if type(at) is not int or not 0 <= at < len(buffers):
            return None
        array = array_from(head, buffers[at])
        if array is None:
            return None
        arrays.append(array)
    return arrays


def unbegun(outcome: Outcome, stage: str) -> Finding | None:
    """Return what is said of a child that ended before it had loaded anything of the candidate: that is not its doing.

    The phase is the child's own word: who could lie about it would gain that nothing is known, and so no reward.
    """
    if outcome.phase or outcome.status in ("infrastructure", "raised"):
        return None
    text = f"nothing of the candidate was loaded yet, when its process {outcome.detail or 'ended'}. Judge this answer again."
    return Finding(stage, "infrastructure", text)


def ended(outcome: Outcome, stage: str) -> Finding:
    """Return how a child that gave no answer ended, in words."""
    on = {
        "tiny": " on tiny inputs",
        "record": " while it was imported and its host code ran",
        "compile": " while it was imported and its kernels were compiled",
    }.get(stage, "")
    match outcome.status:
        case "infrastructure" | "raised":
            return Finding(stage, "infrastructure", str(outcome.message.get("error", outcome.detail)))
        case "timeout":
            return Finding(stage, "timeout", f"The candidate took too long{on}. {SLOW[stage == 'compile']}")
        case "memory":
            return Finding(stage, "memory", f"The candidate used too much memory{on}.")
        case "output":
            plans = stage == "record" and outcome.detail.startswith(REPLY)
            return Finding(stage, "too-much-output", TOO_LONG.format(outcome.detail) if plans else TOO_MUCH)
        case "killed":
            return Finding(stage, "crash", f"The candidate {outcome.detail or 'crashed'}{on}. {CRASHED[stage == 'compile']}")
    return Finding(stage, "crash", "The candidate's process ended by itself.")
