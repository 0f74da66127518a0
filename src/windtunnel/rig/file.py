"""A rig described by a file of its own: `--on my-rig.yaml`. Every quantity carries its unit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .catalog import load_catalog, read_yaml
from .types import DOWNLOAD_GBS, DOWNLOAD_NOTE, GPU, Rig

SIZES = {"GiB": 1.0, "GB": 1e9 / 2**30, "TiB": 1024.0, "TB": 1e12 / 2**30, "MiB": 1 / 1024}
RATES = {"GB/s": 1.0, "MB/s": 1e-3, "TB/s": 1e3, "GiB/s": 2**30 / 1e9, "Gbit/s": 1 / 8, "Gb/s": 1 / 8}
SPEEDS = {"TFLOP/s": 1.0, "TFLOPS": 1.0, "PFLOP/s": 1e3, "PFLOPS": 1e3, "GFLOP/s": 1e-3}
PRICES = {"/h": 1.0, "$/h": 1.0}
EXAMPLE = "{gpu: H100, gpus_per_node: 8, nodes: 2, ram: 1 TiB, network: 400 GB/s, price: $50/h}"


@dataclass(frozen=True)
class _Quantity:
    units: Mapping[str, float]
    example: str
    what: str


RIG_QUANTITIES = {
    "ram": _Quantity(SIZES, "1 TiB", "memory of a node's CPUs"),
    "disk": _Quantity(SIZES, "10 TB", "free disk of a node"),
    "link": _Quantity(RATES, "450 GB/s", "between two GPUs of a node, one direction"),
    "network": _Quantity(RATES, "400 GB/s", "of a node to the others, one direction"),
    "download": _Quantity(RATES, "500 MB/s", "from the hub"),
    "price": _Quantity(PRICES, "$50/h", "of the whole rig"),
}
GPU_QUANTITIES = {
    "memory": _Quantity(SIZES, "79.1 GiB", "as CUDA reports it"),
    "bf16": _Quantity(SPEEDS, "989 TFLOP/s", "dense"),
    "fp8": _Quantity(SPEEDS, "1979 TFLOP/s", "dense"),
    "fp32": _Quantity(SPEEDS, "67 TFLOP/s", "without tensor cores"),
    "bandwidth": _Quantity(RATES, "3.35 TB/s", "of device memory"),
    "link": RIG_QUANTITIES["link"],
}
RIG_KEYS = ("gpu", "gpus_per_node", "nodes", "cpu_cores", *RIG_QUANTITIES)
GPU_KEYS = ("name", "capability", *GPU_QUANTITIES)
GPU_NEEDS = ("name", "memory", "bf16", "bandwidth", "capability")


def rig_from_file(path: Path) -> Rig:
    """Return the rig that a YAML file describes; what it leaves out is as in the catalog for its GPU.

    Raises:
        UserError: the file, a key or a value, with the unit that is expected.
    """
    data = _read(path)
    _check_keys(path, "", data, RIG_KEYS)
    if "gpu" not in data:
        raise UserError(f"{path}: gpu: missing", f"a rig file looks like {EXAMPLE}")
    gpu, network = _gpu(path, data["gpu"])
    count, nodes = _count(path, data, "gpus_per_node", 1), _count(path, data, "nodes", 1)
    own = {key: _quantity(path, key, data[key], RIG_QUANTITIES[key]) for key in RIG_QUANTITIES if key in data}
    price, line = own.get("price"), own.get("download")
    return Rig(
        name=path.stem,
        gpu=gpu,
        gpus_per_node=count,
        nodes=nodes,
        # As `parse` takes it of rented hosts.
        cpu_cores=_count(path, data, "cpu_cores", 16 * count),
        ram_gib=own.get("ram", 128.0 * count),
        disk_free_gib=own.get("disk"),
        link_gbs=own.get("link", gpu.link_gbs),
        network_gbs=own.get("network", network * count),
        dollars_per_hour=price,
        price_note=f"${price:,.2f}/h from {path}" if price is not None else f"no price known: write price: $50/h in {path}",
        cpu_gflops=None,
        notes=(f"as {path} describes it",),
        download_gbs=line or DOWNLOAD_GBS,
        download_note=f"{line:g} GB/s from {path}" if line else DOWNLOAD_NOTE,
    )


def _gpu(path: Path, value: Any) -> tuple[GPU, float]:
    """Return the GPU and its share of a node's network in GB/s."""
    catalog = load_catalog()
    if isinstance(value, str):
        known = catalog.find_gpu(value)
        if known is None:
            raise UserError(f"{path}: gpu: no GPU named {value!r}", catalog.nearest(value))
        return catalog.gpu(known), catalog.gpus[known].network_gbs
    if not isinstance(value, dict):
        raise UserError(f"{path}: gpu: expected a name or a mapping with {', '.join(GPU_NEEDS)}, got {value!r}")
    _check_keys(path, "gpu.", value, GPU_KEYS)
    for key in GPU_NEEDS:
        if key not in value:
            example = GPU_QUANTITIES[key].example if key in GPU_QUANTITIES else {"name": "L4", "capability": "[8, 9]"}[key]
            raise UserError(f"{path}: gpu.{key}: missing", f"write {key}: {example}")
    numbers = {k: _quantity(path, f"gpu.{k}", value[k], q) for k, q in GPU_QUANTITIES.items() if k in value}
    capability = value["capability"]
    if not (isinstance(capability, list) and len(capability) == 2 and all(isinstance(n, int) for n in capability)):
        raise UserError(f"{path}: gpu.capability: expected two whole numbers, got {capability!r}", "for example [9, 0]")
    gpu = GPU(
        str(value["name"]), numbers["memory"], numbers["bf16"], numbers.get("fp8"), numbers.get("fp32", numbers["bf16"] / 15),
        numbers["bandwidth"], numbers.get("link", 32.0), (capability[0], capability[1]), str(path),
    )  # fmt: skip
    # 10 Gbit/s, what a server's Ethernet has at least.
    return gpu, 1.25


