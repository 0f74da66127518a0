"""Gates on theses: what must hold before a model is trained on them, or its numbers on them can be believed.

`windtunnel check` runs each as a check; `windtunnel prepare` prints them for the data that it has just prepared.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import ACTIONS, BPETokenizer, HuggingFaceModel, MissingModel, Recipe, ThesisCorpus, UserError, find_model

from .checks import as_progress
from .prepared import PreparedData, prepare
from .theses import LONGEST, REJECTS, SHORTEST, SPLITS
from .write import Progress

FEW_REJECTED, MANY_REJECTED = 0.01, 0.2  # of the records read: worth a warning, and so many that something else is wrong
FEW_INPUTS, FEWEST_INPUTS = 0.5, 0.01  # of the theses: share that ask something different
UNBALANCED, ONE_SIDED = 0.6, 0.9  # of the test period's labels: share of the most common
SHIFTED = 0.2  # total variation distance between the labels trained on and those tested on
FEW_TESTED = 300  # with so many, the 95 % interval of an accuracy is 11 points wide
GARBLED, MANY_GARBLED = 0.001, 0.05  # share of theses: names with accents may be quoted wrongly at the source
GATE_VOCABULARY = 1024  # trained in a second
FEW_COPIES, MANY_COPIES = 0.01, 0.2  # of the held-out theses: share with nearly the same text in training
# The card says it in words, templates of Llama and others in a system message.
CARD_FILES = ("README.md", "chat_template.jinja", "tokenizer_config.json")
_MONTHS = {
    name.lower(): number for names in (calendar.month_abbr, calendar.month_name) for number, name in enumerate(names) if name
} | {"sept": 9}
_CARD_BYTES = 4 << 20  # tokenizer_config.json of large vocabularies has megabytes
# "Knowledge cutoff: 2024-06", "Cutting Knowledge Date: December 2023", "a cutoff of Dec. 2023", "Cutoff date: June 30, 2024".
_DAY = r"(?P<{}>\d\d?)(?:st|nd|rd|th)?"
_SAID = re.compile(
    r"(?:cut[ -]?off|cutting knowledge date)[^\n\d]{0,60}?"
    rf"(?:(?:{_DAY.format('before')}\s+)?\b(?P<month>{'|'.join(_MONTHS)})\b\.?(?:\s+{_DAY.format('behind')})?,?\s+(?P<year>20\d\d)"
    r"|(?P<iso>20\d\d[-/]\d\d(?:[-/]\d\d)?))",
    re.IGNORECASE,
)
Judge = Callable[[Recipe, PreparedData], Evidence]


@dataclass(frozen=True)
class Gate:
    """A gate and whether it held: ok, warn or fail. fixes: what to do, one sentence a finding."""

    name: str
    proves: str
    status: str
    text: str
    fixes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def records(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge how many records were rejected, and for what."""
    found, facts = Findings(), prepared.facts
    read, rejected = facts["read"], facts["rejected"]
    apart = sum(count for reason, count in rejected.items() if reason.startswith(("purged", "outside")))
    bad = {reason: count for reason, count in rejected.items() if not reason.startswith(("purged", "outside"))}
    total = sum(bad.values())
    if total > FEW_REJECTED * read:
        reason = next(iter(bad))
        what = f"{total:,} of {read:,} records ({total / read:.0%}) were rejected, {bad[reason]:,} as: {reason}"
        what += f" ({facts['examples'][reason]})"
        fix = f"mend them; each stands with its reason in {prepared.folder / REJECTS}"
        if total > MANY_REJECTED * read:
            found.problem(what, fix)
        else:
            found.warn(f"{what}; {fix}")
    kept = sum(facts["kept"].values())
    text = f"{read:,} records: {kept:,} theses, {total:,} rejected, {apart:,} purged or outside all periods"
    return found.evidence(text, {"read": read, "kept": kept, "rejected": rejected})


