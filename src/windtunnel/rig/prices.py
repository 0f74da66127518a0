"""Prices that the user brings up to date, from a file or an address: read, validated, and kept apart from the shipped ones.

Two forms are read. One of our own, in YAML or JSON:

    date: 2026-11-20
    source: our contract
    currency: EUR          # optional; then also what one of it is in dollars
    dollars: 1.08
    gpus: {H100: {on_demand: [2.10, 2.40], spot: 1.10, interruptions: 0.05}}
    instances: {p5.48xlarge: {on_demand: 55.04}}

And the lists that providers publish: see `price_lists`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

from .catalog import Catalog, load_catalog, prices_file
from .price_lists import LISTS, Offer, offers, read_source

OLD_DAYS = 180
SUCH_AS = "such as {date: 2026-11-20, source: a contract, gpus: {H100: {on_demand: 2.5}}}"
MOST_DOLLARS = 1000.0
"""Of a GPU-hour: above it a price is rather a sum in cents or of a month."""


@dataclass(frozen=True)
class Update:
    """What an update brought. Attributes: gpus, instances: names that have a new price. unknown: names that are not ours."""

    gpus: tuple[str, ...]
    instances: tuple[str, ...]
    unknown: tuple[str, ...]
    path: Path


def update_prices(source: str, *, region: str | None = None, today: date | None = None) -> Update:
    """Read prices and keep them; those that are not in there stay as they were.

    Args:
        source: a file, an http(s) address, or a provider's name: see `price_lists`.
        region: of a provider's list, only machines of this region.
        today: for tables, which have no date.

    Raises:
        UserError: it cannot be read, is none of the forms, or has a price that makes no sense; nothing is changed then.
    """
    text, catalog = read_source(source), load_catalog()
    listed = offers(text, source)
    if listed is not None:
        found, unknown = _offered(listed, source, catalog, region, today or datetime.now(UTC).date())
    else:
        if region is not None:
            raise UserError(f"--region {region}: {source} has no regions", "leave it out")
        found, unknown = _own(text, source, catalog)
    if not found["gpus"] and not found["instances"]:
        raise UserError(f"{source}: no price of a GPU or instance that the catalog has", "`windtunnel prices` lists their names")
    path = prices_file()
    kept: dict[str, dict[str, Any]] = {"gpus": {}, "instances": {}}
    if path.exists():
        # What an update does not name stays: one provider's list must not take another's prices away.
        kept |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for section, entries in found.items():
        kept[section] = {**kept.get(section, {}), **entries}
    head = "# Written by `windtunnel prices --update`; your own rigs.yaml goes before it. Without this file: the shipped ones.\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, head + yaml.safe_dump(kept, sort_keys=True, allow_unicode=True))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}", "set WINDTUNNEL_PRICES") from None
    return Update(tuple(found["gpus"]), tuple(found["instances"]), tuple(sorted(unknown)), path)


def age_days(told: str, *, today: date | None = None) -> int | None:
    """Return how many days ago a price was seen; of a month or a year without its day, since its end; None: not told."""
    parts = re.fullmatch(r"(\d{4})(?:-(\d{2}))?(?:-(\d{2}))?", told.strip())
    if parts is None:
        return None
    # Without a month the year's end counts: a price is rather called younger than older than it is.
    year, month, day = int(parts[1]), int(parts[2] or 12), int(parts[3] or 0)
    if not 1 <= month <= 12:
        return None
    try:
        seen = date(year, month, day) if day else date(year + month // 12, month % 12 + 1, 1)
    except ValueError:
        return None
    return max(0, ((today or datetime.now(UTC).date()) - seen).days)


def _own(text: str, source: str, catalog: Catalog) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Read our own form."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"{source}: neither YAML, JSON nor a table of SkyPilot's: {str(error).splitlines()[0]}", SUCH_AS
        ) from None
    if not isinstance(data, Mapping):
        raise UserError(f"{source}: expected a mapping with date, source, gpus and instances, or a table of SkyPilot's", SUCH_AS)
    strange = set(data) - {"date", "source", "currency", "dollars", "gpus", "instances"}
    if strange:
        raise UserError(
            f"{source}: {sorted(map(str, strange))[0]}: unknown key", "date, source, currency, dollars, gpus, instances"
        )
    seen, rate = str(data.get("date", "")), _rate(data, source)
    if age_days(seen) is None:
        raise UserError(f"{source}: date: {seen or 'missing'}", "when these prices were seen, such as 2026-11-20")
    found: dict[str, dict[str, Any]] = {"gpus": {}, "instances": {}}
    unknown: set[str] = set()
    for section, find in (("gpus", catalog.find_gpu), ("instances", catalog.find_instance)):
        entries = data.get(section) or {}
        if not isinstance(entries, Mapping):
            raise UserError(f"{source}: {section}: expected a mapping of names, got {entries!r}")
        for told, prices in entries.items():
            name = find(str(told))
            if name is None:
                unknown.add(str(told))
                continue
            where = f"{source}: {section}.{told}"
            entry = _entry(prices, where, rate)
            if section == "gpus":
                _sensible(entry, where)
            found[section][name] = {**entry, "date": seen, "source": str(data.get("source") or source)}
    return found, unknown


def _rate(data: Mapping[str, Any], source: str) -> float:
    currency, rate = str(data.get("currency", "USD")).upper(), data.get("dollars", 1.0)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 1e-6 < rate < 1e6:
        raise UserError(f"{source}: dollars: {rate!r}", "what one of the currency is in dollars, such as 1.08")
    if currency != "USD" and "dollars" not in data:
        raise UserError(f"{source}: prices in {currency}, and no rate", "add what one of it is in dollars: dollars: 1.08")
    return float(rate)


def _entry(prices: Any, where: str, rate: float) -> dict[str, Any]:
    """Return a price's keys in dollars."""
    if not isinstance(prices, Mapping) or not prices or set(prices) - {"on_demand", "spot", "interruptions"}:
        raise UserError(f"{where}: {prices!r}", "expected {on_demand: 2.10 or [2.10, 2.40], spot: ..., interruptions: an hour}")
    entry: dict[str, Any] = {}
    for key, value in prices.items():
        values = value if isinstance(value, list) else [value, value]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < float("inf")]
        if len(values) != 2 or numbers != values or values[0] > values[1]:
            raise UserError(f"{where}.{key}: {value!r} is no price", "a number of at least 0, or [low, high]")
        entry[key] = float(values[0]) if key == "interruptions" else [round(rate * v, 4) for v in values]
    return entry


