"""The tiny stage seen from the parent: the job for the child, and the judgement of what comes back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.verify.kernel.arrays import Array, Buffer, array_from
from windtunnel.verify.kernel.compare import difference, unmoved_share
from windtunnel.verify.kernel.neutral import as_on_gpu
from windtunnel.verify.kernel.prepared import Batch, Ready
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.sandbox import Job, Limits, MiB, Outcome

ENTRY = "windtunnel.verify.kernel.child.tiny:main"
COMPILE_ENTRY = "windtunnel.verify.kernel.child.compile:main"
# CPU time is what counts: on a busy machine the same work takes several times as long by the clock on the wall.
LIMITS = Limits(wall_seconds=120, cpu_seconds=30, memory_bytes=2048 * MiB, processes=0, idle_seconds=30)
UNMOVED_AT_MOST = 0.001
COMPILE_PHASES = ("", "compile")
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
TOO_MUCH = "The candidate printed or returned too much."


@dataclass(frozen=True)
class Finding:
    """What a stage found wrong. reason 'infrastructure': the machinery failed, nothing is known."""

    stage: str
    reason: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def tiny_job(source: str, task: Task, batch: Batch, limits: Limits = LIMITS) -> Job:
    """Everything the child needs to run the candidate on every case; no right answer is among it."""
    buffers: list[Buffer] = []

    def keep(array: Array) -> dict[str, Any]:
        buffers.append(array.data)
        return {**array.head(), "at": len(buffers) - 1}

    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for ready in batch.ready:
        if ready.case.group not in groups:
            groups[ready.case.group] = {
                "dtype": ready.case.dtype,
                "init": ready.init,
                "names": ready.names,
                "parameters": [keep(array) for array in ready.parameters],
                "cases": [],
            }
        groups[ready.case.group]["cases"].append(
            {
                "label": ready.case.label(),
                "training": ready.case.training,
                "arguments": ready.arguments,
                "inputs": [keep(array) for array in ready.inputs],
            }
        )
    message = {
        "source": as_on_gpu(source),
        "groups": list(groups.values()),
        "inplace": list(task.inplace),
        "host_copies": task.host_copies,
        "seed": secrets.randbits(32),
    }
    return Job(ENTRY, message, buffers, limits)


def compile_job(source: str, task: Task, batch: Batch, capability: int, limits: Limits = LIMITS) -> Job:
    """Everything the compiling child needs: the inputs of one case of each size and mode, for their types and shapes alone."""
    buffers: list[Buffer] = []
    forms: dict[tuple[str, bool], dict[str, Any]] = {}
    for ready in batch.ready:
        form = (ready.case.size, ready.case.training)
        if form in forms:
            continue
        forms[form] = {
            "label": ready.case.label(),
            "training": ready.case.training,
            "init": ready.init,
            "inputs": [{**array.head(), "at": len(buffers) + at} for at, array in enumerate(ready.inputs)],
            "arguments": ready.arguments,
        }
        buffers += [array.data for array in ready.inputs]
    message = {
        "source": as_on_gpu(source),
        "capability": capability,
        "dtypes": list(task.dtypes),
        "inplace": list(task.inplace),
        "forms": list(forms.values()),
        "seed": secrets.randbits(32),
    }
    return Job(COMPILE_ENTRY, message, buffers, limits)


def judge_left_out(compiled: Outcome, tiny: Outcome) -> Finding | None:
    """A kernel that ran on the interpreter and was not compiled, or None. Trusts nothing in what the children say."""
    ran, done = tiny.message.get("launched"), compiled.message.get("compiled")
    if not isinstance(ran, list) or not isinstance(done, list):
        return Finding("compile", "no-answer", "the candidate's process did not report its kernels.")
    left = [place for place in ran if place not in done]
    if not left:
        return None
    name, _, line = str(left[0]).partition(":")
    stumbled = compiled.message.get("stumbled")
    why = f" forward raised {stumbled}." if stumbled else ""
    return Finding(
        "compile",
        "not-compiled",
        f"Kernel {name} (line {line}) ran on the interpreter, but was not launched where kernels are compiled for a GPU."
        f"{why} Launch the same kernels wherever forward runs.",
    )


def judge_compile(outcome: Outcome) -> Finding | None:
    """What is wrong with the candidate according to the compiling child, or None."""
    if not outcome.finished:
        return _unbegun(outcome, "compile") or ended(outcome, "compile")
    return wrong_of(outcome, "compile")


def wrong_of(outcome: Outcome, stage: str) -> Finding | None:
    """What a child says is wrong, or None."""
    wrong = outcome.message.get("wrong")
    if not isinstance(wrong, dict):
        return None
    text, reason = str(wrong.get("message", "")), str(wrong.get("reason", "raised"))
    if reason in RAISED and outcome.log_full:  # the print that did not fit is what raised
        return Finding(stage, "too-much-output", TOO_MUCH)
    # What the machinery failed at is never for a candidate's process to say.
    return Finding(stage, "raised" if reason == "infrastructure" else reason, text[:1].upper() + text[1:])


def judge_tiny(outcome: Outcome, task: Task, batch: Batch) -> Finding | None:
    """What is wrong with the candidate according to what its child returned, or None. Trusts nothing in it."""
    stage = "compile" if outcome.phase in COMPILE_PHASES else "tiny"
    if not outcome.finished:
        return _unbegun(outcome, stage) or ended(outcome, stage)
    runs = outcome.message.get("runs")
    if not isinstance(runs, list):
        return Finding(stage, "no-answer", "the candidate's process did not report its runs.")
    order = _in_groups(batch)
    for run, ready in [*zip(runs, order, strict=False), *_run_again(outcome, order)]:
        found = _judge_run(run, ready, outcome, task)
        if found is not None:
            return found
    wrong = wrong_of(outcome, stage)
    if wrong is not None:
        return wrong
    if len(runs) != len(batch.ready):
        return Finding("tiny", "no-answer", "the candidate's process did not run every case.")
    return _judge_knocked(outcome, batch)


def _in_groups(batch: Batch) -> list[Ready]:
    """In the order in which the child runs them."""
    groups: dict[tuple[str, str], list[Ready]] = {}
    for ready in batch.ready:
        groups.setdefault(ready.case.group, []).append(ready)
    return [ready for group in groups.values() for ready in group]


def _run_again(outcome: Outcome, order: Sequence[Ready]) -> list[tuple[object, Ready]]:
    """Further runs of some cases, for configurations that had not been run."""
    again = outcome.message.get("again", [])
    pairs: list[tuple[object, Ready]] = []
    for run in again if isinstance(again, list) else [None]:
        at = run.get("at") if isinstance(run, dict) else None
        if type(at) is int and 0 <= at < len(order):
            pairs.append((run, order[at]))
        else:
            pairs.append((None, order[0]))  # no description of a run
    return pairs


def _judge_run(run: object, ready: Ready, outcome: Outcome, task: Task) -> Finding | None:
    if not isinstance(run, dict):
        return Finding("tiny", "no-answer", "the candidate's process did not report its runs.")
    outputs = outputs_of(run, outcome.buffers)
    if outputs is None:
        return Finding("tiny", "no-answer", "what the candidate returned does not fit its own description.")
    found = difference(outputs, str(run.get("kind")), ready, task)
    if found is None:
        return None
    text = f"{found.message[:1].upper()}{found.message[1:]} ({ready.case.label()})"
    return Finding("tiny", found.reason, text, {"case": ready.case.label()})


def _judge_knocked(outcome: Outcome, batch: Batch) -> Finding | None:
    knocked = outcome.message.get("knocked")
    if not isinstance(knocked, dict):
        return None
    outputs = outputs_of(knocked, outcome.buffers)
    if outputs is None:
        return Finding("tiny", "no-answer", "what the candidate returned does not fit its own description.")
    share = unmoved_share(outputs, batch.ready[0])
    if share <= UNMOVED_AT_MOST:
        return None
    return Finding(
        "tiny",
        "output-not-from-kernel",
        f"With every kernel knocked out, {share:.0%} of the output is still there: it does not come from a kernel.",
        {"share": share},
    )


def outputs_of(run: Mapping[str, Any], buffers: Sequence[bytes]) -> list[Array] | None:
    """The arrays that a child describes, None where the description does not fit."""
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


def _unbegun(outcome: Outcome, stage: str) -> Finding | None:
    """What ended a child that had loaded nothing of the candidate is not its doing. The phase is the child's own word:
    who could lie about it would gain that nothing is known, and so no reward."""
    if outcome.phase or outcome.status in ("infrastructure", "raised"):
        return None
    text = f"nothing of the candidate was loaded yet, when its process {outcome.detail or 'ended'}. Judge this answer again."
    return Finding(stage, "infrastructure", text)


def ended(outcome: Outcome, stage: str) -> Finding:
    """How a child that gave no answer ended, in words."""
    on = {"tiny": " on tiny inputs", "compile": " while it was imported and its kernels were compiled"}.get(stage, "")
    match outcome.status:
        case "infrastructure" | "raised":
            return Finding(stage, "infrastructure", str(outcome.message.get("error", outcome.detail)))
        case "timeout":
            return Finding(stage, "timeout", f"The candidate took too long{on}. {SLOW[stage == 'compile']}")
        case "memory":
            return Finding(stage, "memory", f"The candidate used too much memory{on}.")
        case "output":
            return Finding(stage, "too-much-output", TOO_MUCH)
        case "killed":
            return Finding(stage, "crash", f"The candidate {outcome.detail or 'crashed'}{on}. {CRASHED[stage == 'compile']}")
    return Finding(stage, "crash", "The candidate's process ended by itself.")
