"""What a model is measured by: held-out answers, gates of an evaluation, a backtest. Importable without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Dollars, Every, Interval, Section

ANSWERS_AT_END = "held-out answers at the end"
"""What a plan calls the seconds that a run keeps for them."""


class Answers(Section):
    """Held-out conversations answered by the model and judged: the last assistant turn is generated greedily from what is before.

    Where it is on, the share of right answers decides which checkpoint is the best, and the validation loss among equals.
    """

    every: Interval | None = Field(Every(steps=200), description="how often in training; null: only when the run is evaluated")
    prompts: int = Field(64, ge=1, description="conversations answered each time")
    tokens: int = Field(256, ge=1, description="most tokens of an answer; longer ones are cut, judged as they are, and counted")
    metric: str = Field(
        "exact_match",
        min_length=1,
        description="what is right: exact_match or contains (letter case and blanks aside) of the turn's own text, math (equal "
        "as an expression), action (the same <action>, one of five), kernel (the verifier's verdict on the Triton kernel, of "
        "data.corpus.kernels), format (what `task` asks for), 'file.py:function' called "
        "with prompt, answer and the turn's own text (right: 0.5 or more), or the name under which a package offers such a "
        "function",
    )
    where: Literal["all", "last-line", "boxed", "answer-tag", "hashes"] = Field(
        "all", description="the part of both texts that counts; hashes: behind the last ####, as in GSM8K"
    )
    task: dict[str, Any] = Field(
        default_factory=dict, description="of metric format: tags, boxed, only_tags, schema (see `windtunnel verify format`)"
    )


class EvaluationGates(Section):
    """What an evaluation must show for the job to end well. null: not asked for."""

    bits_per_byte: float | None = Field(None, gt=0, description="most bits per byte of held-out text")
    exact_match: float | None = Field(
        None, ge=0, le=1, description="least share of problems answered exactly, or rightly by the metric of stages.sft.answers"
    )
    gain: float | None = Field(
        None,
        ge=-1,
        lt=1,
        description="what the share of right answers must have gained over the untuned model at least: the lower end of the "
        "95 % interval is above it",
    )
    macro_f1: float | None = Field(None, ge=0, le=1, description="of theses: least mean F1 over the actions")
    above_majority: float | None = Field(
        None,
        ge=-1,
        lt=1,
        description="of theses: what accuracy must be at least above always saying the most frequent action of training: the "
        "lower end of the 95 % interval, by dates, is above it",
    )


class Backtest(Section):
    """Predicted actions traded on daily prices: known at a day's close, traded on the next trading day, held for some days."""

    prices: str | None = Field(
        None, min_length=1, description="CSV or Parquet: date, ticker and close, or a column for each ticker; null: --prices"
    )
    hold: int = Field(5, ge=1, description="trading days that a position is held: the forward window of the labels")
    sizing: Literal["fixed", "equal"] = Field(
        "fixed", description="fixed: `weight` of the equity for each position; equal: all of it, in equal parts"
    )
    weight: float = Field(0.02, gt=0, le=1, description="share of the equity that a position begins with, where sizing is fixed")
    shorts: bool = Field(False, description="sell actions open short positions; false: they only end long ones")
    cost_bps: float = Field(5.0, ge=0, lt=10_000, description="fee of each trade, buying and selling, in hundredths of a percent")
    slippage_bps: float = Field(
        10.0, ge=0, lt=10_000, description="by how much each trade is worse than its price, in hundredths of a percent"
    )
    cash: Dollars = Field(1_000_000.0, gt=0, le=1e15, description="dollars to begin with")
    trade_at: Literal["close", "open"] = Field("close", description="the price of the next trading day that trades are made at")
    vanished: Literal["last", "zero"] = Field(
        "last", description="what a position whose ticker has no prices any more is worth: its last price, or nothing"
    )
    min_confidence: float = Field(0.0, ge=0, le=1, description="predictions with less confidence trade nothing")
    jump: float = Field(0.3, gt=0, description="changes of price from one day to the next beyond this share are named: splits?")
