"""The readiness report as data: what was checked, what was planned, what failing later would cost, and the verdict."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.check import RUNGS, Outcome, Rung, Shows
from windtunnel.files import write_atomic
from windtunnel.plan import Plan, cheapest
from windtunnel.recipe import Every, GPTModel, Recipe, UserError
from windtunnel.rig import instance_names

from .context import Context

# Raised when a key of report.json changes its meaning; new keys do not count.
FORMAT = 1
BAD_INPUT, NOT_READY = 2, 1
INPUT_CHECKS = ("recipe", "rig")
"""Their failure means that what was asked for does not exist."""
ADDS = {"gpu": "GPU kernels, bf16 and compilation", "node": "several GPUs", "cluster": "several nodes"}


@dataclass(frozen=True)
class RungVerdict:
    """Says of a rung whether anything speaks against it.

    Attributes:
        rung: the rung.
        ready: nothing speaks against it.
        failed: checks that do.
        untried: checks that a failure kept from being run.
        here: this machine is of that rung or above, so what can only be seen there was seen.
        lacks: what training would refuse to begin without, and the command that brings each.
    """

    rung: Rung
    ready: bool
    failed: tuple[str, ...]
    untried: tuple[str, ...]
    here: bool
    lacks: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        """Return 'ready', or why not."""
        if self.failed:
            return f"not ready: {', '.join(self.failed)}"
        if self.untried:
            return f"not ready: {', '.join(self.untried[:3])}{', ...' if len(self.untried) > 3 else ''} not run"
        lacking = lacking_text(self.lacks)
        if self.here:
            return f"not ready: without {lacking} `windtunnel train` refuses" if lacking else "ready"
        state = f"ready but for {lacking}" if lacking else "ready as far as this machine can tell"
        return f"{state}; only there: {ADDS.get(self.rung, '')}"


@dataclass(frozen=True)
class Readiness:
    """What a check or a rehearsal found.

    Attributes:
        late: minutes and dollars by when a failure would show on the target; empty without a plan.
        seconds: it took. called: recipe and overrides as typed. rehearsed: the scale model was run too.
        named: the rigs were asked for by name, so that files of a model may be fetched there; False: they are the default.
        unwritten: why report.json or report.html could not be written; None: they are there.
    """

    context: Context
    outcomes: Sequence[Outcome]
    late: dict[Shows, Late]
    seconds: float
    created: str
    called: Sequence[str]
    rehearsed: bool = False
    named: bool = False
    unwritten: str | None = None

    @property
    def recipe(self) -> Recipe | None:
        """Return the recipe; None where it does not load."""
        try:
            return self.context.recipe
        except UserError:
            return None

    @property
    def name(self) -> str:
        """Return the recipe's name, as far as it is known."""
        return self.recipe.name if self.recipe else self.context.source

    @property
    def holds(self) -> bool:
        """Return whether no check failed, and none was left out because of one that did."""
        return not any(outcome.status == "fail" or outcome.blocks for outcome in self.outcomes)

    @property
    def lacks(self) -> tuple[tuple[str, str], ...]:
        """Return what `windtunnel train` on this machine would refuse to begin without, and the command that brings it."""
        # Several checks may miss the same file; it is fetched once.
        return tuple(dict.fromkeys(what for outcome in self.outcomes for what in outcome.lacks))

    @property
    def ready(self) -> bool:
        """Return whether every check holds and training here would begin: nothing is ready that `windtunnel train` refuses."""
        return self.holds and not self.lacks

    @property
    def exit_code(self) -> int:
        """Return 0 where ready, 1 where not, 2 where the recipe or a rig that was named does not exist.

        What is lacking here is fetched on the rig that trains: where rigs were named, 0 says that all else is ready for them.
        """
        if any(outcome.status == "fail" and outcome.check in INPUT_CHECKS for outcome in self.outcomes):
            return BAD_INPUT
        # A laptop need not hold a model of hundreds of GB to say that the recipe is ready for the rig that will.
        return 0 if self.ready or (self.holds and self.named) else NOT_READY

    @property
    def rung(self) -> Rung:
        """Return how far up the ladder this machine goes."""
        try:
            rung: Rung = self.context.here.rung  # type: ignore[assignment]
        except UserError:
            return "cpu"
        return rung

    def rungs(self) -> list[RungVerdict]:
        """Return every rung up to the highest one asked for."""
        verdicts = []
        for index, rung in enumerate(RUNGS[: RUNGS.index(self.context.rung) + 1]):
            # A rung stands on those below it.
            bad = [o for o in self.outcomes if RUNGS.index(o.rung) <= index and (o.status == "fail" or o.blocks)]
            failed = tuple(o.check for o in bad if o.status == "fail")
            untried = tuple(o.check for o in bad if o.status != "fail")
            here = index <= RUNGS.index(self.rung)
            verdicts.append(RungVerdict(rung, not bad and not self.lacks, failed, untried, here, self.lacks))
        return verdicts

    @property
    def targets(self) -> str:
        """Return the names of the target rigs."""
        return ", ".join(self.context.on)

    @property
    def verdict(self) -> str:
        """Return the verdict as one line."""
        state = "READY" if self.holds else "NOT READY"
        where = f" on rung {self.rung}" if self.rehearsed else ""
        lacking = f" but for {lacking_text(self.lacks)}" if self.holds and self.lacks else ""
        return f"{state}{where}{lacking}: {self.name} for {self.targets}; {self._counts()}"

    @property
    def beyond(self) -> str:
        """Return what this machine cannot show."""
        index = RUNGS.index(self.rung)
        needed = RUNGS.index(self.context.rung)
        if needed <= index:
            return ""
        return f"not shown by rung {self.rung}: " + ", ".join(ADDS[rung] for rung in RUNGS[index + 1 : needed + 1])

    @property
    def next_command(self) -> str:
        """Return what to type now."""
        again, further = ("rehearse", "train") if self.rehearsed else ("check", "rehearse")
        if self._fetches:
            return " && ".join(command for _, command in self.lacks)
        verb = further if self.holds else again
        if verb == "train":
            return shlex.join(["windtunnel", verb, *self.called, *self._price()])
        rigs = tuple(word for name in self._where_it_fits() for word in ("--on", name))
        return shlex.join(["windtunnel", verb, *self.called, *rigs])

    def _price(self) -> tuple[str, ...]:
        """Return what `windtunnel train` refuses a limit in dollars without, where nothing says what this machine costs."""
        counted = self.recipe is not None and self.recipe.budget.dollars is not None
        return ("--price", "DOLLARS_AN_HOUR") if counted and self.context.here.dollars_per_hour is None else ()

    @property
    def next_place(self) -> str:
        """Return 'next', and where that is to be typed, unless here: a model of hundreds of GB belongs where it is trained."""
        there = self._fetches and self.beyond and self.late_target
        return f"next, on {self.late_target} or a machine whose disk it mounts" if there else "next"

    @property
    def _fetches(self) -> bool:
        """Whether nothing but files are lacking, and nothing else can be proven without them."""
        return bool(self.holds and self.lacks and (self.rehearsed or not self.named))

    def _where_it_fits(self) -> Sequence[str]:
        """Return the rigs that were asked for; in the place of a single one that it does not fit, the cheapest that it fits."""
        plans: dict[str, Any] = next((outcome.facts.get("plans", {}) for outcome in self.outcomes if outcome.check == "plan"), {})
        if len(self.context.on) != 1 or not plans:
            return self.context.on
        # A rehearsal plans for this machine too; that it is too small is no reason to leave the target.
        target = self.context.rig.name
        own = [facts for name, facts in plans.items() if name.partition(", ")[0] == target]
        other = cheapest(set(facts["instead"]) for facts in own if "instead" in facts)
        return [other] if other else self.context.on

    @property
    def next_rung(self) -> list[str]:
        """Return the commands that take the recipe to the rig that the plan priced, if that is above this machine; else none."""
        plan = _priced(self.context, self.outcomes)
        if not (self.rehearsed and self.ready and self.beyond and plan is not None):
            return []
        launch, rig = ["windtunnel", "launch", *self.called], next(rig for rig in self.context.rigs if rig.name == plan.rig)
        if rig.nodes > 1:
            return [shlex.join([*launch, "--on", plan.rig, "--to", "slurm"])]
        recipe = self.recipe
        mirror = [] if recipe is None or recipe.checkpoints.mirror else ["--set", "checkpoints.mirror=s3://BUCKET/runs"]
        price = [] if rig.dollars_per_hour is None else ["--price", f"{rig.dollars_per_hour:g}"]
        return [
            shlex.join([*launch, "--to", "ssh:HOST", *price]),
            shlex.join([*launch, "--on", plan.rig, "--to", _renter(plan.rig), *mirror]),
        ]

    @property
    def late_target(self) -> str:
        """Return the rig whose plan `late` is from."""
        plan = _priced(self.context, self.outcomes)
        return plan.rig if plan else ""

    def late_of(self, outcome: Outcome) -> Late | None:
        """Return what finding this check's failure on the target would cost."""
        return self.late.get(outcome.shows)

    def dearest(self) -> Late | None:
        """Return the failure that would have cost most when found later; None where none failed or no price is known."""
        found = [self.late_of(outcome) for outcome in self.outcomes if outcome.status == "fail"]
        priced = [late for late in found if late is not None and late.dollars is not None]
        return max(priced, key=lambda late: late.dollars or 0.0, default=None)

    @property
    def stage(self) -> str:
        """Return ', stage NAME' of the last of several stages, whose plans are shown; '' where there is one alone."""
        return f", stage {self.recipe.stage}" if self.recipe and len(self.context.stages) > 1 else ""

    def plans(self) -> list[Plan]:
        """Return the plans that can be made: for here where the recipe was rehearsed, then for the targets."""
        return _plans(self.context, self.outcomes, here=self.rehearsed)

    def environment(self) -> list[tuple[str, str]]:
        """Return what the checks saw of this machine: (name, evidence)."""
        # What one asks first of a machine that behaves in another way.
        wanted = ("machine", "python", "torch", "gpu", "memory", "disk", "network", "clock")
        by_name = {outcome.check: outcome for outcome in self.outcomes if outcome.status in ("ok", "warn")}
        return [(name, by_name[name].evidence) for name in wanted if name in by_name]

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
        """Return what is written to report.json; its keys are stable."""
        page = None if self.unwritten else str(self.context.folder / "report.html")
        folder = {"folder": str(self.context.folder), "report": page} if self.rehearsed else {}
        return {
            "format": FORMAT,
            "recipe": self.name,
            "ready": self.ready,
            "lacks": [{"what": what, "command": command} for what, command in self.lacks],
            "rung": self.rung,
            "verdict": self.verdict,
            "rungs": [
                {"rung": r.rung, "ready": r.ready, "failed": r.failed, "not_run": r.untried, "here": r.here} for r in self.rungs()
            ],
            "targets": list(self.context.on),
            "created": self.created,
            "seconds": round(self.seconds, 1),
            **folder,
            "next_command": self.next_command,
            "next_rung": self.next_rung,
            "checks": [self._check(outcome) for outcome in self.outcomes],
            "plans": [plan.to_json() for plan in self.plans()],
            "environment": dict(self.environment()),
        }

    def _check(self, outcome: Outcome) -> dict[str, Any]:
        late = self.late_of(outcome)
        return {
            "check": outcome.check,
            "status": outcome.status,
            "proves": outcome.proves,
            "evidence": outcome.evidence,
            "numbers": outcome.facts,
            "seconds": round(outcome.seconds, 2),
            "remedy": outcome.fix,
            "problems": [{"problem": problem, "remedy": fix} for problem, fix in outcome.problems],
            "warnings": list(outcome.warnings),
            "needs_failed": list(outcome.cause),
            "rung": outcome.rung,
            "shows": outcome.shows,
            "found_later": None if late is None else {"minutes": late.minutes, "dollars": late.dollars, "rule": late.rule},
        }