def _quantity(path: Path, key: str, value: Any, quantity: _Quantity) -> float:
    """Return a number with its unit, in the first of the quantity's units."""
    units = ", ".join(quantity.units)
    wanted = f"{key}: expected {quantity.what} with its unit ({units})"
    # Bits or bytes, GB or GiB: a number alone has been read wrongly too often to guess.
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise UserError(f"{path}: {wanted}, got {value} without one", f"write {key.rpartition('.')[2]}: {quantity.example}")
    match = re.fullmatch(r"\s*\$?\s*(-?\d+(?:\.\d*)?(?:e\d+)?|-?\.\d+)\s*([A-Za-z/$]+)\s*", str(value))
    unit = None if match is None else next((u for u in quantity.units if u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise UserError(f"{path}: {wanted}, got {value!r}", f"for example {quantity.example}")
    number = float(match[1]) * quantity.units[unit]
    if number < 0 or (number == 0 and quantity.units is not PRICES):
        raise UserError(f"{path}: {key}: must be above zero, got {value!r}", f"for example {quantity.example}")
    return number


def _count(path: Path, data: dict[str, Any], key: str, otherwise: int) -> int:
    value = data.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{path}: {key}: expected a whole number of at least 1, got {value!r}", f"for example {key}: {otherwise}")
    return value


def _check_keys(path: Path, prefix: str, data: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"valid: {', '.join(known)}"
            raise UserError(f"{path}: {prefix}{key}: unknown key", hint)


def _read(path: Path) -> dict[str, Any]:
    data = read_yaml(path, "give a readable YAML file or the name of a rig")
    if not isinstance(data, dict):
        found = "is empty" if data is None else "holds a list" if isinstance(data, list) else "holds a single value"
        raise UserError(f"rig file {path} {found}; expected a mapping of keys", f"such as {EXAMPLE}")
    return data
