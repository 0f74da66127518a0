"""A small recipe, and a Slurm of two nodes on this machine that serves all tests of a file."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_here import SlurmHere, missing
from tiny_recipes import write_tiny


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that trains for as long as it is let, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_tiny(tmp_path)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmHere]:
    """Two nodes, n1 and n2."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    folder = Path(tempfile.mkdtemp(prefix="wts-", dir="/tmp"))  # sockets lie in it: their paths must be short
    try:
        with contextlib.ExitStack() as stack:
            try:
                found = stack.enter_context(SlurmHere(folder))
            except AssertionError as error:  # a container may not let its daemons run: that is not what is tested
                pytest.skip(f"Slurm does not start on this machine: {str(error)[-500:]}")
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
