"""Rigs by name: 'here', 'H100', '8xH100', '2x(8xH100)', 'p5.48xlarge', '8xH100@$2.50', '8xH100@spot'."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from windtunnel.recipe import UserError

from .catalog import Catalog, load_catalog
from .detect import detect_rig
from .file import rig_from_file
from .names import is_machine, of_kind, plain, remark, tidy, unclear, unsupported
from .types import Price, Rig

PRICES = "@spot, @$2.50 (per GPU-hour) or @$98/h (whole rig)"
NAMES = "here, cpu, H100, 8xH100 or H100:8, 2x(8xH100), p5.48xlarge, 2xp5.48xlarge, or a rig file my-rig.yaml"
GRAMMAR = f"{NAMES}; optionally followed by {PRICES}"
# Hosts of rented GPUs have about this much beside each GPU; only data loading and checkpoints use it.
HOST_CORES_PER_GPU = 16
HOST_RAM_GIB_PER_GPU = 128.0
LONGEST = 300  # characters of a rig's text: of longer ones the forms that people write take seconds to tell apart
_TIMES = r"\s*[x×*]\s*"
# Nodes stand outside the brackets, GPUs of each inside.
_NESTED = re.compile(rf"(\d+){_TIMES}\(\s*(?:(\d+){_TIMES})?([^()]+?)\s*\)", re.I)
_FLAT = re.compile(rf"(?:(\d+){_TIMES})?([^()@]+)", re.I)


def spot_interruptions(text: str) -> tuple[float, str] | None:
    """Return how often an hour a spot machine of a rig's kind is taken away, and from where that is known; None: it is not.

    Several GPUs or machines of one job are counted as one: a cloud takes a machine, and the rates are of machines.
    """
    catalog, rig = load_catalog(), parse_rig(text)
    own = catalog.instances.get(rig.name)
    entry = own.price if own and own.price else catalog.gpus[rig.gpu.name].price if rig.gpu else None
    if entry is None or entry.interruptions is None:
        return None
    return rig.nodes * entry.interruptions, f"{entry.source}, {entry.date}"


def parse_rig(text: str) -> Rig:
    """Return the rig a text names.

    A price may follow: '@spot', '@$2.50' per GPU-hour, '@$98/h' for the whole rig. Without one, named
    rigs have the catalog's on-demand price and `here` the user's own (see price_here).

    A text that ends in .yaml names a file that describes the rig (see file.py).

    Raises:
        UserError: unknown name (with the nearest), impossible count, text outside the grammar, or a fault in the file.
    """
    # A path may have blanks, brackets and numbers: it is not tidied.
    if text.partition("@")[0].strip().lower().endswith((".yaml", ".yml")):
        body, _, price = (part.strip() for part in text.partition("@"))
    else:
        text = " ".join(text.split())
        if len(text) > LONGEST:
            raise UserError(f"rig {text[:40]!r}...: {len(text)} characters; at most {LONGEST}", f"expected {GRAMMAR}")
        body, price = tidy(text)
    at = bool(price) or text.rstrip().endswith("@")
    if not body:
        raise UserError(f"rig {text!r} is empty", f"name one: {GRAMMAR}")
    if body.lower() in ("here", "cpu"):
        rig = detect_rig(gpus=body.lower() == "here")
        return _priced(rig, price, text, None) if at else rig
    if body.lower().endswith((".yaml", ".yml")):
        rig = rig_from_file(Path(body).expanduser())
        return _priced(rig, price, text, None) if at else rig
    said = remark(text)
    beside = said is not None and (load_catalog().find_instance(said[1]) or is_machine(said[1]))
    rig, known = _as_said(*said, text) if said and beside else _named(body, text)
    return _priced(rig, price, text, known) if at else rig


def _as_said(count: str, machine: str, told: str, text: str) -> tuple[Rig, Price | None]:
    """Return the rig of a machine's name and its price, if what stands beside it is what the machine has."""
    rig, known = _named(tidy(count + machine)[0], text)
    assert rig.gpu is not None  # every machine with a name has some
    body = tidy(told)[0]
    nested, flat = _NESTED.fullmatch(body), _FLAT.fullmatch(body)
    name = nested[3] if nested else flat[2] if flat else body
    found = load_catalog().find_gpu(name)
    if nested:
        nodes, each = int(nested[1]), int(nested[2] or 1)
        total, agrees = nodes * each, (nodes, each) == (rig.nodes, rig.gpus_per_node)
    else:  # of one machine, or of all
        total = int(flat[1]) if flat and flat[1] else rig.gpus_per_node
        agrees = total in (rig.gpus_per_node, rig.gpus)
    # 'A100' beside a machine is the one that is in it, of 40 or 80 GB; 'A100-80' is of 80.
    kind, _, size = rig.gpu.name.partition("-")
    form = r"(?:sxm\d?)?" if size.isdigit() else ""
    if not agrees or (found != rig.gpu.name and not re.fullmatch(plain(kind) + form, plain(name))):
        other = f", or {of_kind(total, found)}" if found else ""
        has = f"{machine} has {rig.gpus_per_node} x {rig.gpu.name}"
        raise UserError(f"rig {text!r}: {has}, not {told!r}", f"write {count}{machine}{other}")
    return rig, known


