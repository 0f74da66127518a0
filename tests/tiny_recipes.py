"""The smallest recipe that trains on a text file, for as long as it is let: for tests of what happens around training."""

from __future__ import annotations

from pathlib import Path

TEXT = """
extends: charlm
name: tiny
model: {depth: 2, aspect: 16, head_dim: 16, sequence: 32}
data: {corpus: {kind: text, files: [text.txt], separator: "\\n"}, tokenizer: {kind: character, alphabet: auto}, validation: 0.1}
stages:
  pretrain: {batch_tokens: 512, micro_batch: 8, validate_every: 1000000 steps, validation_tokens: 2048}
budget: {hours: null, steps: 1000000}
checkpoints: {every: 20 steps, keep_last: 2, keep_hourly: false}
"""


def write_tiny(folder: Path) -> Path:
    """Write the recipe and its text into a folder; returns the recipe's file."""
    lines = (f"{number * number} quick brown foxes jump over {number} lazy dogs.\n" for number in range(4000))
    (folder / "text.txt").write_text("".join(lines))
    (folder / "tiny.yaml").write_text(TEXT)
    return folder / "tiny.yaml"
