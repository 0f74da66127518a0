"""Predicted actions: made in groups that survive an interruption, and written as CSV and JSON lines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from windtunnel.data import PreparedData, Thesis, Tokenizer
from windtunnel.files import write_atomic
from windtunnel.generate import HubDecoder
from windtunnel.recipe import ACTIONS, UserError

from .actions import read_action
from .answers import AT_ONCE, Completion, Question, Questions, answer_questions

# Theses answered and kept together. What is answered together changes the last bits of a sum: groups are always the same.
GROUP = 4 * AT_ONCE
COLUMNS = (
    "uid", "ticker", "as_of_date", "action", "predicted", "confidence", *(f"p_{action}" for action in ACTIONS), "latency_s",
    "text",
)  # fmt: skip
FORMAT = 1  # of the log; it is part of the file's name, so that another's is never read
CLOSE = "</action>"


@dataclass(frozen=True)
class Prediction:
    """What a model says of a thesis.

    Attributes:
        uid, ticker, as_of_date: the thesis's. action: the right one; '' where it is not known.
        predicted: None where the answer could not be read, for the reason `why`.
        probabilities: of each action where the answer names one; None: it names none.
        latency_s: seconds from taking the question up to the end of the answer, beside others.
        text: the answer. cut: it was longer than it may be.
    """

    uid: str
    ticker: str
    as_of_date: str
    action: str
    predicted: str | None
    why: str
    probabilities: dict[str, float] | None
    latency_s: float
    text: str
    cut: bool = False

    @property
    def confidence(self) -> float | None:
        """Probability of the predicted action."""
        return None if self.probabilities is None or self.predicted is None else self.probabilities[self.predicted]

    def to_record(self) -> dict[str, Any]:
        """Return the columns of the files, and what is in the way of an answer that could not be read."""
        odds = self.probabilities or {}
        return {
            "uid": self.uid, "ticker": self.ticker, "as_of_date": self.as_of_date, "action": self.action,
            "predicted": self.predicted, "confidence": self.confidence,
            **{f"p_{action}": odds.get(action) for action in ACTIONS},
            "latency_s": round(self.latency_s, 4), "text": self.text, "cut": self.cut, "why": self.why,
        }  # fmt: skip

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Prediction:
        """Return what `to_record` wrote. Raises KeyError and TypeError where another hand did."""
        odds = {action: record[f"p_{action}"] for action in ACTIONS}
        plain = {name: record[name] for name in ("uid", "ticker", "as_of_date", "action", "predicted", "why", "text", "cut")}
        return cls(**plain, probabilities=None if None in odds.values() else odds, latency_s=float(record["latency_s"]))


class PredictionLog:
    """Predictions that are finished, on disk as soon as their group is: a line of JSON each, behind a line that says of what.

    Args:
        folder: of the file; None: nothing is kept.
        which: put into its name.
        facts: what the predictions depend on (JSON); those of other facts have another name.
        total: how many there will be.
    """

    def __init__(self, folder: Path | None, which: str, facts: dict[str, Any], total: int) -> None:
        self._head, self._total = json.dumps({"format": FORMAT, "total": total, **facts}, sort_keys=True), total
        name = f"{_named(which)}-{xxhash.xxh3_64_hexdigest(self._head.encode())}.part"
        self._path = None if folder is None else folder / name

    def read(self) -> list[Prediction]:
        """Return the whole groups that are there, and cut off what a kill has left of the next."""
        if self._path is None or not self._path.is_file():
            return []
        with open(self._path, "rb") as file:
            head, *lines = file.readlines() or [b""]
        # The name holds only a hash of it.
        if head.decode("utf-8", "replace").rstrip("\n") != self._head:
            self._path.unlink()
            return []
        made: list[Prediction] = []
        with contextlib.suppress(ValueError, KeyError, TypeError):
            for line in lines:
                made.append(Prediction.of_record(json.loads(line)))
        # Half a group is asked again, or the rest of it would be answered beside others than without the interruption.
        whole = len(made) if len(made) == self._total else len(made) // GROUP * GROUP
        # A kill may have cut the last line in two, and what is appended would go on in it.
        os.truncate(self._path, len(head) + sum(map(len, lines[:whole])))
        return made[:whole]

    def add(self, made: Sequence[Prediction]) -> None:
        """Append a group. Raises UserError."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                if not file.tell():
                    file.write(self._head + "\n")
                file.writelines(_line(prediction) for prediction in made)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written: {error.strerror or error}",
                "make room, or name a folder that can be written, and begin again",
            ) from None

    def remove(self) -> None:
        """Delete the file: what it holds stands elsewhere now."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _named(which: str) -> str:
    return f"predictions-{which}" if which else "predictions"


def _line(prediction: Prediction) -> str:
    return json.dumps(prediction.to_record(), ensure_ascii=True) + "\n"


def predict(
    model: HubDecoder,
    tokenizer: Tokenizer,
    theses: Sequence[Thesis],
    questions: Questions,
    tokens: int,
    log: PredictionLog,
    progress: Callable[[float, str], None] = lambda share, what: None,
) -> list[Prediction]:
    """Ask a model about theses, in groups; those that the log has are not asked again.

    Questions are of the theses in the same order, with so many tokens an answer at most.
    """
    made = log.read()
    for at in range(len(made), len(theses), GROUP):
        progress(at / len(theses), f"{at:,} of {len(theses):,} theses answered")
        asked = questions.asked[at : at + GROUP]
        said = answer_questions(model, tokenizer, asked, questions.ends, tokens)
        new = [_prediction(model, tokenizer, *each) for each in zip(theses[at : at + GROUP], asked, said, strict=True)]
        log.add(new)
        made += new
    return made


def _prediction(model: HubDecoder, tokenizer: Tokenizer, thesis: Thesis, question: Question, said: Completion) -> Prediction:
    reading, odds = read_action(said.text, ACTIONS), None
    if reading.element is not None:
        odds = score_actions(model, tokenizer, question.ids, said.text, reading.element, ACTIONS)
    return Prediction(
        thesis.uid, thesis.ticker, thesis.as_of.isoformat(), thesis.action, reading.action, said.failed or reading.why, odds,
        said.seconds, said.text, said.cut,
    )  # fmt: skip


def score_actions(
    model: HubDecoder, tokenizer: Tokenizer, prompt: Sequence[int], answer: str, element: int, actions: Sequence[str]
) -> dict[str, float]:
    """Return the probability of each action where a model wrote one, given that it is one of them.

    What follows the reasoning and the opened element could have been any action. Each is scored as the text that it would be,
    with the closing tag, so that BUY is not taken for the beginning of something longer. The answer is encoded anew, as answers
    are for training.

    Args:
        model: that wrote it.
        tokenizer: of the data.
        prompt: ids of what was asked.
        answer: what the model wrote.
        element: where the text of its action element begins.
        actions: as they are written.
    """
    written = [tokenizer.encode(answer[:element] + action + CLOSE).tolist() for action in actions]
    # What all actions begin with is computed once; tokens may join the action's first letters to what stands before.
    shared = next(i for i, ids in enumerate(zip(*written, strict=False)) if len(set(ids)) > 1)
    start = [*prompt, *written[0][:shared]]
    tails = [ids[shared:] for ids in written]
    nats = model.score_ends(start, tails)
    return dict(zip(actions, torch.softmax(-nats, 0).tolist(), strict=True))


def describe_theses(theses: Sequence[Thesis]) -> str:
    """Return a hash that changes with the theses and their order."""
    return xxhash.xxh3_128_hexdigest("".join(thesis.uid for thesis in theses).encode())


def ask_theses(data: PreparedData, questions: Questions) -> list[Thesis]:
    """Return the theses of the test split that questions ask about, in the order of the questions."""
    wanted = {number: at for at, number in enumerate(questions.numbers)}
    found: list[Thesis | None] = [None] * len(wanted)
    for number, thesis in enumerate(data.theses("test")):
        if number in wanted:
            found[wanted[number]] = thesis
    assert None not in found
    return [thesis for thesis in found if thesis is not None]


def prediction_files(folder: Path, which: str = "") -> tuple[Path, Path]:
    """Return the files that `write_predictions` writes."""
    return folder / f"{_named(which)}.csv", folder / f"{_named(which)}.jsonl"


def write_predictions(folder: Path, made: Sequence[Prediction], which: str = "") -> tuple[Path, Path]:
    """Write predictions[-which].csv and .jsonl, in order of date and ticker, each in one step; return their paths.

    Raises:
        UserError: they cannot be written.
    """
    # An order that does not depend on that of the questions, so that files of two models can be compared line by line.
    made = sorted(made, key=lambda one: (one.as_of_date, one.ticker, one.uid))
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(prediction.to_record() for prediction in made)
    files = prediction_files(folder, which)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(files[0], table.getvalue())
        write_atomic(files[1], "".join(_line(prediction) for prediction in made))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}", "give another --out") from None
    return files
