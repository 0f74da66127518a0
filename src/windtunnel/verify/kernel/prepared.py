"""Cases with their inputs, parameters and right answers, drawn once for a number of candidates."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.arrays import Array, array_from
from windtunnel.verify.kernel.compare import is_flat
from windtunnel.verify.kernel.guess import MOST_ELEMENTS, WISHED_WORK, NoNumbers, guessed_sizes, related_sizes, wished_elements
from windtunnel.verify.kernel.hidden import Case, new_seed, tiny_cases
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.sandbox.types import Limits, MiB, Outcome, Runner, SandboxJob

ENTRY = "windtunnel.verify.kernel.child.reference:main"
# Small sizes of a reference take milliseconds; one that needs more than this does not end, or is no task for the interpreter.
LIMITS = Limits(wall_seconds=600, cpu_seconds=30, idle_seconds=60, memory_bytes=4096 * MiB, result_bytes=1024 * MiB)
# Drawing takes a reference's run; a model that learns must not see the same hidden inputs for ever.
USES_OF_A_BATCH = 64
FLAT = "task {name}: its output is constant (or zero) within the tolerance, so a constant would be accepted"


class TooLong(UserError):
    """The reference does not end within its time: another size is not tried."""


class TooLarge(UserError):
    """Inputs or answers of the reference are too large: only a smaller size may do."""


class TooManyParameters(TooLarge):
    """The parameters of a reference are too large. size: their bytes, which may not depend on what a size makes smaller."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"task {name}: its parameters have {size:,} bytes at tiny sizes", "set smaller TASK['sizes']['tiny']")
        self.size = size


class CannotImport(UserError):
    """The file imports what is not there: no size of its numbers helps."""


class Fails(UserError):
    """The reference raises at a size."""


class NoTinySize(UserError):
    """The interpreter cannot run the reference at any size that was made for it; a GPU may run it at its own."""


class ReferenceBroken(Exception):
    """The machinery failed while the reference ran: nothing is known about task or candidate."""


@dataclass(frozen=True)
class Ready:
    """One case with everything to run and judge it.

    arguments: None for the next of inputs, else {'value': a plain value}. own: the reference in the case's dtype.
    exact: in float64. kind: 'tensor' or 'tuple', what forward returns. errors: asks of each output of few elements for the worst
    of own with inputs nearby, 0 of others; nothing where nobody knows. work: multiplications of its products and convolutions,
    where they were counted.
    """

    case: Case
    init: Sequence[Any]
    names: Sequence[str]
    parameters: Sequence[Array]
    arguments: Sequence[Any]
    inputs: Sequence[Array]
    own: Sequence[Array]
    exact: Sequence[Array]
    kind: str
    errors: Callable[[], Sequence[float]] = tuple
    work: int = 0


@dataclass(frozen=True)
class Batch:
    """The cases of one seed. dropped: label of a case → why it is not run."""

    ready: Sequence[Ready]
    dropped: Mapping[str, str] = field(default_factory=dict)


class Preparation:
    """Draws batches for one task and gives each to at most `uses` candidates. Safe to call from several threads."""

    def __init__(self, task: Task, runner: Runner, uses: int = USES_OF_A_BATCH) -> None:
        self.task, self.runner, self.uses = task, runner, uses
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._left = 0
        self._none: NoTinySize | None = None

    def batch(self) -> Batch:
        """Return a batch. Raises UserError where the task cannot be used, ReferenceBroken where the machinery failed."""
        with self._lock:
            if self._none is not None:
                raise self._none
            if self._batch is None or self._left == 0:
                if self.task.guessed:
                    try:
                        self.task = settled(self.task, self.runner)
                    except (NoTinySize, NoNumbers) as error:
                        self._none = error if isinstance(error, NoTinySize) else NoTinySize(error.message, error.fix)
                        raise self._none from None
                self._batch, self._left = prepare(self.task, self.runner, tiny_cases(self.task)), self.uses
            self._left -= 1
            return self._batch


def prepare(task: Task, runner: Runner, cases: Sequence[Case], count: bool = False) -> Batch:
    """Run the reference on every case, with a seed from the operating system.

    count: whether its work is counted too.
    """
    message: dict[str, Any] = {
        "sources": {size: task.at(size) for size in {case.size for case in cases}},
        "cases": [case.as_json() for case in cases],
        "first": 0,
        "seed": new_seed(),
        "fixed": list(task.fixed),
        "count": count,
        "nearby": False,
        "training": task.training,
    }
    outcome = runner.run(SandboxJob(ENTRY, message, limits=LIMITS))
    _check_outcome(task, outcome)
    if "parameters" in outcome.message:
        raise TooManyParameters(task.name, outcome.message["parameters"])
    ready, dropped = [], {}
    for number, (case, answer) in enumerate(zip(cases, outcome.message["cases"], strict=True)):
        if "dropped" in answer:
            dropped[case.label()] = answer["dropped"]
        elif "error" in answer:
            if answer["import"]:
                words = f"task {task.name}: the file cannot be imported: {answer['error']}"
                fix = "install the package where windtunnel is, or put into the file what it takes from files beside it"
                raise CannotImport(words, f"{fix}: it is judged alone")
            _check_error(task, case, answer["error"])
            dropped[case.label()] = answer["error"]
        else:
            again = {**message, "cases": [case.as_json()], "first": number, "count": False, "nearby": True}
            ready.append(_ready(case, answer, outcome.buffers, functools.cache(functools.partial(_errors, runner, again))))
    # Of zeros everywhere the answer "return zeros" would be right.
    if all(is_flat(r, task) for r in ready if r.case.variation == "plain"):
        raise UserError(
            FLAT.format(name=task.name),
            "choose inputs or sizes with which the output varies",
        )
    return Batch(ready, dropped)


