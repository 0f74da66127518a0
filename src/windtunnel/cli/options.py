"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from windtunnel.recipe import Recipe
    from windtunnel.rig import Rig


def _refuse_file(root: Path) -> Path:
    """Return the folder of runs as it was given. Raises UserError: it is a file, which is said before anything is prepared."""
    if root.exists() and not root.is_dir():
        from windtunnel.recipe import UserError

        raise UserError(f"--root {root}: is a file; expected the folder that holds the runs", "leave it out for runs/")
    return root


# One option has one meaning and one help text in every verb that has it: that is why they are here, though most are a line.
RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a .yaml file.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its name under --root.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a key of the recipe: --set model.depth=12 (repeatable)."),
]
TargetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        "--rig",
        metavar="RIG",
        help="A rig to be ready for (repeatable, the target last); otherwise 8xH100, or the cheapest node that holds it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and nothing else.")]
RootOption = Annotated[
    Path,
    typer.Option(
        "--root", "--runs", envvar="WINDTUNNEL_RUNS", callback=_refuse_file, help="The folder that holds the runs."
    ),
]  # fmt: skip
BaseOption = Annotated[
    Path | None,
    typer.Option("--base", metavar="FOLDER", help="The model beneath a run's adapter; otherwise where the run found it."),
]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help="The checkpoint of this step; otherwise the best.")]
SupervisionOption = Annotated[
    int | None, typer.Option("--supervision", min=1, help="Supervision steps of a recursive model; also more than trained.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1; otherwise the fastest there is.")]
PriceOption = Annotated[
    float | None,
    typer.Option("--price", min=0.0, metavar="DOLLARS", help="Dollars an hour for the whole rig; otherwise the catalog's."),
]
GpusOption = Annotated[int | None, typer.Option("--gpus", min=1, help="Use this many of the machine's GPUs; otherwise all.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Go on where the plan asks for confirmation.")]

DEFAULT_ROOT = Path("runs")


def find_run(run: Path, root: Path) -> Path:
    """Return the folder of a run given as a folder or as its name under the root.

    Raises:
        UserError: there is neither; names the nearest run.
    """
    from windtunnel.recipe import UserError

    # A path first: who completes names in a shell gives runs/NAME, who copies them from a table gives NAME.
    for folder in (run, root / run):
        if folder.is_dir():
            return folder
    if run.exists():
        raise UserError(f"{run} is a file, not a run's folder", "name the folder it is in; windtunnel runs lists runs")
    import difflib

    names = sorted(child.name for child in root.iterdir() if child.is_dir()) if root.is_dir() else []
    # A low cutoff: a wrong guess costs a glance, and runs' names share long beginnings.
    nearest = difflib.get_close_matches(run.name, names, n=1, cutoff=0.3)
    fix = f"nearest: {root / nearest[0]}" if nearest else "list runs with: windtunnel runs"
    raise UserError(f"no run folder {run} and none of that name under {root}/", fix)


def rig_at(name: str, price: float | None) -> Rig:
    """Return a rig by its name, with the user's dollars an hour in the place of the catalog's. Raises UserError."""
    from dataclasses import replace

    from windtunnel.rig import parse_rig

    rig = parse_rig(name)
    return rig if price is None else replace(rig, dollars_per_hour=price, price_note="--price")


def recipe_of(given: str, sets: Sequence[str], root: Path) -> Recipe:
    """Return the recipe that --recipe names: a shipped one, a file, or the own one of a run (its folder, or name under the root).

    Raises:
        UserError: there is none, or it cannot be read.
    """
    from windtunnel.recipe import load_recipe

    # A run before a recipe of the same name: the run's copy has the values that it was trained with.
    for run in (Path(given), root / given):
        if (run / "recipe.yaml").is_file():
            return load_recipe(str(run / "recipe.yaml"), sets)
    return load_recipe(given, sets)
