"""Evaluate a run: load a checkpoint, measure it on held-out data, write evaluation.json."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.checkpoint import Which
from windtunnel.data import PreparedData, ValidationBatches, held_out_problems, prepare
from windtunnel.files import write_json
from windtunnel.generate import GenerationJob, Generator, is_hf_run, load_run
from windtunnel.model import GPT, use_supervision
from windtunnel.recipe import Recipe, TextCorpus, UserError
from windtunnel.run import RunFolder

from .held_out import SCORED_AT_ONCE, require_data
from .loss import LossByStep, Validation, validation_loss
from .match import ExactMatch, answer_tokens, exact_match
from .puzzles import PuzzleReport, puzzle_report

if TYPE_CHECKING:
    from .answers import Answered
    from .attempts import Drawing
    from .backtest import BacktestReport
    from .subject import Subject
    from .tuned import Examine, TunedEvaluation

FORMAT = 1  # of evaluation.json, which other commands read
# Another order of the held-out documents than any other use of the recipe's seed.
PROBLEM_SEED, SAMPLE_SEED = 101, 102
PROMPT_TOKENS = 32  # of a document that is gone on with
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model made of it at temperature 0.8."""

    prompt: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Both fields."""
        return {"prompt": self.prompt, "text": self.text}


@dataclass(frozen=True)
class EvaluationReport:
    """What a checkpoint is worth. `validation` is None where the data have no targets, as prompts have none.

    `exact_match` is None where the corpus has no answers, `puzzles` where it has no puzzles.

    `supervision`: with how many supervision steps a recursive model was measured, and trained where that differs;
    `by_step`: its loss after each of them, None of other models.
    `warnings`: what to know, such as that a better checkpoint is damaged.
    `substitute`: the checkpoint that was asked for is damaged, and another one was measured.
    `unwritten`: why its file could not be written, if it could not.
    `tuned`: of a Hugging Face model, the answers to held-out questions and the comparison with the untuned model.
    `backtest`: what its predicted actions would have earned, where the recipe asks for that.
    """

    run: str
    recipe: str
    step: int | None
    validation: Validation | None
    exact_match: ExactMatch | None
    samples: tuple[Sample, ...]
    device: str
    seconds: float
    created: str
    puzzles: PuzzleReport | None = None
    supervision: str | None = None
    by_step: LossByStep | None = None
    unwritten: str | None = None
    warnings: tuple[str, ...] = ()
    tuned: TunedEvaluation | None = None
    backtest: BacktestReport | None = None
    substitute: bool = False

    @property
    def answers(self) -> ExactMatch | Answered | None:
        """What was right: sums, or answers to held-out questions; None where none were judged."""
        found = self.exact_match if self.tuned is None else self.tuned.answers
        return found if found is not None and found.n else None

    def to_json(self) -> dict[str, Any]:
        """Return stable keys; what is written to evaluation.json."""
        value = self.validation
        tuned = {} if self.tuned is None else self.tuned.to_json()
        return {
            "format": FORMAT,
            "run": self.run,
            "recipe": self.recipe,
            "step": self.step,
            "bits_per_byte": None if value is None else value.bits_per_byte,
            "validation_loss": None if value is None else value.loss,
            "tokens": None if value is None else value.tokens,
            "bytes": None if value is None else value.bytes,
            "exact_match": None if self.exact_match is None else self.exact_match.to_json(),
            "puzzles": None if self.puzzles is None else self.puzzles.to_json(),
            "supervision": self.supervision,
            "by_step": None if self.by_step is None else self.by_step.to_json(),
            "samples": [sample.to_json() for sample in self.samples],
            **tuned,
            **({} if self.backtest is None else {"backtest": self.backtest.to_json()}),
            "warnings": list(self.warnings),
            "substitute": self.substitute,
            "device": self.device,
            "seconds": round(self.seconds, 3),
            "created": self.created,
        }


def evaluate_run(
    run: Path | str,
    checkpoint: Which = "best",
    *,
    prepared: PreparedData | None = None,
    device: str | None = None,
    supervision: int | None = None,
    problems: int | None = None,
    untuned: bool = True,
    progress: Progress | None = None,
    examine: Examine | None = None,
    drawing: Drawing | None = None,
) -> EvaluationReport:
    """Measure a run's checkpoint on held-out data and write RUN/evaluation.json.

    Where another checkpoint than the best or other supervision steps were asked for it is RUN/evaluation-WHAT.json.

    Args:
        run: folder of the run.
        checkpoint: 'best' by held-out answers or validation loss, 'newest', or a step.
        prepared: the run's data; None: from the cache, made again if it is no longer there.
        device: to compute on; None: the best there is.
        supervision: supervision steps of a recursive model; None: as its recipe says.
        problems: held-out problems to answer; None: as the recipe says.
        untuned: of a Hugging Face model, also measure the weights that its training began with.
        progress: called with the share done (0 to 1) and what is being done.
        examine: makes the exam of a Hugging Face model; None: of one that was fine-tuned, or goes on with text.
        drawing: of a Hugging Face model, draw several answers to each question as well; None: do not.

    Raises:
        UserError: no run, no good checkpoint, or data that is no longer what the run was trained on.
    """
    run, report = Path(run), progress or (lambda share, what: None)
    started = time.monotonic()
    if is_hf_run(run):
        from .subject import run_subject  # imports transformers

        if supervision is not None:
            raise UserError(f"{run} is no recursive model", "leave --supervision out")
        subject = run_subject(run, checkpoint, device, prepared, untuned=untuned)
        out = run / _file_name(checkpoint, None).removesuffix(".json")
        result = _evaluate_tuned(subject, started, problems, report, out, examine, drawing)
        return replace(result, unwritten=_write(run / _file_name(checkpoint, None), result))
    if drawing is not None:
        raise UserError(f"--attempts is for fine-tuned models, and {run} is none", "leave --attempts out")
    loaded = load_run(run, checkpoint, device)
    report(0.05, "data")
    data = prepared or prepare(loaded.recipe)
    # Ids would stand for other text, and any loss would mean nothing.
    if data.tokenizer.pieces != loaded.tokenizer.pieces:
        raise UserError(
            f"{run}: the data's tokenizer differs from the one of the run: the corpus has changed since",
            "bring back the corpus that the run was trained on, or train a new run",
        )
    require_data(RunFolder.open(run), data)
    used = use_supervision(loaded.model, supervision)
    stage, model = loaded.recipe.evaluation, loaded.model
    device_name = str(model.head.weight.device)
    report(0.1, "bits per byte")
    validation = _validation(model, data, stage.bits_per_byte_tokens)
    report(0.5, "exact match")
    match, puzzles, most = None, None, stage.exact_match_problems if problems is None else problems
    made: list[Sample] = []
    warnings = loaded.warnings
    after = answer_after(loaded.recipe)
    if (data.corpus == "arithmetic" or after is not None) and most:
        asked = held_out_problems(data, most, loaded.recipe.seed + PROBLEM_SEED, after)
        if asked:
            with closing(loaded.generator([p.prompt for p in asked], answer_tokens(asked))) as generator:
                match = exact_match(generator, asked)
        elif after is not None:
            warnings += (f"no held-out document has an answer after {after!r} (data.corpus.answer_after): no exact match",)
    if data.corpus == "sudoku":
        puzzles = puzzle_report(model, data, most=max(1, most))
    else:
        report(0.9, "samples")
        prompts = prompts_of(loaded.recipe, data)
        with closing(loaded.generator(prompts, stage.sample_tokens)) as generator:
            made = samples(generator, prompts, stage.sample_tokens, loaded.recipe.seed)
    result = EvaluationReport(
        run=run.resolve().name,
        recipe=loaded.recipe.name,
        step=loaded.checkpoint.step,
        validation=validation,
        exact_match=match,
        samples=tuple(made),
        device=device_name,
        seconds=time.monotonic() - started,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        puzzles=puzzles,
        supervision=used,
        by_step=_by_step(model, validation),
        warnings=warnings,
        substitute=bool(loaded.warnings),
    )
    result = replace(result, unwritten=_write(run / _file_name(checkpoint, supervision), result))
    report(1.0, "done")
    return result


def evaluate_folder(
    folder: Path,
    recipe: Recipe,
    *,
    device: str | None = None,
    problems: int | None = None,
    untuned: bool = True,
    progress: Progress | None = None,
    out: Path | None = None,
    drawing: Drawing | None = None,
) -> EvaluationReport:
    """Measure a Hugging Face folder on a recipe's held-out data, beside the recipe's own model.

    Arguments are as of `evaluate_run`. `out` gets evaluation.json and, of theses, their predictions; None: nothing is written.

    Raises:
        UserError: the folder or the data cannot be used, or do not go together.
    """
    from .subject import folder_subject  # imports transformers

    started, report = time.monotonic(), progress or (lambda share, what: None)
    subject = folder_subject(folder, recipe, device, untuned=untuned)
    result = _evaluate_tuned(subject, started, problems, report, out, drawing=drawing)
    if out is None:
        return result
    with contextlib.suppress(OSError):  # `_write` says what is in the way
        out.mkdir(parents=True, exist_ok=True)
    return replace(result, unwritten=_write(out / "evaluation.json", result))


def _evaluate_tuned(
    subject: Subject, started: float, problems: int | None, progress: Progress, out: Path | None,
    examine: Examine | None = None, drawing: Drawing | None = None,
) -> EvaluationReport:  # fmt: skip
    from .tuned import evaluate_tuned, examine_conversations

    examine = examine or examine_conversations
    found = evaluate_tuned(subject, problems=problems, progress=progress, out=out, examine=examine, drawing=drawing)
    traded, untraded = _backtest(subject, found)
    progress(1.0, "done")
    return EvaluationReport(
        run=subject.name,
        recipe=subject.recipe.name,
        step=subject.step,
        validation=found.validation,
        exact_match=None,
        samples=tuple(Sample(prompt, text) for prompt, text, _ in found.said),
        device=str(subject.device),
        seconds=time.monotonic() - started,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=(*found.warnings, *untraded),
        tuned=found,
        backtest=traded,
        substitute=subject.substitute,
    )


def _backtest(subject: Subject, found: TunedEvaluation) -> tuple[BacktestReport | None, tuple[str, ...]]:
    """Trade the predictions that were written, by the recipe's rules, beside them; or say why that cannot be done.

    Hours of answering come before it, so what is wrong with prices or rules is a warning: `windtunnel backtest` does it again.
    """
    from .backtest import run_backtest
    from .backtest_files import write_backtest
    from .prices import read_prices
    from .signals import read_signals

    rules = subject.recipe.evaluation.backtest
    if rules is None or not found.files:
        return None, ()
    predictions = Path(found.files[0])
    prices = rules.prices or subject.data.prices
    if prices is None:
        return None, (f"not backtested: no prices are given; windtunnel backtest {predictions} --prices FILE",)
    try:
        made = run_backtest(read_signals(predictions), read_prices(prices), rules.model_copy(update={"prices": str(prices)}))
        folder = predictions.parent
        write_backtest(made, plot=folder / "backtest.png", trades=folder / "trades.csv", equity=folder / "equity.csv")
    except UserError as error:
        return None, (f"not backtested: {error.message}" + (f"; {error.fix}" if error.fix else ""),)
    return made, ()


def samples(generator: Generator, prompts: list[str], tokens: int, seed: int) -> list[Sample]:
    """Return one text for each prompt at temperature 0.8, the same for the same seed.

    Prompts that are longer than the context lose their beginning.
    """
    ids = [tuple(generator.text.encode(prompt)[-generator.context :]) for prompt in prompts]
    # A seed for each prompt, far from the next recipe seed's.
    first = (seed + SAMPLE_SEED) << 16
    made = generator.generate([GenerationJob(i, tokens, temperature=0.8, seed=first + n) for n, i in enumerate(ids)])
    return [Sample(prompt, done.text) for prompt, done in zip(prompts, made, strict=True)]


def _validation(model: GPT, data: PreparedData, tokens: int) -> Validation:
    sequence = model.shape.sequence
    rows = max(1, SCORED_AT_ONCE // sequence)
    device = model.head.weight.device
    batches = ValidationBatches(data.validation, sequence=sequence, micro_batch=rows, limit=tokens, device=device)
    return validation_loss(model, batches, data.tokenizer.token_bytes(), device)


def _by_step(model: GPT, validation: Validation) -> LossByStep | None:
    trained = model.shape.supervision
    return LossByStep(trained, validation.steps) if trained else None


def answer_after(recipe: Recipe) -> str | None:
    """Return what prompts end with in a text corpus of prompts and answers; None of other corpora."""
    corpus = recipe.data.corpus
    return corpus.answer_after if isinstance(corpus, TextCorpus) else None


def prompts_of(recipe: Recipe, data: PreparedData) -> list[str]:
    """Return the recipe's prompts, else beginnings of held-out documents: sums as far as 'B', lines as far as answer_after.

    Of other text PROMPT_TOKENS, and of a short document the first half: something must be left to write.
    """
    stage = recipe.evaluation
    if stage.prompts or not stage.samples:
        return stage.prompts[: stage.samples] if stage.samples else []
    after = answer_after(recipe)
    if data.corpus == "arithmetic" or after is not None:
        asked = held_out_problems(data, stage.samples, recipe.seed + SAMPLE_SEED, after)
        if asked or data.corpus == "arithmetic":
            return [p.prompt for p in asked]
    tokens = data.validation.array
    starts = np.flatnonzero(tokens == data.tokenizer.bos)
    lengths = np.append(starts[1:], len(tokens)) - starts - 1
    ends = starts + 1 + np.minimum(PROMPT_TOKENS, np.maximum(lengths // 2, np.minimum(lengths, 1)))
    chosen = np.random.default_rng(recipe.seed + SAMPLE_SEED).permutation(len(starts))[: stage.samples]
    # A cut may fall inside a character.
    return [data.tokenizer.decode(tokens[starts[i] + 1 : ends[i]]).rstrip("\ufffd") for i in chosen]


def _file_name(which: Which, supervision: int | None) -> str:
    """Return the name of the file, chosen so that the best checkpoint's evaluation is not overwritten by that of another."""
    named = f"step-{which}" if isinstance(which, int) else which
    words = [*([] if which == "best" else [named]), *([] if supervision is None else [f"supervision-{supervision}"])]
    return "-".join(["evaluation", *words]) + ".json"


def _write(path: Path, report: EvaluationReport) -> str | None:
    """Write the report; why it could not be written, if it could not: it is too dear to be lost for that."""
    try:
        write_json(path, report.to_json())
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return None
