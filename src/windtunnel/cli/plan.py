"""windtunnel plan: memory, time and dollars of a recipe on one or more rigs, or why it cannot run there."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.files import with_nulls

from .options import DEFAULT_ROOT, JsonOption, RootOption, SetOption
from .output import print_json, print_remarks, print_table, say

if TYPE_CHECKING:
    from windtunnel.plan import Job, Ladder, Opinion, Plan, Rung, SideBySide, StagedPlan
    from windtunnel.recipe import Recipe
    from windtunnel.rig import Rig

    from .interrupted import Expectation

# Not 2: the recipe and the rig are sound, they only do not go together; scripts search over rigs by this code.
NO_PLAN = 1
HERE = "here"
# Rows of prose: they read better below the table.
REMARKS = ("least that fits", "recommended", "does not fit", "instead", "warning", "note")


def plan(
    names: Annotated[
        list[str], typer.Argument(metavar="RECIPE [RUN...]", help="A shipped recipe's name or a .yaml file; with --fit, runs.")
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            "--rig",
            metavar="RIG",
            help="here, 8xH100, g5.xlarge, 4x(4xGH200), ... Given several times, it is a ladder: "
            "the last is the target, the others rehearse for it. Otherwise here.",
        ),
    ] = None,
    sets: SetOption = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Only this stage; otherwise all that train.")
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option("--plot", metavar="FILE", help="Draw memory, step and cost into a .png or .html file (repeatable)."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure ten full-size steps on this machine's GPUs and correct plans for them.")
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FOLDER", help="Where corrections are kept; 'none' leaves them out."),
    ] = None,
    hour_value: Annotated[
        float | None,
        typer.Option(
            "--hour-value", metavar="DOLLARS", min=0, help="What an hour of waiting is worth: rigs are compared with it."
        ),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit a scaling law over the RUNs, and say what loss the recipe's budget buys.")
    ] = False,
    root: RootOption = DEFAULT_ROOT,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Run a step of the real model on tensors without data, and compare memory with the plan."),
    ] = False,
    interruptions: Annotated[
        float | None,
        typer.Option(
            "--interruptions",
            min=0.0,
            metavar="RATE",
            help="How often an hour the (last) rig is taken away; of RIG@spot otherwise as the prices say.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what the recipe would take, and where each number comes from. Exits 1 when it does not fit the (last) rig."""
    from windtunnel.recipe import UserError, load_recipe

    if calibration is not None:
        _keep_calibration_in(calibration)
    if fit:
        from .fit import fit_runs  # reads runs, which planning alone does not

        fit_runs(names, on, sets or (), root, as_json=json)
        return
    if len(names) > 1:
        raise UserError(f"plan takes one recipe; given: {', '.join(names)}", "with --fit the others are runs")
    loaded = load_recipe(names[0], sets or ())

    # Only now: these need the schema, without which a recipe that cannot be read is refused sooner.
    from windtunnel.recipe import recipe_notes, stage_recipe

    contradictions = [*(("note", note) for note in recipe_notes(loaded)), *_uncounted(on or [], interruptions)]
    if stage is not None:
        loaded = stage_recipe(loaded, stage)

    from windtunnel.plan import compare_rigs
    from windtunnel.rig import parse_rig

    # Without --on the question is whether this machine will do.
    rigs = [parse_rig(name) for name in on or [HERE]]
    _check_pictures(plot or [])
    # A calibration and a trace are of one model on one batch, and stages may differ in both.
    if loaded.staged:
        one = stage_recipe(loaded, loaded.training[0].name)
        if calibrate or trace:
            contradictions.append(("note", f"measured and traced is stage {one.stage}; another: --stage NAME"))
    else:
        one = loaded
    if calibrate:
        _calibrate(one, rigs, json, contradictions)
        return

    ladder, staged = _climb(loaded, rigs, from_here=len(rigs) > 1 and not json)
    opinion = _trace(one, rigs[-1], ladder.plan) if trace else None
    job = _job(loaded, rigs[-1], ladder, staged)
    together = compare_rigs(loaded, rigs, hour_value) if len(rigs) > 1 or hour_value is not None else None
    expected = _interrupted(loaded, rigs[-1], (on or [HERE])[-1], ladder, staged, interruptions, root)
    # What compares rigs belongs to none of them: it stands with the target, the last.
    beside: dict[str, Any] = {} if together is None else {"side_by_side": together.to_json()}
    beside |= {} if expected is None else {"interruptions": expected.to_json()}
    if json:
        entries = [_entry(rung, opinion, staged, job) for rung in ladder.rungs]
        entries[-1] |= beside
        noted = [{**entry, "notes": [*(text for _, text in contradictions), *entry.get("notes", ())]} for entry in entries]
        print_json([with_nulls(entry) for entry in noted])
    else:
        _print_ladder_or_plans(ladder, rigs, staged, job)
        _print_rigs(together, expected)
        if opinion is not None:
            title = f"{loaded.name} on {rigs[-1].name}: memory a rank, traced"
            print_table(title, ["", "planned", "traced", "off by"], opinion.rows())
            print_remarks(opinion.remarks())
        print_remarks(contradictions)
    # Drawn also where nothing fits: the picture shows by how much.
    _draw(loaded, ladder, rigs, plot or [], silent=json)
    fits = ladder.plan.fits if staged is None else staged.fits
    raise typer.Exit(0 if fits else NO_PLAN)