def inputs(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge whether theses ask different things."""
    found, facts = Findings(), prepared.facts
    kept, distinct, told = sum(facts["kept"].values()), facts["distinct_inputs"], facts["distinct_indicators"]
    corpus = recipe.data.corpus
    assert isinstance(corpus, ThesisCorpus)
    if distinct == 1 or distinct < FEWEST_INPUTS * kept:
        what = f"{kept:,} theses have {distinct:,} different input{'s' if distinct > 1 else ''}: nothing can be learned from it"
        found.problem(what, "--set data.corpus.inputs=rendered tells ticker, date and indicators of each")
    elif distinct < FEW_INPUTS * kept:
        found.warn(f"only {distinct / kept:.0%} of the inputs differ: remove repetitions, or --set data.corpus.inputs=rendered")
    if told == 1 and corpus.inputs == "rendered":
        found.warn(
            "all theses have the same indicators, or none: the input tells ticker and date alone, so that a model can only "
            "know the days it has read about; add indicators"
        )
    text = f"{distinct:,} different inputs of {kept:,}, {told:,} different sets of indicators, {facts['tickers']:,} tickers"
    return found.evidence(text, {"theses": kept, "distinct_inputs": distinct, "distinct_indicators": told})


def labels(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge the balance of the actions, and say what always giving the most common one scores."""
    found, counts = Findings(), prepared.facts["labels"]
    shares = {name: {a: n / max(1, sum(counts[name].values())) for a, n in counts[name].items()} for name in SPLITS}
    common = max(ACTIONS, key=lambda action: counts["train"][action])
    baseline = {name: shares[name][common] for name in SPLITS}
    most = max(shares["test"].values())
    if most >= ONE_SIDED:
        top = max(ACTIONS, key=lambda action: counts["test"][action])
        found.problem(
            f"{most:.0%} of the test period's actions are {top}: always saying so looks right",
            "choose another test period, or label by quantiles of the return",
        )
    elif max(most, *shares["train"].values()) >= UNBALANCED:
        found.warn(f"{max(most, *shares['train'].values()):.0%} of a split's actions are one: compare macro-F1, not accuracy")
    missing = [action for action in ACTIONS if not counts["train"][action]]
    if missing:
        found.warn(f"no thesis trained on has {' or '.join(missing)}: that cannot be learned")
    shift = sum(abs(shares["train"][a] - shares["test"][a]) for a in ACTIONS) / 2
    if shift > SHIFTED:
        found.warn(f"{shift:.0%} of the test period's actions would have to change to be as frequent as in training")
    text = (
        f"always saying {common}, the most common in training, is right in {baseline['validation']:.1%} of validation and "
        f"{baseline['test']:.1%} of test"
    )
    return found.evidence(text, {"labels": counts, "majority": common, "majority_accuracy": baseline, "shift": shift})


def periods(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge the periods: long enough, apart, and behind what the base model has read."""
    found, facts, split = Findings(), prepared.facts, recipe.data.split
    assert split is not None
    corpus = recipe.data.corpus
    assert isinstance(corpus, ThesisCorpus)
    kept, begins = facts["kept"], datetime.date.fromisoformat(facts["test_start"])
    for name in ("validation", "test"):
        if kept[name] < FEW_TESTED:
            half = 1.96 * (0.25 / max(1, kept[name])) ** 0.5  # the widest interval, that of an accuracy of one half
            key = "data.split.validation_days" if name == "validation" else "the test period"
            found.warn(f"{kept[name]:,} theses in {name}: an accuracy there is known to ±{half:.0%}; lengthen {key}")
    cutoff, said = split.knowledge_cutoff, "data.split.knowledge_cutoff"
    card = _of_card(recipe)
    if card is not None and cutoff is None:
        cutoff, said = card
    elif card is not None and cutoff is not None and cutoff < card[0]:
        found.warn(f"{said} is {cutoff}, and the model's {card[1]} names {card[0]}: one of them is wrong; the recipe's was taken")
    if cutoff is None:
        found.warn(
            "the base model's knowledge cut-off is unknown: what it scores on days that it has read about is memory; "
            "--set data.split.knowledge_cutoff=DATE, from its maker"
        )
    elif begins <= cutoff:
        found.problem(
            f"the test period begins on {begins}, and the base model has read texts up to {cutoff} ({said}): it may know the "
            "prices",
            f"--set data.split.test_start={cutoff + datetime.timedelta(days=1)} or later",
        )
    else:
        held = split.periods(corpus.forward_days).validation.first
        if held is not None and held <= cutoff:
            found.warn(f"validation begins on {held}, before the knowledge cut-off {cutoff}: its accuracy may be memory")
    gap = corpus.forward_days if split.embargo_days is None else split.embargo_days
    parts = ", ".join(f"{name} {facts['periods'][name]} ({kept[name]:,})" for name in SPLITS)
    fold = f"; fold {split.fold} of {split.folds}" if split.folds > 1 else ""
    text = f"{parts}; {gap} days between them, a label looks {corpus.forward_days} ahead{fold}"
    return found.evidence(text, {"periods": facts["periods"], "embargo_days": gap, "knowledge_cutoff": str(cutoff)})


def _of_card(recipe: Recipe) -> tuple[datetime.date, str] | None:
    """Return the knowledge cut-off that the model's own files name, and which file."""
    config = recipe.model.config if isinstance(recipe.model, HuggingFaceModel) else None
    folder = find_model(config) if config is not None else None
    return None if folder is None else knowledge_cutoff(folder)


def knowledge_cutoff(folder: Path) -> tuple[datetime.date, str] | None:
    """Return the latest cut-off that a model's files name, as a month's last day, and the file; None where none does."""
    found = []
    for name in CARD_FILES:
        try:
            with open(folder / name, encoding="utf-8", errors="replace") as file:
                text = file.read(_CARD_BYTES)
        except OSError:
            continue
        found += [(day, name) for match in _SAID.finditer(text) if (day := _last_day(match)) is not None]
    # The latest: a card of a fine-tuned model names its base's cut-off too.
    return max(found) if found else None


def _last_day(match: re.Match[str]) -> datetime.date | None:
    iso = match["iso"].replace("/", "-") if match["iso"] else None
    day = match["before"] or match["behind"]
    try:
        if iso is not None and len(iso) == len("2024-06-01"):
            return datetime.date.fromisoformat(iso)
        year, month = (int(part) for part in iso.split("-")) if iso else (int(match["year"]), _MONTHS[match["month"].lower()])
        # A month alone is taken to its last day, so that no day the model may know counts as new.
        return datetime.date(year, month, int(day) if day else calendar.monthrange(year, month)[1])
    except ValueError:
        return None


def texts(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge lengths, repetitions and encoding of the reasoning."""
    found, facts = Findings(), prepared.facts
    kept, garbled, distinct = sum(facts["kept"].values()), facts["garbled"], facts["distinct_reasoning"]
    if garbled > GARBLED * kept:
        what = f"{garbled:,} theses hold text that was decoded wrongly (such as Ã© for é), the first at {facts['garbled_at']}"
        fix = "write the files again in UTF-8"
        if garbled > MANY_GARBLED * kept:
            found.problem(what, fix)
        else:
            found.warn(f"{what}: {fix}")
    if distinct < FEW_INPUTS * kept:
        found.warn(f"{kept:,} theses have {distinct:,} different reasonings: the model will learn them by heart")
    size = facts["reasoning_characters"]
    text = (
        f"reasoning of {size['shortest']:,} to {size['longest']:,} characters, {size['median']:,} in the middle (asked for: "
        f"{SHORTEST} to {LONGEST:,}); {distinct:,} of {kept:,} differ; {garbled:,} decoded wrongly"
    )
    return found.evidence(text, {"characters": size, "distinct_reasoning": distinct, "garbled": garbled})


def copies(recipe: Recipe, prepared: PreparedData) -> Evidence:
    """Judge how many held-out theses stand in training too, nearly word by word."""
    found, facts = Findings(), prepared.facts
    seen = facts["near_copies"]
    worst = max(seen[name] / max(1, seen["compared"][name]) for name in ("validation", "test"))
    if worst > FEW_COPIES:
        many = ", ".join(f"{seen[name]:,} of {seen['compared'][name]:,} in {name}" for name in ("validation", "test"))
        what = f"theses are nearly the same as one of an earlier split ({many}), such as {seen['examples'][0]}"
        fix = "leave repeated theses out: what is measured on them was learned by heart"
        if worst > MANY_COPIES:
            found.problem(what, fix)
        else:
            found.warn(f"{what}; {fix}")
    twice = sum(count for reason, count in facts["rejected"].items() if reason.startswith(("duplicate", "same question")))
    text = (
        f"of {seen['compared']['validation']:,} theses in validation {seen['validation']:,} are nearly one in training, of "
        f"{seen['compared']['test']:,} in test {seen['test']:,}; {twice:,} records that ask the same were left out"
    )
    return found.evidence(text, {"near_copies": seen, "duplicates": twice})


_GATES: tuple[tuple[str, str, Judge], ...] = (
    ("theses", "few records are rejected, each with its reason", records),
    ("theses-inputs", "theses ask different things", inputs),
    ("theses-periods", "periods are apart, long enough, and tested behind the base model's knowledge cut-off", periods),
    ("theses-copies", "no held-out thesis is nearly the same as one in training", copies),
    ("theses-labels", "no action dominates; what always saying the most common one scores", labels),
    ("theses-texts", "reasonings differ, have their length, and are decoded rightly", texts),
)


def thesis_gates(recipe: Recipe, prepared: PreparedData) -> list[Gate]:
    """Judge prepared theses by every gate."""
    judged = []
    for name, proves, judge in _GATES:
        try:
            evidence = judge(recipe, prepared)
            status = "warn" if evidence.warnings else "ok"
            judged.append(Gate(name, proves, status, evidence.text, tuple(evidence.warnings), evidence.facts))
        except CheckFailed as error:
            judged.append(Gate(name, proves, "fail", error.what, (error.fix,) if error.fix else ()))
    return judged


def require_unread_test(recipe: Recipe, prepared: PreparedData) -> None:
    """Refuse data whose test period the base model has read about: what is trained and scored on it says nothing.

    Raises:
        UserError: it is a recipe of theses, and the test period begins by the knowledge cut-off.
    """
    if not isinstance(recipe.data.corpus, ThesisCorpus) or recipe.data.split is None:
        return
    try:
        periods(recipe, prepared)
    except CheckFailed as error:
        raise UserError(error.what, error.fix) from None


def failed_gates(recipe: Recipe, prepared: PreparedData) -> list[str]:
    """Return a sentence for each gate on theses that does not hold; [] of other data."""
    gates = thesis_gates(recipe, prepared) if isinstance(recipe.data.corpus, ThesisCorpus) else []
    return [f"{gate.name}: {'; '.join((gate.text, *gate.fixes))}" for gate in gates if gate.status == "fail"]


def _has_theses(context: Context) -> bool:
    return isinstance(context.recipe.data.corpus, ThesisCorpus)


def _check(name: str, context: Context, say: Say) -> Evidence:
    judge = next(judge for known, _, judge in _GATES if known == name)
    return judge(context.recipe, prepare_theses(context.recipe, as_progress(say))[0])


def prepare_theses(recipe: Recipe, progress: Progress | None = None) -> tuple[PreparedData, MissingModel | None]:
    """Prepare theses as training will, or, where the model's tokenizer is on another machine, all but their tokens.

    Returns:
        The prepared data, and what is not here: then the tokens are those of a small tokenizer made of the theses, which
        neither splits, rejects nor gates depend on.

    Raises:
        UserError: as of `prepare`.
    """
    try:
        return prepare(recipe, progress=progress), None
    except MissingModel as missing:
        data = recipe.data.model_copy(update={"tokenizer": BPETokenizer(vocab_size=GATE_VOCABULARY)})
        return prepare(recipe.model_copy(update={"data": data}), progress=progress), missing


CHECKS = tuple(
    Check(
        name, proves, "look at the records: windtunnel prepare RECIPE --out FOLDER", partial(_check, name), shows="end",
        needs=("recipe", "data"), applies=_has_theses, limit=600.0,
    )
    for name, proves, _ in _GATES
)  # fmt: skip