def _named(body: str, text: str) -> tuple[Rig, Price | None]:
    """Return the rig and the price of all of it."""
    catalog = load_catalog()
    nested, flat = _NESTED.fullmatch(body), _FLAT.fullmatch(body)
    # Asked of one in every node too: '2 nodes of H100', but not 2x(H100).
    if (not flat and (not nested or not nested[2])) and (told := unclear(text, catalog.find_gpu)):
        raise UserError(f"rig {text!r}: {told[0]}", told[1])
    if nested:
        nodes, count, name = int(nested[1]), int(nested[2] or 1), nested[3]
        if not catalog.find_instance(name):
            return _of_gpus(catalog, nodes, count, name, text)
        if nodes > 1 and count > 1:
            message = f"rig {text!r}: each {name} is a node of its own, so there are not {count} on each of {nodes}"
            raise UserError(message, f"write {nodes}x{name} for {nodes} nodes, {nodes * count}x{name} for {nodes * count}")
        return _of_instances(catalog, nodes * count, name, text)
    if not flat:
        raise UserError(f"rig {text!r} is not understood", f"expected one of the forms: {GRAMMAR}")
    count, name = int(flat[1] or 1), flat[2].strip()
    if catalog.find_instance(name):
        return _of_instances(catalog, count, name, text)
    return _of_gpus(catalog, 1, count, name, text)


def _of_gpus(catalog: Catalog, nodes: int, count: int, name: str, text: str) -> tuple[Rig, Price | None]:
    found = catalog.find_gpu(name)
    if found is None:
        why = unsupported(name)
        if why is not None:
            raise UserError(f"rig {text!r}: {why}", f"GPUs: {', '.join(catalog.gpus)}; or cpu")
        if told := unclear(text, catalog.find_gpu):
            raise UserError(f"rig {text!r}: {told[0]}", told[1])
        named = name if name in text else text
        raise UserError(f"rig {text!r}: no GPU or instance named {named!r}", catalog.nearest(name))
    _positive(min(nodes, count), text)
    entry, gpu = catalog.gpus[found], catalog.gpu(found)
    if count > entry.max_per_node:
        whole, rest = divmod(nodes * count, entry.max_per_node)
        fix = f"write {whole + bool(rest)}x({entry.max_per_node}x{found})"
        raise UserError(f"rig {text!r}: {count} x {found} in one node; a node holds at most {entry.max_per_node}", fix)
    per_gpu = entry.price.price() if entry.price else None
    total = nodes * count
    rig = Rig(
        name=f"{nodes}x({count}x{found})" if nodes > 1 else f"{count}x{found}" if count > 1 else found,
        gpu=gpu,
        gpus_per_node=count,
        nodes=nodes,
        cpu_cores=HOST_CORES_PER_GPU * count,
        ram_gib=HOST_RAM_GIB_PER_GPU * count,
        disk_free_gib=None,
        link_gbs=gpu.link_gbs,
        network_gbs=entry.network_gbs * count,
        dollars_per_hour=None,
        price_note="",
        cpu_gflops=None,
        notes=(f"host assumed: {HOST_CORES_PER_GPU} CPU cores and {HOST_RAM_GIB_PER_GPU:.0f} GiB RAM a GPU",),
    )
    price = _times(per_gpu, total)
    return _catalog_price(rig, price, f"{total} x {found}"), price


