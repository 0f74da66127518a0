"""Writes the tables of results in docs/sudoku.md, docs/trm.md and docs/flop-matched.md from the reports under benchmarks/results.

    python benchmarks/pages.py

What stands there between `<!-- made by benchmarks/pages.py: NAME -->` and `<!-- end: NAME -->` is replaced; a name is a block of
pages_sudoku.py, pages_presets.py, pages_phase.py or pages_flop_matched.py. A block whose report is missing says which command
writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages_flop_matched import flop_matched, in_short
from pages_phase import phase_one
from pages_presets import presets
from pages_sudoku import sudoku

HERE = Path(__file__).resolve().parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
Block = Callable[[dict[str, Any]], str]
# Name -> (page, report, how it is written, the script that writes the report).
BLOCKS: dict[str, tuple[str, str, Block, str]] = {
    "sudoku-h200": ("sudoku.md", "sudoku-h200.json", sudoku, "sudoku.py"),
    "presets-cpu": ("trm.md", "presets-cpu.json", presets, "presets.py --tiny"),
    "presets-h200": ("trm.md", "presets-h200.json", presets, "presets.py"),
    "trm-phase-1-h200": ("trm.md", "trm-phase-1-h200.json", phase_one, "phase_one.py"),
    "flop-matched-h200-in-short": ("trm.md", "flop-matched-h200.json", in_short, "flop_matched.py"),
    "flop-matched-h200": ("flop-matched.md", "flop-matched-h200.json", flop_matched, "flop_matched.py"),
}


def block(name: str) -> str:
    """The text of a block."""
    _, file, make, script = BLOCKS[name]
    if not (RESULTS / file).exists():
        return f"Not measured yet: `python benchmarks/{script} --out benchmarks/results/{file}`.\n"
    return make(json.loads((RESULTS / file).read_text("utf-8")))


def replaced(page: str, text: str) -> str:
    """A page's text with its blocks written anew.

    Raises:
        ValueError: a block has no place in the page.
    """
    for name, (own, *_) in BLOCKS.items():
        if own != page:
            continue
        first, last = f"<!-- made by benchmarks/pages.py: {name} -->", f"<!-- end: {name} -->"
        found = re.compile(re.escape(first) + ".*?" + re.escape(last), re.DOTALL)
        if not found.search(text):
            raise ValueError(f"docs/{page} has no place for {name}: {first} ... {last}")
        whole = f"{first}\n\n{block(name).strip()}\n\n{last}"
        text = found.sub(lambda _, whole=whole: whole, text)
    return text


def main() -> None:
    for page in sorted({page for page, *_ in BLOCKS.values()}):
        path = DOCS / page
        before = path.read_text("utf-8")
        after = replaced(page, before)
        path.write_text(after, "utf-8")
        print(f"docs/{page}: {'as it was' if after == before else 'written'}")


if __name__ == "__main__":
    main()
