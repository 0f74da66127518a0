"""The sandbox: what a candidate may not do, and what it costs the others when it tries."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from waiting import HANG

import windtunnel
from windtunnel.verify.sandbox import Limits, MiB, Outcome, Sandbox, SandboxJob
from windtunnel.verify.sandbox.channel import memory_file, write_request
from windtunnel.verify.sandbox.inner import Room
from windtunnel.verify.sandbox.starting import PASSED_ON
from windtunnel.verify.sandbox.watching import _Idle

CHILD = "windtunnel.verify.code.child"
SMALL = Limits(wall_seconds=120, cpu_seconds=3, memory_bytes=128 * MiB, file_bytes=8 * MiB, result_bytes=MiB, log_bytes=4096)


@pytest.fixture(scope="module", params=["namespaces", "without namespaces"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A warm worker as this machine allows it, and one as in a container that forbids namespaces."""
    with Sandbox(preload=(CHILD,), namespaces=request.param == "namespaces") as made:
        yield made


def run(sandbox: Sandbox, body: str, limits: Limits = SMALL) -> Outcome:
    """Run source that defines f; the value it returns is in message['value']."""
    return sandbox.run(
        SandboxJob(f"{CHILD}:call", {"source": body, "function": "f", "args": [], "kwargs": {"dict": []}}, (), limits)
    )


def value(sandbox: Sandbox, body: str) -> object:
    """What f returns; it must return."""
    outcome = run(sandbox, body)
    assert outcome.finished, outcome
    return outcome.message["value"]


def refused(sandbox: Sandbox, expression: str, imports: str = "import os") -> str:
    """The name of the exception that an expression raises in a child."""
    body = f"{imports}\ndef f():\n try:\n  {expression}\n except BaseException as e:\n  return type(e).__name__\n return 'worked'"
    return str(value(sandbox, body))


def own_files(sandbox: Sandbox) -> object:
    """What lies in a fresh child's folder, beside an environment under /tmp, which is shown there read-only."""
    return value(sandbox, "import os\ndef f(): return [name for name in os.listdir('.') if os.access(name, os.W_OK)]")


def alive(sandbox: Sandbox) -> bool:
    """The worker still answers and was never replaced."""
    return value(sandbox, "def f(): return 42") == 42 and sandbox.restarts == 0


def test_one_that_sleeps_is_ended_long_before_one_that_works(sandbox: Sandbox) -> None:
    limits = replace(SMALL, cpu_seconds=10, idle_seconds=2)
    outcome = run(sandbox, "import time\ndef f(): time.sleep(600)", limits)
    assert (outcome.status, outcome.detail) == ("timeout", "used no CPU time for 2 s")
    works = "import time\ndef f():\n end = time.process_time() + 3\n while time.process_time() < end: pass\n return 1"
    assert run(sandbox, works, limits).message["value"] == 1
    assert alive(sandbox)


@pytest.mark.parametrize(("state", "ended"), [("S", True), ("R", False)])
def test_one_that_waits_for_a_cpu_is_not_taken_for_one_that_sleeps(state: str, ended: bool, tmp_path: Path) -> None:
    (tmp_path / "7/task/8").mkdir(parents=True)
    (tmp_path / "7/stat").write_text(f"7 (python) S {'0 ' * 50}")
    (tmp_path / "7/task/8/stat").write_text(f"8 (a ) R) {state} {'0 ' * 50}")
    proc = os.open(tmp_path, os.O_RDONLY)
    idle = _Idle(replace(SMALL, idle_seconds=30), 7, cast("Room", SimpleNamespace(proc_fd=proc)))
    assert not idle.too_long()
    idle.since -= 60
    idle.next = 0.0
    assert idle.too_long() == ended
    os.close(proc)


def test_it_is_hardened_here_and_a_trial_child_cannot_get_out(sandbox: Sandbox) -> None:
    layers = sandbox.start()
    assert layers.breaches == ()
    assert layers.hardened, layers.as_json()


