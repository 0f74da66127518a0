"""An investment thesis: a record checked strictly, as it is asked and answered, and as a line of JSON."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from windtunnel.recipe import ACTIONS, parse_json

Record = dict[str, Any]

TICKER = re.compile(r"[A-Z]{1,5}(\.[A-Z]{1,2})?")
SHORTEST, LONGEST = 50, 10_000  # characters of the reasoning
SPLITS = ("train", "validation", "test")
REJECTS = "rejects.jsonl"
PRICES = "prices.parquet"  # in prepared data: what generated theses are about
EARLIEST = datetime.date(1900, 1, 1)  # earlier days are wrong years
MOST_INDICATORS, LONGEST_INDICATOR = 200, 1_000  # more is another table put into a field
_SHORT = 24  # characters of values that are remembered
_ONCE = ("ticker", "as_of_date", "reasoning", "support", "action")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TAG = re.compile(r"</?(?:reasoning|support|action)>", re.IGNORECASE)
# Line ends and tabs may stand in a text; other controls are a sign of damage, and half of a surrogate pair is no character.
_DAMAGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_ANSWER = re.compile(
    r"\s*<reasoning>(?P<reasoning>.*?)</reasoning>\s*<support>(?P<support>.*?)</support>\s*<action>(?P<action>.*?)</action>\s*",
    re.DOTALL,
)


class Rejected(ValueError):
    """A record that is no thesis.

    Attributes:
        reason: its kind, a few words that are counted. detail: what stands there instead.
        day: of one that lies in the future.
    """

    def __init__(self, reason: str, detail: str = "", day: datetime.date | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.day = reason, detail, day


@dataclass(frozen=True)
class Thesis:
    """One thesis.

    Attributes:
        uid: xxh3-128, in hexadecimal, of the ticker, the day and what is asked.
        as_of: the day that it was written on. action: one of ACTIONS. indicators: name -> value, as text.
        source: where it stands, as file:line, file#record or 'generated #n'.
        instruction, input: what the model is asked.
    """

    uid: str
    ticker: str
    as_of: datetime.date
    reasoning: str
    support: str
    action: str
    indicators: dict[str, str]
    source: str
    instruction: str
    input: str

    @property
    def output(self) -> str:
        """Return what the model is to answer."""
        return f"<reasoning>{self.reasoning}</reasoning><support>{self.support}</support><action>{self.action}</action>"

    def to_record(self) -> Record:
        """Return it as a record of JSON lines, which is a record in Alpaca's format too."""
        return {
            "uid": self.uid,
            "ticker": self.ticker,
            "as_of_date": self.as_of.isoformat(),
            "reasoning": self.reasoning,
            "support": self.support,
            "action": self.action,
            "indicators": self.indicators,
            "instruction": self.instruction,
            "input": self.input,
            "output": self.output,
            "source_file": self.source,
        }


def thesis_of(record: Record) -> Thesis:
    """Return the thesis that `Thesis.to_record` wrote. Raises KeyError and ValueError where another hand did."""
    return Thesis(
        record["uid"], record["ticker"], datetime.date.fromisoformat(record["as_of_date"]), record["reasoning"],
        record["support"], record["action"], record["indicators"], record["source_file"], record["instruction"], record["input"],
    )  # fmt: skip


def read_theses(file: Path) -> Iterator[Thesis]:
    """Yield the theses of a file of JSON lines that was written here, in order."""
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            yield thesis_of(json.loads(line))


def render_input(ticker: str, as_of: datetime.date, indicators: Mapping[str, str]) -> str:
    """Write what the model is told of a stock: ticker, day and indicators, one a line."""
    lines = [f"Ticker: {ticker}", f"As of: {as_of}", *(f"{name}: {value}" for name, value in indicators.items())]
    return "\n".join(lines)


def today() -> datetime.date:
    """Return the day that it is in the time zone farthest ahead: nowhere is it later."""
    return datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=14))).date()


def uid_of(ticker: str, as_of: datetime.date, instruction: str, asked: str) -> str:
    """Return xxh3-128, in hexadecimal, of what tells one question from another."""
    return xxhash.xxh3_128_hexdigest(f"{ticker}\n{as_of}\n{instruction}\n{asked}".encode())


def check_thesis(record: Mapping[str, Any], source: str, today: datetime.date, instruction: str, *, own: bool = False) -> Thesis:
    """Return the thesis that a record holds.

    Args:
        record: ticker, as_of_date, reasoning, support, action and indicators; reasoning, support and action may stand in
            `output` alone.
        source: where it stands.
        today: later days are in the future.
        instruction: asked with it.
        own: the record's own instruction and input come first, where it has some.

    Raises:
        Rejected: it is none; says why.
    """
    if record.get("reasoning") is None and record.get("action") is None and isinstance(record.get("output"), str):
        record = {**record, **_parts(record["output"])}
    asked = _question(record, today, instruction, own)
    action = _action(record)
    reasoning = _text(record, "reasoning")
    if not SHORTEST <= len(reasoning) <= LONGEST:
        size = f"{len(reasoning):,} characters"
        limit = f"shorter than {SHORTEST}" if len(reasoning) < SHORTEST else f"longer than {LONGEST}"
        raise Rejected(f"reasoning {limit} characters", size)
    support = _text(record, "support")
    if len(support) > LONGEST:
        raise Rejected(f"support longer than {LONGEST} characters", f"{len(support):,} characters")
    for name, text in (("reasoning", reasoning), ("support", support)):
        # A tag inside would end the element early when the answer is read.
        if "<" in text and (found := _TAG.search(text)):
            raise Rejected("tag of the answer inside a text", f"{name} holds {found[0]}")
    return asked.thesis(source, reasoning, support, action)


