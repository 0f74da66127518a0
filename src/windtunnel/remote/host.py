"""Another machine, reached with nothing but ssh and rsync.

Both read the user's own ~/.ssh/config: users, ports, keys and jump hosts are set there. `WINDTUNNEL_SSH` replaces the command,
as GIT_SSH_COMMAND does. No password is ever asked for: a host that wants one is refused with what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.recipe import UserError

SSH = "WINDTUNNEL_SSH"
CONNECT_SECONDS = 20
HOME = ".windtunnel"
"""Below the home folder there: what is installed, jobs and runs."""
_ADDRESS = re.compile(r"ssh:((?:[\w.-]+@)?[\w.-]+)(?::(\d+))?(?:/([\w.-]+))?")
_LOST = 255
"""What ssh ends with when the connection is at fault, not the command."""


@dataclass(frozen=True)
class Address:
    """A machine, and perhaps a run on it: ssh:[USER@]HOST[:PORT][/RUN].

    Attributes:
        target: what ssh is given. port: None where ssh's own configuration says. run: its name; None: the newest.
    """

    target: str
    port: int | None = None
    run: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address. Raises UserError."""
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise UserError(f"{text!r} is no address of a machine", "expected ssh:HOST, ssh:USER@HOST:PORT or ssh:HOST/RUN")
        return cls(found[1], int(found[2]) if found[2] else None, found[3])

    def of(self, run: str | None) -> Address:
        """Return the address of a run on the same machine; None: of the machine."""
        return Address(self.target, self.port, run)

    @classmethod
    def parse_several(cls, text: str) -> list[Address]:
        """Read addresses with commas between them: ssh:HOST,ssh:HOST or ssh:HOST,HOST. Raises UserError."""
        names = [name.strip() for name in text.split(",")]
        found = [cls.parse(name if name.startswith("ssh:") else f"ssh:{name}") for name in names]
        if len({(each.target, each.port) for each in found}) < len(found):
            raise UserError(f"--to {text} names a machine twice", "name each once")
        return found

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"ssh:{self.target}{port}" + (f"/{self.run}" if self.run else "")


@dataclass
class Host:
    """A machine to work on. Use as a context manager: all commands share one connection.

    Attributes:
        address: of the machine. home: the home folder there, once `connect` has asked.
    """

    address: Address
    home: str = ""
    _control: str = field(default="", repr=False)

    def __enter__(self) -> Host:
        for tool in ("ssh", "rsync"):
            if shutil.which(tool) is None:
                package = "openssh-client" if tool == "ssh" else tool
                raise UserError(f"{tool} is not installed here", f"sudo apt install {package}")
        # Not below the user's home: a socket's path has room for about 100 characters.
        # One connection for all commands (ControlMaster): each login takes a second, and some hosts count them.
        self._control = tempfile.mkdtemp(prefix="wt-ssh-")
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        subprocess.run([*self._ssh(), "-O", "exit", self.address.target], capture_output=True, check=False)
        shutil.rmtree(self._control, ignore_errors=True)

    @property
    def root(self) -> str:
        """The folder there that has all that windtunnel brings."""
        return f"{self.home}/{HOME}"

    @property
    def runs(self) -> str:
        """The folder of runs there."""
        return f"{self.root}/runs"

    def run(self, script: str, *, inputs: str = "") -> str:
        """Run a script of the shell there to its end; returns what it printed on standard output.

        Raises:
            UserError: the connection was lost, or the script failed; says what it printed last.
        """
        done = subprocess.run(self._command(script), input=inputs, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise self._failed(done.returncode, done.stderr or done.stdout)
        return done.stdout

    def has(self, test: str, place: str) -> bool:
        """Return whether a test of the shell, such as -f, holds of a place there. Raises UserError."""
        return self.run(f"test {test} {shlex.quote(place)} && echo yes || echo no").strip() == "yes"

    def follow(self, script: str, say: Callable[[str], None]) -> int:
        """Run a script there, telling each line that it prints as it comes; returns its exit code. Raises UserError."""
        with subprocess.Popen(
            self._command(script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                last = line.rstrip("\n")
                say(last)
        if process.returncode == _LOST:
            raise self._failed(_LOST, last)
        return process.returncode

    def attach(self, script: str) -> int:
        """Run a script there with this terminal as its own; returns its exit code."""
        terminal = ["-tt"] if os.isatty(0) and os.isatty(1) else []
        return subprocess.run([*self._ssh(), *terminal, self.address.target, script], check=False).returncode

    def push(self, sources: Sequence[Path], folder: str) -> None:
        """Bring files and folders into a folder there; what is there already is not sent again. Raises UserError."""
        self.run(f"mkdir -p {shlex.quote(folder)}")
        self._rsync([*(str(source).rstrip("/") for source in sources), f"{self.address.target}:{folder}/"])

    def pull(self, folder: str, target: Path, *, without: Sequence[str] = ()) -> None:
        """Bring what is in a folder there into one here. Raises UserError."""
        target.mkdir(parents=True, exist_ok=True)
        left = [f"--exclude={name}" for name in without]
        # --delete: a checkpoint that was rotated away there must not look like one of the run's here.
        self._rsync([*left, "--delete", f"{self.address.target}:{folder}/", f"{target}/"])

    def pull_file(self, path: str, target: Path) -> None:
        """Bring one file here. Raises UserError."""
        self._rsync([f"{self.address.target}:{path}", str(target)])

    def _connect(self) -> None:
        told = self.run('echo "$HOME"; command -v rsync || echo none')
        # The last two lines: a profile there may greet whoever logs in.
        self.home, rsync = told.strip().splitlines()[-2:]
        if rsync == "none":
            raise UserError(f"{self.address}: rsync is not installed there", f"ssh {self.address.target} sudo apt install rsync")

    def _ssh(self) -> list[str]:
        port = [] if self.address.port is None else ["-p", str(self.address.port)]
        shared = ["-o", f"ControlPath={self._control}/c", "-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
        # BatchMode: ssh fails where it would ask. Alive every 15 s: home routers forget silent connections.
        quiet = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}", "-o", "ServerAliveInterval=15"]
        return [*shlex.split(os.environ.get(SSH, "ssh")), *port, *shared, *quiet]

    def _command(self, script: str) -> list[str]:
        return [*self._ssh(), self.address.target, script]

    def _rsync(self, arguments: Sequence[str]) -> None:
        command = ["rsync", "-a", "--partial", "-e", shlex.join(self._ssh()), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise self._failed(done.returncode, done.stderr)

    def _failed(self, code: int, said: str) -> UserError:
        """Return why something failed there, in a user's words."""
        lines = [line for line in said.strip().splitlines() if line.strip()] or [f"exit code {code}"]
        # What windtunnel there says in its own form is worth more than the shell's last words.
        last = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])
        if "No space left" in said:
            return UserError(f"{self.address}: its disk is full: {last}", f"ssh {self.address.target} df -h")
        if code != _LOST:
            fix = next((line.strip().removeprefix("fix: ") for line in reversed(lines) if line.strip().startswith("fix: ")), None)
            return UserError(f"{self.address}: {last.removeprefix('error: ')}", fix)
        if "Permission denied" in said:
            return UserError(f"{self.address}: it does not accept your key", f"ssh-copy-id {self.address.target}")
        if "Host key verification" in said or "IDENTIFICATION HAS CHANGED" in said:
            return UserError(
                f"{self.address}: its host key is not known, or another one", f"ssh {self.address.target}, and look at it"
            )
        return UserError(f"{self.address} cannot be reached: {last}", f"try: ssh {self.address.target} true")