def lacking_text(lacks: Sequence[tuple[str, str]]) -> str:
    """Return what is lacking and the commands that bring it, in words; empty where nothing is."""
    return " and ".join(f"{what} ({command})" for what, command in lacks)


def _renter(rig: str) -> str:
    """Return a cloud that has such a rig: AWS's own instances are AWS's; GPUs by number are had from several."""
    # One that SkyPilot knows and that rents single GPUs; others are named in docs/rent.md.
    return "aws" if rig in instance_names() else "runpod"


def late_for(context: Context, outcomes: Sequence[Outcome]) -> dict[Shows, Late]:
    """Return what failing later costs, by the target's plan (of several rigs the last that fits); empty without one."""
    plan = _priced(context, outcomes)
    return late_costs(context.recipe, plan) if plan else {}


def _priced(context: Context, outcomes: Sequence[Outcome]) -> Plan | None:
    return next((plan for plan in reversed(_plans(context, outcomes)) if plan.fits), None)


def _plans(context: Context, outcomes: Sequence[Outcome], *, here: bool = False) -> list[Plan]:
    """Return the plans that can be made, this machine's first where `here`. None is tried where the check of the plan broke."""
    if any(outcome.check == "plan" and outcome.log for outcome in outcomes):
        return []
    try:
        rigs = ([context.here] if here else []) + list(context.rigs)
    except UserError:
        return []
    made = []
    for rig in {rig.name: rig for rig in rigs}.values():
        # A refusal is what the check of the plan says. The report must come whatever else went wrong.
        # Broadly: a bug in planning is what this report is to tell of.
        with contextlib.suppress(Exception):
            made.append(context.plan(rig))
    return made


