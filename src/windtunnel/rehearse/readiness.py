"""The readiness report as data: what was checked, what was planned, what failing later would cost, and the verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.plan import Plan
from windtunnel.recipe import UserError

from .checks import Moment, Outcome
from .late import Late, late_costs
from .state import Rehearsal

FORMAT = 1
RUNGS = ("cpu", "gpu", "node", "cluster")
ADDS = {"gpu": "GPU kernels, bf16 and compilation", "node": "several GPUs", "cluster": "several nodes"}


@dataclass(frozen=True)
class Readiness:
    """What a rehearsal found.

    Attributes:
        late: minutes and dollars by moment on the first target, for what its failure there would cost; empty without a plan.
        seconds: the whole rehearsal took. called: recipe and overrides as typed.
    """

    rehearsal: Rehearsal
    outcomes: Sequence[Outcome]
    late: dict[Moment, Late]
    seconds: float
    created: str
    called: str

    @property
    def next_command(self) -> str:
        """What to type now, the rest of which stands in `called`."""
        return f"windtunnel {'train' if self.ready else 'rehearse'} {self.called}"

    @property
    def ready(self) -> bool:
        """Whether no check failed, and none was left out because of one that did."""
        return not any(outcome.status == "fail" or outcome.blocks for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 ready, 1 not."""
        return 0 if self.ready else 1

    @property
    def rung(self) -> str:
        """How far up the ladder this machine goes."""
        return self.rehearsal.here.rung

    @property
    def targets(self) -> str:
        """Names of the target rigs."""
        return ", ".join(rig.name for rig in self.rehearsal.targets)

    @property
    def verdict(self) -> str:
        """One line."""
        name, counts = self.rehearsal.recipe.name, self._counts()
        if self.ready:
            return f"READY on rung {self.rung}: {name} for {self.targets}; {counts}"
        return f"NOT READY on rung {self.rung}: {name} for {self.targets}; {counts}"

    @property
    def beyond(self) -> str:
        """What this rung cannot show."""
        index = RUNGS.index(self.rung)
        needed = max(RUNGS.index(rig.rung) for rig in self.rehearsal.targets)
        if needed <= index:
            return ""
        return f"not shown by rung {self.rung}: " + ", ".join(ADDS[rung] for rung in RUNGS[index + 1 : needed + 1])

    @property
    def late_target(self) -> str:
        """The rig whose plan `late` is from."""
        return _priced(self.rehearsal)[0]

    def late_of(self, outcome: Outcome) -> Late | None:
        """What finding this check's failure on the first target would cost."""
        return self.late.get(outcome.shows)

    def _counts(self) -> str:
        number = {s: sum(o.status == s for o in self.outcomes) for s in ("ok", "warn", "fail", "skip")}
        parts = [f"{number['ok'] + number['warn']} of {len(self.outcomes)} checks hold"]
        if number["warn"]:
            parts.append(f"{number['warn']} with a warning")
        if number["fail"]:
            parts.append(f"{number['fail']} failed")
        if number["skip"]:
            parts.append(f"{number['skip']} not tried")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Stable keys; what is written to report.json."""
        rehearsal = self.rehearsal
        return {
            "format": FORMAT,
            "recipe": rehearsal.recipe.name,
            "ready": self.ready,
            "rung": self.rung,
            "verdict": self.verdict,
            "targets": [rig.name for rig in rehearsal.targets],
            "created": self.created,
            "seconds": round(self.seconds, 1),
            "folder": str(rehearsal.folder),
            "report": str(rehearsal.folder / "report.html"),
            "next_command": self.next_command,
            "checks": [self._check(outcome) for outcome in self.outcomes],
            "plans": [plan.to_json() for plan in self.plans()],
            "environment": dict(rehearsal.environment),
        }

    def plans(self) -> list[Plan]:
        """The plan for here, then those for the targets."""
        here = [self.rehearsal.plan_here] if self.rehearsal.plan_here else []
        return here + list(self.rehearsal.plans.values())

    def _check(self, outcome: Outcome) -> dict[str, Any]:
        late = self.late_of(outcome)
        return {
            "check": outcome.check,
            "status": outcome.status,
            "proves": outcome.proves,
            "evidence": outcome.evidence,
            "numbers": outcome.numbers,
            "seconds": round(outcome.seconds, 2),
            "remedy": outcome.remedy,
            "found_later": None if late is None else {"minutes": late.minutes, "dollars": late.dollars, "rule": late.rule},
        }


def late_for(rehearsal: Rehearsal) -> dict[Moment, Late]:
    """What failing later costs, by the first target's plan that fits; empty without one."""
    name, plan = _priced(rehearsal)
    if plan is None:
        return {}
    gpu = next(rig.gpu for rig in rehearsal.targets if rig.name == name)
    return late_costs(plan, gpu.name if gpu else None)


def _priced(rehearsal: Rehearsal) -> tuple[str, Plan | None]:
    return next(((name, plan) for name, plan in rehearsal.plans.items() if plan.fits), ("", None))


def write_json_report(report: Readiness) -> Path:
    """Write report.json into the rehearsal's folder. Raises UserError."""
    from windtunnel.watch import finite

    path = report.rehearsal.folder / "report.json"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(finite(report.to_json()), indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"report {path} cannot be written: {error.strerror or error}") from None
    return path
