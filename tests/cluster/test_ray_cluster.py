"""Ray brought up and ended again; what keeps it from coming up is named."""

import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from windtunnel.cluster.ray_cluster import PORT, RayCluster, own_address
from windtunnel.recipe import UserError

pytestmark = pytest.mark.end_to_end


def never() -> None:
    """Stand for nobody who asks to stop."""


def test_one_node_comes_up_with_its_cpus_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    temporary = Path("/tmp") / f"wtr-{os.getpid()}"  # sockets lie in it: their paths must be short
    monkeypatch.setenv("TMPDIR", str(temporary))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # so that they are taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)  # as a Ray of this machine alone leaves it
    told: list[str] = []
    cluster = RayCluster((sys.executable,), ["n1"], 0, tmp_path)
    try:
        assert cluster.up(told.append, never) == []
    finally:
        cluster.down()
    assert told[-1] == f"Ray: 1 of 1 nodes, 3 CPUs, 0 GPUs at {cluster.address}"
    assert all(line.startswith("waiting for Ray") for line in told[:-1])  # on a busy machine
    place = str(temporary)
    left = [p for p in psutil.process_iter(["cmdline"]) if any(place in word for word in p.info["cmdline"] or ())]
    assert not psutil.wait_procs(left, 20)[1]


def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv(PORT, str(taken.getsockname()[1]))
        with pytest.raises(UserError, match=rf"{PORT}={taken.getsockname()[1]}: the port is taken on"):
            RayCluster((sys.executable,), ["n1"], 0, tmp_path).up(print, never)
    monkeypatch.setenv(PORT, "many")
    with pytest.raises(UserError, match="is no port"):
        RayCluster((sys.executable,), ["n1"], 0, tmp_path).up(print, never)


def test_a_head_that_ends_is_told_with_what_it_said(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'RuntimeError: Version mismatch: 2.60.0 and 2.50.0'\necho bye\nexit 1\n")
    program.chmod(0o755)
    cluster = RayCluster((str(program),), ["n1"], 0, tmp_path)
    began = time.monotonic()
    with pytest.raises(UserError, match="head ended with exit code 1: RuntimeError: Version mismatch"):
        cluster.up(print, never)
    cluster.down()
    assert time.monotonic() - began < 60  # named within a minute


def test_the_own_address_is_one_of_this_machine() -> None:
    assert socket.inet_aton(own_address(["here", "a-node-that-has-no-name"]))
