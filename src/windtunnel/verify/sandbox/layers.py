"""What protects the machine and the judge from a candidate, and whether that is enough to call it hardened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Protection → the sets of layers of which any one gives it.
PROTECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "other files cannot be read or written": (("Landlock",), ("mount namespace", "private tmpfs", "another user")),
    "no network": (("seccomp",), ("network namespace",)),
    "other processes cannot be seen, signalled or traced": (("process namespace", "seccomp"), ("Landlock", "seccomp")),
    "nothing it starts outlives it": (("process namespace",), ("seccomp",)),
    "temporary files are private and bounded": (("private tmpfs",), ("Landlock", "watched folder")),
    "memory, CPU time, file sizes and descriptors are bounded": (("resource limits",),),
    "no privilege can be gained": (("no capabilities", "seccomp"),),
}


@dataclass(frozen=True)
class Layers:
    """The layers of a sandbox.

    Attributes:
        faults: layer → '' when it is active, else why it is not.
        breaches: what a trial child could do although it should not (empty when all was refused; None when it was not tried).
    """

    faults: Mapping[str, str]
    breaches: tuple[str, ...] | None = None

    def active(self, layer: str) -> bool:
        """Return whether a layer stands."""
        return self.faults.get(layer) == ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The protections that no set of active layers gives."""
        return tuple(what for what, ways in PROTECTIONS.items() if not any(all(map(self.active, layers)) for layers in ways))

    @property
    def hardened(self) -> bool:
        """Every protection stands, and a trial child that tried to get past them could not."""
        # None is not enough: nobody has tried.
        return not self.missing and self.breaches == ()

    def as_json(self) -> dict[str, object]:
        """Return the layers as plain JSON values."""
        return {
            "hardened": self.hardened,
            "layers": {name: fault or "active" for name, fault in self.faults.items()},
            "missing": list(self.missing),
            "breaches": None if self.breaches is None else list(self.breaches),
        }
