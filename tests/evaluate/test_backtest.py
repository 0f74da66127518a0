"""A backtest's figures: equal to what was computed by hand and honest where the first ones of their kind were not; the verb."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from backtests import FREE, make_prices, make_signals, rules, signals_of, trading_days
from zygote import windtunnel

from windtunnel.evaluate import BacktestReport, figures, run_backtest
from windtunnel.recipe import UserError, load_recipe


def test_figures_are_as_computed_by_hand() -> None:
    # Daily returns +10 %, -20 %, +25 %: mean 5 %, deviation sqrt((0.05^2 + 0.25^2 + 0.2^2) / 2).
    found = figures(trading_days(4), np.array([100.0, 110.0, 88.0, 110.0]))
    deviation = math.sqrt((0.05**2 + 0.25**2 + 0.20**2) / 2)
    assert found.total == pytest.approx(0.10)
    assert found.sharpe == pytest.approx(0.05 / deviation * math.sqrt(252))
    assert found.volatility == pytest.approx(deviation * math.sqrt(252))
    assert found.yearly == pytest.approx(1.1 ** (252 / 3) - 1)
    assert found.drawdown == pytest.approx(0.2)
    assert (found.peak, found.trough) == ("2024-01-02", "2024-01-03")


def noisy(seed: int = 0, days: int = 300, count: int = 6) -> dict[str, list[float | None]]:
    steps = np.random.default_rng(seed).normal(0.0, 0.02, (days, count))
    paths = 100 * np.exp(np.cumsum(steps, axis=0))
    return {chr(65 + i): [float(price) for price in paths[:, i]] for i in range(count)}


def foresight(market: dict[str, list[float | None]], *, wrong: bool, every: int = 3) -> BacktestReport:
    """Backtest a predictor that is always right, or always wrong, about the window that its signals are held for."""
    asked: list[tuple[str, int, str | None]] = []
    for ticker, closes in market.items():
        for day in range(0, len(closes) - 7, every):
            before, after = closes[day + 1], closes[day + 6]
            assert before is not None
            assert after is not None
            asked.append((ticker, day, "BUY" if (after > before) != wrong else "SELL"))
    return run_backtest(signals_of(make_signals(asked)), make_prices(market), rules(shorts=True, weight=0.1, **FREE))


def test_an_always_wrong_seller_has_no_high_sharpe() -> None:
    right, wrong = (foresight(noisy(), wrong=each) for each in (False, True))
    assert right.figures.sharpe is not None
    assert wrong.figures.sharpe is not None
    assert right.figures.sharpe > 5
    assert wrong.figures.sharpe < -5
    assert right.hits.right == right.hits.n
    assert wrong.hits.right == 0
    assert right.sharpe_interval is not None
    assert right.sharpe_interval[0] < right.figures.sharpe < right.sharpe_interval[1]


def test_returns_of_a_window_are_booked_day_by_day() -> None:
    """Sharpe has one return a trading day, also on days without signals: not one a signal, times the root of 252."""
    report = foresight(noisy(), wrong=False, every=20)
    account = report.account
    assert (np.diff(account.days).astype(int) <= 3).all()
    returns = np.diff(account.equity) / account.equity[:-1]
    assert report.figures.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1) * math.sqrt(252))


def test_the_benchmark_is_the_mean_price_return_of_what_was_asked_about() -> None:
    market = {"A": [1.0, 1.0, 2.0, 4.0], "B": [10.0, 10.0, 10.0, 5.0], "C": [1.0, 1.0, 1.0, 9.0]}
    asked = make_signals([("A", 0, "BUY"), ("B", 0, "HOLD")])
    report = run_backtest(signals_of(asked), make_prices(market), rules(weight=1.0, **FREE))  # type: ignore[arg-type]
    assert report.benchmark == pytest.approx(1_000_000 * np.array([1, 1, (2 + 1) / 2, (4 + 0.5) / 2]))
    assert report.figures.total == pytest.approx(3.0)
    assert report.exposure == pytest.approx(1.0)
    assert report.turnover == pytest.approx(1_000_000 / 2 / report.account.equity.mean() * 252 / 3)


def test_costs_are_paid_on_both_sides() -> None:
    market = {"A": [100.0] * 10}
    report = run_backtest(signals_of(make_signals([("A", 0, "BUY")])), make_prices(market), rules(weight=0.5))  # type: ignore[arg-type]
    # 15 bps of about 500,000 dollars, twice.
    assert report.account.costs.sum() == pytest.approx(2 * 750, rel=0.01)
    assert report.account.equity[-1] == pytest.approx(1_000_000 - report.account.costs.sum())


def test_what_vanishes_jumps_or_cannot_be_traded_is_named() -> None:
    gone: list[float | None] = [10.0, 10.0, 9.0, *[None] * 9]
    market: dict[str, list[float | None]] = {"A": [100.0] * 8 + [25.0] * 4, "GONE": gone}
    asked = make_signals([("A", 0, "BUY"), ("GONE", 0, "BUY"), ("NONE", 0, "BUY"), ("A", 11, "BUY"), ("A", 2, None)])
    report = run_backtest(signals_of(asked), make_prices(market), rules(hold=9))
    text = "\n".join(report.notes)
    assert "A goes from 100 to 25 (-75%)" in text
    assert "signals of tickers that have no prices, not traded: 1 (NONE)" in text
    assert "signals with no trading day after them, not traded: 1 (A)" in text
    assert "worth their last price from then on: 1 (GONE)" in text
    assert "no longer listed: 1 (GONE)" in text


def test_nothing_to_trade_says_why() -> None:
    prices = make_prices({"A": [1.0, 2.0]})
    for rows, words in (
        ([("A", 0, "HOLD"), ("A", 1, None)], "of 2 predictions none says to buy or to sell (1 could not be read)"),
        ([("B", 0, "BUY")], "of tickers without prices 1"),
        ([("A", 1, "BUY")], "after the last price 1"),
    ):
        with pytest.raises(UserError) as caught:
            run_backtest(signals_of(make_signals(rows)), prices, rules())  # type: ignore[arg-type]
        assert words in caught.value.message
    for adjusted, words in ((False, "no opens beside its closes"), (True, "no opens that are adjusted as its closes are")):
        with pytest.raises(UserError, match=words):
            run_backtest(signals_of(make_signals([("A", 0, "BUY")])), replace(prices, adjusted=adjusted), rules(trade_at="open"))


def test_too_few_days_have_no_interval() -> None:
    market = {"A": [float(100 + day % 3) for day in range(20)]}
    report = run_backtest(signals_of(make_signals([("A", 0, "BUY")])), make_prices(market), rules())  # type: ignore[arg-type]
    assert report.sharpe_interval is None
    assert report.yearly_interval is None


def test_the_interval_of_noise_holds_its_true_mean_about_as_often_as_it_says() -> None:
    """Of independent returns with a Sharpe of 1: 95 % intervals of 100 paths of two years."""
    from windtunnel.evaluate.equity import block_length, intervals

    inside = 0
    for seed in range(100):
        returns = np.random.default_rng(seed).normal(1 / math.sqrt(252) * 0.01, 0.01, 504)
        sharpe, _, _ = intervals(returns, np.zeros(504), block=block_length(504, 5))
        assert sharpe is not None
        inside += sharpe[0] <= 1.0 <= sharpe[1]
    assert 85 <= inside <= 99


# -- the verb ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    market, days = noisy(days=200), trading_days(200)
    lines = [f"{day}," + ",".join(str(market[t][i]) for t in market) for i, day in enumerate(days)]
    (tmp_path / "prices.csv").write_text("\n".join(["date," + ",".join(market), *lines]) + "\n")
    said = [f"{t},{days[i]},{'BUY' if i % 4 else 'SELL'},HOLD,0.{i % 10}" for t in market for i in range(0, 190, 3)]
    (tmp_path / "p.csv").write_text("\n".join(["ticker,as_of_date,predicted,action,confidence", *said]) + "\n")
    return tmp_path


def test_the_verb_writes_json_trades_equity_and_a_picture(files: Path) -> None:
    done = windtunnel(
        "backtest", "p.csv", "--prices", "prices.csv", "--json", "--plot", "a.png", "--trades", "t.csv", "--equity", "e.csv",
        cwd=files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    trades, equity = ((files / name).read_text().splitlines() for name in ("t.csv", "e.csv"))
    assert len(trades) == found["trades"] + 1
    assert len(equity) == found["trading_days"] + 2
    assert float(equity[-1].split(",")[1]) == pytest.approx(found["final_equity"])
    assert (files / "a.png").read_bytes().startswith(b"\x89PNG")
    assert found["rules"]["cost_bps"] == 5
    assert found["rules"]["slippage_bps"] == 10


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (("--trades", "prices.csv"), "--trades prices.csv is the file of the prices, which would be lost"),
        (("--equity", "./p.csv"), "is the file of the predictions"),
        (("--trades", "link.csv"), "is the file of the prices"),
        (("--trades", "t.csv", "--equity", "t.csv"), "is the file of --trades"),
    ],
)
def test_what_is_read_is_never_written_over(files: Path, outputs: tuple[str, ...], words: str) -> None:
    (files / "link.csv").symlink_to("prices.csv")
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    done = windtunnel("backtest", "p.csv", "--prices", "prices.csv", *outputs, cwd=files)
    assert done.returncode == 2
    assert words in done.stderr
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_the_verb_prints_tables_of_eighty_columns(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = windtunnel("backtest", "p.csv", "--prices", "prices.csv", "--shorts", "--sizing", "equal", cwd=files)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("Sharpe, daily returns", "buy and hold", "hit rate", "against buying", "shorts on"):
        assert words in done.stdout


def test_a_recipe_gives_the_rules_and_options_come_before_it(files: Path) -> None:
    (files / "r.yaml").write_text(
        "name: r\ndata: {corpus: {kind: arithmetic}}\n"
        "stages: {pretrain: {}, evaluate: {backtest: {prices: prices.csv, hold: 7, shorts: true, weight: 0.05}}}\n"
    )
    done = windtunnel("backtest", "p.csv", "--recipe", "r.yaml", "--hold", "3", "--json", cwd=files)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)["rules"]
    assert (used["hold"], used["shorts"], used["weight"]) == (3, True, 0.05)


def test_unknown_keys_of_the_section_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "name: r\ndata: {corpus: {kind: arithmetic}}\nstages: {evaluate: {backtest: {comission: 5}}}\n"
    )
    with pytest.raises(UserError, match="comission"):
        load_recipe(str(tmp_path / "r.yaml"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("p.csv",), "no prices are given"),
        (("none.csv", "--prices", "prices.csv"), "none.csv: no such file"),
        (("p.csv", "--prices", "p.csv"), "no column of dates"),
        (("p.csv", "--prices", "prices.csv", "--plot", "a.svg"), "a picture is written as .png"),
        (("p.csv", "--prices", "prices.csv", "--trades", "no/t.csv"), "--trades no/t.csv cannot be written"),
        (("p.csv", "--prices", "prices.csv", "--weight", "2"), "--weight 2.0"),
        (
            ("p.csv", "--prices", "prices.csv", "--cash", "1e308"),
            "--cash 1e+308: expected at most 1000000000000000",
        ),
        (("p.csv", "--prices", "prices.csv", "--column", "action"), "none says to buy or to sell"),
        (("p.csv", "--prices", "prices.csv", "--set", "seed=1"), "--set changes a recipe"),
    ],
)
def test_bad_input_is_refused_with_words(files: Path, arguments: tuple[str, ...], words: str) -> None:
    done = windtunnel("backtest", *arguments, cwd=files)
    assert done.returncode == 2
    assert words in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr
