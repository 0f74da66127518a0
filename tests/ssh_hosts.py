"""Machines that can be reached by ssh alone: a real sshd for each, with an empty home folder of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from waiting import until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_TOOLS = {"sshd": SSHD, **{name: shutil.which(name) for name in ("ssh", "ssh-keygen", "rsync")}}
MISSING = [name for name, found in _TOOLS.items() if not found]
"""What is not installed here, without which there is no such machine: apt install openssh-server rsync."""


@dataclass
class Machine:
    """Attributes: address: for windtunnel. home: its home folder. ssh: the command that reaches it, for WINDTUNNEL_SSH."""

    address: str
    home: Path
    ssh: str
    sshd: subprocess.Popen[bytes]

    def take_away(self) -> None:
        """SIGKILL all that runs there, as when a machine is taken away: sshd, and whatever has its home folder."""
        mine = [self.sshd.pid]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home):
                    mine.append(process.pid)
        for number in (19, 9):  # all stand still first: none must see another's end
            for pid in mine:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.sshd.wait()


@contextlib.contextmanager
def machine(place: Path, environment: Mapping[str, str] | None = None) -> Iterator[Machine]:
    """Start a machine below a folder. environment: what its processes have beside the usual."""
    assert SSHD is not None
    home = place / "home"
    home.mkdir(parents=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **(environment or {})}
    settings = " ".join(f'"{name}={value}"' for name, value in own.items())
    (place / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nAuthorizedKeysFile {place}/user.pub\nStrictModes no\n"
        f"UsePAM no\nPidFile none\nPermitRootLogin yes\nPasswordAuthentication no\n"
        f"Subsystem sftp internal-sftp\nSetEnv {settings}\n"
    )
    user = pwd.getpwuid(os.getuid()).pw_name
    (place / "ssh_config").write_text(
        f"Host *\n  User {user}\n  IdentityFile {place}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {place}/known\n  LogLevel ERROR\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)  # privileges are separated there
    sshd = subprocess.Popen([SSHD, "-D", "-f", place / "sshd_config", "-E", place / "sshd.log"])
    found = Machine(f"ssh:127.0.0.1:{port}", home, f"ssh -F {place}/ssh_config", sshd)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            return True
        assert sshd.poll() is None, (place / "sshd.log").read_text()
        return False

    until(answers, "sshd does not answer")
    try:
        yield found
    finally:
        found.take_away()
