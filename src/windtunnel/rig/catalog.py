"""The catalog of GPUs, instances and prices: shipped data, overlaid with the user's file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from windtunnel.recipe import UserError

from .names import is_unlisted, plain, without_memory
from .types import GPU, Price

Positive = Annotated[float, Field(gt=0)]
Dollars = Annotated[float, Field(ge=0)]
Range = Annotated[list[Dollars], Field(min_length=2, max_length=2)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PriceEntry(_Section):
    """Dollars per hour, [low, high]."""

    on_demand: Range | None = None
    spot: Range | None = None
    interruptions: Dollars | None = None  # of a spot machine, an hour
    date: Annotated[str, BeforeValidator(str)] = "undated"  # YAML reads 2026-07-01 as a date
    source: str = "user file"

    @model_validator(mode="after")
    def _ordered(self) -> PriceEntry:
        for span in (self.on_demand, self.spot):
            if span and span[0] > span[1]:
                raise ValueError(f"a price range is [low, high], got {span}")
        return self

    def price(self) -> Price:
        """Return the plain value that other rooms use."""
        return Price(_pair(self.on_demand), _pair(self.spot), self.date, self.source, self.interruptions)


class GPUEntry(_Section):
    """One GPU of the catalog; see catalog.yaml for units."""

    memory_gib: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    fp32_tflops: Positive
    bandwidth_gbs: Positive
    link_gbs: Positive = 32.0
    network_gbs: Positive = 1.25
    max_per_node: int = Field(8, ge=1)
    capability: tuple[int, int]
    source: str = "user file"
    aliases: list[str] = []
    nvml: list[str] = []
    price: PriceEntry | None = None

    @field_validator("nvml")
    @classmethod
    def _patterns(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return patterns


class InstanceEntry(_Section):
    """One rented machine type; its price is per instance-hour, else the GPUs' price counts."""

    gpu: str
    gpus: int = Field(ge=1)
    cpu_cores: int = Field(ge=1)
    ram_gib: Positive
    disk_gib: Positive | None = None
    network_gbs: Positive = 1.25
    price: PriceEntry | None = None


class HereEntry(_Section):
    """The user's own machine."""

    dollars_per_hour: Dollars | None = None
    download_gbs: Positive | None = None


class ElsewhereEntry(_Section):
    """A machine without GPUs, where models are fetched and converted."""

    name: str
    cpu_cores: int = Field(ge=1)
    download_gbs: Positive
    price: PriceEntry


class _File(_Section):
    gpus: dict[str, GPUEntry] = {}
    instances: dict[str, InstanceEntry] = {}
    here: HereEntry = HereEntry()
    elsewhere: ElsewhereEntry


@dataclass(frozen=True)
class Catalog:
    """GPUs and instances by their names; the user's own machine, and one without GPUs that does what needs none."""

    gpus: dict[str, GPUEntry]
    instances: dict[str, InstanceEntry]
    here: HereEntry
    elsewhere: ElsewhereEntry

    def gpu(self, name: str) -> GPU:
        """Return the GPU of exactly this catalog name."""
        return GPU(name, **self.gpus[name].model_dump(include={f.name for f in fields(GPU)} - {"name"}))

    def find_gpu(self, text: str) -> str | None:
        """Catalog name of a GPU given by name or alias, however it is spelt: 'RTX 3090', 'h100_sxm', 'H100 80GB'."""
        wanted = plain(text)
        known = {plain(alias): name for name, entry in self.gpus.items() for alias in (*entry.aliases, name)}
        if wanted in known:
            return known[wanted]
        # The label's memory after a name: accepted where it is this GPU's.
        for short, gigabytes in without_memory(wanted):
            if f"{short}{gigabytes:.0f}" in known:  # A100-40 beside A100
                return known[f"{short}{gigabytes:.0f}"]
            found = known.get(short)
            # A label's decimal GB are more than what CUDA reports in GiB, by the unit and the driver's share.
            if found is not None and abs(self.gpus[found].memory_gib / gigabytes - 0.97) < 0.1:
                return found
        return None

    def find_instance(self, text: str) -> str | None:
        """Catalog name of an instance, in any case."""
        return next((name for name in self.instances if name.lower() == text.lower()), None)

    def nearest(self, text: str) -> str:
        """Return the hint of an error about an unknown name."""
        names = {n.lower(): n for n in ("here", "cpu", *self.gpus, *self.instances)}
        names |= {a.lower(): name for name, entry in self.gpus.items() for a in entry.aliases}
        if is_unlisted(text):
            return "it is not in the catalog: describe it in ~/.config/windtunnel/rigs.yaml, or name a rig file"
        sizes = [name for name in self.instances if name.startswith(f"{text.lower()}.")]
        if sizes:
            return f"which size? {', '.join(sizes)}"
        # Names are short: one wrong letter of four is a quarter.
        close = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
        known = f"GPUs: {', '.join(self.gpus)}; instances: {', '.join(self.instances)}; or here"
        return f"did you mean {names[close[0]]}? {known}" if close else known


def instance_names() -> list[str]:
    """Names of all instances, the user's included."""
    return list(load_catalog().instances)


