"""What runs have cost, by month, recipe, rig, provider and folder, beside what was planned and against budgets over many runs."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from windtunnel.recipe import UserError

from .folder import read_manifest
from .listing import RunSummary, list_runs
from .metrics import MetricsReader
from .thinned import stretches

# As of a single run's budget, and early enough to change something.
WARN_SHARE = 0.8
FILE = "budgets.yaml"
"""In a folder of runs: {total: 5000, month: 2000, recipe: {charlm: 500}, rig: {8xH100: 3000}}, in dollars."""
KINDS = ("total", "month", "recipe", "rig", "provider", "folder")
Kind = Literal["total", "month", "recipe", "rig", "provider", "folder"]
NOT_TOLD = "not told"
"""Of a run whose machine did not say whom it was rented from."""
MONTH_POINTS = 500


@dataclass(frozen=True)
class Entry:
    """What one run has cost.

    Attributes:
        rig: its name, as the run was planned for. hours, dollars: spent; planned_*: of its plan; None: not known.
        ahead: dollars that a running one is expected to spend from now on, which stopping it now would save.
        months: 'YYYY-MM' (UTC) -> dollars.
        provider: whom the machine was rented from.
    """

    path: Path
    recipe: str
    rig: str
    status: str
    hours: float
    dollars: float | None
    planned_hours: float | None
    planned_dollars: float | None
    ahead: float
    months: dict[str, float] = field(default_factory=dict)
    provider: str = NOT_TOLD

    def key(self, kind: Kind) -> str:
        """Return what it is counted under; 'month' is none of a whole run."""
        own = {"recipe": self.recipe, "rig": self.rig, "provider": self.provider, "folder": str(self.path.parent)}
        return own.get(kind, "")


@dataclass(frozen=True)
class Line:
    """A sum over runs: name, how many, hours, dollars, those planned and those still expected; None: a sum cannot be told."""

    name: str
    runs: int
    hours: float | None
    dollars: float
    planned: float | None
    ahead: float


@dataclass(frozen=True)
class Limit:
    """A budget over many runs. Attributes: kind, name: of what, such as 'recipe' and 'charlm'. dollars: at most."""

    kind: Kind
    name: str
    dollars: float


@dataclass(frozen=True)
class Standing:
    """How a budget stands: spent, and expected to be spent when what runs now has ended."""

    limit: Limit
    spent: float
    expected: float

    @property
    def level(self) -> Literal["ok", "warn", "over"]:
        """Return 'over': spent. 'warn': more than 80 % is, or all of it will be."""
        if self.spent > self.limit.dollars:
            return "over"
        return "warn" if self.spent >= WARN_SHARE * self.limit.dollars or self.expected > self.limit.dollars else "ok"


def read_ledger(roots: Sequence[Path]) -> list[Entry]:
    """Return what every run below the folders has cost, the newest first. Damaged runs are counted as far as they can be read."""
    return [_entry(item) for root in roots for item in list_runs(root)]


def sums(entries: Iterable[Entry], kind: Kind) -> list[Line]:
    """Return sums by a kind, the dearest first; months in their order."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    entries = list(entries)
    if kind == "month":
        months = sorted({month for entry in entries for month in entry.months})
        return [_month(month, entries) for month in months]
    for entry in entries:
        groups[entry.key(kind) or "all"].append(entry)
    lines = [_line(name, group) for name, group in groups.items()]
    return sorted(lines, key=lambda line: line.dollars, reverse=True)


def standings(entries: Sequence[Entry], limits: Sequence[Limit], *, now: float | None = None) -> list[Standing]:
    """Return how budgets stand; one of the kind 'month' is of the month that is now."""
    month = _month_of(time.time() if now is None else now)
    found = []
    for limit in limits:
        if limit.kind == "month":
            spent = sum(entry.months.get(limit.name or month, 0.0) for entry in entries)
            ahead = sum(entry.ahead for entry in entries) if limit.name in ("", month) else 0.0
        else:
            counted = [e for e in entries if limit.kind == "total" or e.key(limit.kind).lower() == limit.name.lower()]
            spent, ahead = sum(e.dollars or 0.0 for e in counted), sum(e.ahead for e in counted)
        found.append(Standing(limit, spent, spent + ahead))
    return found


def parse_limit(text: str) -> Limit:
    """Read 'DOLLARS', 'month=DOLLARS', 'month:2026-11=DOLLARS', or 'recipe:NAME=DOLLARS', likewise of a rig or a provider.

    Raises:
        UserError: none of these.
    """
    what, _, amount = text.rpartition("=")
    kind, _, name = (what or "total").partition(":")
    return _limit(kind, name, amount, f"--budget {text}")


