"""A small recipe, and a Slurm of two nodes on this machine that serves all tests of a file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_here import SlurmHere, missing

RECIPE = """
extends: charlm
name: tiny
model: {depth: 2, aspect: 16, head_dim: 16, sequence: 32}
data: {corpus: {kind: text, files: [text.txt], separator: "\\n"}, tokenizer: {kind: character, alphabet: auto}, validation: 0.1}
stages:
  pretrain: {batch_tokens: 512, micro_batch: 8, validate_every: 1000000 steps, validation_tokens: 2048}
budget: {hours: null, steps: 1000000}
checkpoints: {every: 20 steps, keep_last: 2, keep_hourly: false}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that trains for as long as it is let, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"the quick brown fox {i} jumps over {i * 7 % 13}\n" for i in range(3000)))
    Path("tiny.yaml").write_text(RECIPE)
    return tmp_path / "tiny.yaml"


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmHere]:
    """Two nodes, n1 and n2."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    folder = Path(tempfile.mkdtemp(prefix="wts-", dir="/tmp"))  # sockets lie in it: their paths must be short
    try:
        with SlurmHere(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
