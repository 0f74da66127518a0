"""What other packages add to windtunnel, through Python's entry points; nothing of it is imported before it is asked for.

A package offers an object under a name in one of these groups, in its pyproject.toml:

    [project.entry-points."windtunnel.corpora"]
    verses = "verses:VersesCorpus"

Groups are `windtunnel.` and `checks` (a Check, or several), `corpora` (a class derived from UserCorpus) or `rewards` (a
function). Names that are built in are found without looking here, so that nothing gets slower by plug-ins.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from .errors import UserError

Group = Literal["checks", "corpora", "rewards"]


@dataclass(frozen=True)
class Plugin:
    """One name that a package offers.

    Attributes:
        package: its name and version. value: where the object is, as 'module:object'.
    """

    group: Group
    name: str
    package: str
    value: str
    entry: EntryPoint

    def __str__(self) -> str:
        return f"package {self.package}, entry point {self.name} = {self.value!r} of windtunnel.{self.group}"

    def load(self) -> Any:
        """Import the object.

        Raises:
            UserError: that fails; names the package and the entry point.
        """
        try:
            return self.entry.load()
        except (Exception, SystemExit) as error:
            raise self.broken(f"cannot be loaded: {_said(error)}") from None

    def broken(self, problem: str) -> UserError:
        """Return the error for a plug-in that does not do what it should."""
        name = self.package.split()[0]
        return UserError(f"{self} {problem}", f"update or correct that package, or remove it: pip uninstall {name}")

    def failed(self, what: str, error: Exception) -> UserError:
        """Return the error for an exception that left the plug-in's code, with the line that raised it."""
        step, where = error.__traceback__, ""
        # The innermost frame is the plug-in author's line, or what it called.
        while step is not None:
            where = f" ({step.tb_frame.f_code.co_filename}:{step.tb_lineno})"
            step = step.tb_next
        return self.broken(f"{what}: {_said(error)}{where}")

    def source(self) -> Path | None:
        """Return the file of its module, which is not imported; None where there is none."""
        try:
            spec = importlib.util.find_spec(self.entry.module)
        except Exception:  # a parent package that does not import: `load` says so
            return None
        return Path(spec.origin) if spec is not None and spec.origin is not None else None

    def identity(self) -> str:
        """Return a hash that changes with the package's version and with the module's text."""
        source = self.source()
        # The text too: a package under development changes without its version.
        text = source.read_bytes() if source is not None and source.is_file() else b""
        return hashlib.sha256(f"{self.package} {self.value}\n".encode() + text).hexdigest()[:16]


def plugins(group: Group) -> list[Plugin]:
    """Return what installed packages offer in a group, by name."""
    found = []
    for entry in entry_points(group=f"windtunnel.{group}"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "of unknown name"
        found.append(Plugin(group, entry.name, package, entry.value, entry))
    # The order in which packages were installed must not decide which of two is named first.
    return sorted(found, key=lambda plugin: (plugin.name, plugin.package, plugin.value))


def find_plugin(group: Group, name: str) -> Plugin | None:
    """Return the plug-in of that name, or None.

    Raises:
        UserError: several packages offer the name.
    """
    found = [plugin for plugin in plugins(group) if plugin.name == name]
    # A package that is installed twice, as from a checkout beside site-packages, offers the same object twice.
    if len({(plugin.package, plugin.value) for plugin in found}) > 1:
        raise found[1].broken(f"has the name of another: {found[0]}")
    return found[0] if found else None


def _said(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
