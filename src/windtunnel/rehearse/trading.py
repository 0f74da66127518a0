"""Rehearse the backtest: the predictions of the scale model, and what the right answers would have earned on the same prices."""

from __future__ import annotations

import math
from pathlib import Path

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import ThesisCorpus, UserError

from .context import Context, Rehearsal, Stage
from .tuning import tunes


def trades(context: Context) -> bool:
    """Return whether the recipe trades predicted actions, and there are theses to predict them of."""
    recipe = context.recipe
    return tunes(context) and isinstance(recipe.data.corpus, ThesisCorpus) and recipe.evaluation.backtest is not None


def backtest(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Trade predictions and right answers: nothing before it is known, and nothing earns more with costs than without."""
    from windtunnel.evaluate import read_prices, read_signals, run_backtest

    report, rules = rehearsal.evaluation, rehearsal.scale.evaluation.backtest
    assert report is not None
    assert report.tuned is not None
    assert rules is not None
    prices = rules.prices or rehearsal.prepared.prices
    if prices is None:
        return Evidence("theses from files, and no prices", absent="--set stages.evaluate.backtest.prices=FILE")
    predictions, quotes = Path(report.tuned.files[0]), read_prices(prices)
    right = run_backtest(read_signals(predictions, "action"), quotes, rules)
    free = run_backtest(
        read_signals(predictions, "action"), quotes, rules.model_copy(update={"cost_bps": 0.0, "slippage_bps": 0.0})
    )
    early = [trade for trade in right.account.trades if trade.entered <= trade.as_of]
    if early:
        raise CheckFailed(f"{len(early)} trades were made on the day of their thesis or before, such as of {early[0].ticker}")
    # Costs can only take away; more with them than without is a wrong sign.
    if free.figures.total < right.figures.total - 1e-12:
        raise CheckFailed(f"without costs {free.figures.total:+.4%} is earned, with them {right.figures.total:+.4%}")
    if not all(math.isfinite(value) for value in right.account.equity):
        raise CheckFailed("the equity is not a number")
    text = (
        f"{len(right.account.trades)} trades of the right answers earn {right.figures.total:+.2%} after costs, "
        f"{free.figures.total:+.2%} before, buying and holding {right.of_benchmark.total:+.2%}; "
    )
    try:
        mine = run_backtest(read_signals(predictions), quotes, rules)
        text += f"{len(mine.account.trades)} of the scale model's predictions {mine.figures.total:+.2%}"
    except UserError as error:  # few steps teach a small model no action
        text += f"of the scale model's predictions {error.message}"
    return Evidence(text, {"trades": len(right.account.trades), "right": right.figures.total, "free": free.figures.total})


CHECKS = (
    Stage(
        "backtest", "predicted actions are traded on the next day's prices, with costs", "look at the prices: one close a ticker "
        "and day; then stages.evaluate.backtest", backtest, shows="end", needs=("evaluate",), applies=trades,
    ),
)  # fmt: skip