def _climb(recipe: Recipe, rigs: list[Rig], *, from_here: bool) -> tuple[Ladder, StagedPlan | None]:
    """Return the ladder over the rigs, with this machine as its first rung where that is wanted, possible and not named already.

    Of a recipe with stages also the plans of all of them on the last rig.
    """
    from windtunnel.plan import climb, climb_stages
    from windtunnel.recipe import UserError
    from windtunnel.rig import detect_rig

    def go(rigs: list[Rig]) -> tuple[Ladder, StagedPlan | None]:
        return climb_stages(recipe, rigs) if recipe.staged else (climb(recipe, rigs), None)

    # The first rung of a ladder is where one sits. Not with --json: a script gets the rigs that it asked for.
    if from_here and not any(rig.gpu is None or rig.name == HERE for rig in rigs):
        with contextlib.suppress(UserError):  # the rigs that were named then have it too, or this machine does not matter
            return go([detect_rig(), *rigs])
    return go(rigs)


def _keep_calibration_in(folder: str) -> None:
    """Name it for every reader: the planner, and the measuring processes that are started from here."""
    from windtunnel.plan import CALIBRATION, CALIBRATION_OFF
    from windtunnel.recipe import UserError

    if folder.lower() != CALIBRATION_OFF and os.path.isfile(folder):
        raise UserError(f"--calibration {folder}: is a file", "name the folder that holds it")
    # Through the environment, not as an argument: its readers lie many calls from here, and child processes inherit it.
    os.environ[CALIBRATION] = folder


def _check_pictures(paths: list[Path]) -> None:
    """Before anything is planned: a file that cannot be written is bad input."""
    for path in paths:
        from windtunnel.plan import check_plot_path

        check_plot_path(path)


def _draw(recipe: Recipe, ladder: Ladder, rigs: list[Rig], paths: list[Path], *, silent: bool) -> None:
    for path in paths:
        from windtunnel.plan import OF_STAGE, plan_stages, write_plot
        from windtunnel.recipe import UserError

        plans: list[Plan] = []
        for rung in ladder.rungs:
            if rung.plan is None or rung.rig not in rigs:
                continue
            staged = None
            if recipe.staged:
                with contextlib.suppress(UserError):  # a rig that the recipe had to be changed for: its first stage is shown
                    staged = plan_stages(recipe, rung.rig)
            stages = [(stage.name, stage.plan) for stage in staged.stages] if staged else [(recipe.stage, rung.plan)]
            plans += [replace(plan, recipe=f"{recipe.name}{OF_STAGE}{name}") if name else plan for name, plan in stages]
        write_plot(plans, path)
        if not silent:
            print(f"wrote {path}")


def _job(recipe: Recipe, rig: Rig, ladder: Ladder, staged: StagedPlan | None) -> Job | None:
    """Return all steps of fine-tuning on the target; None of a recipe that does something else, or of one stage alone."""
    from windtunnel.plan import plan_job

    if staged is not None:
        return plan_job(recipe, rig, [(stage.name, stage.plan) for stage in staged.stages])
    if recipe.stage is not None:
        return None
    return plan_job(recipe, rig, [(recipe.training[0].name, ladder.plan)])


def _interrupted(
    recipe: Recipe, rig: Rig, named: str, ladder: Ladder, staged: StagedPlan | None, given: float | None, root: Path
) -> Expectation | None:
    """Return what interruptions make of the job on the target; None where it does not fit or none are known."""
    from .interrupted import expect, is_spot, rate_of

    rate = rate_of(named, given, spot=is_spot(named))
    if rate is None or not (ladder.plan.fits if staged is None else staged.fits):
        return None
    return expect(ladder.plan, rig, recipe, rate, root, hours=None if staged is None else staged.hours)


