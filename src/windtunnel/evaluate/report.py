"""Evaluate a run: load a checkpoint, measure it on held-out data, write evaluation.json."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.checkpoint import Which
from windtunnel.data import PreparedData, ValidationBatches, held_out_problems, prepare
from windtunnel.generate import Generator, Job, load_run
from windtunnel.model import GPT, use_supervision
from windtunnel.recipe import EvaluationGates, Recipe, UserError
from windtunnel.run import GateResult, RunFolder

from .by_step import LossByStep
from .loss import Validation, validation_loss
from .match import ExactMatch, answer_tokens, exact_match
from .puzzles import PuzzleReport, puzzle_report

FORMAT = 1
# Another order of the held-out documents than any other use of the recipe's seed.
PROBLEM_SEED, SAMPLE_SEED = 101, 102
SCORED_AT_ONCE = 16_384
PROMPT_TOKENS = 32
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
    """What a checkpoint is worth. `exact_match` is None where the corpus has no answers, `puzzles` where it has no puzzles.

    `supervision`: with how many supervision steps a recursive model was measured, and trained where that differs;
    `by_step`: its loss after each of them, None of other models.
    `warnings`: what to know, such as that a better checkpoint is damaged.
    `unwritten`: why its file could not be written, if it could not.
    """

    run: str
    recipe: str
    step: int
    validation: Validation
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

    def to_json(self) -> dict[str, Any]:
        """Stable keys; what is written to evaluation.json."""
        value = self.validation
        return {
            "format": FORMAT,
            "run": self.run,
            "recipe": self.recipe,
            "step": self.step,
            "bits_per_byte": value.bits_per_byte,
            "validation_loss": value.loss,
            "tokens": value.tokens,
            "bytes": value.bytes,
            "exact_match": None if self.exact_match is None else self.exact_match.to_json(),
            "puzzles": None if self.puzzles is None else self.puzzles.to_json(),
            "supervision": self.supervision,
            "by_step": None if self.by_step is None else self.by_step.to_json(),
            "samples": [sample.to_json() for sample in self.samples],
            "warnings": list(self.warnings),
            "device": self.device,
            "seconds": round(self.seconds, 3),
            "created": self.created,
        }


def judge_evaluation(gates: EvaluationGates | None, report: EvaluationReport) -> tuple[GateResult, ...]:
    """Judge an evaluation by the gates of the recipe's evaluate stage; none where it has none."""
    results: list[GateResult] = []
    if gates is not None and gates.bits_per_byte is not None:
        found = report.validation.bits_per_byte
        held = found <= gates.bits_per_byte
        advice = None if held else "more tokens or a larger model: see `windtunnel plan`; or look at the data"
        results.append(GateResult("bits_per_byte", held, found, f"{found:.4f}", f"at most {gates.bits_per_byte:g}", advice))
    if gates is not None and gates.exact_match is not None:
        limit = f"at least {gates.exact_match:.1%}"
        match = report.exact_match
        if match is None:
            off = "this corpus has no answers to match: --set stages.evaluate.gates.exact_match=null"
            results.append(GateResult("exact_match", False, None, "not measured", limit, off))
        else:
            held = match.share >= gates.exact_match
            advice = None if held else "train longer, or ask for less: the interval says how sure the number is"
            results.append(GateResult("exact_match", held, match.share, str(match), limit, advice))
    return tuple(results)


