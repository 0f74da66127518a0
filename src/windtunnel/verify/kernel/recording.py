"""Recording every plan that a verdict may need, without judging any: what `--plan-out` writes."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from windtunnel import __version__
from windtunnel.verify.kernel.long import LongSizes, block_of
from windtunnel.verify.kernel.plan import Form, Recorded, Recording
from windtunnel.verify.kernel.prepared import settled
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import SIZES, Task
from windtunnel.verify.kernel.tiny import Finding
from windtunnel.verify.sandbox import Runner


def record(source: str, task: Task, recorder: Runner, trusted: Runner) -> tuple[Recording | None, Finding | None]:
    """Record all plans that a verdict may need: of every size and dtype of a task, full ones too, as they take no data.

    recorder: runs host code. trusted: runs the reference.

    Raises:
        UserError: the task itself cannot be used.
    """
    if task.guessed:
        task = settled(task, trusted)
    sizes = [size for size in SIZES if size in task.sizes or size == "full"]
    forms = file_forms(task, trusted, sizes)
    tiny = next((form for form in forms if form.size == "tiny"), None)
    if tiny is not None and not task.training:
        forms.append(replace(tiny, training=True))
    plans, wrong = read_recorded(recorder.run(record_job(source, forms)), forms, task)
    if wrong is not None:
        return None, wrong
    # Which long sizes a verdict asks for depends on the candidate's blocks, known only now.
    block = block_of([plan for form, plan in zip(forms, plans, strict=True) if form.size.startswith("tiny")])
    if more := LongSizes(task, trusted).forms(block):
        late, wrong = read_recorded(recorder.run(record_job(source, more)), more, task)
        if wrong is not None:
            return None, wrong
        forms, plans = [*forms, *more], [*plans, *late]
    recorded = [
        Recorded(form=Form(size=form.size, dtype=form.dtype, training=form.training), plan=plan)
        for form, plan in zip(forms, plans, strict=True)
    ]
    # For people: a plan of another Triton may not compile here.
    versions = {name: version(name) for name in ("torch", "triton")}
    return Recording(task=task.name, made_with={"windtunnel": __version__, **versions}, plans=tuple(recorded)), None