def _uncounted(on: list[str], given: float | None) -> list[tuple[str, str]]:
    """Return a note where a rig's price is that of a spot machine, and nothing tells how often one is taken away."""
    from .interrupted import UNCOUNTED, is_spot, rate_of

    unknown = any(is_spot(name) and rate_of(name, given, spot=True) is None for name in on)
    return [("note", UNCOUNTED)] if unknown else []


def _entry(rung: Rung, opinion: Opinion | None, staged: StagedPlan | None, job: Job | None) -> dict[str, Any]:
    """Return a rung as JSON; with its plan also the trace, which is of the target's; of the target all stages, and all steps."""
    entry = rung.to_json() | (staged.to_json() if staged is not None and rung.target else {})
    if rung.plan is None:
        return entry
    entry |= {"job": job.to_json() if job is not None and rung.target else None}
    return entry | {"trace": opinion.to_json() if opinion is not None and rung.target else None}


def _trace(recipe: Recipe, rig: Rig, made: Plan) -> Opinion:
    """Of the target's plan."""
    from windtunnel.launch import trace_plan
    from windtunnel.plan import resolve

    if recipe.model.kind == "gpt":
        recipe = resolve(recipe, rig)
    return trace_plan(recipe, made, say=say)


def _print_plan(title: str, made: Plan) -> None:
    from windtunnel.plan import lines

    rows = lines(made)
    print_table(title, ["", "value", "where it comes from"], [row for row in rows if row[0] not in REMARKS])
    print_remarks([(label, value + (f" ({source})" if source else "")) for label, value, source in rows if label in REMARKS])


def _print_ladder_or_plans(ladder: Ladder, rigs: list[Rig], staged: StagedPlan | None, job: Job | None) -> None:
    """Print the ladder of several rigs or the plan for one, its stages, and every step of the job with their total."""
    if len(rigs) > 1:
        _print_ladder(ladder)
    elif staged is None:
        _print_plan(f"{ladder.recipe} on {rigs[0].name}", ladder.plan)
    if staged is not None:
        _print_stages(staged, whole=len(rigs) == 1, table=job is None or not job.fits)
    if job is not None:
        _print_job(job)


def _print_job(job: Job) -> None:
    from windtunnel.plan import JOB_COLUMNS

    title = f"{job.recipe} on {job.rig}: every step, from the download to the evaluation"
    print_table(title, JOB_COLUMNS, job.rows(), whole=("step", "time", "on the rig", "elsewhere", "disk"))
    print_remarks(job.remarks())


def _print_stages(staged: StagedPlan, *, whole: bool, table: bool) -> None:
    """Print each stage's plan where that is wanted, and as a `table` all of them side by side with what they cost together."""
    from windtunnel.plan import STAGE_COLUMNS, gate_remarks, stage_remarks, stage_rows

    for number, stage in enumerate(staged.stages if whole else (), start=1):
        # Whole plans of all stages on one rig; on several they would bury the ladder.
        title = f"{staged.recipe} on {staged.rig}: stage {stage.name} ({number} of {len(staged.stages)}), {stage.description}"
        _print_plan(title.removesuffix(", "), stage.plan)
    if table:
        print_table(f"{staged.recipe} on {staged.rig}: all stages", STAGE_COLUMNS, stage_rows(staged))
    print_remarks(gate_remarks(staged) if whole else stage_remarks(staged))


def _print_rigs(together: SideBySide | None, expected: Expectation | None) -> None:
    """Print what rigs take beside each other, and what interruptions make of the target."""
    if expected is not None:
        print_remarks(expected.remarks())
    if together is None:
        return
    from windtunnel.plan import RIG_COLUMNS

    last = len(RIG_COLUMNS) - (together.hour_value is None)
    rows = [row[:last] for row in together.rows()]
    print_table(f"{together.recipe}: the whole job on each rig", RIG_COLUMNS[:last], rows, whole=("rig", "time", "cost"))
    print_remarks(together.remarks())


def _print_ladder(ladder: Ladder) -> None:
    from windtunnel.plan import COLUMNS, count_text, ladder_remarks, ladder_rows

    target = ladder.plan
    title = f"{ladder.recipe} ({target.model.partition(':')[0]}, {count_text(target.params)} parameters), to {target.rig}"
    print_table(title, COLUMNS, ladder_rows(ladder))
    print_remarks(ladder_remarks(ladder))


def _calibrate(recipe: Recipe, rigs: list[Rig], json: bool, notes: list[tuple[str, str]]) -> None:
    from windtunnel.launch import calibrate

    done = calibrate(recipe, rigs, say=say)
    if json:
        print_json(with_nulls(done.to_json()))
        return
    print_table(f"{recipe.name} on {rigs[0].name}: {done.steps} steps", ["", "planned", "measured", "off by"], done.rows())
    print_remarks([*done.remarks(), *notes])
