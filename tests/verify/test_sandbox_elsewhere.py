"""On systems whose kernel gives no sandbox the message says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

ELSEWHERE = """
import sys
for module in sys.argv[2:]:
    sys.modules[module] = None
from windtunnel.recipe import UserError
from windtunnel.verify import compiler_sandbox, find_task, kernel_sandbox
find_task("relu")
sys.platform = sys.argv[1]
for make in (kernel_sandbox, compiler_sandbox):
    try:
        make()
    except UserError as error:
        print(error.message, error.fix)
"""


@pytest.mark.parametrize(
    ("platform", "name", "missing"), [("darwin", "macOS", []), ("win32", "Windows", ["fcntl", "resource", "pwd", "grp"])]
)
def test_a_container_is_named_where_there_is_no_sandbox(platform: str, name: str, missing: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, platform, *missing], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert f"this is {name}" in line
        assert 'docker run --rm -it -v "${PWD}:/work" -w /work python:3.12' in line
