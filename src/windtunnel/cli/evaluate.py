"""windtunnel evaluate: measure a run's best checkpoint, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.recipe import UserError

from .backtest import show_backtest
from .options import (
    DEFAULT_ROOT,
    JsonOption,
    RootOption,
    SetOption,
    StepOption,
    SupervisionOption,
    YesOption,
    find_run,
    recipe_of,
)
from .output import print_json, print_remarks, print_table, progress_lines, say

if TYPE_CHECKING:
    from windtunnel.evaluate import ActionReport, Answered, Drawing, EvaluationReport, Paired, Untuned
    from windtunnel.recipe import Recipe
    from windtunnel.run import Expected

TUNED_COLUMNS = ("", "tuned", "untuned", "difference (95 %)")


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or its name under --root; or a Hugging Face folder.")
    ],
    step: StepOption = None,
    supervision: SupervisionOption = None,
    flop_matched: Annotated[
        bool, typer.Option("--flop-matched", help="Train FLOPs-matched baselines of a recursive run: does recursion pay?")
    ] = False,
    flop_matched_steps: Annotated[
        int | None,
        typer.Option("--flop-matched-steps", min=10, help="With --flop-matched: train all for this many steps, the run's too."),
    ] = None,
    worth: Annotated[bool, typer.Option("--worth", hidden=True)] = False,
    worth_steps: Annotated[int | None, typer.Option("--worth-steps", hidden=True)] = None,
    problems: Annotated[
        int | None, typer.Option("--problems", min=1, help="Held-out problems to answer; otherwise as the recipe says.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", help="Draw so many answers to each problem as well, for pass@1 and pass@k.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="With --attempts: at which they are drawn; otherwise 1.")
    ] = None,
    no_untuned: Annotated[
        bool, typer.Option("--no-untuned", help="Do not measure the model that a fine-tuning began with.")
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="Of a Hugging Face folder: the recipe, or the run, whose data it is for."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Of a Hugging Face folder: where evaluation.json and predictions go."),
    ] = None,
    sets: SetOption = None,
    yes: YesOption = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Bits per byte, right answers with their interval, and samples; or FLOPs-matched baselines of a recursive run.

    A fine-tuned model is held against the one that it was made of, on the same data and questions. Exits 1 when the best
    checkpoint is damaged, and the next best was measured.
    """
    # The old name still parses, hidden, so that scripts and notes that use it are told the new one.
    if worth or worth_steps is not None:
        now = "--flop-matched" + (f" --flop-matched-steps {worth_steps}" if worth_steps is not None else "")
        raise UserError("there is no --worth any more: it is called --flop-matched", f"windtunnel evaluate {run} {now}")
    folder = find_run(run, root)
    # A Hugging Face folder: config.json, and neither of the files that the package's own runs and exports have.
    if not (folder / "recipe.yaml").is_file() and (folder / "config.json").is_file() and not (folder / "shape.json").is_file():
        given = (("--step", step), ("--supervision", supervision), ("--flop-matched", flop_matched or flop_matched_steps))
        for name, value in given:
            if value:
                raise UserError(f"{name} is for runs, and {folder} is a Hugging Face folder", f"leave {name} out")
        from windtunnel.evaluate import evaluate_folder

        found = _recipe_of(folder, recipe, sets or [], root)
        report = evaluate_folder(
            folder, found, problems=problems, untuned=not no_untuned, out=out, progress=progress_lines(),
            drawing=_drawing(attempts, temperature, found),
        )  # fmt: skip
        _show(report, folder, json=json)
        return
    if recipe is not None or sets or out is not None:
        what = "--recipe, --set and --out are for Hugging Face folders"
        raise UserError(f"{what}; {folder} has its own recipe and place", "leave them out")
    # --flop-matched-steps alone means the same: it has no other use.
    if flop_matched or flop_matched_steps is not None:
        from .flop_matched import evaluate_flop_matched

        for name, value in (("--step", step), ("--supervision", supervision)):
            if value is not None:
                raise UserError(
                    f"{name} {value} does not go with --flop-matched: every model is measured at its best", f"leave {name} out"
                )
        evaluate_flop_matched(folder, steps=flop_matched_steps, yes=yes, json=json)
        return

    from windtunnel.rl import evaluate_trained
    from windtunnel.run import RunFolder, compare_expected

    from .stages import renew_page

    report = evaluate_trained(
        folder, "best" if step is None else step, supervision=supervision, problems=problems, untuned=not no_untuned,
        drawing=_drawing(attempts, temperature, RunFolder.open(folder).recipe), progress=progress_lines(),
    )  # fmt: skip
    # The report of a run shows its evaluation, so it is written again now that there is one.
    renew_page(folder)
    _show(report, folder, json=json, expected=compare_expected(RunFolder.open(folder)))


def _drawing(attempts: int | None, temperature: float | None, recipe: Recipe) -> Drawing | None:
    """Return how --attempts are drawn; None: none were asked for."""
    from windtunnel.evaluate import Drawing

    if attempts is None and temperature is not None:
        raise UserError("--temperature is that of --attempts; one answer is always greedy", "--attempts 10, or no --temperature")
    return None if attempts is None else Drawing(attempts, 1.0 if temperature is None else temperature, recipe.seed)


def _recipe_of(folder: Path, given: str | None, sets: list[str], root: Path) -> Recipe:
    """Return the recipe that --recipe names."""
    if given is None:
        raise UserError(
            f"{folder} is a Hugging Face folder, and nothing says what to measure it on",
            f"windtunnel evaluate {folder} --recipe RECIPE (or the run that has the data)",
        )
    return recipe_of(given, sets, root)