def check_question(
    record: Mapping[str, Any], source: str, today: datetime.date, instruction: str, *, own: bool = False
) -> Thesis:
    """Return what a record asks, as a thesis without an answer; its action is kept where it has one.

    Arguments are as of `check_thesis`; of the record anything else but ticker, date and indicators is left.

    Raises:
        Rejected: it asks nothing; says why.
    """
    asked = _question(record, today, instruction, own)
    return asked.thesis(source, "", "", _action(record) if record.get("action") else "")


class _Question(NamedTuple):
    ticker: str
    as_of: datetime.date
    indicators: dict[str, str]
    instruction: str
    asked: str

    def thesis(self, source: str, reasoning: str, support: str, action: str) -> Thesis:
        ticker, day, indicators, instruction, asked = self
        uid = uid_of(ticker, day, instruction, asked)
        return Thesis(uid, ticker, day, reasoning, support, action, indicators, source, instruction, asked)


def _question(record: Mapping[str, Any], today: datetime.date, instruction: str, own: bool) -> _Question:
    if tuple in map(type, record.values()):
        for key in _ONCE:
            if isinstance(record.get(key), tuple):  # as XML has it
                raise Rejected(f"{key} given twice", _shown(record[key]))
    ticker, day = _ticker(record), _day(record, today)
    indicators = _indicators(record.get("indicators"))
    asked = render_input(ticker, day, indicators)
    if own:
        instruction = _own(record, "instruction") or instruction
        asked = _own(record, "input") or asked
    return _Question(ticker, day, indicators, instruction, asked)


def _parts(output: str) -> dict[str, str]:
    """Reasoning, support and action of an answer; none where it is not written as one."""
    # Cut first: the expression goes back and forth over a text, and one of megabytes would take long.
    found = _ANSWER.fullmatch(output[: 4 * LONGEST])
    return found.groupdict() if found else {}


def _ticker(record: Mapping[str, Any]) -> str:
    ticker = record.get("ticker")
    if not isinstance(ticker, str) or not ticker.strip():
        raise Rejected("ticker missing", _shown(ticker))
    if not TICKER.fullmatch(ticker.strip()):
        raise Rejected("ticker not of the form ABCDE or ABC.DE", _shown(ticker))
    return ticker.strip()


def _day(record: Mapping[str, Any], today: datetime.date) -> datetime.date:
    given = record.get("as_of_date")
    if isinstance(given, datetime.datetime):  # Parquet has columns of them
        given = given.isoformat() if given.time() != datetime.time() else given.date()
    if isinstance(given, datetime.date):
        given = given.isoformat()
    if not isinstance(given, str) or not given.strip():
        raise Rejected("date missing", _shown(given))
    if not _DATE.fullmatch(given.strip()):
        raise Rejected("date not written as year-month-day", _shown(given))
    try:
        day = datetime.date.fromisoformat(given.strip())
    except ValueError as error:
        raise Rejected("date not in the calendar", f"{_shown(given)}: {error}") from None
    if day > today:
        raise Rejected("date in the future", f"{day}, and nowhere on Earth is it later than {today}", day)
    if day < EARLIEST:
        raise Rejected(f"date before {EARLIEST.year}", str(day))
    return day


def _action(record: Mapping[str, Any]) -> str:
    action = record.get("action")
    if action is None or (isinstance(action, str) and not action.strip()):
        raise Rejected("action missing")
    if not isinstance(action, str) or action.strip() not in ACTIONS:
        raise Rejected(f"action none of {', '.join(ACTIONS)}", _shown(action))
    return action.strip()


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise Rejected(f"{key} missing")
    if not isinstance(value, str):
        raise Rejected(f"{key} is no text", type(value).__name__)
    if damage := _damage(value):
        raise Rejected("character that no text has", f"U+{ord(damage):04X} in {key}")
    return value.strip()


def _damage(text: str) -> str | None:
    """Return the first character that no text has. What can be printed has none, which is sooner seen than looked for."""
    found = None if text.isprintable() else _DAMAGE.search(text)
    return found[0] if found else None


def _own(record: Mapping[str, Any], key: str) -> str | None:
    """Return a record's own instruction or input; None where it has none."""
    return _text(record, key) if record.get(key) not in (None, "") else None


def _indicators(given: Any) -> dict[str, str]:
    if isinstance(given, str) and given.strip():  # a column of Parquet or CSV holds JSON
        try:
            given = parse_json(given)
        except ValueError:
            raise Rejected("indicators are no mapping", _shown(given)) from None
    if given in (None, "", []):
        return {}
    if not isinstance(given, Mapping):
        raise Rejected("indicators are no mapping", type(given).__name__)
    if len(given) > MOST_INDICATORS:
        raise Rejected(f"more than {MOST_INDICATORS} indicators", f"{len(given):,}")
    return {_indicator(name): _indicator(value) for name, value in given.items() if value is not None}


def _indicator(value: Any) -> str:
    if type(value) is str:
        return _short(value) if len(value) <= _SHORT else _clean(value)
    return _clean(json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value))


def _clean(value: str) -> str:
    text = " ".join(value.split())
    if len(text) > LONGEST_INDICATOR:
        raise Rejected(f"indicator longer than {LONGEST_INDICATOR} characters", _shown(text))
    if damage := _damage(text):
        raise Rejected("character that no text has", f"U+{ord(damage):04X} in an indicator")
    return text


@lru_cache(1 << 15)
def _short(value: str) -> str:
    """Return the same as `_clean`, for names, which every record has again, and values of few digits."""
    return _clean(value)


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else repr(value)[:80]
