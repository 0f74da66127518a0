"""windtunnel optimize: a kernel for a user's module, from a model that was trained to write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DEFAULT_ROOT, BaseOption, DeviceOption, JsonOption, RootOption, StepOption, find_run
from .output import print_json, print_remarks, print_table, say
from .verify_kernel import NOTHING_KNOWN, speed_lines, use_gpu

if TYPE_CHECKING:
    from windtunnel.evaluate import Candidate, Optimized, Sampling

# Wrong answers are wrong in a few ways; every one of them is in --out.
SHOWN_REASONS = 5
LONGEST_MODULE = 1_000_000  # bytes


def optimize(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A PyTorch module: KernelBench's form, or with example_inputs.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="A run's folder, or its name under --root; or a Hugging Face folder."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, max=4096, help="Answers that the model is asked for.")] = 16,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Most tokens of an answer.")] = 2048,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, max=2.0, help="0: the likeliest answer.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same answers.")] = 0,
    candidates: Annotated[
        Path | None, typer.Option("--candidates", metavar="FOLDER", help="Verify the answers in these files; ask no model.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("--module", metavar="NAME", help="The class; otherwise Model, or the only module.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="ARGS", help="Forward's arguments: 'torch.randn(64, 256)'.")
    ] = None,
    init: Annotated[str | None, typer.Option("--init", metavar="ARGS", help="The constructor's: '256, bias=False'.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write kernel.py, plan.json, proof.json and every candidate there."),
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--no-gpu", help="Full shapes and times; otherwise where there is an NVIDIA GPU.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Verified at once; otherwise one a core.")] = None,
    step: StepOption = None,
    base: BaseOption = None,
    device: DeviceOption = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Ask a model for a kernel in a module's place: the fastest answer that is right, with its proof.

    Exits 0 when one is right, 1 when none is, 2 when module, model or options cannot be used, 4 when nothing is known about any.
    """
    import os

    from windtunnel.evaluate import Sampling, optimize_module, read_candidates
    from windtunnel.recipe import UserError
    from windtunnel.verify import Verifiers, read_text, tasks_of_module

    # Exactly one source of answers: with both it would be unclear whose the proof is.
    if (model is None) == (candidates is None):
        raise UserError("give either --model or --candidates", "--model runs/kernels, or --candidates FOLDER with answers")
    text = read_text(str(file), LONGEST_MODULE, str(file))
    tasks = tasks_of_module(text, file.stem, str(file), module=module, inputs=inputs, init=init)
    sampling = Sampling(samples, tokens, temperature, seed=seed)
    found_model = None if model is None else find_run(model, root)
    given = None if candidates is None else read_candidates(candidates)

    def answers(reference: str) -> tuple[list[Candidate], list[str]]:
        if given is not None:
            return given, []
        assert found_model is not None
        return _asked(found_model, reference, sampling, step, device, base)

    tell = (lambda _: None) if json else lambda what: say(f"{what} ...")
    most = len(given) if given is not None else samples
    with Verifiers(min(workers or len(os.sched_getaffinity(0)), most), gpu=use_gpu(gpu)) as verifiers:
        found = optimize_module(verifiers, tasks, answers, tell)
    if out is not None:
        found.write(out)
    if json:
        print_json(found.to_json())
    else:
        _print(found, out)
    nothing = found.best is None and found.unknown == found.answers
    raise typer.Exit(0 if found.best is not None else NOTHING_KNOWN if nothing else 1)


def _asked(
    folder: Path, reference: str, sampling: Sampling, step: int | None, device: str | None, base: Path | None
) -> tuple[list[Candidate], list[str]]:
    """Ask the model, which is given back before anything is verified: both want the GPU's memory."""
    from windtunnel.evaluate import ask
    from windtunnel.generate import load_source

    say(f"asking {folder.name} for {sampling.samples} answers ...")
    source = load_source(folder, step=step, device=device, base=base)
    try:
        made, remarks = ask(source.generator, reference, sampling)
    finally:
        source.generator.close()
    return made, [*source.warnings, *remarks]


def _print(found: Optimized, out: Path | None) -> None:
    best = found.best
    if found.judged:
        rows = []
        for one in found.judged:
            word = "right" if one.verdict.accepted else "nothing known" if one.verdict.infrastructure else one.verdict.reason
            time = "" if one.seconds is None else f"{1e6 * one.seconds:.1f} us"
            mark = "best" if one is best else f"cut at {len(one.candidate.text):,} characters" if one.candidate.cut else ""
            rows.append([one.candidate.name, str(1 + len(one.twins)), word, one.verdict.stage, time, mark])
        print_table(
            f"{found.task.name}: {found.right} of {found.answers} answers are right",
            ["answer", "times", "verdict", "stage", "median", ""],
            rows,
        )
    remarks: list[tuple[str, str]] = []
    if best is None:
        remarks.append(("none is right", "no kernel is returned"))
        remarks += [
            (f"{count} x {reason}", f"{message[:200]}{'...' if len(message) > 200 else ''}")
            for reason, count, message in found.reasons()[:SHOWN_REASONS]
        ]
    else:
        evidence = best.verdict.evidence
        for dtype, error in evidence.get("errors", {}).items():
            share = f"{error['share_of_allowed']:.0%} of what is allowed"
            remarks.append((f"error in {dtype}", f"at most {error['largest']:.2g}, {share}"))
        remarks += speed_lines(evidence.get("gpu", {}))
        remarks += [("not judged", entry) for entry in evidence.get("left", ())]
    remarks += [("note", remark) for remark in found.remarks]
    if out is not None:
        remarks.append(("written", f"{out}" + (f", the kernel as {out / 'kernel.py'}" if best is not None else "")))
    print_remarks(remarks)
    if best is not None and out is None:
        typer.echo(best.candidate.source)
