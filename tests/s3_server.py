"""A real S3 server on this machine (moto), and a tap in front of it that can be slow, cut connections, or answer with errors."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

from waiting import until

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST", "AWS_SECRET_ACCESS_KEY": "secret-that-must-not-be-told-0123456789"}


SLOW_SECONDS = 4.0
ERRORS = {
    "refused": (403, "AccessDenied", "Access Denied"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "full": (507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."),
}
"""Status, code and words of servers' own answers: Amazon's S3 API, and MinIO's for a full disk."""


@dataclass
class Tap:
    """A port through which the server is reached. Attributes: how: 'open', 'cut', 'slow', or one of `ERRORS`, which all get.

    pause: seconds that each piece of up to 64 KiB waits where it is slow.
    """

    server: int
    port: int = 0
    how: str = "open"
    pause: float = SLOW_SECONDS
    accepted: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def turn(self, how: str) -> None:
        """Change what happens to connections; those there are end."""
        self.how = how
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            self.accepted += 1
            if self.how == "cut":
                client.close()
                continue
            if self.how in ERRORS:
                threading.Thread(target=self._refuse, args=(client, *ERRORS[self.how]), daemon=True).start()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.server))
            except OSError:  # the server has ended, with the tests
                client.close()
                return
            self._sockets += [client, server]
            threading.Thread(target=self._connect, args=(client, server), daemon=True).start()

    def _refuse(self, client: socket.socket, status: int, code: str, words: str) -> None:
        """Answer a request with an error, once all of it is there: a client that is still sending would see a cut."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{words}</Message></Error>".encode()
        head = f"HTTP/1.1 {status} {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with client, contextlib.suppress(OSError):
            client.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while client.recv(65_536):
                    pass
            client.sendall(head.encode() + body)

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what either says until both have ended; then nothing of the connection is left open."""
        with client, server:
            back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
            back.start()
            self._pass_on(client, server)
            back.join()
        with contextlib.suppress(ValueError):  # `turn` has forgotten it
            self._sockets.remove(client)
            self._sockets.remove(server)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.how == "slow":
                    time.sleep(self.pause)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Start moto's server; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=60).close()
            return True
        return False

    try:
        until(answers, "moto's server does not answer")
        yield port
    finally:
        process.kill()
        process.wait()


def environment(url: str) -> dict[str, str]:
    """What makes the AWS client of a process use the server at a URL, and nothing of this machine's own."""
    return KEYS | {
        "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }  # fmt: skip


def make_bucket(url: str, name: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT"), timeout=60).close()
