"""Groups of version 2 are divided as the kernel allows it: by a real one, mounted for a process that is root."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAD = """
import os, subprocess, sys
from pathlib import Path
from windtunnel.verify.sandbox import cgroup
from windtunnel.verify.sandbox.syscalls import MS_PRIVATE, MS_REC, NEWNS, libc, unshare
try:
    unshare(NEWNS)
    libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    libc("mount", b"none", sys.argv[1].encode(), b"cgroup2", 0, None)
    root = Path(sys.argv[1])
    before = root / [line[4:] for line in open("/proc/self/cgroup").read().splitlines() if line.startswith("0::/")][0]
    name = root.joinpath("cgroup.controllers").read_text().split()[0]
    switch = root / "cgroup.subtree_control"
    was_on = name in switch.read_text().split()
    if not was_on:
        switch.write_text("+" + name)
    own = root / f"test-{os.getpid()}"
    own.mkdir()
    (own / "cgroup.procs").write_text(str(os.getpid()))
except (OSError, IndexError) as error:
    print("skip", error)
    sys.exit()
def here():
    return [line[4:] for line in open("/proc/self/cgroup").read().splitlines() if line.startswith("0::/")][0]
"""
TAIL = """
(before / "cgroup.procs").write_text(str(os.getpid()))
for group in (*own.iterdir(), own):
    if group.is_dir():
        group.rmdir()
if not was_on:
    switch.write_text("-" + name)
print("done")
"""
ALONE = """
assert cgroup.divided(own, name) == own
place = own / f"windtunnel-{os.getpid()}-judge"
assert here().endswith(place.name), here()
assert cgroup.divided(place, name) == own
(own / "below").mkdir()
assert name in (own / "below" / "cgroup.controllers").read_text().split()
"""
NOT_ALONE = """
other = subprocess.Popen(["sleep", "60"])
try:
    cgroup.divided(own, name)
    print("divided although another one is in it")
except OSError as error:
    assert "holds 2 processes" in str(error), error
assert here().endswith(own.name), here()
other.kill()
other.wait()
assert [child.name for child in own.iterdir() if child.is_dir()] == []
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("case", [ALONE, NOT_ALONE], ids=["alone", "not alone"])
def test_only_a_process_that_is_alone_goes_into_a_group_below_its_own(tmp_path, case: str) -> None:
    command = [sys.executable, "-c", HEAD + case + TAIL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.startswith("skip"):
        pytest.skip(f"no group of version 2 can be made here: {done.stdout}")
    assert done.stdout.strip() == "done", done.stdout + done.stderr
