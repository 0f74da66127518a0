"""windtunnel prepare: read, check, split and tokenize a recipe's data on any machine, before GPUs are rented."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import JsonOption, RecipeArgument, SetOption
from .output import has_colours, print_json, print_remarks, print_table, say

if TYPE_CHECKING:
    from windtunnel.data import Gate, PreparedData
    from windtunnel.recipe import MissingModel, Recipe


def prepare(
    recipe: RecipeArgument = "charlm",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write theses there too: JSON lines, rejects, prices, and a Hugging Face dataset."
        ),
    ] = None,
    sets: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Read, check, split and tokenize a recipe's data here, so that training starts at once.

    It needs no GPU. What is prepared lies in $WINDTUNNEL_CACHE or ~/.cache/windtunnel, where training finds it. Theses need no
    tokenizer either to be read, split and judged; their lengths are then given in bytes. Exits 1 when a gate on theses does not
    hold.
    """
    from windtunnel.recipe import ThesisCorpus, UserError, load_recipe, stage_recipe

    loaded = load_recipe(recipe, sets or ())
    if out is not None and not isinstance(loaded.data.corpus, ThesisCorpus):
        fix = "leave --out away: prepared data lies in the cache, and the report names its folder"
        raise UserError(f"--out is for theses, and data.corpus.kind is {loaded.data.corpus.kind}", fix)
    # Every stage has data of its own kind: text, then conversations, then prompts.
    recipes = [stage_recipe(loaded, stage.name) for stage in loaded.training] if loaded.staged else [loaded]
    raise typer.Exit(prepare_data(recipes, out, as_json=json, anyhow=True, called=recipe))


def prepare_data(
    recipes: list[Recipe], out: Path | None = None, *, as_json: bool, anyhow: bool = False, called: str | None = None
) -> int:
    """Prepare the data of each recipe, stages with the same data once, and say what came of it.

    Args:
        recipes: of one stage each.
        out: folder for theses; of several stages with data of their own, only the last one's are written.
        as_json: print a report and nothing else.
        anyhow: theses whose tokenizer is not on this machine are prepared without tokens.
        called: what the command called the recipe; None: its name.

    Returns:
        1 where a gate did not hold, else 0.

    Raises:
        UserError: the data cannot be prepared.
    """
    from windtunnel.data import prepare as make_ready
    from windtunnel.data import prepare_theses, thesis_gates
    from windtunnel.launch import data_lines

    if out is not None:
        from windtunnel.data import require_empty

        # Before the minutes of preparing, not after.
        require_empty(out)
    made: dict[Path, Made] = {}
    for recipe in recipes:
        lacking, progress = None, data_lines(say)
        # Theses alone are read, split and judged without a tokenizer; of other data nothing would be left to prepare.
        if anyhow and recipe.data.corpus.kind == "theses":
            data, lacking = prepare_theses(recipe, progress)
        else:
            data = make_ready(recipe, progress=progress)
        # Stages with the same data share one folder, named by its content: said once.
        if data.folder not in made:
            made[data.folder] = Made(recipe, data, thesis_gates(recipe, data) if data.corpus == "theses" else [], lacking)
    written: list[Path] = []
    if out is not None:
        from windtunnel.data import export_theses

        written = export_theses(data, out, None if lacking else getattr(recipe.model, "sequence", None))
    reports = [_report(*one) for one in made.values()]
    if as_json:
        found: dict[str, Any] = reports[0] if len(reports) == 1 else {"prepared": reports}
        print_json(found | {"written": [str(path) for path in written]})
    else:
        for one in made.values():
            _show(*one, called)
        for path in written:
            typer.echo(f"wrote {path}")
    return int(any(gate.status == "fail" for one in made.values() for gate in one.gates))


class Made(NamedTuple):
    """Data as they were prepared; lacking: why they are no tokens."""

    recipe: Recipe
    data: PreparedData
    gates: list[Gate]
    lacking: MissingModel | None