def settled(task: Task, runner: Runner) -> Task:
    """Return the task with the first guessed tiny size at which its reference runs and is small enough.

    Raises:
        NoTinySize: none is.
        UserError: the reference does not end, or it cannot be imported.
    """
    problem, too_large, wished = "none was tried", math.inf, wished_elements(task.source)
    problems: set[str] = set()
    spare: Task | None = None  # small enough, though not as small as wished
    least = math.inf  # work of the spare one
    parameters = 0  # bytes, of a reference that has too many
    for cap, choices in (*guessed_sizes(task, f"task {task.name}"), *related_sizes(task)):
        if cap > too_large:
            continue  # no larger one either
        for sizes in choices:
            trial = replace(task, sizes=sizes, guessed=False)
            try:
                cases = [Case(size, task.dtypes[0], "plain", task.training) for size in ("tiny", "tiny_ragged")]
                batch = prepare(trial, runner, cases, count=True)
            except TooLong:
                if spare is not None:
                    return spare
                raise
            except CannotImport:
                raise
            except UserError as error:
                problem = error.message
                problems.add(problem if isinstance(error, Fails) else "")
                if isinstance(error, TooManyParameters):
                    if error.size > parameters / 2 > 0:
                        raise _no_tiny_size(task, problem) from None  # sizes inside its code
                    parameters = error.size
                too_large = cap if isinstance(error, TooLarge) else too_large
                break
            elements = {ready.case.size: sum(array.raw().size for array in ready.own) for ready in batch.ready}
            problem = f"its output still has {max(elements.values()):,} elements"
            problems.add("")
            if elements["tiny"] > MOST_ELEMENTS:
                too_large = cap
                break
            if "tiny_ragged" not in elements:
                if sizes is not choices[-1]:
                    continue
                if spare is not None:
                    break  # that one has ragged sizes, or is larger
                trial = replace(trial, sizes={key: value for key, value in sizes.items() if key != "tiny_ragged"})
            elif elements["tiny_ragged"] > 2 * MOST_ELEMENTS:
                continue
            work = next(ready.work for ready in batch.ready if ready.case.size == "tiny")
            if elements["tiny"] <= wished and work <= WISHED_WORK:
                return trial
            if work < least:
                spare, least = trial, work
            too_large = cap
            break
    if spare is not None:
        return spare
    if len(problems) == 1 and "" not in problems:
        # The same words at every size: the sizes are not what is wrong.
        raise NoTinySize(problem, "make the file's Model(*get_init_inputs())(*get_inputs()) run in PyTorch, on a CPU too")
    raise _no_tiny_size(task, problem)


def _no_tiny_size(task: Task, problem: str) -> NoTinySize:
    return NoTinySize(
        f"task {task.name}: no tiny size was found for the interpreter: {problem}",
        "add TASK = {'sizes': {'tiny': {...}, 'tiny_ragged': {...}}} with small values of the file's module-level numbers",
    )


def _check_outcome(task: Task, outcome: Outcome) -> None:
    if outcome.status == "infrastructure":
        raise ReferenceBroken(outcome.detail)
    if not outcome.finished:
        if outcome.status == "timeout":
            raise TooLong(
                f"task {task.name}: its reference does not end at tiny sizes ({outcome.detail}): the task cannot be used",
                "look for an endless loop in Model, get_inputs and get_init_inputs, or set smaller TASK['sizes']['tiny']",
            )
        detail = outcome.message.get("error", outcome.detail)
        fix = "run the file's Model(*init)(*inputs) in PyTorch"
        kind = TooLarge if outcome.status in ("memory", "output") else UserError
        raise kind(f"task {task.name}: its reference did not run ({outcome.status}: {detail})", fix)


def _check_error(task: Task, case: Case, error: str) -> None:
    """Raise UserError for an error of the task; a ragged or long size that was guessed may not suit the reference."""
    if case.size.endswith("ragged") or case.size.startswith("tiny_long") or case.variation != "plain":
        return
    raise Fails(
        f"task {task.name}: its reference fails at size {case.size} in {case.dtype}: {error}",
        f"make Model, get_inputs and get_init_inputs run there, or set TASK['sizes']['{case.size}'] or TASK['dtypes']",
    )


def _errors(runner: Runner, message: Mapping[str, Any]) -> Sequence[float]:
    """Return the reference's errors with inputs near those of one case."""
    outcome = runner.run(SandboxJob(ENTRY, message, limits=LIMITS))
    if outcome.status == "infrastructure":
        raise ReferenceBroken(outcome.detail)
    errors: Sequence[float] = outcome.message["cases"][0].get("errors", ()) if outcome.finished else ()
    return errors


def _ready(case: Case, answer: Mapping[str, Any], buffers: Sequence[bytes], errors: Callable[[], Sequence[float]]) -> Ready:
    arrays = {kind: [_array(head, buffers) for head in answer[kind]] for kind in ("inputs", "parameters", "own", "exact")}
    said: dict[str, Any] = {name: answer[name] for name in ("init", "names", "arguments", "kind")}
    return Ready(case, work=answer.get("work", 0), errors=errors, **{**said, **arrays})


def _array(head: Mapping[str, Any], buffers: Sequence[bytes]) -> Array:
    array = array_from({key: head[key] for key in ("dtype", "shape", "stride")}, buffers[head["at"]])
    assert array is not None, "our own child wrote it"
    return array