def write_json_report(report: Readiness) -> Path:
    """Write report.json into the rehearsal's folder. Raises UserError."""
    from windtunnel.watch import finite

    path = report.context.folder / "report.json"
    text = json.dumps(finite(report.to_json()), indent=2, ensure_ascii=False, default=str)
    try:
        write_atomic(path, text + "\n", durable=False)
    except OSError as error:
        raise UserError(f"report {path} cannot be written: {error.strerror or error}") from None
    return path


FIRST_STEPS = 100
RULES: dict[Shows, str] = {
    "start": "while the job starts up",
    "first steps": f"within the first {FIRST_STEPS} steps",
    "first validation": "at the first validation",
    "first checkpoint": "at the first checkpoint",
    "first interruption": "when the job is first interrupted, on average half-way",
    "end": "when training is over",
}


@dataclass(frozen=True)
class Late:
    """Minutes on the rig until a failure shows, and dollars spent by then (None: no price known)."""

    minutes: float
    dollars: float | None
    rule: str


def late_costs(recipe: Recipe, plan: Plan) -> dict[Shows, Late]:
    """Return what finding a failure later costs, for each time it can show at, by the plan of the target rig."""
    start, run = sum(plan.startup.values()), 3600 * plan.hours
    gpt = isinstance(recipe.model, GPTModel)
    validation = _after(recipe.pretrain.validate_every, plan) if gpt else run
    # An interruption may come any time: on average half of the run is behind it then.
    seconds: dict[Shows, float] = {
        "start": start,
        "first steps": start + FIRST_STEPS * plan.step_seconds,
        "first validation": start + validation,
        "first checkpoint": start + _after(recipe.checkpoints.every, plan),
        "first interruption": run / 2,
        "end": run,
    }
    rate = plan.dollars_per_hour
    late = {}
    for shows, value in seconds.items():
        # Short runs end before their first validation or save is due.
        minutes = min(value, run) / 60 if shows != "start" else value / 60
        late[shows] = Late(minutes, None if rate is None else rate * minutes / 60, RULES[shows])
    return late


def _after(every: Every, plan: Plan) -> float:
    """Return the seconds of training until something that happens so often happens first."""
    return every.steps * plan.step_seconds if every.steps else every.seconds or 0.0
