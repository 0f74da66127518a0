"""windtunnel plan --fit: a scaling law over runs, and what loss the next budget buys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.plan import Bought, Law, TrainedPoint
    from windtunnel.recipe import Recipe
    from windtunnel.watch import RunResult

MOST_ROWS = 6
AMOUNT = "data.corpus.documents"
FAR = 100.0  # times the largest run's compute


def fit_runs(names: Sequence[str], on: Sequence[str] | None, sets: Sequence[str], root: Path, *, as_json: bool) -> None:
    """Fit the runs among the names and print what the recipe's budget buys on the (last) rig.

    Args:
        names: runs, and perhaps one recipe; without one the first run's own is planned.
        on: rigs, of which the last counts.
        sets: overrides of the recipe.
        root: holds runs that are given by name.
        as_json: print JSON.

    Raises:
        UserError: two recipes, runs that cannot be compared, or too few.
    """
    from windtunnel.plan import TrainedPoint, fit_law, what_budget_buys
    from windtunnel.recipe import UserError, load_recipe, recipe_names, template_names
    from windtunnel.rig import parse_rig
    from windtunnel.run import RunFolder
    from windtunnel.watch import read_result

    folders = [folder for name in names for folder in (Path(name), root / name) if (folder / "manifest.json").exists()]
    recipes = [name for name in names if not any((f / "manifest.json").exists() for f in (Path(name), root / name))]
    if len(recipes) > 1:
        known = recipes[0] in (*recipe_names(), *template_names()) or recipes[0].endswith((".yaml", ".yml"))
        raise UserError(
            f"no runs: {', '.join(recipes[1:] if known else recipes)}",
            f"name runs of {root}/ (list them with: windtunnel runs), and at most one recipe",
        )
    results = [read_result(folder) for folder in dict.fromkeys(folders)]
    _comparable(results)
    points = [TrainedPoint(r.name, float(r.scaling or 0), r.tokens, float(r.loss or 0)) for r in results]
    law = fit_law(points)
    source = recipes[0] if recipes else str(RunFolder.open(results[0].path).job_path)
    recipe, rig = load_recipe(source, sets if recipes else [*_free(source, sets), *sets]), parse_rig((on or ["here"])[-1])
    bought = what_budget_buys(law, recipe, rig)
    if as_json:
        print_json({"law": law.to_json(), "runs": [asdict(p) for p in points], "buys": [asdict(item) for item in bought]})
        return
    _print(law, points, results, bought, f"{recipe.name} on {rig.name}")
    print_remarks(_of_other_data(results[0], recipe))


def _print(
    law: Law, points: Sequence[TrainedPoint], results: Sequence[RunResult], bought: Sequence[Bought], what: str
) -> None:  # fmt: skip
    rows = [
        [p.name, _count(p.parameters), _count(p.tokens), f"{p.loss:.4f}", f"{law.loss(p.parameters, p.tokens):.4f}"]
        for p in points
    ]
    print_table("runs", ["run", "parameters", "tokens", "validation", "by the law"], rows, whole=("validation", "by the law"))
    print_remarks(_said(law))
    print_table(f"what the budget buys: {what}", _COLUMNS, [_row(item) for item in bought[:MOST_ROWS]])
    print_remarks(_remarks(law, results, bought))


_COLUMNS = ("depth", "parameters", "tokens", "epochs", "time", "$", "expected loss")


def _free(source: str, sets: Sequence[str]) -> list[str]:
    """Let the depth of a run's own recipe be chosen again, and its limits go where others are named."""
    from windtunnel.recipe import LIMITS, load_recipe

    # A run's recipe has the depth that was chosen for its own budget; the next budget may buy another.
    free = ["model.depth=auto"] if load_recipe(source).model.kind == "gpt" else []
    named = {key for item in sets if (key := item.partition("=")[0].strip()).startswith("budget.")}
    return free + [f"budget.{key}=null" for key in LIMITS if named and f"budget.{key}" not in named]


