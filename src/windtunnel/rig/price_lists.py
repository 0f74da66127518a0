"""Price lists that providers publish: where they are, how they are asked for, and what they say of each machine.

Lambda answers with its instance types (docs.lambda.ai/api/cloud), RunPod with its kinds of GPU (docs.runpod.io, GraphQL), each
to whoever has a key there. AWS, Google Cloud, Azure and the two as well are in the tables that SkyPilot keeps, which anybody can
read. A key is sent to its own provider alone, and is in no message.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from urllib.request import Request

TIMEOUT = 30.0
# Many times what a list of prices has, and no more than memory bears.
MOST_BYTES = 64 * 2**20
_SKYPILOT = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8/{}/vms.csv"
_RUNPOD_ASKS = (
    "query GpuTypes { gpuTypes { id displayName memoryInGb securePrice communityPrice secureSpotPrice communitySpotPrice } }"
)
_KEY = re.compile(r"""^\s*["']?api_?key["']?\s*=\s*["']?([^\s"']+)""", re.M)


@dataclass(frozen=True)
class PriceList:
    """A provider's list.

    Attributes:
        url: where it is. path: of the list below another address that is given in its place.
        variables, file: where the key is looked for, in the environment and below the home folder; none: it needs no key.
        asks: what is posted; None: nothing is.
    """

    url: str
    path: str
    variables: tuple[str, ...] = ()
    file: str = ""
    asks: str | None = None


LISTS = {
    "lambda": PriceList(
        "https://cloud.lambda.ai", "/api/v1/instance-types", ("LAMBDA_API_KEY",), ".lambda_cloud/lambda_keys"
    ),
    "runpod": PriceList(
        "https://api.runpod.io", "/graphql", ("RUNPOD_API_KEY", "RUNPOD_AI_API_KEY"), ".runpod/config.toml", _RUNPOD_ASKS
    ),
    **{name: PriceList(_SKYPILOT.format(name), "") for name in ("aws", "gcp", "azure")},
}  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """A machine as a list has it: its GPU's name there, how many, dollars an hour of all, by notice and without; its region."""

    gpu: str
    count: float
    instance: str = ""
    on_demand: float | None = None
    spot: float | None = None
    region: str = ""


def read_source(source: str) -> str:
    """Return the text of a price list.

    Args:
        source: a file, an http(s) address, a provider's name, or 'lambda@http://host:port' for its list at another address.

    Raises:
        UserError: it cannot be read, there is no key for it, or the key is refused.
    """
    name, _, address = source.partition("@")
    if name in LISTS and not Path(source).exists():
        return _read(_request(name, address), f"the price list of {name}", name)
    if source.startswith(("http://", "https://")):
        from urllib.request import Request

        return _read(Request(source), source, None)
    try:
        with open(Path(source).expanduser(), "rb") as file:
            return _text(file.read(MOST_BYTES + 1), source)
    except OSError as error:
        known = f"name a file, an address, or one of {', '.join(LISTS)}"
        raise UserError(f"{source} cannot be read: {error.strerror or error}", known) from None


def offers(text: str, source: str) -> list[Offer] | None:
    """Return what a provider's list offers; None where the text is none of these lists.

    Raises:
        UserError: it is one, and says that something went wrong, or lacks what it should have.
    """
    if text.lstrip().startswith("InstanceType,"):
        return list(_of_table(text))
    try:
        told = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or not {"data", "errors", "error"} & set(told):
        return None
    try:
        if isinstance(told["data"], dict) and "gpuTypes" in told["data"]:
            return list(_of_runpod(told["data"]["gpuTypes"]))
        return list(_of_lambda(told["data"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        said = told.get("errors") or told.get("error") or "it lacks what is expected"
        raise UserError(
            f"{source}: no list of prices: {str(said)[:200]}", "the provider's answer has changed, or refused"
        ) from None


def _request(name: str, address: str) -> Request:
    from urllib.request import Request

    asked = LISTS[name]
    headers = {"User-Agent": "windtunnel", "Accept": "application/json"}
    if asked.variables:
        headers["Authorization"] = f"Bearer {_key(name, asked)}"
    data = None
    if asked.asks is not None:
        headers["Content-Type"], data = "application/json", json.dumps({"query": asked.asks}).encode()
    return Request((address or asked.url).rstrip("/") + asked.path, data=data, headers=headers)


def _key(name: str, asked: PriceList) -> str:
    """Return the user's key of a provider. Raises UserError: there is none."""
    for variable in asked.variables:
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        found = _KEY.search((Path.home() / asked.file).read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None:
        # The places, never what is in them.
        looked = ", ".join([*(f"${variable}" for variable in asked.variables), f"~/{asked.file}"])
        raise UserError(f"{name} tells its prices to whoever has a key there: looked at {looked}", "or --update FILE|URL")
    return found[1]


def _read(request: Request, what: str, provider: str | None) -> str:
    from urllib.error import HTTPError  # with all of HTTP and mail behind it, which a plan has no use for
    from urllib.request import urlopen

    try:
        with urlopen(request, timeout=TIMEOUT) as answer:
            return _text(bytes(answer.read(MOST_BYTES + 1)), what)
    except HTTPError as error:
        if provider is not None and error.code in (401, 403):
            raise UserError(f"{what}: {provider} refuses the key (HTTP {error.code})", "make a new one there") from None
        raise UserError(f"{what} cannot be read: HTTP {error.code} {error.reason}", "name a file, or try again later") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(
            f"{what} cannot be reached from here: {why}",
            "prices stay as they were; fetch it elsewhere, then: windtunnel prices --update FILE",
        ) from None


def _text(data: bytes, what: str) -> str:
    if len(data) > MOST_BYTES:
        raise UserError(f"{what} is larger than {MOST_BYTES >> 20} MiB", "name a smaller table")
    try:
        # Tables that Excel wrote begin with a byte order mark.
        return data.decode("utf-8-sig")
    except ValueError:
        raise UserError(f"{what} cannot be read: it is no UTF-8 text", "name a file of prices") from None


def _of_table(text: str) -> Iterator[Offer]:
    """Read a table as SkyPilot keeps it, of one provider. What it calls A100 is the one with 40 GB."""
    # SkyPilot's names (sky/catalog), where they differ from ours.
    names = {"a100": "A100-40", "a100-80gb": "A100-80", "h100-80gb-hbm3": "H100", "h100-sxm": "H100"}
    for row in csv.DictReader(io.StringIO(text)):
        told, count = row.get("AcceleratorName"), _number(row.get("AcceleratorCount"))
        if told and count:
            prices = _number(row.get("Price")), _number(row.get("SpotPrice"))
            yield Offer(names.get(told.lower(), told), count, row.get("InstanceType") or "", *prices, row.get("Region") or "")


def _of_lambda(data: dict[str, Any]) -> Iterator[Offer]:
    """Read Lambda's instance types: 'gpu_8x_h100_sxm5', in cents, with 'H100 (80 GB SXM5)'."""
    for name, item in data.items():
        kind, count = item["instance_type"], float(item["instance_type"]["specs"].get("gpus", 0))
        dollars = float(kind["price_cents_per_hour"]) / 100
        regions = [str(region["name"]) for region in item.get("regions_with_capacity_available", [])] or [""]
        if count:
            gpu = _plain(str(kind.get("gpu_description") or name))
            yield from (Offer(gpu, count, name, dollars, None, region) for region in regions)


def _of_runpod(kinds: list[dict[str, Any]]) -> Iterator[Offer]:
    """Read RunPod's kinds of GPU: a price each of its own machines and of others', and of those that may be taken away."""
    for kind in kinds:
        gpu = _plain(f"{kind['displayName']} ({kind.get('memoryInGb', '')} GB)")
        for cloud in ("secure", "community"):
            prices = _number(kind.get(f"{cloud}Price")), _number(kind.get(f"{cloud}SpotPrice"))
            if any(prices):
                yield Offer(gpu, 1.0, "", *prices, cloud)


def _plain(text: str) -> str:
    """Return a GPU's name as the catalog has it, from 'A100 (80 GB SXM4)', 'H100 PCIe (80 GB)' and the like."""
    bare = re.sub(r"\(.*?\)|NVIDIA|GeForce|SXM\d?|PCIe", " ", text, flags=re.I).strip().replace(" ", "")
    memory = re.search(r"(\d+) ?GB", text)
    if bare == "A100":
        return f"A100-{memory[1]}" if memory else bare
    return "H100-PCIe" if bare == "H100" and "pcie" in text.lower() else bare


def _number(value: Any) -> float | None:
    try:
        number = float(value or "")
    except (TypeError, ValueError):
        return None
    return number if 0 < number < float("inf") else None
