"""Children that last, files that are handed over, replies that stay where they are, and clocks of phases."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.verify.sandbox import Limits, MiB, Outcome, Sandbox, SandboxJob
from windtunnel.verify.sandbox.channel import EARLY_AT, MARK, PHASE_BYTES, BadReply, Early, memory_file, read_spans, write_reply

CHILD = "windtunnel.verify.code.child"
LIMITS = Limits(wall_seconds=120, cpu_seconds=30, memory_bytes=256 * MiB, result_bytes=8 * MiB)
COUNT = "import sys\ndef f():\n sys.count = getattr(sys, 'count', 0) + 1\n return sys.count"


def job(body: str, limits: Limits = LIMITS, **more: object) -> SandboxJob:
    """Source that defines f, which is called."""
    message = {"source": body, "function": "f", "args": [], "kwargs": {"dict": []}}
    return SandboxJob(f"{CHILD}:call", message, (), limits, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["namespaces", "without namespaces"])
def lasting(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(preload=(CHILD,), namespaces=request.param == "namespaces", lasting=True) as made:
        yield made


def count(sandbox: Sandbox) -> int:
    """How many jobs this child has counted, this one included."""
    outcome = sandbox.run(job(COUNT))
    assert outcome.finished, outcome
    return int(outcome.message["value"])


def test_one_child_serves_all_jobs_and_is_locked_in_like_any(lasting: Sandbox) -> None:
    layers = lasting.start()
    assert layers.hardened, layers.as_json()
    first = count(lasting)
    assert lasting.run(job("def f(): 1 / 0")).status == "raised"
    assert count(lasting) == first + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("import os\ndef f(): os._exit(3)", "exited"),
        ("import ctypes\ndef f(): ctypes.string_at(0)", "killed"),
        ("def f():\n while True: pass", "timeout"),
    ],
)
def test_a_lasting_child_that_ends_is_told_of_and_replaced(lasting: Sandbox, body: str, status: str) -> None:
    count(lasting)
    limits = Limits(wall_seconds=1, cpu_seconds=30, memory_bytes=256 * MiB, result_bytes=8 * MiB)
    assert lasting.run(job(body, limits)).status == status
    assert count(lasting) == 1
    assert lasting.restarts == 0


def test_other_limits_need_another_child(lasting: Sandbox) -> None:
    count(lasting)
    other = Limits(wall_seconds=120, cpu_seconds=30, memory_bytes=128 * MiB, result_bytes=8 * MiB)
    assert lasting.run(job(COUNT, other)).message["value"] == 1


def test_a_lasting_child_leaves_no_descriptors(lasting: Sandbox) -> None:
    """Each job is handed files; what stays open of them would add up."""
    body = "import os\ndef f():\n fd = os.open('/dev/null', os.O_RDONLY)\n os.close(fd)\n return fd"
    with tempfile.TemporaryFile() as file:
        lowest = {lasting.run(job(body, files=(file.fileno(), file.fileno()))).message["value"] for _ in range(5)}
    assert len(lowest) == 1


def test_files_that_a_library_keeps_open_outlast_the_job_that_opened_them(lasting: Sandbox) -> None:
    """As a GPU's driver does with its devices and sockets."""
    opens = "import os, sys\ndef f():\n sys.kept = [os.pipe() for _ in range(30)]"
    uses = "import os, sys\ndef f():\n for at, (r, w) in enumerate(sys.kept):\n  os.write(w, b'%d' % at)\n"
    uses += " return [int(os.read(r, 9)) for r, _ in sys.kept]"
    with tempfile.TemporaryFile() as file:
        for body in (opens, COUNT):
            assert lasting.run(job(body, files=(file.fileno(),) * 8)).finished
        answer = lasting.run(job(uses, files=(file.fileno(),) * 8)).message["value"]
    assert (answer["list"] if isinstance(answer, dict) else answer) == list(range(30))


@pytest.mark.parametrize("lasts", [False, True])
def test_a_child_finds_the_files_it_is_handed(lasts: bool) -> None:
    body = "import os\ndef f(): return [os.pread(fd, 9, 0).decode() for fd in (40, 41)]"
    with Sandbox(preload=(CHILD,), lasting=lasts) as sandbox, tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as two:
        for file, text in ((one, b"first"), (two, b"second")):
            file.write(text)
            file.flush()
        for _ in range(2):
            outcome = sandbox.run(job(body, files=(one.fileno(), two.fileno())))
            assert outcome.message["value"] == {"list": ["first", "second"]} or outcome.message["value"] == ["first", "second"]


