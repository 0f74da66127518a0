"""Investment theses: records with a ticker, a day, reasoning and one of five actions, and their split by time.

A label looks ahead: whether BUY was right is known only days after the thesis. So the splits are periods of days, one
after the other, with a gap (the embargo) of at least the days that a label looks ahead between any two of them.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from .corpora import Conversational
from .section import Count, Date, Section

ACTIONS = ("STRONG_BUY", "BUY", "HOLD", "SELL", "STRONG_SELL")
# Of a corpus of text, whose documents are many; theses, split by time, refuse another value.
HELD_OUT = 0.01
INSTRUCTION = (
    "Write an investment thesis for the stock below as of the date given. Give your reasoning, what supports it, and one "
    f"action: {', '.join(ACTIONS)}. Answer as <reasoning>...</reasoning><support>...</support><action>...</action>."
)
_DAY = datetime.timedelta(days=1)
_WEEKDAYS = 5


class GeneratedTheses(Section):
    """Theses on simulated prices, with a relation between indicators and action that can be learned, and noise.

    A price drifts up, sideways or down for weeks at a time; its indicators show which, and the action is the return of
    the days ahead in five classes.
    """

    records: Count = Field(4_000, ge=20, description="theses")
    tickers: int = Field(40, ge=1, le=5_000, description="stocks simulated")
    start: Date = Field(datetime.date(2020, 1, 1), description="no thesis is earlier")
    end: Date = Field(datetime.date(2025, 6, 30), description="no thesis is later; prices go on until the last label is known")
    horizon: int = Field(5, ge=1, le=250, description="trading days (Monday to Friday) that a label looks ahead")
    signal: float = Field(
        0.8, ge=0, le=2, description="daily drift of a trend as a share of the daily volatility; 0: nothing can be learned"
    )

    @property
    def calendar_days(self) -> int:
        """Days of the calendar that `horizon` trading days take, weekends included."""
        # Each started week of five trading days has a weekend in it: an upper bound, since the last may not be reached.
        return self.horizon + 2 * -(-self.horizon // _WEEKDAYS)

    @model_validator(mode="after")
    def _possible(self) -> GeneratedTheses:
        if self.start >= self.end:
            raise ValueError(f"start {self.start} is not before end {self.end}")
        days = trading_days(self.start, self.end)
        if self.records > days * self.tickers:
            raise ValueError(
                f"{self.tickers:,} tickers have {days * self.tickers:,} trading days from {self.start} to {self.end}, "
                f"fewer than records={self.records:,}; fix: --set data.corpus.generated.tickers={-(-self.records // days)}"
            )
        return self


class ThesisCorpus(Conversational):
    """Investment theses to fine-tune on: XML, JSON lines, Parquet or a folder that Hugging Face datasets saved; or generated.

    XML is `<stock-theses ticker=...>` with a `<thesis>` each: as-of-date, reasoning, support, action; every other child is
    an indicator. A record of the other formats has ticker, as_of_date, reasoning, support, action and indicators.
    """

    kind: Literal["theses"] = "theses"
    files: list[str] = Field(
        default_factory=list,
        description="paths or globs of .xml, .jsonl and Parquet files, relative to the recipe's folder or the current one; "
        "gzip and zstd are read as they are",
    )
    generated: GeneratedTheses | None = Field(None, description="theses on simulated prices; used where no files are given")
    forward_days: int = Field(
        7, ge=0, le=3_660, description="days of the calendar that a label looks ahead; 5 trading days are 7, 9 around holidays"
    )
    instruction: str = Field(INSTRUCTION, min_length=1, description="asked with each thesis")
    inputs: Literal["rendered", "own"] = Field(
        "rendered",
        description="what the model is told: ticker, date and indicators written alike for all; own: a record's own instruction "
        "and input, where it has them",
    )

    @model_validator(mode="after")
    def _some_source(self) -> ThesisCorpus:
        if not self.files and self.generated is None:
            raise ValueError("theses come from files, or are generated; give one of them")
        made = self.generated if not self.files else None
        if made is not None and self.forward_days < made.calendar_days:
            raise ValueError(
                f"forward_days={self.forward_days} is shorter than generated.horizon={made.horizon} trading days, "
                f"which take up to {made.calendar_days}; fix: --set data.corpus.forward_days={made.calendar_days}"
            )
        return self


@dataclass(frozen=True)
class Period:
    """Days from `first` to `last`, both included; None: without a beginning, or an end."""

    first: datetime.date | None
    last: datetime.date | None

    def __contains__(self, day: datetime.date) -> bool:
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def __str__(self) -> str:
        begins = f"from {self.first}" if self.first else "from the first day"
        return f"{begins} to {self.last or 'the last day'}"


@dataclass(frozen=True)
class Periods:
    """The periods of the three splits, in order; the gap behind the first two is the embargo."""

    train: Period
    validation: Period
    test: Period

    def split_of(self, day: datetime.date) -> str:
        """Return train, validation or test; 'purged' for a day in a gap, 'outside' for one before or behind all of them."""
        # The periods do not overlap; the test's comes first only because most questions are about recent days.
        for name in ("test", "validation", "train"):
            if day in getattr(self, name):
                return name
        before = self.train.first is not None and day < self.train.first
        behind = self.test.last is not None and day > self.test.last
        return "outside" if before or behind else "purged"


class TimeSplit(Section):
    """Periods of days: training, embargo, validation, embargo, test. All follow from the first day of the test period.

    Walk forward: with test_days=90 and folds=4 there are four test periods of 90 days, one behind the other; `fold` says
    which one this run is for, and validation and training end before it.
    """

    test_start: Date = Field(description="first day of the test period, of the first fold's")
    test_end: Date | None = Field(None, description="last day of the last test period; null: the last record's")
    test_days: int | None = Field(None, ge=1, description="days of each fold's test period; null: up to test_end")
    folds: int = Field(1, ge=1, le=1_000, description="test periods one behind the other, each for a run of its own")
    fold: int = Field(1, ge=1, description="the fold that this run is for, from 1")
    validation_days: int = Field(30, ge=1, description="days of the validation period, which ends an embargo before the test")
    embargo_days: int | None = Field(
        None, ge=0, description="days left out between two periods; null: as many as a label looks ahead (forward_days)"
    )
    train_start: Date | None = Field(None, description="first day that is trained on; null: the first record's")
    train_days: int | None = Field(
        None, ge=1, description="only the last so many days before the embargo are trained on; null: all of them"
    )
    knowledge_cutoff: Date | None = Field(
        None,
        description="last day that the base model may have read about; null: as its card or chat template says, else unknown",
    )

    @model_validator(mode="after")
    def _in_order(self) -> TimeSplit:
        if self.fold > self.folds:
            raise ValueError(f"fold={self.fold}, and folds={self.folds}; fix: fold from 1 to {self.folds}")
        if self.folds > 1 and self.test_days is None:
            raise ValueError("folds needs the length of each; fix: --set data.split.test_days=90")
        if self.train_start is not None and self.train_days is not None:
            raise ValueError("train_start and train_days both say where training begins; give one of them")
        if self.test_end is not None and self.test_end < self.test_start:
            raise ValueError(f"test_end={self.test_end} is before test_start={self.test_start}")
        begins = self._test_first(self.folds)
        if self.test_end is not None and begins > self.test_end:
            raise ValueError(
                f"fold {self.folds} of {self.test_days} days would begin on {begins}, behind "
                f"test_end={self.test_end}; give fewer folds or shorter ones"
            )
        return self

    def _test_first(self, fold: int) -> datetime.date:
        return _moved(self.test_start, (fold - 1) * (self.test_days or 0))

    def periods(self, forward_days: int) -> Periods:
        """Return the periods of the chosen fold; a label looks `forward_days` ahead."""
        # A label looks so far ahead: with a shorter gap training would have seen prices of the validation period (Lopez de
        # Prado, Advances in Financial Machine Learning, ch. 7).
        gap = forward_days if self.embargo_days is None else self.embargo_days
        first = self._test_first(self.fold)
        ends = [self.test_end] if self.test_end is not None else []
        ends += [_moved(first, self.test_days - 1)] if self.test_days is not None else []
        held_last = _moved(first, -gap - 1)
        held_first = _moved(held_last, 1 - self.validation_days)
        last = _moved(held_first, -gap - 1)
        begin = self.train_start if self.train_days is None else _moved(last, 1 - self.train_days)
        return Periods(Period(begin, last), Period(held_first, held_last), Period(first, min(ends, default=None)))


def _moved(day: datetime.date, days: int) -> datetime.date:
    try:
        return day + days * _DAY
    except OverflowError:
        raise ValueError(f"{days:+,} days from {day} is no date of this calendar") from None


def split_problem(corpus: Any, split: TimeSplit | None, validation: float) -> str | None:
    """Return what is wrong with a corpus and how it is split; None where nothing is."""
    if not isinstance(corpus, ThesisCorpus):
        return f"split is for theses, and corpus.kind is {corpus.kind}; others have validation" if split else None
    if split is None:
        return "split is missing; theses are split by time; fix: --set data.split.test_start=2025-01-01"
    if validation != HELD_OUT:
        what = f"validation={validation:g} is a share chosen by hash, and theses are split by time"
        return f"{what}; fix: --set data.split.validation_days=30 instead"
    gap, ahead = split.embargo_days, corpus.forward_days
    if gap is not None and gap < ahead:
        return (
            f"split.embargo_days={gap} is shorter than corpus.forward_days={ahead}: labels of one period would look "
            f"into the next; fix: --set data.split.embargo_days={ahead}"
        )
    periods = split.periods(ahead)
    begin, last = periods.train.first, periods.train.last
    if begin is not None and last is not None and begin > last:
        return (
            f"split.train_start={begin} is behind {last}, the last day before embargo and validation period; "
            "fix: an earlier train_start, or a later test_start"
        )
    made = corpus.generated if not corpus.files else None
    return None if made is None else _generated_problem(made, periods)


def _generated_problem(made: GeneratedTheses, periods: Periods) -> str | None:
    last, first = periods.train.last, periods.test.first
    assert last is not None
    assert first is not None
    if first > made.end:
        what = f"the test period begins on {first}, and theses are generated up to {made.end}"
        return f"{what}; fix: a later data.corpus.generated.end"
    if made.start > last or (periods.train.first or made.start) > made.end:
        what = f"training ends on {last}, and theses are generated from {made.start}"
        return f"{what}; fix: an earlier data.corpus.generated.start"
    return None


def trading_days(first: datetime.date, last: datetime.date) -> int:
    """Count the days from Monday to Friday between two days, both included."""
    # Whole weeks have five each, whatever day they begin on; only the rest is counted.
    weeks, rest = divmod((last - first).days + 1, 7)
    return weeks * _WEEKDAYS + sum((first.weekday() + i) % 7 < _WEEKDAYS for i in range(rest))
