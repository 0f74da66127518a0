"""windtunnel verify: judge answers of a model; kernels, code, mathematics, exact texts, formats; also as a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from .options import JsonOption
from .output import print_json, print_remarks, print_table
from .verbs import Verb
from .verify_kernel import exit_code, kernel, use_gpu, word

if TYPE_CHECKING:
    from windtunnel.verify import Layers, Verdict

# Bytes. Longer than any model writes; a mistaken file is refused before it fills memory.
LONGEST_ANSWER = 16 << 20

TaskOption = Annotated[Path, typer.Option("--task", metavar="FILE", help="The task: JSON, as docs/verify.md describes.")]
AnswerOption = Annotated[str, typer.Option("--answer", metavar="FILE", help="The answer's file; - reads standard input.")]


def build(group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return the verb with its parts; `group` is the class of the command that holds them."""
    app = typer.Typer(cls=group, rich_markup_mode=None, add_completion=False)
    app.callback(invoke_without_command=True)(_top)
    app.command("kernel", cls=Verb)(kernel)
    app.command("code", cls=Verb)(_judge_of("code", "Judge Python code by hidden tests, each in a fresh child."))
    app.command("math", cls=Verb)(_judge_of("math", "Judge a mathematical expression: is it equal to the right one?"))
    app.command("exact", cls=Verb)(_judge_of("exact", "Judge an answer by comparison with accepted texts."))
    app.command("format", cls=Verb)(_judge_of("format", "Judge an answer's form: tags, a box, JSON by a schema."))
    app.command("layers", cls=Verb)(layers)
    app.command("selftest", cls=Verb)(selftest)
    return app


def _top(
    context: typer.Context,
    serve: Annotated[bool, typer.Option("--serve", help="Answer POST /verify until stopped.")] = False,
    show_layers: Annotated[bool, typer.Option("--layers", help="The same as: windtunnel verify layers.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port, which is printed.")] = 8200,
    token: Annotated[
        str | None, typer.Option("--token", envvar="WINDTUNNEL_TOKEN", help="Require this bearer token.", show_envvar=True)
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Answers judged at once; otherwise one a core.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=1, help="Answers that may wait; otherwise 32 a worker.")] = None,
    tasks: Annotated[Path | None, typer.Option("--tasks", help="A folder of tasks to be named: NAME.json, NAME.py.")] = None,
    unhardened: Annotated[bool, typer.Option("--unhardened", help="Serve although the sandbox is not hardened here.")] = False,
) -> None:
    """Judge a model's answer. Exits 0 accepted, 1 refused, 2 bad input, 4 the machinery failed and nothing is known."""
    if context.invoked_subcommand is not None:
        return
    if show_layers:
        layers(json=False)
        return
    if not serve:
        typer.echo(context.get_help())
        return
    from windtunnel.verify import serve as run

    run(host=host, port=port, token=token, workers=workers, waiting=queue, tasks=tasks, unhardened=unhardened)


def selftest(
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="kernel, code or math, repeatable; otherwise all.")
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--no-gpu", help="Full shapes and timing; otherwise where there is an NVIDIA GPU.")
    ] = None,
    unhardened: Annotated[bool, typer.Option("--unhardened", help="Pass although the sandbox is not hardened here.")] = False,
    json: JsonOption = False,
) -> None:
    """Judge answers whose verdict is known, as rewards are. Exits 1, with the cause, where the verifier does not work here."""
    import os

    from windtunnel.recipe import UserError
    from windtunnel.verify import TESTED, Verifiers, self_test

    kinds = tuple(kind or TESTED)
    if unknown := [name for name in kinds if name not in TESTED]:
        raise UserError(
            f"--kind {unknown[0]}", f"one of {', '.join(TESTED)}: the other kinds compare texts, on every machine alike"
        )
    with Verifiers(max(1, min(4, os.cpu_count() or 1)), gpu=use_gpu(gpu)) as verifiers:
        found = self_test(verifiers, kinds)
    faults = [trial.fault for trial in found.trials if trial.fault]
    # A verifier that judges rightly, but lets a candidate out, does not work.
    faults += [] if unhardened else [f"the sandbox is not hardened here: {what}" for what in found.missing]
    if json:
        trials = [trial.as_json() for trial in found.trials]
        print_json({"works": not faults, "faults": faults, "missing": found.missing, "trials": trials, "seconds": found.seconds})
    else:
        rows = []
        for one in found.trials:
            refused = f": {one.verdict.reason}" if word(one.verdict) == "refused" else ""
            rows.append([one.probe.kind, one.probe.name, word(one.verdict) + refused, "no" if one.fault else "yes"])
        print_table(f"verifiers {'do not work here' if faults else 'work here'}", ["kind", "answer", "verdict", "as due"], rows)
        remarks = [("cause", fault) for fault in faults]
        remarks += [("not hardened", what) for what in found.missing if unhardened]
        print_remarks([*remarks, ("took", f"{found.seconds:.0f} s")])
    raise typer.Exit(1 if faults else 0)


def layers(json: JsonOption = False) -> None:
    """Which layers of the sandbox this machine gives, and whether it is hardened. Exits 1 when it is not."""
    from windtunnel.verify import Sandbox

    with Sandbox() as sandbox:
        found = sandbox.start()
    if json:
        print_json(found.as_json())
    else:
        _print_layers(found)
    raise typer.Exit(0 if found.hardened else 1)


def _print_layers(found: Layers) -> None:
    rows = [[name, "no" if fault else "active", fault] for name, fault in found.faults.items()]
    print_table(f"sandbox: {'hardened' if found.hardened else 'NOT hardened'}", ["layer", "state", "why not"], rows)
    remarks = [("missing", what) for what in found.missing]
    remarks += [("breach", f"a trial child {what}") for what in found.breaches or ()]
    print_remarks(remarks or [("tried", "a trial child tried to get past each protection and could not")])


def _judge_of(kind: str, doc: str) -> Callable[..., None]:
    def judge(task: TaskOption, answer: AnswerOption = "-", json: JsonOption = False) -> None:
        from windtunnel.recipe import UserError
        from windtunnel.verify import Verifiers, read_json, read_text

        spec, text = read_json(task), read_text(answer, LONGEST_ANSWER, f"--answer {answer}", stdin=True)
        # Data sets wrap each task with its kind; a line of one can be judged as it is.
        if isinstance(spec, dict) and set(spec) == {"kind", "task"}:
            if spec["kind"] != kind:
                raise UserError(
                    f"--task {task} is of kind {spec['kind']}, not {kind}"[:200], "judge it by the command of its kind"
                )
            spec = spec["task"]
        if not isinstance(spec, dict):
            raise UserError(f"--task {task} holds no task", f"an object with the keys of the kind {kind}")
        with Verifiers(1) as verifiers:
            try:
                verifier = verifiers.make(kind, spec)
            except UserError as error:
                raise UserError(f"--task {task}: {error.message}", error.fix) from None
            verdict = verifier.verify(text)
        if json:
            print_json(verdict.as_json())
        else:
            _print_verdict(verdict)
        raise typer.Exit(exit_code(verdict))

    judge.__doc__ = doc
    return judge


def _print_verdict(verdict: Verdict) -> None:
    lines = [("verdict", word(verdict)), ("stage", verdict.stage), ("reason", verdict.reason), ("why", verdict.message)]
    if verdict.times:
        lines.append(("times", ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in verdict.times.items())))
    if verdict.reward is not None:
        lines.append(("reward", f"{verdict.reward:g}"))
    print_remarks(lines)
