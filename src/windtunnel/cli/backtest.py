"""windtunnel backtest: what predicted actions would have earned on daily prices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from windtunnel.recipe import UserError

from .options import JsonOption, SetOption
from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.evaluate import BacktestReport
    from windtunnel.recipe import Backtest


def backtest(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="CSV or JSON lines: ticker, as_of_date, predicted, perhaps confidence.")
    ],
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE", help="CSV or Parquet: date, ticker, close; or a column a ticker.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", metavar="RECIPE", help="Take what is not said here from its stages.evaluate.backtest."),
    ] = None,
    sets: SetOption = None,
    hold: Annotated[int | None, typer.Option("--hold", min=1, help="Trading days a position is held; otherwise 5.")] = None,
    sizing: Annotated[
        Literal["fixed", "equal"] | None,
        typer.Option("--sizing", help="fixed: --weight of the equity each; equal: all of it in equal parts."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of the equity of each position; otherwise 0.02.")
    ] = None,
    shorts: Annotated[
        bool | None, typer.Option("--shorts/--no-shorts", help="Sell actions open short positions; otherwise they end long ones.")
    ] = None,
    cost_bps: Annotated[float | None, typer.Option("--cost-bps", help="Fee of every trade; otherwise 5.")] = None,
    slippage_bps: Annotated[float | None, typer.Option("--slippage-bps", help="How much worse; otherwise 10.")] = None,
    cash: Annotated[float | None, typer.Option("--cash", help="Dollars to begin with; otherwise 1,000,000.")] = None,
    trade_at: Annotated[
        Literal["close", "open"] | None, typer.Option("--trade-at", help="The next trading day's close, or its open.")
    ] = None,
    vanished: Annotated[
        Literal["last", "zero"] | None,
        typer.Option("--vanished", help="Worth of a ticker that has no prices any more: its last, or zero."),
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option("--min-confidence", help="Predictions with less confidence trade nothing.")
    ] = None,
    jump: Annotated[float | None, typer.Option("--jump", help="Name changes of price in a day beyond this share.")] = None,
    column: Annotated[
        str, typer.Option("--column", help="The column that is traded; 'action' shows what the right answers would earn.")
    ] = "predicted",
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the equity into a .png file.")] = None,
    trades: Annotated[Path | None, typer.Option("--trades", metavar="FILE", help="Write all trades as CSV.")] = None,
    equity: Annotated[Path | None, typer.Option("--equity", metavar="FILE", help="Write the account day by day as CSV.")] = None,
    json: JsonOption = False,
) -> None:
    """Trade predicted actions on daily prices, with costs, and say what they earned beside buying and holding.

    What is known at a day's close is traded on the next trading day.
    """
    from windtunnel.evaluate import read_prices, read_signals, run_backtest, write_backtest

    given: dict[str, Any] = {
        "hold": hold, "weight": weight, "shorts": shorts, "cost_bps": cost_bps, "slippage_bps": slippage_bps, "cash": cash,
        "min_confidence": min_confidence, "jump": jump, "prices": prices, "sizing": sizing, "trade_at": trade_at,
        "vanished": vanished,
    }  # fmt: skip
    given = {key: value if isinstance(value, int | float) else str(value) for key, value in given.items() if value is not None}
    rules = _rules(recipe, sets or [], given)
    if plot is not None and plot.suffix.lower() != ".png":
        raise UserError(f"--plot {plot}: a picture is written as .png", f"--plot {plot.with_suffix('.png')}")
    if rules.prices is None:
        raise UserError(
            "no prices are given", "--prices FILE (CSV or Parquet: date, ticker, close), or backtest.prices in the recipe"
        )
    outputs = {"--trades": trades, "--equity": equity, "--plot": plot}
    _keep_apart({"the predictions": predictions, "the prices": Path(rules.prices)}, outputs)
    report = run_backtest(read_signals(predictions, column), read_prices(rules.prices), rules)
    written = write_backtest(report, plot=plot, trades=trades, equity=equity)
    if json:
        print_json(report.to_json() | {"written": [str(path) for path in written]})
        return
    show_backtest(report)
    for path in written:
        typer.echo(f"wrote {path}")


def _keep_apart(inputs: dict[str, Path], outputs: dict[str, Path | None]) -> None:
    """Refuse to write over what is read, or two outputs into one file."""
    taken = {os.path.realpath(path): what for what, path in inputs.items()}
    for option, path in outputs.items():
        if path is None:
            continue
        if (what := taken.setdefault(os.path.realpath(path), option)) != option:
            raise UserError(f"{option} {path} is the file of {what}, which would be lost", f"{option} NEW_FILE")


def _rules(recipe: str | None, sets: list[str], given: dict[str, Any]) -> Backtest:
    """Return the rules: the recipe's where one is named, with what the command line says in their place."""
    from pydantic import ValidationError

    from windtunnel.recipe import Backtest, expected, load_recipe

    if sets and recipe is None:
        raise UserError("--set changes a recipe, and none is named", "--recipe RECIPE, or an option of this verb")
    base = (load_recipe(recipe, sets).evaluation.backtest if recipe is not None else None) or Backtest()
    try:
        return Backtest.model_validate(base.model_dump() | given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        name, usual = "--" + key.replace("_", "-"), Backtest.model_fields[key].default
        raise UserError(f"{name} {first['input']}: {expected(first)}", f"{name} {usual} is usual") from None


def show_backtest(report: BacktestReport) -> None:
    """Print the figures beside the benchmark's and cash's, then how the account was run, then what to know."""
    from windtunnel.evaluate import backtest_remarks, backtest_rows

    account = report.account
    title = f"backtest, {account.days[0]} to {account.days[-1]} ({len(account.days) - 1:,} trading days)"
    print_table(title, ("", "predictions", "buy and hold", "cash"), backtest_rows(report))
    print_remarks(backtest_remarks(report))
