"""The honest suite: every task in its plain solution, then the same tasks in other block sizes, walks, orders and styles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from honest import gemm, layout, pointwise, rowwise, strided
from honest.render import Solution, Style, render

PLAIN = Style()
STYLES = (
    Style("keyword", launch="keyword", warps=4),
    Style("lambda", launch="lambda", stages=2),
    Style("meta", launch="meta", warps=2, stages=3),
    Style("closure", launch="closure", alias="from"),
    Style("short", alias="short", documented=True),
    Style("dataclass", config="dataclass", documented=True, warps=8),
    Style("attribute", config="attribute", launch="lambda"),
    Style("wrapped", wrapped=True, alias="from"),
    Style("method", method=True, documented=True),
    Style("autotune", autotune="BLOCK", launch="lambda"),
    Style("autotune-warps", autotune="", launch="keyword"),
    Style("stages-1", stages=1, launch="meta", alias="short"),
)


@dataclass(frozen=True)
class Honest:
    """One honest candidate: a unique name, the task it solves, its text."""

    name: str
    task: str
    source: str


def plain() -> dict[str, Solution]:
    """The plain solution of every task."""
    return {**pointwise.solutions(), **rowwise.solutions(), **gemm.solutions(), **layout.solutions(), **strided.solutions()}


def suite() -> list[Honest]:
    """All honest candidates, in a fixed order."""
    found = [Honest(f"{task}/plain", task, render(solution, PLAIN)) for task, solution in plain().items()]
    found += _variants()
    found += list(_files())
    names = [candidate.name for candidate in found]
    assert len(names) == len(set(names)), "two honest candidates have one name"
    return found


def _variants() -> list[Honest]:
    """Each variant of a template is dealt to every third task of its table, each with the next style."""
    tables: list[tuple[str, dict[str, Solution]]] = [
        ("block-256", pointwise.solutions(block=256)),
        ("block-32", pointwise.solutions(block=32)),
        ("helper", pointwise.solutions(helper=True)),
        ("two-blocks", pointwise.solutions(block=64, per_program=2)),
        ("several-rows", rowwise.solutions("several")),
        ("stride", rowwise.solutions("stride")),
        ("one-row", rowwise.solutions("one")),
        ("tile-32-16-16", gemm.solutions((32, 16, 16), "into", "line")),
        ("tile-16-32-32", gemm.solutions((16, 32, 32), "add", "grouped")),
        ("tf32", gemm.solutions((16, 16, 32), "tf32", "line")),
        ("upcast", gemm.solutions((32, 32, 16), "upcast", "grouped")),
        ("block-64", layout.solutions(64) | strided.solutions(64)),
        ("block-512", layout.solutions(512) | strided.solutions(512)),
    ]
    found, turn = [], 0
    for kind, (variant, table) in enumerate(tables):
        for place, (task, solution) in enumerate(table.items()):
            if (place + kind) % 2:
                continue
            style = STYLES[turn % len(STYLES)]
            turn += 1
            found.append(Honest(f"{task}/{variant}-{style.name}", task, render(solution, style)))
    return found


def _files() -> Iterator[Honest]:
    """Hand-written ones: the first line of each names its task."""
    for path in sorted((Path(__file__).parent / "files").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        head = text.splitlines()[0]
        assert head.startswith("# task: "), f"{path.name}: its first line must be '# task: NAME'"
        yield Honest(f"{head.removeprefix('# task: ')}/{path.stem}", head.removeprefix("# task: "), text)
