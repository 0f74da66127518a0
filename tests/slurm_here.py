"""A Slurm of our own on this machine: munged, slurmctld and two slurmd in a temporary folder, ended with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

BINARIES = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun", "scancel")
PLACES = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")
_CONF = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={node_timeout}
InactiveLimit=0
MinJobAge=600
KillWait={kill_wait}
OverTimeLimit=0
JobRequeue=1
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory={memory} Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory={memory} Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=1-00:00:00 DefaultTime=30 State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=urgent Nodes=n1,n2 Default=NO MaxTime=60 State=UP PriorityTier=10 OverSubscribe=NO
"""


def missing() -> str | None:
    """Return the programs of Slurm that are not on this machine, or None where all are."""
    lacking = [name for name in BINARIES if _find(name) is None]
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    return f"not installed: {', '.join(lacking)} (apt install slurm-wlm munge)" if lacking else None


def wait_for(what: Callable[[], object], seconds: float, name: str, show: Callable[[], str] = str) -> object:
    """Return what a question answers once that is true. Raises AssertionError after the limit."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        found = what()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{name}: not within {seconds:.0f} s\n{show()}")


class SlurmHere:
    """Two nodes, n1 and n2, with two GPUs each that are none. Use as a context manager.

    Attributes:
        folder: of its state; short, since sockets lie in it. environment: for programs that talk to it.
        own: a folder that is another on each node, as a node's own disk is.
    """

    def __init__(self, folder: Path, *, kill_wait: int = 20, node_timeout: int = 20) -> None:
        self.folder, self._processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.own = folder / "own"
        self._kill_wait, self._node_timeout = kill_wait, node_timeout
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}

    def __enter__(self) -> SlurmHere:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("state", "spool.n1", "spool.n2", "own"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        text = _CONF.format(
            host=socket.gethostname(), user="root", folder=self.folder, ports=_free_ports(3), cpus=os.cpu_count(),
            memory=pages // 2, kill_wait=self._kill_wait, node_timeout=self._node_timeout,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        for device in ("gpu0", "gpu1"):
            (self.folder / device).touch()
        (self.folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={self.folder}/gpu[0-1]\n", encoding="utf-8")
        try:
            self._start(
                "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munged.seed", "--num-threads=1",
            )  # fmt: skip
            wait_for((self.folder / "munge.socket").exists, 20, "munged", self._logs)
            self._start("slurmctld", "-D", "-i", "-f", str(self.folder / "slurm.conf"))
            for node in ("n1", "n2"):
                self.start_node(node)
            wait_for(lambda: self.ask("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split() == ["n1", "n2"], 60,
                     "two idle nodes", self._logs)  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if "slurmctld" in self._processes:
            subprocess.run([_find("scancel") or "", "--state=PENDING", "--user=root"], env=self.environment,
                           capture_output=True, timeout=20, check=False)  # fmt: skip
            self.run("scancel", "--signal=KILL", "--full", "--user=root")
        for process in reversed(self._processes.values()):
            self._end(process)
        self._end_steps()

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        daemon = [_find("slurmd") or "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf")]
        mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1g none "$0" && exec "$@"', str(self.own)]
        # Where this may not be done the nodes share the folder, as they share all others.
        alone = subprocess.run([*mounted, "true"], capture_output=True, timeout=20, check=False).returncode == 0
        self._start(*(mounted if alone else []), *daemon, key=f"slurmd {name}")

    def on_node(self, name: str, path: Path) -> Path:
        """Return where a path of a node is seen from here."""
        return Path(f"/proc/{self._processes[f'slurmd {name}'].pid}/root") / path.relative_to("/")

    def kill_node(self, name: str) -> None:
        """Let a node be lost: its daemon, and the steps on it."""
        process = self._processes.pop(f"slurmd {name}")
        process.kill()
        process.wait()
        self._end_steps(name)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs."""
        return subprocess.run(
            [_find(program) or program, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def ask(self, program: str, *arguments: str) -> str:
        """Return what one of Slurm's programs prints."""
        return self.run(program, *arguments).stdout.strip()

    def state(self, job: str) -> str:
        """Return a job's state as Slurm has it."""
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def _start(self, program: str, *arguments: str, key: str = "") -> None:
        log = open(self.folder / f"{key or program}.out", "ab")  # noqa: SIM115
        with log:
            self._processes[key or program] = subprocess.Popen(
                [_find(program) or program, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_steps(self, node: str = "") -> None:
        """Kill what daemons of this folder have left, of one node or all: the managers of steps first, then their tasks."""
        import psutil

        conf, log = str(self.folder / "slurm.conf"), str(self.folder / "slurmd.")
        managers, tasks = [], []
        for process in psutil.process_iter(["name", "cmdline", "environ"]):
            environ = process.info["environ"] or {}
            if "slurmstepd" in " ".join([process.info["name"], *(process.info["cmdline"] or [])]):  # which blanks its environment
                if any(path.startswith(f"{log}{node}") for path in _open_files(process)):
                    managers.append(process)
            elif environ.get("SLURM_CONF") == conf and environ.get("SLURMD_NODENAME") in ((node,) if node else ("n1", "n2")):
                tasks.append(process)
        for process in (*managers, *tasks):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in (*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("*.out")))
        )


def _open_files(process: object) -> list[str]:
    try:
        return [file.path for file in process.open_files()]  # type: ignore[attr-defined]
    except Exception:  # it has ended
        return []


def _find(name: str) -> str | None:
    return shutil.which(name, path=_path())


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), *PLACES])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
