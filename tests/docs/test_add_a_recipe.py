"""docs/add-a-recipe.md followed to the letter: its files are written, its commands run, and what they print compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "add-a-recipe.md"
PROGRAMS = {"pip": [sys.executable, "-m", "pip"], "windtunnel": [sys.executable, "-m", "windtunnel"]}


def files(page: str) -> dict[str, str]:
    """The files of the page: a block of code under a line that is nothing but the file's name."""
    return dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", page, re.M | re.S))


def commands(page: str) -> list[tuple[str, str]]:
    """(command, what it prints) of all consoles, in order."""
    found = []
    for console in re.findall(r"^```console\n(.*?)^```$", page, re.M | re.S):
        for part in re.split(r"^\$ ", console, flags=re.M)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def like(printed: str, expected: str) -> bool:
    """Whether a text is the expected one, where `...` stands for anything and white space for white space."""
    parts = [" ".join(part.split()) for part in expected.split("...")]
    return re.fullmatch(".*".join(map(re.escape, parts)), " ".join(printed.split())) is not None


@pytest.mark.timeout(600)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in files(page).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert len(files(page)) == 5
    site = tmp_path / "site"
    environment = os.environ | {
        "PIP_NO_INDEX": "1",
        "PIP_TARGET": str(site),
        "PYTHONPATH": str(site),
        "WINDTUNNEL_CACHE": str(tmp_path / "cache"),
        "WINDTUNNEL_RUNS": "runs",
        "OMP_NUM_THREADS": "2",
    }
    asked = commands(page)
    assert len(asked) == 6
    for command, expected in asked:
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [*PROGRAMS[program], *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        printed = done.stdout + done.stderr
        assert like(printed, expected), f"$ {command}\n{printed}\nis not\n{expected}"
        assert (done.returncode == 0) == ("error:" not in expected and "unknown key" not in expected), printed
        assert "Traceback" not in printed


def test_a_text_is_compared_with_gaps() -> None:
    assert like("a  b\nc", "a b c")
    assert like("a 0.1 s\nmore\nend", "a ... s\n...\nend")
    assert like("xx installed y\n", "...installed...")
    assert not like("a b c", "a c")
    assert not like("a b", "a b c")