def test_a_value_comes_back_with_what_it_cost(sandbox: Sandbox) -> None:
    outcome = run(
        sandbox,
        "def f():\n x = bytearray(50 * 2**20)\n x[::4096] = b'x' * len(x[::4096])\n print('hello')\n return [1, 2.5, 'é']",
    )
    assert outcome.finished
    assert outcome.message["value"] == [1, 2.5, "é"]
    assert outcome.log == "hello\n"
    assert 40 * MiB < outcome.peak_bytes < 120 * MiB
    assert outcome.wall_seconds > 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("def f():\n while True: pass", "timeout"),
        ("import time\ndef f(): time.sleep(60)", "timeout"),
        ("import signal, time\ndef f():\n [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n time.sleep(60)", "timeout"),
        ("def f(): return 1 / 0", "raised"),
        ("import ctypes\ndef f(): ctypes.string_at(0)", "killed"),
        ("import os\ndef f(): os.abort()", "killed"),
        ("import os\ndef f(): os._exit(0)", "exited"),
        ("import sys\ndef f(): sys.exit(0)", "raised"),
        ("def f(): return bytearray(2**30)", "memory"),
        ("def f():\n x = []\n while True: x.append(bytearray(2**20))", "memory"),
        ("import mmap\ndef f():\n m = mmap.mmap(-1, 2**30)\n for i in range(0, 2**30, 4096): m[i] = 1", "memory"),
        ("def f(): return f()", "raised"),
        ("def f():\n while True: print('x' * 1000)", "output"),
        ("def f(): return 'x' * 2**21", "output"),
        ("import os\ndef f():\n for fd in range(3, 100):\n  try: os.close(fd)\n  except OSError: pass", "raised"),
    ],
)  # fmt: skip
def test_what_a_candidate_does_to_itself_is_named_and_costs_nobody_else(sandbox: Sandbox, body: str, status: str) -> None:
    limits = SMALL if status != "timeout" else Limits(wall_seconds=0.4, cpu_seconds=1)
    outcome = run(sandbox, body, limits)
    if "close(fd)" in body:
        assert not outcome.finished
    else:
        assert outcome.status == status, outcome
    assert alive(sandbox)


@pytest.mark.parametrize(
    "expression",
    [
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "__import__('subprocess').run(['true'])",
        "__import__('multiprocessing').get_context('fork').Process(target=print).start()",
        "__import__('socket').socket()",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:1', timeout=1)",
        "__import__('socket').create_connection(('10.0.0.1', 80), 1)",
        "open('/etc/passwd').read()",
        "open(__import__('sys').prefix + '/x', 'w')",
        "open('/usr/x', 'w')",
        "open('/x', 'w')",
        "os.listdir('/proc/1')",
        "open('/proc/self/environ').read()",
        "open('/proc/%d/mem' % os.getppid()).read()",
        "os.mkdir('/dev/shm/x')",
        "os.setuid(0) if os.getuid() else os.setuid(1)",
        "os.chroot('.')",
        "os.kill(-1, 9)",
        "os.setpriority(os.PRIO_PROCESS, 0, -5)",
        "os.sched_setaffinity(0, {0})",
        "os.memfd_create('x')",
        "os.chmod(__import__('sys').executable, 0o777)",
        "os.utime(__import__('sys').prefix)",
        "os.link(__import__('sys').executable, 'x')",
        "os.mknod('x', 0o60600, 0)",
    ],
)  # fmt: skip
def test_what_is_outside_cannot_be_reached(sandbox: Sandbox, expression: str) -> None:
    assert refused(sandbox, expression) in ("PermissionError", "FileNotFoundError", "OSError", "URLError", "ProcessLookupError")


@pytest.mark.parametrize(
    "call",
    [
        "ptrace(16, {pid}, 0, 0)", "process_vm_readv({pid}, 0, 0, 0, 0, 0)", "unshare(0x10000000)", "setns(0, 0)",
        "mount(b'none', b'.', b'tmpfs', 0, 0)", "umount2(b'/', 2)", "shmget(1, 4096, 0o1777)", "syscall(425, 1, 0)",
        "syscall(321, 0, 0, 0)", "syscall(304, 0, 0, 0)", "syscall(434, {pid}, 0)", "prctl(1, 0, 0, 0, 0)",
        "personality(0x40000)",
        "syscall(0x40000000 + 39)", "syscall(600)", "fcntl(0, 8, {pid})", "prlimit({pid}, 0, 0, 0)", "sethostname(b'x', 1)",
    ],
)  # fmt: skip
def test_system_calls_that_no_candidate_needs_are_refused(sandbox: Sandbox, call: str) -> None:
    body = f"import ctypes\ndef f(): return ctypes.CDLL(None).{call.format(pid=os.getpid())}"
    assert value(sandbox, body) == -1


def test_signals_reach_nobody_else(sandbox: Sandbox) -> None:
    assert refused(sandbox, f"os.kill({os.getpid()}, 0)") in ("PermissionError", "ProcessLookupError")
    assert refused(sandbox, "os.kill(os.getppid(), 9) if os.getppid() else open('/etc/passwd')") != "worked"
    assert alive(sandbox)


def test_what_is_written_stays_private_is_bounded_and_is_gone(sandbox: Sandbox) -> None:
    assert value(sandbox, "import tempfile\ndef f():\n open('mine', 'w').write('x')\n return open('mine').read()") == "x"
    assert value(sandbox, "import tempfile\ndef f():\n with tempfile.TemporaryFile() as t: return t.write(b'abc')") == 3
    assert own_files(sandbox) == ["answer.py"]
    fill = "import time\ndef f():\n for i in range(100):\n  open(str(i), 'wb').write(bytes(2**20))\n time.sleep(1)"
    assert run(sandbox, fill).status in ("raised", "output")
    assert alive(sandbox)


