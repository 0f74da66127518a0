"""Where a service listens and who may reach it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
from dataclasses import dataclass

from windtunnel.recipe import UserError

WAITING_CONNECTIONS = 2048


@dataclass(frozen=True)
class Access:
    """Who may reach a service.

    Attributes:
        token: the bearer token that clients must send; None lets everybody in who can reach it.
        local_only: only requests that call this machine by a loopback name are answered.
        origins: web pages of other addresses that may ask, such as 'https://app.example'; '*': all.
    """

    token: str | None
    local_only: bool
    origins: tuple[str, ...] = ()

    def admits(self, origin: str) -> bool:
        """Return whether pages of this address may ask."""
        return origin in self.origins or "*" in self.origins

    @classmethod
    def of(cls, host: str, token: str | None, *, what: str, port: int, insecure: bool = False, generate: bool = False) -> Access:
        """Return who may reach a service on an address.

        Args:
            host: the address, as a name or a number.
            token: None: $WINDTUNNEL_TOKEN, if set.
            what: what others could do there without a token ("run code here"), for the refusal.
            port: for the advice in the refusal.
            insecure: allow other addresses than loopback without a token.
            generate: make a token where none is given, which loopback needs as well: others may have accounts on this machine.

        Raises:
            UserError: the address is open to others without a token, or the token cannot be sent in a header.
        """
        token = token or os.environ.get("WINDTUNNEL_TOKEN") or None
        local = _is_loopback(host)
        if token is None and generate and not insecure:
            token = secrets.token_urlsafe(16)
        if not local and token is None and not insecure:
            raise UserError(
                f"--host {host} lets other machines {what}, and there is no token",
                f"set WINDTUNNEL_TOKEN (or --token), or stay on 127.0.0.1 and reach it with: ssh -L {port}:127.0.0.1:{port}",
            )
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
            raise UserError("the token must be printable ASCII without spaces around it")
        # With a token the name does not matter: a foreign page does not know it.
        return cls(token, local and token is None)


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. port: 0 takes any free one.

    Raises:
        UserError: the port is taken (names a free one), needs privileges, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror or error}", "use 127.0.0.1") from None
    # A server that was just ended leaves its port in TIME_WAIT for a minute.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(WAITING_CONNECTIONS)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use by another program", f"try --port {_free_port(host)}") from None
        if error.errno == errno.EACCES:
            raise UserError(f"port {port} needs administrator rights", "use a port above 1023") from None
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}", "use --host 127.0.0.1") from None
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Return the address that clients use."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _free_port(host: str) -> int:
    try:
        with contextlib.closing(listening(host, 0)) as probe:
            return int(probe.getsockname()[1])
    except UserError:
        return 0
