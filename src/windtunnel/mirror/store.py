"""An object store behind one small class: S3, Google Cloud Storage, Azure, SFTP or a folder, through fsspec.

Credentials come from the provider's own chain (environment, profile, instance role) and are never asked for, kept or printed:
a URL with a key in it is refused. Every call ends within its time-outs, and every failure is a `StoreError` of a few words.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

from . import sftp

CONNECT_SECONDS, READ_SECONDS = 10, 60
TRIES = 2
"""Of one call, by the provider's own client; whoever calls tries again later."""
# Gateways say it in their own words: HTTP 507, MinIO's XMinioStorageFull, Ceph's QuotaExceeded.
_FULL_WORDS = re.compile(r"\b507\b|StorageFull|QuotaExceeded|InsufficientStorage")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What others call a bucket, Azure calls a container. Their names and what is in them may say so too, in other words.
_NO_BUCKET = re.compile(r"(?:specified |such ?)(?:bucket|container)", re.I)
_LOGIN = re.compile(r"[Aa]uthenticat|[Cc]redential|Token|[Cc]onnection string|base64|Forbidden|account_name")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True)
class _Scheme:
    """How a URL's scheme is reached: fsspec's name, the module that has it and its package, and where credentials come from."""

    protocol: str
    module: str
    package: str
    login: str


_SCHEMES = {
    "s3": _Scheme("s3", "s3fs", "s3fs", "`aws configure`, AWS_PROFILE, or the machine's role"),
    "gs": _Scheme("gs", "gcsfs", "gcsfs", "`gcloud auth application-default login`, or the machine's service account"),
    "az": _Scheme("abfs", "adlfs", "adlfs", "AZURE_STORAGE_ACCOUNT_NAME with `az login`, or the machine's identity"),
    "sftp": _Scheme("sftp", "paramiko", "paramiko", "an SSH key that the host accepts"),
    "file": _Scheme("file", "fsspec", "fsspec", "permission to write there"),
}


class StoreError(UserError):
    """The store did not do what it was asked. Its message names the place and the cause, never a credential."""