def _sensible(entry: Mapping[str, Any], where: str) -> None:
    for kind in ("on_demand", "spot"):
        if kind in entry and entry[kind][1] > MOST_DOLLARS:
            raise UserError(f"{where}.{kind}: ${entry[kind][1]:,.2f} a GPU-hour", "dollars an hour of one GPU are expected")


def _offered(
    found: list[Offer], source: str, catalog: Catalog, region: str | None, today: date
) -> tuple[dict[str, dict[str, Any]], set[str]]:  # fmt: skip
    """Read a provider's list: a GPU's price is its machine's over their number, its range that of all machines."""
    if region is not None:
        regions = sorted({offer.region for offer in found})
        found = [offer for offer in found if offer.region == region]
        if not found:
            raise UserError(f"--region {region}: {source} has none of that name", f"one of {', '.join(regions[:12])}")
    seen: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: {"on_demand": [], "spot": []})
    unknown: set[str] = set()
    for offer in found:
        gpu, instance = catalog.find_gpu(offer.gpu), catalog.find_instance(offer.instance)
        if gpu is None:
            unknown.add(offer.gpu)
            continue
        for kind, dollars in (("on_demand", offer.on_demand), ("spot", offer.spot)):
            if dollars:
                seen["gpus", gpu][kind].append(dollars / offer.count)
                if instance is not None:
                    seen["instances", instance][kind].append(dollars)
    made: dict[str, dict[str, Any]] = {"gpus": {}, "instances": {}}
    # Of an address the folder's name, which in SkyPilot's catalog is the provider's.
    where = source if source in LISTS else source.rpartition("/")[0].rpartition("/")[2] or source
    for (section, name), kinds in seen.items():
        entry: dict[str, Any] = {kind: _span(values) for kind, values in kinds.items() if values}
        if section == "gpus":
            _sensible(entry, f"{source}: {name}")
        if entry:
            made[section][name] = {
                **entry, "date": today.isoformat(), "source": where if region is None else f"{where} ({region})"
            }  # fmt: skip
    return made, unknown


def _span(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    return [round(ordered[0], 4), round(ordered[-1], 4)]
