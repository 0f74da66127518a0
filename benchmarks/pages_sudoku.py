"""The results of `sudoku.py` as they stand in docs/sudoku.md."""

from __future__ import annotations

from typing import Any

from pages_table import percent, power, table

STEPS = (1, 2, 4, 8, 16, 24, 32)
EQUAL = 0.99
"""Share of the FLOPs from which they count as equal."""


def sudoku(report: dict[str, Any]) -> str:
    """What each model was given, what became of it, and what is solved after each supervision step."""
    models = {name: found for name, found in report["results"].items() if "error" not in found}
    dates = sorted({part["date"][:10] for part in (report, report.get("completed", report))})
    failed = [f"`{name}` broke: {found['error']}" for name, found in report["results"].items() if "error" in found]
    notes = report["puzzles"]["notes"][0]
    parts = [
        f"`benchmarks/results/sudoku-h200.json`, {', '.join(dates)}, {notes.partition(' puzzles')[0]} puzzles, one seed:",
        compared(models),
        *failed,
        shares({name: found for name, found in models.items() if name != "recursive"}),
        f"Solved in percent after so many supervision steps at inference; {trained(models)} are trained, more are had with "
        "`evaluate --supervision`. What is not hard was never trained on:",
        by_step(models),
    ]
    return "\n\n".join(part for part in parts if part)


def trained(models: dict[str, Any]) -> int:
    """Supervision steps of the recursive model."""
    steps: int = models["recursive"]["evaluation"]["puzzles"]["supervision"]["trained"]
    return steps


def title(name: str, found: dict[str, Any]) -> str:
    """A model's column."""
    if name == "recursive":
        return "recursive, the recipe as it ships"
    depth, aspect = (int(found["keys"][key]) for key in ("model.depth", "model.aspect"))
    width = -(-depth * aspect // 64) * 64
    return f"{name}: {depth} layers of {width}"


def updates(name: str, found: dict[str, Any]) -> int:
    """Updates of the weights."""
    return int(found["steps"]) * (found["evaluation"]["puzzles"]["supervision"]["trained"] if name == "recursive" else 1)


def compared(models: dict[str, Any]) -> str:
    """A column a model."""
    hard = {name: found["evaluation"]["puzzles"]["kinds"][0] for name, found in models.items()}
    rows = {
        "parameters": [f"{found['parameters'] / 1e6:.3g} M" for found in models.values()],
        "training FLOPs": [power(found["flops"]) for found in models.values()],
        "training": [f"{found['steps']:,} steps of {found['batch']} puzzles" for found in models.values()],
        "updates of the weights": [f"{updates(name, found):,}" for name, found in models.items()],
        "puzzles seen": [f"{found['puzzles_seen']:,}" for found in models.values()],
        "averaged weights": ["no" if found["keys"].get("trm") == "null" else "yes" for found in models.values()],
        "loss on held-out puzzles, nats a cell": [f"{found['evaluation']['validation_loss']:.3f}" for found in models.values()],
        "blank cells right, held out": [f"{percent(kind['cells'])} %" for kind in hard.values()],
        "hard, held out, solved": [
            "{} % ({} to {}) of {:,}".format(
                *(percent(kind["exact"][key]) for key in ("share", "low", "high")), kind["exact"]["n"]
            )
            for kind in hard.values()
        ],
    }
    return table(["", *(title(name, found) for name, found in models.items())], [[row, *cells] for row, cells in rows.items()])


def shares(plain: dict[str, Any]) -> str:
    """Who had how much of the FLOPs."""
    equal = [name for name, found in plain.items() if found["flops_share"] >= EQUAL]
    less = [f"{name} had {found['flops_share']:.2f} of them" for name, found in plain.items() if found["flops_share"] < EQUAL]
    words = [f"Equal FLOPs: {', '.join(equal)}."] if equal else []
    if less:
        words.append(
            f"**Fewer FLOPs**: {'; '.join(less)}, because a limit of time was met first. The learning rate had fallen to the end "
            "by then: a finished training, but a shorter one."
        )
    if averaged := [name for name, found in plain.items() if found["keys"].get("trm") != "null"]:
        words.append(
            f"{' and '.join(averaged)}: a stack that is looped once, which is the plain transformer bit for bit and has averaged "
            "weights as the recursive model does."
        )
    words.append("Rates are those that the rules give each; no plain model was tuned.")
    return " ".join(words)


def by_step(models: dict[str, Any]) -> str:
    """A row a kind of puzzle, a column a number of supervision steps, then the plain models."""
    own, others = models["recursive"], {name: found for name, found in models.items() if name != "recursive"}
    kinds = own["evaluation"]["puzzles"]["kinds"]
    columns = [n for n in STEPS if n <= len(kinds[0]["exact_by_step"])]
    head = ["puzzles", "number", *(f"**{n}**" if n == trained(models) else str(n) for n in columns), *others]
    rows = []
    for number, kind in enumerate(kinds):
        shares = [percent(kind["exact_by_step"][n - 1]) for n in columns]
        shares = [f"**{share}**" if n == trained(models) else share for n, share in zip(columns, shares, strict=True)]
        plain = [percent(found["evaluation"]["puzzles"]["kinds"][number]["exact"]["share"]) for found in others.values()]
        rows.append([words_of(kind["kind"]), f"{kind['exact']['n']:,}", *shares, *plain])
    return table(head, rows)


def words_of(kind: str) -> str:
    """A kind of puzzle; parts of one are set off."""
    whole, _, part = kind.partition(", ")
    return f"– {part.replace('1 guesses', '1 guess')}" if part else whole
