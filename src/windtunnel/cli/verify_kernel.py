"""windtunnel verify kernel: is this Triton kernel right, and does it do the work itself?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .options import JsonOption
from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.verify import Layers, Task, Verdict

# A code of its own: a reward of 0 for a judge that broke would teach the model something wrong.
NOTHING_KNOWN = 4
LONGEST_CANDIDATE = 1_000_000  # bytes
LONGEST_RECORDING = 256 << 20


def kernel(
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="FILE|NAME", help="A task file (KernelBench's form) or a generated task's name."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="FILE", help="The file with class ModelNew; - reads standard input.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the generated tasks.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the task's reference instead of judging.")] = False,
    plan_out: Annotated[
        Path | None, typer.Option("--plan-out", metavar="FILE", help="Record the candidate's launches there instead of judging.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Judge a recording in place of a candidate, without a GPU.")
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--no-gpu", help="Full shapes and timing; otherwise where there is an NVIDIA GPU.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Judge one candidate: record its launches, compile and replay them at tiny shapes; on a GPU also full shapes and timing.

    Exits 0 when it is accepted, 1 when it is refused, 2 when the task or file cannot be used, 4 when the machinery failed and
    nothing is known about the candidate.
    """
    from windtunnel.recipe import UserError

    if listed:
        _list(json)
        return
    if task is None:
        raise UserError("--task is missing", "--task softmax, or --task FILE; --list names the generated tasks")
    chosen = _task(task)
    if show:
        if json:
            print_json({**_summary(chosen), "source": chosen.source})
        else:
            typer.echo(chosen.source)
        return
    if plan is not None:
        if candidate is not None or plan_out is not None or gpu:
            raise UserError("--plan judges a recording alone", "leave out --candidate, --plan-out and --gpu")
        _end(chosen, *_judge_plan(chosen, plan), json)
    if candidate is None:
        raise UserError("--candidate is missing", "--candidate FILE with class ModelNew(torch.nn.Module)")
    if plan_out is not None:
        _record(chosen, _read(candidate), plan_out, json)
        return
    _end(chosen, *_judge(chosen, _read(candidate), use_gpu(gpu)), json)


def _end(task: Task, verdict: Verdict, layers: Layers | None, as_json: bool) -> NoReturn:
    """Print the verdict and exit."""
    if as_json:
        print_json({"task": task.name, **verdict.as_json(), "hardened": None if layers is None else layers.hardened})
    else:
        _print(task, verdict, layers)
    raise typer.Exit(exit_code(verdict))


def _judge_plan(task: Task, path: Path) -> tuple[Verdict, Layers | None]:
    """Return the verdict on a file that --plan-out wrote, or somebody by hand."""
    from windtunnel.verify import KernelVerifier, compiler_sandbox, judge_recording, kernel_sandbox, read_text

    text = read_text(str(path), LONGEST_RECORDING, f"--plan {path}")
    with kernel_sandbox() as box, compiler_sandbox() as compiler:
        compiler.begin()
        layers = box.start()
        return judge_recording(text, KernelVerifier(task, box, compiler=compiler)), layers


def _judge(task: Task, source: str, use_gpu: bool) -> tuple[Verdict, Layers | None]:
    """Return the verdict, and how locked in the candidate was."""
    from contextlib import ExitStack

    from windtunnel.verify import (
        GpuStages,
        KernelVerifier,
        compiler_sandbox,
        gpu_sandbox,
        kernel_sandbox,
        reference_sandbox,
    )

    with ExitStack() as opened:
        boxes = [opened.enter_context(make()) for make in (kernel_sandbox, compiler_sandbox)]
        if use_gpu:
            boxes += [opened.enter_context(make()) for make in (gpu_sandbox, reference_sandbox)]
        for box in boxes:  # each imports for seconds, side by side; who comes later in the stages is not waited for here
            box.begin()
        # Told of the box in which the candidate itself runs; on a GPU that is another one.
        layers = boxes[2 if use_gpu else 0].start()
        gpu = GpuStages(task, boxes[2], boxes[3]) if use_gpu else None
        return KernelVerifier(task, boxes[0], compiler=boxes[1], gpu=gpu).verify(source), layers