def test_buffers_written_early_stay_in_the_file_until_they_are_wanted() -> None:
    fd = memory_file("reply", EARLY_AT + MiB)
    try:
        early = Early(fd)
        assert early.add([b"abc", bytearray(b"de")]) == 0
        assert early.add([]) == 1
        assert early.add([memoryview(b"fgh")]) == 2
        with pytest.raises(OverflowError):
            early.add([bytes(MiB)])
        write_reply({"kind": "reply", "reply": {}}, early, fd)
        found = read_spans(fd)
        assert found is not None
        assert [os.pread(fd, size, at) for at, size in found[1]] == [b"abcde", b"", b"fgh"]
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "body",
    [
        b'{"": [1], "@": 0}',
        b'{"": [1], "@": -5}',
        b'{"": [1], "@": 1e300}',
        b'{"": [1], "@": null}',
        b'{"": [99999999999], "@": %d}' % EARLY_AT,
        b'{"": [-1, 1]}',
        b'{"": [true]}',
        b"{}",
    ],
)
def test_forged_places_of_buffers_are_not_read(body: bytes) -> None:
    fd = memory_file("reply", EARLY_AT + 4096)
    try:
        os.pwrite(fd, len(body).to_bytes(8, "little") + MARK + body, PHASE_BYTES)
        with pytest.raises(BadReply):
            read_spans(fd)
    finally:
        os.close(fd)


def run_in_phase(sandbox: Sandbox, phase: str, seconds: float, phases: tuple[tuple[str, float], ...], wall: float) -> Outcome:
    """A child that is in a phase for so long."""
    body = (
        f"import time\nfrom windtunnel.verify.sandbox import note\ndef f():\n note({phase!r})\n time.sleep({seconds})\n note('x')"
    )
    return sandbox.run(job(body, Limits(wall_seconds=wall, cpu_seconds=30, result_bytes=8 * MiB, phases=phases)))


def test_a_phase_has_a_clock_of_its_own() -> None:
    with Sandbox(preload=(CHILD,)) as sandbox:
        assert run_in_phase(sandbox, "waiting", 1.0, (("waiting", 60.0),), wall=0.7).finished
        assert run_in_phase(sandbox, "waiting", 60.0, (("waiting", 0.3),), wall=60.0).status == "timeout"
        assert run_in_phase(sandbox, "waiting: to begin", 60.0, (("waiting", 0.3),), wall=60.0).status == "timeout"
        assert run_in_phase(sandbox, "other", 60.0, (("waiting", 60.0),), wall=0.3).status == "timeout"


@pytest.mark.parametrize("namespaces", [True, False])
def test_memory_files_that_nobody_has_mapped_are_counted_too(namespaces: bool) -> None:
    """A GPU's user may make such files; their pages are in no process's resident size."""
    body = "import os, time\ndef f():\n fd = os.memfd_create('x')\n for _ in range(2000): os.write(fd, bytes(1 << 20))\n"
    body += " time.sleep(1000)"  # it is still there whenever it is looked at
    limits = Limits(wall_seconds=HANG, cpu_seconds=int(HANG), memory_bytes=64 * MiB, result_bytes=MiB, file_bytes=4096 * MiB)
    with Sandbox(preload=(CHILD,), devices=("/dev/null",), namespaces=namespaces) as sandbox:
        assert sandbox.run(job(body, limits)).status == "memory"
        assert sandbox.run(job("def f(): return 1", limits)).finished
        assert sandbox.restarts == 0


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_compiler_can_be_started_where_processes_are_allowed(namespaces: bool) -> None:
    """As Triton does on a GPU: with its output thrown away, and the library that comes out is loaded."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    body = """
import ctypes, os, subprocess
def f():
    with open("x.c", "w") as file:
        file.write("int six(void) { return 6; }")
    subprocess.check_call(["cc", "x.c", "-shared", "-fPIC", "-o", "x.so"], stdout=subprocess.DEVNULL)
    return ctypes.CDLL(os.path.abspath("x.so")).six()
"""
    limits = Limits(wall_seconds=30, cpu_seconds=30, processes=16, threads=64)
    with Sandbox(preload=(CHILD,), devices=("/dev/null",), namespaces=namespaces) as sandbox:
        outcome = sandbox.run(job(body, limits))
        if "root's processes" in outcome.detail:
            pytest.skip("as root, with a Python that only root can read, nothing may be started")
        assert outcome.message.get("value") == 6, outcome


def test_a_memory_cgroup_goes_with_its_worker() -> None:
    with Sandbox(preload=(CHILD,)) as sandbox:
        if not sandbox.start().active("memory cgroup"):
            pytest.skip("this process may not make one")
        worker = sandbox._worker
        assert worker is not None
        group = worker.group
        assert isinstance(group, Path)
        assert group.is_dir()
    assert not group.exists()
