"""windtunnel prices: what plans take GPUs to cost, how old that is, and newer prices."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .options import JsonOption
from .output import print_json, print_remarks, print_table


def prices(
    update: Annotated[
        str | None,
        typer.Option(
            "--update",
            metavar="FILE|URL|NAME",
            help="Prices to take over: lambda, runpod, aws, gcp or azure as published; or YAML, JSON, a vms.csv of SkyPilot's.",
        ),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="With --update of a provider's list: only this region.")] = None,
    json: JsonOption = False,
) -> None:
    """List the prices that plans use, with their age; with --update bring them up to date from a file or an address."""
    from windtunnel.recipe import UserError
    from windtunnel.rig import age_days, load_catalog, prices_file, update_prices

    done = None
    if region is not None and update is None:
        raise UserError("--region goes with --update", "windtunnel prices --update FILE --region us-east-1")
    if update is not None:
        done = update_prices(update, region=region)
    catalog = load_catalog()
    listed: list[dict[str, Any]] = []
    for section, entries in (("GPU", catalog.gpus), ("instance", catalog.instances)):
        for name, entry in entries.items():
            price = entry.price.price() if entry.price else None  # type: ignore[attr-defined]
            if price is not None:
                listed.append(
                    {"name": name, "of": section, "on_demand": price.on_demand, "spot": price.spot, "date": price.date,
                     "interruptions": price.interruptions, "days": age_days(price.date), "source": price.source}
                )  # fmt: skip
    if json:
        found = {"file": str(prices_file()), "prices": listed}
        print_json(found if done is None else {**found, "updated": [*done.gpus, *done.instances], "unknown": done.unknown})
        return
    # Sources are long and the same for many rows: numbered, and listed below.
    sources = list(dict.fromkeys(p["source"] for p in listed))
    rows = [
        [p["name"], p["of"], _span(p["on_demand"]), _span(p["spot"]), _age(p["days"]), str(1 + sources.index(p["source"]))]
        for p in listed
    ]
    columns = ["name", "of one", "on demand", "spot", "seen", "by"]
    print_table("dollars an hour", columns, rows, whole=columns)
    print_remarks([(str(number), source) for number, source in enumerate(sources, start=1)])
    if done is not None:
        typer.echo(f"{len(done.gpus)} GPUs and {len(done.instances)} instances have new prices, kept in {done.path}")
        if done.unknown:
            typer.echo(f"not in the catalog: {', '.join(done.unknown[:12])}" + (" and more" if done.unknown[12:] else ""))
        return
    print_remarks([("note", "a plan takes the middle; your own: --price, RIG@$2.50, or ~/.config/windtunnel/rigs.yaml")])


def _span(span: tuple[float, float] | None) -> str:
    if span is None:
        return "-"
    return f"{span[0]:,.2f}" if span[0] == span[1] else f"{span[0]:,.2f}-{span[1]:,.2f}"


def _age(days: int | None) -> str:
    from windtunnel.rig import OLD_DAYS

    if days is None:
        return "?"
    return f"{days} days ago" + (", old" if days > OLD_DAYS else "") if days else "lately"