def _show(report: EvaluationReport, folder: Path, *, json: bool, expected: Sequence[Expected] = ()) -> None:
    """Print a report; end with exit code 1 where it is of another checkpoint than was asked for, since that one is damaged."""
    _print(report, folder, json=json, expected=expected)
    if report.substitute:
        raise typer.Exit(1)


def _print(report: EvaluationReport, folder: Path, *, json: bool, expected: Sequence[Expected]) -> None:
    from windtunnel.evaluate import STEP_COLUMNS

    from .stages import print_expected

    values = report.to_json() | ({"expected": [item.to_json() for item in expected]} if expected else {})
    for warning in (*report.warnings, *([report.unwritten] if report.unwritten else [])):
        say(f"warn: {warning}")
    if json:
        print_json(values)
        return
    if report.tuned is not None:
        show_tuned(report, f"evaluation of {folder}")
        print_expected(expected)
        print_remarks([("written", str(Path(report.tuned.files[0]).parent))] if report.tuned.files else [])
        for sample in values["samples"]:
            typer.echo("\n".join(f"  {k}: {v!r}" for k, v in sample.items()) + "\n")
        return
    # Here with its interval, as one text, where the JSON has its parts.
    shown = values | {"exact_match": report.exact_match}
    left_out = ("format", "samples", "puzzles", "by_step", "warnings", "substitute", "expected")
    rows = [[k.replace("_", " "), _text(v)] for k, v in shown.items() if k not in left_out and v is not None]
    if report.puzzles is not None:
        rows += [list(row) for row in report.puzzles.rows()]
    print_table(f"evaluation of {folder}", ["", ""], rows)
    if report.by_step is not None and report.puzzles is None:  # those have the share that is solved by step
        print_table("held-out text by supervision step", STEP_COLUMNS, report.by_step.rows())
    print_expected(expected)
    for sample in values.get("samples", []):
        typer.echo(repr(sample) if isinstance(sample, str) else "\n".join(f"  {k}: {v!r}" for k, v in sample.items()))


def show_tuned(report: EvaluationReport, title: str) -> None:
    """Print the tables of a fine-tuned model's evaluation, beside the untuned model where that was measured."""
    assert report.tuned is not None
    print_table(title, TUNED_COLUMNS, tuned_rows(report))
    if report.tuned.actions is not None:
        show_actions(report.tuned.actions)
    if report.backtest is not None:
        show_backtest(report.backtest)


def show_actions(report: ActionReport) -> None:
    """Print classes, confusion matrix and baselines; none is wider than 80 columns."""
    from windtunnel.evaluate import CLASS_COLUMNS, baseline_rows, class_rows, confusion_columns, confusion_rows

    scores = report.scores
    print_table("actions", CLASS_COLUMNS, class_rows(scores))
    print_table("confusion matrix", confusion_columns(scores), confusion_rows(scores))
    print_table("without a model", ("", "accuracy", "macro F1"), baseline_rows(report.base))


def tuned_rows(report: EvaluationReport) -> list[list[str]]:
    """Return the table of a fine-tuned model's evaluation."""
    from windtunnel.evaluate import action_rows, attempt_rows, perplexity

    found = report.tuned
    assert found is not None
    mine, untuned = report.validation, found.untuned
    other = None if untuned is None else untuned.validation

    def both(name: str, value: Any, difference: str = "") -> list[str]:
        return [name, value(mine), "-" if other is None else value(other), difference]

    rows = [["step", "folder" if report.step is None else f"{report.step:,}", "-" if untuned is None else "0", ""]]
    if mine is not None:  # prompts have no targets
        change = "" if untuned is None or untuned.loss is None else _signed(untuned.loss, 1, 4)
        rows += [
            both("loss, nats/target", lambda v: f"{v.loss:.4f}", change),
            both("perplexity", lambda v: f"{perplexity(v):.4g}"),
            both("bits per byte", lambda v: f"{v.bits_per_byte:.4f}"),
            both("targets", lambda v: f"{v.tokens:,}"),
        ]
    if found.actions is not None:
        rows += action_rows(found.actions, untuned)
    elif found.answers is not None:
        rows += _answer_rows(found.answers, untuned)
    if found.attempts is not None:
        rows += attempt_rows(found.attempts, None if untuned is None else untuned.attempts, untuned.passed if untuned else {})
    return rows


def _answer_rows(answers: Answered, untuned: Untuned | None) -> list[list[str]]:
    its, gain = (None, None) if untuned is None else (untuned.answers, untuned.gain)

    def each(name: str, value: Any, difference: str = "") -> list[str]:
        return [name, value(answers), "-" if its is None else value(its), difference]

    points = "" if gain is None else _signed(gain, 100, 1, " points")
    rows = [
        each(f"right ({answers.metric})", lambda a: f"{a.right} of {a.n} ({a.share:.1%})", points),
        each("95 % interval", lambda a: "{:.1%} to {:.1%}".format(*a.interval)),
        each("cut, unknown", lambda a: f"{a.cut}, {a.unknown}"),
    ]
    if answers.reward is not None:
        # Below the interval that belongs to the share of right answers.
        rows.insert(2, each("mean reward", lambda a: "-" if a.reward is None else f"{a.reward:.3f}"))
    if gain is not None:
        told = f"{gain.better} better, {gain.worse} worse"
        rows.append(["only one is right", told, "", f"{gain.test} p = {gain.p:.2g}"])
    return rows


def _signed(paired: Paired, scale: float, digits: int, unit: str = "") -> str:
    value, low, high = (f"{scale * number:+.{digits}f}" for number in (paired.difference, paired.low, paired.high))
    return f"{value}{unit} ({low} to {high})"


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