def _record(task: Task, source: str, path: Path, as_json: bool) -> None:
    """Write what a candidate's host code launches at each size and dtype."""
    from windtunnel.recipe import UserError
    from windtunnel.verify import compiler_sandbox, record_kernel

    with compiler_sandbox() as box:
        found, wrong = record_kernel(source, task, box, box)
    if found is not None:
        try:
            path.write_text(found.model_dump_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--plan-out {path}: cannot be written ({error.strerror})", "name a file in a folder that exists"
            ) from None
    if as_json:
        print_json(
            {
                "task": task.name,
                "recorded": found is not None,
                **({"reason": wrong.reason, "message": wrong.message} if wrong else {}),
            }
        )
    elif found is None:
        assert wrong is not None
        print_remarks([("not recorded", wrong.reason), ("why", wrong.message)])
    else:
        rows = []
        for one in found.plans:
            launches, plan = one.plan.launches(), one.plan
            names = ", ".join(dict.fromkeys(plan.kernels[launch.launch].name for launch in launches))
            mode = " training" if one.form.training else ""
            memory = f"{sum(plan.buffers) / (1 << 20):,.1f} MiB"
            rows.append([one.form.size.replace("_", " ") + mode, one.form.dtype, f"{plan.launched():,}", names, memory])
        print_table(f"{task.name}: recorded in {path}", ["size", "dtype", "launches", "kernels", "buffers"], rows)
    raise typer.Exit(0 if found is not None else 1)


def word(verdict: Verdict) -> str:
    """Return a verdict in a word or two."""
    return "accepted" if verdict.accepted else "nothing known" if verdict.infrastructure else "refused"


def exit_code(verdict: Verdict) -> int:
    """Return what a command that judges ends with."""
    return 0 if verdict.accepted else NOTHING_KNOWN if verdict.infrastructure else 1


def use_gpu(asked: bool | None) -> bool:
    """Return whether to use this machine's GPU. Raises UserError where it has none and was asked to."""
    from windtunnel.recipe import UserError
    from windtunnel.verify import has_gpu

    if asked and not has_gpu():
        hiding = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "no /dev/nvidia* on this machine" if hiding is None else f"CUDA_VISIBLE_DEVICES is {hiding!r}"
        raise UserError(f"--gpu: there is no NVIDIA GPU to use ({why})", "leave out --gpu for the correctness half")
    return has_gpu() if asked is None else asked


def _task(name: str) -> Task:
    from windtunnel.recipe import UserError

    path = Path(name)
    # What looks like a path is meant as one: a list of generated tasks would be no help.
    if not path.exists() and (path.suffix == ".py" or "/" in name):
        raise UserError(f"--task {name}: there is no such file", "name an existing file, or a generated task (--list)")

    from windtunnel.verify import find_task, kernel_tasks, load_task

    if path.is_dir() and name not in kernel_tasks():
        raise UserError(f"--task {name} is a folder", "name a task file in it, or a generated task (--list)")
    return load_task(path) if path.is_file() else find_task(name)


def _read(name: str) -> str:
    from windtunnel.verify import candidate_of, read_text

    return candidate_of(read_text(name, LONGEST_CANDIDATE, f"--candidate {name}", stdin=True, cut=True))


def _list(as_json: bool) -> None:
    from windtunnel.verify import kernel_tasks

    tasks = list(kernel_tasks().values())
    if as_json:
        print_json([_summary(task) for task in tasks])
        return
    print_table("tasks", ["name", "level", "family", "what"], [[t.name, str(t.level), t.family, t.summary] for t in tasks])


def _summary(task: Task) -> dict[str, Any]:
    return {"name": task.name, "level": task.level, "family": task.family, "summary": task.summary}


def _print(task: Task, verdict: Verdict, layers: Layers | None) -> None:
    from windtunnel.verify import stage_states

    kind = verdict.evidence.get("kind")
    said = word(verdict) + (f" ({kind})" if kind else "")
    rows = [[stage, state, verdict.reason if state in ("refused", "failed") else ""] for stage, state in stage_states(verdict)]
    print_table(f"{task.name}: {said}", ["stage", "state", "reason"], rows)
    times = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in verdict.times.items())
    remarks = [("why", verdict.message)]
    remarks += [("reward", f"{verdict.reward:g}")] if verdict.reward is not None else []
    remarks += [("times", times)] if times else []
    remarks += speed_lines(verdict.evidence.get("gpu", {}))
    remarks += [("not judged", entry) for entry in verdict.evidence.get("left", ())]
    if layers is not None and not layers.hardened:
        remarks.append(("sandbox", "not hardened here: run only candidates that you trust (windtunnel verify layers)"))
    print_remarks(remarks)


def speed_lines(gpu: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how fast a timed kernel is, for people."""
    if "cold" not in gpu:
        return []
    said = [_microseconds(gpu[heat], f"with {heat} L2") for heat in ("cold", "warm")]
    if "alone" in gpu:  # of earlier versions
        said += [_microseconds(gpu["alone"], "called on an idle GPU, launching included")]
    found = [("kernel", ", ".join(said))]
    ratios = ", ".join(f"{ratio:.2f} x as fast as PyTorch, {name}" for name, ratio in gpu["speedup"].items())
    return found + ([("speed", ratios)] if ratios else [])


def _microseconds(timing: Mapping[str, float], what: str) -> str:
    median, low, high = (1e6 * timing[key] for key in ("median", "low", "high"))
    return f"{median:.1f} us {what} (95%: {low:.1f}-{high:.1f})"
