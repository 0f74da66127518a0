"""Try the verifiers on answers whose verdict is known, by the very way that rewards take, before anything is learned."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import UserError

from .pool import Pool
from .probes import PROBES, Probe
from .types import Verdict

if TYPE_CHECKING:
    from .kinds import Verifiers

# Kinds whose verdict depends on the machine. The others compare texts in this process.
TESTED = ("kernel", "code", "math")
# Most that the 95 % interval of a timed kernel's median may span, as a share of the median.
WIDEST_CLOCK = 0.05
ADVICE = "windtunnel verify selftest shows every answer that was tried, windtunnel verify layers the sandbox"


class BrokenVerifier(UserError):
    """A verifier that is asked for does not work on this machine: nothing is wrong with the recipe."""

    exit_code = 1


@dataclass(frozen=True)
class Trial:
    """One answer that was tried. fault: why its verdict is not the one it should be, '' where it is."""

    probe: Probe
    verdict: Verdict
    fault: str

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "kind": self.probe.kind,
            "name": self.probe.name,
            "right": self.probe.right,
            "ok": not self.fault,
            "fault": self.fault,
            "verdict": self.verdict.as_json(),
        }


@dataclass(frozen=True)
class SelfTest:
    """What came of it. missing: protections that the sandbox does not give here. seconds: all of it took."""

    trials: Sequence[Trial]
    missing: Sequence[str]
    seconds: float

    @property
    def fault(self) -> str:
        """Return the first thing that is wrong, '' where the verifiers work."""
        return next((trial.fault for trial in self.trials if trial.fault), "")


def self_test(verifiers: Verifiers, kinds: Collection[str] = TESTED) -> SelfTest:
    """Judge the known answers of these kinds, as many at once as there are workers; other kinds have none."""
    began = time.monotonic()
    probes = [probe for probe in PROBES if probe.kind in kinds]
    # Once a task, not once an answer: a kernel's reference takes seconds.
    made = {(probe.kind, probe.named): _make(verifiers, probe) for probe in probes}
    with Pool(verifiers.workers, len(PROBES)) as pool:
        asked = [(probe, made[probe.kind, probe.named]) for probe in probes]
        futures = [one if isinstance(one, Verdict) else pool.submit(one, probe.answer, wait=True) for probe, one in asked]
        verdicts = [one if isinstance(one, Verdict) else one.result() for one in futures]
    # In the order of the probes, whichever came first.
    trials = [Trial(probe, verdict, _fault(probe, verdict)) for probe, verdict in zip(probes, verdicts, strict=True)]
    return SelfTest(trials, _missing(verifiers), time.monotonic() - began)


def require_working(verifiers: Verifiers, kinds: Mapping[str, str]) -> None:
    """Try the verifiers of these kinds before something is learned from their verdicts.

    kinds: the recipe's key that asks for each kind.

    Raises:
        BrokenVerifier: one of them does not work on this machine.
    """
    wanted = [kind for kind in TESTED if kind in kinds]
    for trial in self_test(verifiers, wanted).trials if wanted else ():
        if trial.fault:
            kind = trial.probe.kind
            raise BrokenVerifier(f"{kinds[kind]}: verifiers of kind {kind} do not work on this machine: {trial.fault}", ADVICE)


def _missing(verifiers: Verifiers) -> list[str]:
    """Return what the sandbox does not protect from here; none where it is hardened."""
    try:
        # Says also what a trial child could do: a layer that stands may yet protect from nothing.
        layers = verifiers.layers()
    except UserError as error:
        return [_short(error.message)]
    return [] if layers.hardened else [*layers.missing, *(f"a trial child {breach}" for breach in layers.breaches or ())]


def _short(message: str) -> str:
    """Return a message whose traceback is left out but for its last line."""
    first, found, _ = message.partition("Traceback (most recent call last)")
    return f"{first}{message.strip().splitlines()[-1]}" if found else message


def _make(verifiers: Verifiers, probe: Probe) -> Any:
    """Return the verifier of a probe's task, or the verdict where there can be none."""
    from .types import broken

    try:
        return verifiers.make(probe.kind, probe.task)
    except UserError as error:
        return broken("task", error.message + (f" ({error.fix})" if error.fix else ""))


def _fault(probe: Probe, verdict: Verdict) -> str:
    """Return why this verdict shows that the verifier does not work, '' where it is the one that is due."""
    said = f"stage {verdict.stage}, {verdict.reason}: {_short(verdict.message)}"
    if verdict.infrastructure:
        return f"nothing is known about {probe.name} (stage {verdict.stage}: {_short(verdict.message)})"
    if probe.right:
        return _unsteady(probe, verdict) if verdict.accepted else f"{probe.name} is right, and refused ({said})"
    if verdict.accepted:
        return f"{probe.name} is wrong, and accepted"
    # Refused for anything else, such as a compiler that is missing, it would be refused if it were right.
    if verdict.reason not in probe.reasons:
        return f"{probe.name} is refused for another reason than what is wrong with it ({said})"
    return ""


def _unsteady(probe: Probe, verdict: Verdict) -> str:
    """Return what is wrong with the times of a right kernel; '' where it was not timed."""
    cold = verdict.evidence.get("gpu", {}).get("cold")
    if cold is None:
        return ""
    # A speed that is not steady is no reward.
    spread = (cold["high"] - cold["low"]) / cold["median"]
    if spread <= WIDEST_CLOCK:
        return ""
    return (
        f"the clock is not steady: the median time of {probe.name} is known to within {spread:.0%} only "
        f"({1e6 * cold['low']:.1f} to {1e6 * cold['high']:.1f} us); does another program use the GPU?"
    )
