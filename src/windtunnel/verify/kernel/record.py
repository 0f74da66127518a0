"""Recording seen from the parent: the forms of a candidate's host code, the job for the child, and the plans that come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.arrays import row_major
from windtunnel.verify.kernel.plan import Plan
from windtunnel.verify.kernel.plan.check import Allowed, CheckedKernels, PlanRefused, check_plan, read_plan
from windtunnel.verify.kernel.prepared import Batch, Ready, ReferenceBroken
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.tiny import Finding, ended, unbegun, wrong_of
from windtunnel.verify.sandbox import Limits, MiB, Outcome, Runner, SandboxJob

ENTRY = "windtunnel.verify.kernel.child.record:main"
SHAPES_ENTRY = "windtunnel.verify.kernel.child.reference:shapes"
LIMITS = Limits(wall_seconds=600, cpu_seconds=30, memory_bytes=8192 * MiB, processes=0, idle_seconds=30, result_bytes=128 * MiB)
MOST_PLAN = 32 << 20  # characters of one plan


@dataclass(frozen=True)
class HostForm:
    """What host code can see of a case.

    Attributes:
        init: arguments of the constructor.
        inputs: dtype and shape of each tensor among forward's arguments, None at the others.
        arguments: None for the tensors, else {'value': a plain value}.
        parameters: shape by name.
    """

    size: str
    dtype: str
    training: bool
    init: Sequence[Any]
    inputs: Sequence[tuple[str, tuple[int, ...]] | None]
    arguments: Sequence[Any]
    parameters: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def group(self) -> tuple[str, str]:
        """Size and dtype, by which a plan is known where training mode does not matter; as of `Case`."""
        return self.size, self.dtype

    def label(self) -> str:
        """Return 'tiny float32', for messages."""
        return f"{self.size.replace('_', ' ')} {self.dtype}{' in training mode' if self.training else ''}"

    def message(self) -> dict[str, Any]:
        """Return the form as JSON, for the child."""
        return {
            "label": self.label(),
            "dtype": self.dtype,
            "training": self.training,
            "init": list(self.init),
            "inputs": [
                None if head is None else {"dtype": head[0], "shape": list(head[1]), "stride": list(row_major(head[1]))}
                for head in self.inputs
            ],
            "arguments": list(self.arguments),
            "names": list(self.parameters),
            "parameters": [[dtype, list(shape)] for dtype, shape in self.parameters.values()],
        }

    def allowed(self, task: Task, **more: Any) -> Allowed:
        """Return what a plan of this form may hold."""
        given = {position: head for position, head in enumerate(self.inputs) if head is not None}
        return Allowed(given, self.parameters, task.inplace, task.operations, copies=task.host_copies, tf32=task.tf32, **more)


def form_of(ready: Ready) -> HostForm:
    """Return what host code can see of this case."""
    fresh = iter((array.dtype, array.shape) for array in ready.inputs)
    return HostForm(
        ready.case.size,
        ready.case.dtype,
        ready.case.training,
        ready.init,
        [next(fresh) if entry is None else None for entry in ready.arguments],
        ready.arguments,
        {name: (a.dtype, a.shape) for name, a in zip(ready.names, ready.parameters, strict=True)},
    )


def forms_of(batch: Batch) -> list[HostForm]:
    """Return each form once, in the order of the cases."""
    found: list[HostForm] = []
    # Cases with the same shapes look the same to host code, which sees no values: one recording serves them all.
    for ready in batch.ready:
        if (form := form_of(ready)) not in found:
            found.append(form)
    return found


def file_forms(task: Task, runner: Runner, sizes: Sequence[str]) -> list[HostForm]:
    """Return the forms of these sizes and of all dtypes, from a reference that computes nothing.

    Raises:
        UserError: it cannot be asked for its shapes.
        ReferenceBroken: the machinery failed.
    """
    asked = [(size, dtype) for size in sizes for dtype in task.dtypes]
    job = SandboxJob(
        SHAPES_ENTRY, {"sources": [task.at(size) for size, _ in asked], "dtypes": [d for _, d in asked]}, limits=LIMITS
    )
    outcome = runner.run(job)
    if outcome.status == "infrastructure":
        raise ReferenceBroken(outcome.detail)
    # The task's own file failed, and no candidate: said as such.
    if not outcome.finished or "wrong" in outcome.message:
        raise UserError(
            f"task {task.name}: its reference does not say its shapes: {outcome.message.get('wrong', outcome.detail)}",
            "get_inputs() and Model(*get_init_inputs()) have to run",
        )
    forms = []
    for (size, dtype), said in zip(asked, outcome.message["forms"], strict=True):
        inputs = [None if head is None else (head["dtype"], tuple(head["shape"])) for head in said["inputs"]]
        parameters = {name: (kind, tuple(shape)) for name, kind, shape in said["parameters"]}
        forms.append(HostForm(size, dtype, task.training, said["init"], inputs, said["arguments"], parameters))
    return forms


def record_job(source: str, forms: Sequence[HostForm]) -> SandboxJob:
    """Return everything that the recording child needs: shapes, no data."""
    return SandboxJob(ENTRY, {"source": source, "forms": [form.message() for form in forms]}, limits=LIMITS)


def read_recorded(
    outcome: Outcome,
    forms: Sequence[HostForm],
    task: Task,
    limits: Callable[[HostForm], Mapping[str, int]] = lambda form: {},
    checked: CheckedKernels | None = None,
) -> tuple[list[Plan], Finding | None]:
    """Return a checked plan for each form, in order; or those before the first one that is refused, with why.

    Trusts nothing in what the child says.

    limits: most_bytes and most_programs of a form's plan. checked: what was read of other plans of the candidate's; None: nothing
    was.
    """
    plans: list[Plan] = []
    checked = checked or CheckedKernels()
    if not outcome.finished:
        return plans, unbegun(outcome, "record") or ended(outcome, "record")
    texts = outcome.message.get("plans")
    if not isinstance(texts, list) or not all(isinstance(text, str) and len(text) <= MOST_PLAN for text in texts):
        return plans, Finding("record", "no-answer", "the candidate's process did not report its plans.")
    # Not strict: a child that broke off has fewer, and those before it are judged all the same.
    for text, form in zip(texts, forms, strict=False):
        try:
            plan = read_plan(text)
            check_plan(plan, form.allowed(task, **limits(form)), checked)
        except PlanRefused as error:
            return plans, Finding("record", error.reason, f"{error.message} ({form.label()})")
        plans.append(plan)
    # After the plans that did come: a refusal of theirs is the earlier one.
    if (wrong := wrong_of(outcome, "record")) is not None:
        return plans, wrong
    if len(plans) != len(forms):
        return plans, Finding("record", "no-answer", "the candidate's process did not record every form.")
    return plans, None