@dataclass(frozen=True)
class Place:
    """Where a store is: its scheme, and the path without it and without a slash at the end."""

    scheme: str
    path: str

    @classmethod
    def parse(cls, url: str) -> Place:
        """Read a URL such as s3://bucket/folder.

        Raises:
            UserError: an unknown scheme, no bucket, or a URL that carries a credential.
        """
        scheme, _, path = url.partition("://")
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise UserError(f"mirror {scheme}://...: unknown kind of store", f"expected one of {known}")
        authority = path.partition("/")[0]
        named = scheme == "sftp" and sftp.AUTHORITY.fullmatch(authority)  # a user and a port are no secret
        if (":" in authority and "@" in authority and not named) or "?" in path:
            raise UserError(
                f"mirror {scheme}://...: the address carries a credential or options, which would end up in the run's files",
                f"leave them out; credentials come from {_SCHEMES[scheme].login}",
            )
        if not path.strip("/") or (scheme == "file" and not path.startswith("/")):
            wanted = "file:///absolute/folder" if scheme == "file" else f"{scheme}://BUCKET/FOLDER"
            raise UserError(f"mirror {url}: no place is named", f"expected {wanted}")
        return cls(scheme, path.rstrip("/"))

    @property
    def root(self) -> str:
        """Return the path as the store has it: that of a server begins below its name."""
        return "/" + self.path.partition("/")[2] if self.scheme == "sftp" else self.path

    def __truediv__(self, name: str) -> Place:
        return Place(self.scheme, f"{self.path}/{name}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"


class Store:
    """Objects below one place, by key. Safe to use from several threads.

    Args:
        place: of the objects; nothing is asked of it yet.

    Raises:
        UserError: the package that reaches such a store is not installed.
    """

    def __init__(self, place: Place) -> None:
        self.place, self._scheme = place, _SCHEMES[place.scheme]
        if place.scheme == "gs":
            # Else gcsfs asks for the kind of the bucket before every call, by gRPC, until it is told one.
            os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback of each failure, which is told here
        try:
            import_module(self._scheme.module)
        except ImportError:
            raise UserError(
                f"mirror {place}: {self._scheme.package} is not installed", f"pip install {self._scheme.package}"
            ) from None
        self._system: Any = None
        # Of one connection to an SFTP server two threads would read each other's answers.
        self._turn: Any = threading.RLock() if place.scheme == "sftp" else contextlib.nullcontext()

    def put(self, key: str, data: bytes) -> None:
        """Write an object and make sure that the store has what was sent. Raises StoreError."""
        self._call("write", key, lambda fs, path: self._replace(fs, path, data), make=True)
        # What a store answers is not believed: here it is still known what it should have.
        if not self._holds(key, data):
            raise StoreError(f"{self.place}/{key} does not read back as it was written")

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that nobody has written before; return whether it was this call that did. Raises StoreError."""
        try:
            self._call("write", key, lambda fs, path: self._exclusive(fs, path, data), make=True)
        except _Exists:
            return False
        except StoreError as error:
            if not isinstance(error.__context__, OSError):
                raise
            # Whoever answered last decides: a time-out may have hidden a success, a conflict a failure.
            if (found := self.get(key)) is None:
                raise
            return found == data
        return self.get(key) == data

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes; None where there is none. Raises StoreError."""
        try:
            return bytes(self._call("read", key, lambda fs, path: fs.cat_file(path)))
        except _Missing:
            return None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the keys below a folder, each with its size in bytes. Raises StoreError."""

        def listed(fs: Any, path: str) -> dict[str, Any]:
            fs.invalidate_cache()
            if self.place.scheme not in ("az", "gs"):
                return dict(fs.find(path, detail=True))
            found: dict[str, Any] = {}
            with contextlib.suppress(FileNotFoundError):
                found = fs.find(path, detail=True)
            # Their clients do not tell a bucket that is not there from an empty one.
            if not found and not fs.exists(self.place.root.partition("/")[0]):
                raise FileNotFoundError("there is no such bucket")
            return found

        def look(fs: Any, path: str) -> dict[str, int]:
            found = listed(fs, path)
            root = fs._strip_protocol(str(self.place)).rstrip("/") + "/"
            return {name.removeprefix(root): int(item["size"]) for name, item in found.items() if item["type"] == "file"}

        try:
            sizes: dict[str, int] = self._call("list", folder, look)
            return sizes
        except _Missing:
            return {}

    def delete(self, key: str) -> None:
        """Remove an object, if it is there. Raises StoreError."""
        try:
            self._call("delete", key, lambda fs, path: fs.rm_file(path))
        except _Missing:
            return

    def renew(self) -> None:
        """Connect anew for the next call, with whatever credentials the provider's chain has by then."""
        self._system = None

    def _holds(self, key: str, data: bytes) -> bool:
        """Return whether an object is what was sent: by the store's own MD5 where it tells one, else by reading it back."""

        def described(fs: Any, path: str) -> dict[str, Any]:
            fs.invalidate_cache()
            return dict(fs.info(path))

        found = self._call("look at", key, described)
        if found.get("size") != len(data):
            return False
        told = _MD5.fullmatch(str(found.get("ETag", "")))
        if self.place.scheme == "s3" and told and told[1] == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return True
        return self.get(key) == data  # an encrypted object's tag is no MD5, and other stores tell theirs in other ways

    def _replace(self, fs: Any, path: str, data: bytes) -> None:
        if self.place.scheme == "file":
            write_atomic(Path(path), data, durable=False)  # whoever reads it meanwhile finds the old one whole, or the new
            return
        fs.pipe_file(path, data)

    def _exclusive(self, fs: Any, path: str, data: bytes) -> None:
        if self.place.scheme == "file":
            with open(path, "xb") as file:
                file.write(data)
            return
        if self.place.scheme == "sftp":
            sftp.exclusive(fs, path, data)
            return
        # The store itself decides which of two writers was first.
        fs.pipe_file(path, data, mode="create")

    def _call(self, what: str, key: str, work: Any, *, make: bool = False) -> Any:
        """Do something with the object's path, and tell failures in one way."""
        path = f"{self.place.root}/{key}"
        try:
            with self._turn:
                fs = self._connected()
                if make and self.place.scheme == "file":
                    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                if make and self.place.scheme == "sftp":
                    sftp.make_folders(fs, path.rpartition("/")[0])
                return work(fs, path)
        except FileExistsError:
            raise _Exists(f"{self.place}/{key} is there already") from None
        except Exception as error:
            if isinstance(error, FileNotFoundError) and what != "write":
                if _NO_BUCKET.search(str(error)):
                    raise self._told("reach", error) from error
                raise _Missing(f"there is no {self.place}/{key}") from None
            raise self._told(what, error) from error

    def _connected(self) -> Any:
        if self._system is None and self.place.scheme == "sftp":
            self._system = sftp.connect(self.place.path.partition("/")[0], CONNECT_SECONDS, READ_SECONDS)
        if self._system is None:
            import fsspec

            # Nothing cached: another process, or another machine, changes what is there.
            options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
            if self.place.scheme == "s3":
                options["config_kwargs"] = {
                    "connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": TRIES},
                }  # fmt: skip
            self._system = fsspec.filesystem(self._scheme.protocol, **options)
            if self.place.scheme == "s3":
                self._system.retries = TRIES  # its own, around the client's
        return self._system

    def _told(self, what: str, error: Exception) -> StoreError:
        """Return a failure in a user's words."""
        place, text = str(self.place), f"{type(error).__name__} {error} {error.__cause__ or ''}"
        number = getattr(error, "errno", None)
        if number in _FULL or _FULL_WORDS.search(text):
            return StoreError(f"{place}: cannot {what}: the disk or quota there is full", "free space there")
        if "Skewed" in text or "skew" in text:
            return StoreError(f"{place}: cannot {what}: this machine's clock is wrong", "set it: timedatectl set-ntp true")
        missing = isinstance(error, FileNotFoundError) or "does not exist" in text
        if missing and (_NO_BUCKET.search(text) or (what == "write" and self.place.scheme == "gs")):
            named = "container" if self.place.scheme == "az" else "bucket"
            return StoreError(f"{place}: there is no such {named}", "make it, or name another one")
        if "known_hosts" in text:
            return StoreError(
                f"{place}: cannot {what}: {_brief(error)}", f"ssh {place.partition('://')[2].partition('/')[0]}, once"
            )
        # Five clients have five kinds of errors; what they say is what tells them apart.
        if isinstance(error, PermissionError) or _LOGIN.search(text):
            why = "expired" if "xpired" in text else "missing or refused"
            return StoreError(f"{place}: cannot {what}: credentials are {why} ({_brief(error)})", self._scheme.login)
        if isinstance(error, OSError | TimeoutError) or "onnect" in text or "imeout" in text:
            return StoreError(f"{place}: cannot {what}: {_brief(error)}", "look at the network and the store's address")
        return StoreError(f"{place}: cannot {what}: {_brief(error)}")


class _Missing(StoreError):
    """There is no such object."""


class _Exists(StoreError):
    """There is such an object already."""


def _brief(error: Exception) -> str:
    """Return an error's first line without what might be a secret: what the environment holds, what looks like a key."""
    text = (str(error) or type(error).__name__).strip().partition("\n")[0]
    # Clients put what they were given into their messages.
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", name):
            text = text.replace(value, "***")
    return re.sub(r"(?:AKIA|ASIA)[0-9A-Z]{12,}|(?i:signature|credential|token)=[^&\s]+", "***", text)[:200]