def test_files_cannot_be_hidden_from_the_count_of_the_disk(sandbox: Sandbox) -> None:
    deep = "import os, time\ndef f():\n for _ in range(3000):\n  os.mkdir('d', 0o300)\n  os.chdir('d')\n time.sleep(0.6)"
    limits = replace(SMALL, file_bytes=64 * MiB, cpu_seconds=15)
    assert run(sandbox, deep, limits).status in ("finished", "output")  # a tmpfs counts for itself
    assert alive(sandbox)


def test_one_candidate_leaves_nothing_for_the_next(sandbox: Sandbox) -> None:
    spoil = (
        "import builtins, json, sys\ndef f():\n builtins.x = 1\n json.dumps = None\n sys.modules['math'] = None\n open('x', 'w')"
    )
    assert run(sandbox, spoil).status == "exited"  # without json there is no reply, which is its own loss
    look = "import builtins, json, math, os\ndef f(): return [hasattr(builtins, 'x'), json.dumps(1), os.path.exists('x')]"
    assert value(sandbox, look) == [False, "1", False]


def test_what_a_candidate_hides_from_the_cleaning_is_out_of_reach_for_the_next(sandbox: Sandbox) -> None:
    hide = "import os\ndef f():\n os.mkdir('a', 0o300)\n open('a/kept', 'w').write('x')\n return os.path.abspath('a/kept')"
    path = value(sandbox, hide)
    assert run(sandbox, f"def f(): return open({path!r}).read()").status == "raised"
    deep = "import os\ndef f():\n for _ in range(3000):\n  os.mkdir('d')\n  os.chdir('d')"
    assert run(sandbox, deep, replace(SMALL, cpu_seconds=30)).status in ("finished", "output")
    assert own_files(sandbox) == ["answer.py"]


def test_a_folder_is_removed_however_deep_and_forbidden(tmp_path: Path) -> None:
    from windtunnel.verify.sandbox.removing import remove

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "wide").mkdir()
    for n in range(50):
        (folder / "wide" / str(n)).write_text("x")
    (folder / "wide").chmod(0o100)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", 0o700, dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    remove(str(folder))
    assert not folder.exists()
    assert (outside / "kept").read_text() == "x"


def test_temporary_files_are_where_the_environment_says(sandbox: Sandbox) -> None:
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        body = f"import os\ndef f():\n open(os.environ[{name!r}] + '/x', 'w').write('x')\n return os.path.exists('x')"
        assert value(sandbox, body) is True
    assert value(sandbox, "import os, tempfile\ndef f(): return tempfile.gettempdir() == os.getcwd()") is True


def test_only_what_it_needs_is_open_and_in_its_environment(sandbox: Sandbox) -> None:
    look = "  try:\n   os.fstat(fd)\n   n.append(fd)\n  except OSError: pass\n return n"
    fds = "import os\ndef f():\n n = []\n for fd in range(256):\n" + look
    assert value(sandbox, fds) == [0, 1, 2, 3]  # nothing, its prints, its reply
    names = value(sandbox, "import os\ndef f(): return sorted(os.environ)")
    assert isinstance(names, list)
    ours = {"HOME", "USER", "TMPDIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE", *PASSED_ON}
    assert {name for name in names if not name.endswith("_NUM_THREADS")} <= ours
    assert value(sandbox, "import getpass\ndef f(): return getpass.getuser()") == "candidate"  # not the judge's


def test_the_judges_folder_and_what_lies_beside_this_package_cannot_be_read(sandbox: Sandbox) -> None:
    for folder in (Path.cwd(), Path(windtunnel.__file__).parents[1], Path(__file__).parent):
        names = run(sandbox, f"import os\ndef f(): return os.listdir({str(folder)!r})").message.get("value", [])
        assert not set(names) & {"pyproject.toml", "tests", "test_sandbox.py", "windtunnel.egg-info"}
    for file in (Path(__file__), Path.cwd() / "pyproject.toml"):
        assert file.exists()
        assert run(sandbox, f"def f(): return open({str(file)!r}).read()").status == "raised"


def test_a_forged_reply_is_only_data(sandbox: Sandbox) -> None:
    forged = "import os\ndef f():\n os.pwrite(3, {!r}, 64)\n os._exit(0)"
    for text in (b"\xff" * 8 + b"windtunn", b"\x02" + bytes(7) + b"windtunn[]", b"\x05" + bytes(7) + b"windtunn" + b"{'x':"):
        outcome = run(sandbox, forged.format(text))
        assert outcome.status == "exited"
        assert "tampered" in outcome.detail
    deep = (
        "import os\ndef f():\n t = b'[' * 100000\n os.pwrite(3, len(t).to_bytes(8, 'little') + b'windtunn' + t, 64)\n os._exit(0)"
    )
    assert run(sandbox, deep).status == "exited"
    assert alive(sandbox)