def read_limits(root: Path) -> list[Limit]:
    """Return the budgets in a folder's budgets.yaml, if it has one. Raises UserError: it cannot be made sense of."""
    path = root / FILE
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}", f"expected {_EXAMPLE}") from None
    if not isinstance(data, Mapping):
        raise UserError(f"{path}: expected a mapping, got {data!r}", f"expected {_EXAMPLE}")
    found = []
    for kind, value in data.items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        found += [_limit(str(kind), str(name), amount, f"{path}: {kind}") for name, amount in parts]
    return found


_EXAMPLE = "{total: 5000, month: 2000, recipe: {charlm: 500}, rig: {8xH100: 3000}}"


def _limit(kind: str, name: str, amount: Any, where: str) -> Limit:
    if kind not in KINDS:
        raise UserError(f"{where}: a budget of {kind!r} is unknown", f"expected one of {', '.join(KINDS)}")
    if (kind == "total" and name) or (kind in ("recipe", "rig", "provider", "folder") and not name):
        wanted = "no name" if kind == "total" else f"the name of a {kind}: {kind}:NAME=DOLLARS"
        raise UserError(f"{where}: a budget of kind {kind} needs {wanted}")
    try:
        # As people write them into YAML: 2000, $2,000.
        dollars = float(str(amount).strip().lstrip("$").replace(",", ""))
    except ValueError:
        dollars = -1.0
    if not 0 < dollars < float("inf"):
        raise UserError(f"{where}: {amount!r} is no amount of dollars", "a number above 0, such as 2000")
    return Limit(kind, name, dollars)  # type: ignore[arg-type]


def _entry(item: RunSummary) -> Entry:
    rig: dict[str, Any] = {}
    with contextlib.suppress(UserError):
        rig = read_manifest(item.path).get("rig") or {}
    return Entry(
        item.path, item.recipe, str(rig.get("name") or "?"), item.status, item.spent_hours or 0.0, item.spent_dollars,
        item.planned_hours, item.planned_dollars, _ahead(item), _months(item),
        str(rig.get("provider") or NOT_TOLD),
    )  # fmt: skip


def _ahead(item: RunSummary) -> float:
    """Return what a run is expected to spend from now on: by its own forecast, else by its plan."""
    if item.status != "running":
        return 0.0
    spent = item.spent_dollars or 0.0
    try:
        with MetricsReader(item.path / "metrics.sqlite") as metrics:
            forecast = metrics.latest().get("dollars_forecast")
    except UserError:
        forecast = None
    end = forecast.value if forecast is not None else item.planned_dollars
    # end == end: not NaN.
    return max(0.0, end - spent) if end is not None and end == end else 0.0


def _months(item: RunSummary) -> dict[str, float]:
    """Return what was spent in which month, by the run's own record; what it does not tell belongs to its last month."""
    if not item.spent_dollars:
        return {}
    months: dict[str, float] = defaultdict(float)
    last = item.created or item.path.stat().st_mtime
    before = 0.0
    try:
        with MetricsReader(item.path / "metrics.sqlite") as metrics:
            for part in sorted(stretches(metrics, "dollars", MONTH_POINTS), key=lambda part: part.time):
                if part.high is not None and part.high > before:  # a run that went back spends on
                    months[_month_of(part.time)] += part.high - before
                    before = part.high
                last = max(last, part.time)
    except UserError:
        before = 0.0
        # A damaged database: whatever was read of it may be wrong, and all of it is the last month's.
        months.clear()
    months[_month_of(last)] += item.spent_dollars - before
    return {month: dollars for month, dollars in months.items() if abs(dollars) > 1e-9}


def _month_of(when: float) -> str:
    return time.strftime("%Y-%m", time.gmtime(when))


def _line(name: str, entries: Sequence[Entry]) -> Line:
    planned = [entry.planned_dollars for entry in entries if entry.planned_dollars is not None]
    return Line(
        name, len(entries), sum(entry.hours for entry in entries), sum(entry.dollars or 0.0 for entry in entries),
        sum(planned) if planned else None, sum(entry.ahead for entry in entries),
    )  # fmt: skip


def _month(month: str, entries: Sequence[Entry]) -> Line:
    """Return a month's line: it has dollars alone, since hours and plans are those of whole runs."""
    spent = [entry.months[month] for entry in entries if month in entry.months]
    return Line(month, len(spent), None, sum(spent), None, 0.0)