def evaluate_run(
    run: Path | str,
    checkpoint: Which = "best",
    *,
    step: int | None = None,
    prepared: PreparedData | None = None,
    device: str | None = None,
    supervision: int | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure a run's checkpoint on held-out data and write RUN/evaluation.json.

    Where another checkpoint than the best or other supervision steps were asked for it is RUN/evaluation-WHAT.json.

    Args:
        run: folder of the run.
        checkpoint: 'best' by validation loss, 'newest', or a step.
        step: the same as a number for `checkpoint`.
        prepared: the run's data; None: from the cache, made again if it is no longer there.
        device: to compute on; None: the best there is.
        supervision: supervision steps of a recursive model; None: as its recipe says.
        progress: called with the share done (0 to 1) and what is being done.

    Raises:
        UserError: no run, no good checkpoint, or data that is no longer what the run was trained on.
    """
    run, report = Path(run), progress or (lambda share, what: None)
    started = time.monotonic()
    loaded = load_run(run, checkpoint if step is None else step, device)
    report(0.05, "data")
    data = prepared or prepare(loaded.recipe)
    if data.tokenizer.pieces != loaded.tokenizer.pieces:
        raise UserError(
            f"{run}: the data's tokenizer differs from the one of the run: the corpus has changed since",
            "bring back the corpus that the run was trained on, or train a new run",
        )
    trained = RunFolder.open(run).manifest.get("data", {}).get("checksum", data.checksum)
    if data.checksum != trained:
        raise UserError(
            f"{run} was trained on other data: checksum {trained}, now {data.checksum}",
            "bring back the corpus that the run was trained on, or train a new run",
        )
    used = use_supervision(loaded.model, supervision)
    stage, model = loaded.recipe.evaluation, loaded.model
    device_name = str(model.head.weight.device)
    report(0.1, "bits per byte")
    validation = _validation(model, data, stage.bits_per_byte_tokens)
    report(0.5, "exact match")
    match, puzzles = None, None
    made: list[Sample] = []
    if data.corpus == "arithmetic" and stage.exact_match_problems:
        problems = held_out_problems(data, stage.exact_match_problems, loaded.recipe.seed + PROBLEM_SEED)
        if problems:
            with closing(loaded.generator([p.prompt for p in problems], answer_tokens(problems))) as generator:
                match = exact_match(generator, problems)
    if data.corpus == "sudoku":
        puzzles = puzzle_report(model, data, most=max(1, stage.exact_match_problems))
    else:
        report(0.9, "samples")
        prompts = _prompts(loaded.recipe, data)
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
        warnings=loaded.warnings,
    )
    result = replace(result, unwritten=_write(run / _file_name(checkpoint if step is None else step, supervision), result))
    report(1.0, "done")
    return result


def samples(generator: Generator, prompts: list[str], tokens: int, seed: int) -> list[Sample]:
    """One text for each prompt at temperature 0.8, the same for the same seed.

    Prompts that are longer than the context lose their beginning.
    """
    ids = [tuple(generator.text.encode(prompt)[-generator.context :]) for prompt in prompts]
    first = (seed + SAMPLE_SEED) << 16
    made = generator.generate([Job(i, tokens, temperature=0.8, seed=first + n) for n, i in enumerate(ids)])
    return [Sample(prompt, done.text) for prompt, done in zip(prompts, made, strict=True)]


def _validation(model: GPT, data: PreparedData, tokens: int) -> Validation:
    sequence = model.shape.sequence
    rows = max(1, SCORED_AT_ONCE // sequence)
    device = model.head.weight.device
    batches = ValidationBatches(data.validation, sequence=sequence, micro_batch=rows, limit=tokens, device=device)
    return validation_loss(model, batches, data.tokenizer.token_bytes(), device)


def _by_step(model: GPT, validation: Validation) -> LossByStep | None:
    recursion = model.shape.recursion
    return None if recursion is None else LossByStep(recursion.supervision, validation.steps)


def _prompts(recipe: Recipe, data: PreparedData) -> list[str]:
    """Return the recipe's prompts, else beginnings of held-out documents: sums as far as 'B', other text for PROMPT_TOKENS."""
    stage = recipe.evaluation
    if stage.prompts or not stage.samples:
        return stage.prompts[: stage.samples] if stage.samples else []
    if data.corpus == "arithmetic":
        return [p.prompt for p in held_out_problems(data, stage.samples, recipe.seed + SAMPLE_SEED)]
    tokens = data.validation.array
    starts = np.flatnonzero(tokens == data.tokenizer.bos)
    ends = np.minimum(starts + 1 + PROMPT_TOKENS, np.append(starts[1:], len(tokens)))
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
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(report.to_json(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only disk not even what is not there can be removed
            temporary.unlink()
        return f"{path} cannot be written: {error.strerror or error}"
    return None