def user_file() -> Path | None:
    """Return the user's catalog: $WINDTUNNEL_RIGS, else rigs.yaml in the configuration folder, if it exists.

    Raises:
        UserError: $WINDTUNNEL_RIGS names a file that does not exist.
    """
    named = os.environ.get("WINDTUNNEL_RIGS")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise UserError(f"$WINDTUNNEL_RIGS names {path}, which is not a file", "correct or unset WINDTUNNEL_RIGS")
        return path
    path = _configuration() / "rigs.yaml"
    return path if path.is_file() else None


def prices_file() -> Path:
    """Return where prices brought up to date are kept: $WINDTUNNEL_PRICES, else prices.yaml in the configuration folder."""
    named = os.environ.get("WINDTUNNEL_PRICES")
    return Path(named).expanduser() if named else _configuration() / "prices.yaml"


def _configuration() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "windtunnel"


def load_catalog() -> Catalog:
    """Return the shipped catalog with prices brought up to date, and the user's file on top, key by key.

    Raises:
        UserError: names the user's file, the key and what was expected.
    """
    path, prices = user_file(), prices_file()
    if path is None and not prices.is_file():
        return _shipped_catalog()
    # Copies, since what is shipped is kept for the next call.
    merged = {section: dict(entries) for section, entries in _shipped_data().items()} | {"here": {}}
    _take_prices(merged, prices)
    if path is None:
        return _validate(merged, prices)
    mine = _read(path)
    for section, entries in mine.items():
        if section not in merged:
            hint = difflib.get_close_matches(str(section), merged, n=1)
            message = f"{path}: {section}: unknown key; expected gpus, instances, here or elsewhere"
            raise UserError(message, f"nearest: {hint[0]}" if hint else None)
        if not isinstance(entries, dict):
            raise UserError(f"{path}: {section}: expected a mapping, got {entries!r}")
        if section in ("here", "elsewhere"):
            merged[section] |= entries
            continue
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                raise UserError(f"{path}: {section}.{name}: expected a mapping of keys, got {entry!r}")
            known = _known_name(str(name), merged[section])
            # `price` is replaced whole: the shipped date and source do not vouch for the user's numbers.
            merged[section][known] = merged[section].get(known, {}) | entry
    return _validate(merged, path)


def _take_prices(merged: dict[str, Any], prices: Path) -> None:
    """Put prices that were brought up to date in place of the shipped ones."""
    data = _read(prices) if prices.is_file() else {}
    for section in ("gpus", "instances"):
        entries = data.get(section)
        for name, price in entries.items() if isinstance(entries, dict) else ():
            if name in merged[section]:  # of a GPU that this version does not know there is nothing but a price
                merged[section][name] = merged[section][name] | {"price": price}


def _known_name(name: str, entries: Iterable[str]) -> str:
    return next((known for known in entries if known.lower() == name.lower()), name)


def _validate(data: dict[str, Any], path: Path) -> Catalog:
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(_explain(path, item) for item in error.errors()))) from None
    # A user's instance may name a user's GPU, so only all of it together can be judged.
    for name, instance in file.instances.items():
        if instance.gpu not in file.gpus:
            raise UserError(f"{path}: instances.{name}.gpu: no GPU named {instance.gpu!r}", f"one of: {', '.join(file.gpus)}")
    return Catalog(file.gpus, file.instances, file.here, file.elsewhere)


def _explain(path: Path, item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        loc = item["loc"]
        owners: dict[str, type[_Section]] = {
            "gpus": GPUEntry, "instances": InstanceEntry, "here": HereEntry, "elsewhere": ElsewhereEntry,
        }  # fmt: skip
        owner = PriceEntry if "price" in loc[:-1] else owners.get(str(loc[0]), _File)
        near = difflib.get_close_matches(str(loc[-1]), owner.model_fields, n=1)
        return f"{path}: {key}: unknown key; " + (f"nearest: {near[0]}" if near else f"valid: {', '.join(owner.model_fields)}")
    if item["type"] == "missing":
        return f"{path}: {key}: missing; it must be given"
    return f"{path}: {key}: {item['msg'].removeprefix('Value error, ')} (got {item['input']!r})"


@lru_cache(maxsize=1)
def _shipped_catalog() -> Catalog:
    # Kept: every rig of a ladder asks for it.
    return _validate(_shipped_data(), Path("catalog.yaml"))


@lru_cache(maxsize=1)
def _shipped_data() -> dict[str, Any]:
    return _parse((resources.files(__package__) / "catalog.yaml").read_text(encoding="utf-8"))


def _parse(text: str) -> Any:
    # libyaml's loader where it is there: reading the catalog is part of every plan.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_yaml(path: Path, fix: str) -> Any:
    """Return what a YAML file of the user's holds. Raises UserError: it cannot be read (with the fix), or is not YAML."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", fix) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', error)}") from None


def _read(path: Path) -> dict[str, Any]:
    data = read_yaml(path, "make it a readable UTF-8 file, or unset WINDTUNNEL_RIGS")
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping with gpus and instances, found {type(data).__name__}")
    return data


def _pair(span: list[float] | None) -> tuple[float, float] | None:
    return None if span is None else (span[0], span[1])