def test_threads_are_allowed_and_bounded(sandbox: Sandbox) -> None:
    one = "import threading\ndef f():\n r = []\n t = threading.Thread(target=r.append, args=(1,)); t.start(); t.join()\n return r"
    assert value(sandbox, one) == [1]
    start = "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    bomb = f"import threading, time\ndef f():\n for i in range(100000): {start}"
    assert run(sandbox, bomb).status in ("raised", "memory", "timeout")
    assert alive(sandbox)


def test_children_where_they_are_allowed_are_bounded_and_die_with_it() -> None:
    limits = Limits(wall_seconds=1.5, processes=8, threads=2)
    bomb = "import os, time\ndef f():\n while True:\n  try:\n   if os.fork() == 0: os.setsid()\n  except OSError: time.sleep(.01)"
    with Sandbox(preload=(CHILD,), environment={"MARK": (mark := uuid.uuid4().hex)}) as sandbox:
        true = "import subprocess\ndef f(): return subprocess.run(['/bin/sh', '-c', 'exit 7']).returncode"
        assert run(sandbox, true, replace(limits, wall_seconds=120)).message.get("value") == 7
        before = marked(mark)
        assert run(sandbox, bomb, limits).status == "timeout"
        assert marked(mark) == before
        assert value(sandbox, "def f(): return 42") == 42


def test_a_dead_worker_is_replaced_and_its_job_judged_by_nobody() -> None:
    with Sandbox(preload=(CHILD,)) as sandbox:
        assert value(sandbox, "def f(): return 1") == 1
        assert sandbox._worker is not None
        sandbox._worker.process.kill()
        assert run(sandbox, "def f(): return 1").status == "infrastructure"
        assert value(sandbox, "def f(): return 1") == 1
        assert sandbox.restarts == 1


def test_closing_leaves_no_process_and_no_file() -> None:
    with Sandbox(preload=(CHILD,), environment={"MARK": (mark := uuid.uuid4().hex)}, namespaces=False) as sandbox:
        value(sandbox, "def f(): return 1")
        assert marked(mark)
        assert sandbox._worker is not None
        folder = Path(sandbox._worker.folder)
        assert folder.is_dir()
    deadline = time.monotonic() + HANG
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not marked(mark)
    assert not folder.exists()


def test_a_worker_that_cannot_start_says_why() -> None:
    with Sandbox(preload=("no_such_module",)) as sandbox:
        outcome = run(sandbox, "def f(): return 1")
        assert outcome.status == "infrastructure"
        assert "no_such_module" in outcome.detail


def marked(mark: str) -> int:
    """How many processes carry this mark in their environment, wherever they ran to."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            count += mark.encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
    return count


HONEST = "def f(): return 42"
SLOW = "import time\ndef f():\n time.sleep(3)\n return 41"


def test_hours_may_be_allowed_and_the_next_answers_are_still_their_own() -> None:
    with Sandbox(preload=(CHILD,)) as sandbox:
        long = replace(SMALL, wall_seconds=1e8, cpu_seconds=1e8)
        assert run(sandbox, "def f(): return 1", long).message == {"value": 1}
        assert [value(sandbox, f"def f(): return {n}") for n in range(3)] == [0, 1, 2]


def test_what_is_raised_between_an_order_and_its_reply_costs_the_worker_and_no_later_answer() -> None:
    class Alarm(BaseException):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    with Sandbox(preload=(CHILD,)) as sandbox:
        assert value(sandbox, HONEST) == 42
        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Alarm):
                run(sandbox, SLOW)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert sandbox.restarts == 1
        assert [value(sandbox, f"def f(): return {n}") for n in range(3)] == [0, 1, 2]


def test_the_end_of_another_job_is_taken_for_nobodys_answer() -> None:
    with Sandbox(preload=(CHILD,)) as sandbox:
        assert value(sandbox, HONEST) == 42
        assert sandbox._worker is not None
        sandbox._worker.jobs += 1  # as if the worker still had to tell of one
        stale = sandbox._worker.control
        request, reply, log = write_request({}, ()), memory_file("reply", MiB), memory_file("log", 4096)
        order = json.dumps({"job": 1, "entry": f"{CHILD}:call", "limits": asdict(SMALL)}).encode()
        socket.send_fds(stale, [order], [request, reply, log])
        assert run(sandbox, HONEST).status == "infrastructure"
        assert sandbox.restarts == 1
        assert value(sandbox, HONEST) == 42