def _of_instances(catalog: Catalog, nodes: int, name: str, text: str) -> tuple[Rig, Price | None]:
    found = catalog.find_instance(name)
    assert found is not None
    _positive(nodes, text)
    entry = catalog.instances[found]
    gpu, gpu_price = catalog.gpu(entry.gpu), catalog.gpus[entry.gpu].price
    own = entry.price.price() if entry.price else None
    price = _times(own, nodes) if own else _times(gpu_price.price() if gpu_price else None, nodes * entry.gpus)
    rig = Rig(
        name=f"{nodes}x{found}" if nodes > 1 else found,
        gpu=gpu,
        gpus_per_node=entry.gpus,
        nodes=nodes,
        cpu_cores=entry.cpu_cores,
        ram_gib=entry.ram_gib,
        disk_free_gib=entry.disk_gib,
        link_gbs=gpu.link_gbs,
        network_gbs=entry.network_gbs,
        dollars_per_hour=None,
        price_note="",
        cpu_gflops=None,
        provider="aws",  # the catalog has no other's instances
    )
    return _catalog_price(rig, price, f"{nodes} x {found}" if own else f"{nodes * entry.gpus} x {entry.gpu}"), price


def _catalog_price(rig: Rig, price: Price | None, what: str, kind: str = "on_demand") -> Rig:
    middle = price.middle(kind) if price else None
    if price is None or middle is None:
        label = "spot price" if kind == "spot" else "price"
        note = f"no {label} in the catalog: give one, {rig.name}@$2.50 (per GPU-hour)"
        return replace(rig, dollars_per_hour=None, price_note=note)
    low, high = (price.spot if kind == "spot" else price.on_demand) or (middle, middle)
    span = f", middle of ${low:,.2f}-{high:,.2f}" if high > low else ""
    label = "spot" if kind == "spot" else "on demand"
    note = f"${middle:,.2f}/h {label} for {what}{span} ({price.source}, {price.date})"
    # A hundredth of a cent: sums of floats would show as $98.32000000000001.
    return replace(rig, dollars_per_hour=round(middle, 4), price_note=note)


def _priced(rig: Rig, price: str, text: str, known: Price | None) -> Rig:
    price = price.strip()
    if price.lower() in ("spot", "on-demand", "on_demand"):
        kind = "spot" if price.lower() == "spot" else "on_demand"
        priced = _catalog_price(rig, known, rig.name, kind)
        if priced.dollars_per_hour is None:
            message = f"rig {text!r}: the catalog has no {price.lower()} price for {rig.name}"
            raise UserError(message, f"give one: {rig.name}@$2.50 (per GPU-hour)")
        return priced
    match = re.fullmatch(r"\$?\s*(\d+(?:\.\d*)?|\.\d+)\s*(/h|/hour)?", price, re.I)
    if not match:
        raise UserError(f"rig {text!r}: {price!r} is not a price", f"expected {PRICES}")
    dollars = float(match[1])
    # A machine without GPUs has no GPU-hours.
    whole = bool(match[2]) or rig.gpu is None
    total = dollars if whole else dollars * rig.gpus
    each = f" for all {rig.gpus} GPUs (${total / rig.gpus:,.2f} a GPU-hour)" if rig.gpus > 1 else ""
    note = f"${total:,.2f}/h" + (f"{each}, as given" if whole else f", ${dollars:,.2f} a GPU-hour as given")
    return replace(rig, dollars_per_hour=total, price_note=note)


def _times(price: Price | None, count: int) -> Price | None:
    if price is None:
        return None

    def scaled(span: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if span is None else (span[0] * count, span[1] * count)

    return Price(scaled(price.on_demand), scaled(price.spot), price.date, price.source, price.interruptions)


def _positive(count: int, text: str) -> None:
    if count < 1:
        raise UserError(f"rig {text!r}: counts must be at least 1", "for example 8xH100")
