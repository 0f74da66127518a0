"""What the installed package declares to need, and which installed versions do not fit."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

PACKAGE = "windtunnel"


@dataclass(frozen=True)
class Declared:
    """Ranges of the interpreter and of the packages, without those of extras."""

    python: str
    requirements: tuple[Requirement, ...]

    @property
    def names(self) -> set[str]:
        """Canonical names of the packages."""
        return {str(canonicalize_name(requirement.name)) for requirement in self.requirements}


@dataclass(frozen=True)
class Conflict:
    """A package that is missing (version None) or outside the range that another needs."""

    package: str
    version: str | None
    wanted: str
    wanted_by: str
    direct: bool


def declared() -> Declared | None:
    """From the installed metadata, else from the source tree's pyproject.toml; None where there is neither."""
    try:
        found = metadata.metadata(PACKAGE)
        python, texts = str(found["Requires-Python"] or ""), metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[4] / "pyproject.toml"
        try:
            project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
            python, texts = project["requires-python"], project["dependencies"]
        except (OSError, ValueError, KeyError):
            return None
    return Declared(python, tuple(_applying(texts)))


def conflicts(requirements: tuple[Requirement, ...]) -> tuple[dict[str, str], list[Conflict]]:
    """(versions of all that is needed directly or by what is, what does not fit)."""
    versions: dict[str, str] = {}
    wrong: list[Conflict] = []
    waiting = [(requirement, PACKAGE) for requirement in requirements]
    looked: set[str] = set()
    while waiting:
        requirement, by = waiting.pop(0)
        name = str(canonicalize_name(requirement.name))
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(Conflict(name, None, str(requirement.specifier), by, by == PACKAGE))
            continue
        versions[name] = version
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(Conflict(name, version, str(requirement.specifier), by, by == PACKAGE))
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key not in looked:
            looked.add(key)
            waiting += [(further, name) for further in _applying(metadata.requires(name) or [], requirement.extras)]
    return versions, wrong


def _applying(texts: list[str], extras: set[str] | None = None) -> list[Requirement]:
    """The requirements whose markers hold on this machine."""
    found = []
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found.append(requirement)
    return found