def _comparable(results: Sequence[RunResult]) -> None:
    from windtunnel.recipe import UserError

    unscored = [r.name for r in results if r.loss is None or not r.scaling or not r.tokens]
    if unscored:
        raise UserError(f"never validated, or without a plan: {', '.join(unscored)}", "leave them out")
    # Compared by checksum of the prepared data, not by file name: the same name may hold other text.
    if len({r.data for r in results}) > 1:
        others = [r.name for r in results if r.data != results[0].data]
        raise UserError(
            f"trained on other data than {results[0].name}: {', '.join(others)}; losses of different texts draw no curve",
            "give runs on the same data",
        )
    going = [r.name for r in results if r.status == "running"]
    if going:
        raise UserError(
            f"still running: {', '.join(going)}; a loss before the learning rate has come down says little", "wait for them"
        )


def _of_other_data(result: RunResult, recipe: Recipe) -> list[tuple[str, str]]:
    """Warn where the recipe's text is not the runs': how many documents there are of it does not matter."""
    from windtunnel.run import by_path

    own = by_path(recipe.model_dump(mode="json"))
    keys = [key for key in {**own, **result.recipe} if key.startswith(("data.corpus.", "data.tokenizer.")) and key != AMOUNT]
    others = [key for key in keys if own.get(key) != result.recipe.get(key)]
    if not others:
        return []
    differ = f"{recipe.name} is of other data than the runs ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''} differ)"
    return [("warning", f"{differ}: losses of different texts draw no curve; leave the recipe out, or give runs on its data")]


def _said(law: Law) -> list[tuple[str, str]]:
    terms = f"L = {law.floor:.4g} + {law.a:.4g} / N^{law.alpha:.3f} + {law.b:.4g} / D^{law.beta:.3f}"
    lines = [("law", f"{terms} ({law.runs} runs; {law.form})")]
    if law.error is None or law.largest is None:
        return [
            *lines,
            ("warning", f"{law.runs} runs fix the law and leave none to test it on: its error is not known; give more"),
        ]
    tested = f"each run predicted from the others is off by at most {law.error:.1%}"
    if law.runs >= 10:
        tested = f"each run predicted from the others: 9 in 10 within {law.error:.1%}"
    return [*lines, ("error", f"{tested}; the largest by {law.largest:+.1%}")]


def _row(item: Bought) -> list[str]:
    from windtunnel.plan import hours_text

    around = "" if item.error is None else f" ±{item.error:.0%}" if item.error >= 0.1 else f" ±{item.error:.1%}"
    return [
        "-" if item.depth is None else str(item.depth), _count(item.parameters), _count(item.tokens),
        "-" if item.epochs is None else f"{item.epochs:.2f}", hours_text(item.hours),
        "-" if item.dollars is None else f"{item.dollars:,.2f}", f"{item.loss:.4f}{around}",
    ]  # fmt: skip


def _remarks(law: Law, results: Sequence[RunResult], bought: Sequence[Bought]) -> list[tuple[str, str]]:
    from windtunnel.plan import BEYOND

    if not bought:
        return [("does not fit", "no depth fits this rig")]
    best, reached = bought[0], min(results, key=lambda r: r.loss or 0.0)
    gain = 1 - best.loss / float(reached.loss or 1.0)
    said = [
        ("note", f"best: {best.loss:.4f}, {abs(gain):.1%} {'below' if gain > 0 else 'above'} {reached.name}'s {reached.loss:.4f}")
    ]
    said.append(("note", f"it ends {best.ends}"))
    times = best.flops / law.reach
    if times > 1:
        grows = f"{BEYOND:.0%} of error are added for each factor of ten, as measured on published runs"
        level = "warning" if times > FAR else "note"
        said.append((level, f"{times:,.3g} times the compute of the largest run: {grows}; larger runs narrow it"))
    if best.epochs is not None and best.epochs > 1:
        counted = f"{_count(best.tokens)} tokens in {best.epochs:.1f} epochs count as {_count(best.fresh)} fresh ones"
        said.append(("note", f"{counted} (Muennighoff et al. 2023)"))
    return said


def _count(number: float) -> str:
    from windtunnel.plan import count_text

    return count_text(number)
