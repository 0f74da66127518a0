"""An SFTP server as a store: reached as ssh reaches it, by the user's own ~/.ssh/config, keys and known hosts."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

AUTHORITY = re.compile(r"(?:([\w.-]+)@)?([\w.-]+)(?::(\d+))?")
"""USER@HOST:PORT; a password has no place in it."""


@dataclass(frozen=True)
class Server:
    """Where an address leads. Attributes: host, port, user; keys: the files named for it, none: ssh's usual ones."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...]

    @classmethod
    def of(cls, authority: str) -> Server:
        """Read USER@HOST:PORT, with what ~/.ssh/config says of that host. Raises UserError."""
        import paramiko

        found = AUTHORITY.fullmatch(authority)
        if found is None:
            raise UserError(f"mirror sftp://{authority}/...: no address of a server", "expected sftp://USER@HOST:PORT/FOLDER")
        own = paramiko.SSHConfig()
        with contextlib.suppress(OSError):
            own = paramiko.SSHConfig.from_path(str(Path("~/.ssh/config").expanduser()))
        said = own.lookup(found[2])
        # What the address says comes before what ~/.ssh/config does, as with ssh.
        port = int(found[3] or said.get("port", 22))
        keys = tuple(os.path.expanduser(key) for key in said.get("identityfile", []))
        return cls(said["hostname"], port, found[1] or said.get("user") or getpass.getuser(), keys)


def connect(authority: str, connect_seconds: float, read_seconds: float) -> Any:
    """Return fsspec's filesystem of a server, whose paths are absolute there.

    Raises:
        UserError: the address is none. Whatever paramiko raises, where the server cannot be reached, is not known, or refuses.
    """
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    server = Server.of(authority)

    class Known(SFTPFileSystem):  # type: ignore[misc]
        """As fsspec's, which would take any host's key for the right one."""

        def _connect(self) -> None:
            self.client = paramiko.SSHClient()
            self.client.load_system_host_keys()
            # An unknown host is refused: nobody is there to compare a fingerprint.
            self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            self.client.connect(
                server.host, server.port, server.user, key_filename=list(server.keys) or None, timeout=connect_seconds,
                banner_timeout=connect_seconds, auth_timeout=connect_seconds,
            )  # fmt: skip
            self.ftp = self.client.open_sftp()
            self.ftp.get_channel().settimeout(read_seconds)

    return Known(server.host, skip_instance_cache=True, use_listings_cache=False)


def make_folders(system: Any, path: str) -> None:
    """Make a folder there and all above it, as several may do at once."""
    made = ""
    for part in path.strip("/").split("/"):
        made += f"/{part}"
        try:
            system.ftp.stat(made)
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # another one was quicker; or it fails again below, with why
                system.ftp.mkdir(made)
    system.ftp.stat(made)


def exclusive(system: Any, path: str, data: bytes) -> None:
    """Write a file that is not there yet. Raises OSError: it is, or cannot be written."""
    # Its own mode for this, 'x', asks for no right to write.
    with system.ftp.open(path, "wx") as file:
        file.write(data)