def _report(recipe: Recipe, data: PreparedData, gates: list[Gate], lacking: MissingModel | None) -> dict[str, Any]:
    from dataclasses import asdict

    if lacking is not None:
        return {
            "seconds": data.seconds, "reused": data.reused, "tokenized": False, "lacks": lacking.args[0], "fix": _later(lacking),
            "theses": data.facts, "gates": [asdict(gate) for gate in gates],
        }  # fmt: skip

    found: dict[str, Any] = {
        "folder": str(data.folder), "seconds": data.seconds, "reused": data.reused, "vocabulary": data.tokenizer.vocab,
        "train_tokens": data.train.count, "validation_tokens": data.validation.count, "checksum": data.checksum,
        "train_documents": data.train_documents, "validation_documents": data.validation_documents,
        "skipped": data.skipped, "notes": list(data.notes),
    }  # fmt: skip
    if data.test is not None:
        found |= {"test_tokens": data.test.count, "theses": data.facts, "gates": [asdict(gate) for gate in gates]}
    return found


def _later(lacking: MissingModel) -> str:
    """Return what brings the tokenizer."""
    return f"windtunnel fetch {lacking.name} --only tokenizer (megabytes), then the same command"


def _show(recipe: Recipe, data: PreparedData, gates: list[Gate], lacking: MissingModel | None, called: str | None) -> None:
    from windtunnel.launch import look_before_training

    name = f"{recipe.name}, stage {recipe.stage}" if recipe.stage else recipe.name
    if data.test is not None:
        _show_theses(name, data, tokens=lacking is None)
    else:
        rows = [
            ["train", f"{data.train_documents:,}", f"{data.train.count:,}"],
            ["validation", f"{data.validation_documents:,}", f"{data.validation.count:,}"],
        ]
        print_table(f"prepared data of {name}", ("split", "documents", "tokens"), rows)
    for note in data.notes if lacking is None else data.notes[:-1]:
        typer.echo(note)
    for character, count in data.skipped.items():
        typer.echo(f"{count:,} x {character!r} outside the alphabet skipped")
    if lacking is None:
        typer.echo(f"{'found' if data.reused else 'made'} in {data.folder}; checksum {data.checksum}\n")
    else:
        typer.echo(_lengths(recipe, data) + "\n")
    if gates:
        print_table("gates", ("", "gate", "found"), [[gate.status, gate.name, gate.text] for gate in gates], whole=("", "gate"))
        print_remarks([(f"{gate.name}:", fix) for gate in gates for fix in gate.fixes])
    if lacking is not None:
        typer.echo(f"not tokenized: {lacking.args[0]}\n  next: {_later(lacking)}")
        return
    for line in look_before_training(recipe, data, called=called, colour=has_colours()):
        typer.echo(line)


def _lengths(recipe: Recipe, data: PreparedData) -> str:
    """Say how long theses are in bytes, and what that says about tokens."""
    size = data.facts["thesis_bytes"]
    sequence = getattr(recipe.model, "sequence", None)
    text = f"question and answer have {size['shortest']:,} to {size['longest']:,} bytes, {size['median']:,} in the middle"
    if sequence is None:
        return text
    if size["longest"] < sequence / 2:
        return f"{text}: that fits model.sequence {sequence:,}, since a token is at least a byte and half is left to the template"
    return f"{text}; whether the longest fit model.sequence {sequence:,} the tokenizer will show"


def _show_theses(name: str, data: PreparedData, *, tokens: bool) -> None:
    """Print how many theses and tokens (or bytes) each split has, and how frequent each action is."""
    from windtunnel.recipe import ACTIONS

    rows = []
    for split, written in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        counts, kept = data.facts["labels"][split], data.facts["kept"][split]
        assert written is not None
        size = written.count if tokens else data.facts["bytes"][split]
        rows.append([split, f"{kept:,}", f"{size:,}", *(f"{counts[action] / max(1, kept):.0%}" for action in ACTIONS)])
    # Five actions beside each other have to fit 80 columns.
    short = [action.replace("STRONG_", "S.") for action in ACTIONS]
    print_table(
        f"prepared theses of {name}", ("split", "theses", "tokens" if tokens else "bytes", *short), rows, whole=("split",)
    )
