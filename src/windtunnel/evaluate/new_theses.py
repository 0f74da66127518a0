"""Predict the actions of new theses with a run or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.checkpoint import Which
from windtunnel.data import Folder, Thesis, Tokenizer, encode_questions, read_questions
from windtunnel.generate import HubDecoder, HubRun, end_tokens, find_device, folder_decoder, is_hf_run, run_decoder
from windtunnel.recipe import Answers, HuggingFaceModel, Recipe, ThesisCorpus, UserError

from .action_report import Latency, latency_of
from .answers import Question, Questions
from .predictions import Prediction, PredictionLog, describe_theses, predict, prediction_files, write_predictions
from .subject import Open, stamp

TOKENS = 1024  # most tokens of an answer where no recipe says


@dataclass(frozen=True)
class FilePredictions:
    """Predictions of the theses of a file, in its order.

    Attributes:
        left_out: records that were not predicted, each with the reason.
        warnings: what to know of the model. files: where the predictions were written, if anywhere.
    """

    made: tuple[Prediction, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def latency(self) -> Latency:
        """Seconds a prediction."""
        return latency_of(self.made)

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        return {
            "predictions": [one.to_record() for one in self.made],
            "latency_s": self.latency.to_json(),
            "left_out": list(self.left_out),
            "warnings": list(self.warnings),
            "files": list(self.files),
        }


@dataclass(frozen=True)
class _Model:
    """What answers. ends: tokens that end an answer; corpus: how theses are asked; weights: what tells them from others."""

    open: Open
    tokenizer: Tokenizer
    ends: frozenset[int]
    corpus: ThesisCorpus
    tokens: int
    weights: str
    warnings: tuple[str, ...] = ()


def predict_file(
    path: Path,
    file: Path,
    *,
    recipe: Recipe | None = None,
    checkpoint: Which = "best",
    tokens: int | None = None,
    device: str | None = None,
    out: Path | None = None,
    progress: Callable[[float, str], None] = lambda share, what: None,
) -> FilePredictions:
    """Predict the actions of the theses in a file, by a run's folder or a Hugging Face folder.

    Of a folder `recipe` says how theses are asked, else they are with the default instruction. In `out` predictions are written,
    and an interrupted prediction is gone on with.

    Raises:
        UserError: the model or the file cannot be used, no thesis can be asked, or `out` cannot be written.
    """
    # Asked before hours of answering, not when the answers are written.
    if out is not None and file.resolve() in [path.resolve() for path in prediction_files(out)]:
        raise UserError(f"--out {out} would write over {file}, which is asked about", "--out NEW_FOLDER")
    model = (
        _open_run(path, recipe, checkpoint, device) if (path / "recipe.yaml").is_file() else _open_folder(path, recipe, device)
    )
    most = model.tokens if tokens is None else tokens
    theses, left_out = read_questions(file, model.corpus)
    prompts = encode_questions(theses, model.corpus, model.tokenizer)
    with model.open() as decoder:
        room = decoder.context
        fits = [len(ids) + most <= room for ids in prompts]
        left_out += [
            f"{thesis.source}: {len(ids):,} tokens ask it, and with {most:,} of an answer that is more than the model's {room:,}"
            for thesis, ids, fit in zip(theses, prompts, fits, strict=True) if not fit
        ]  # fmt: skip
        kept = [(thesis, ids) for thesis, ids, fit in zip(theses, prompts, fits, strict=True) if fit]
        if not kept:
            raise UserError(f"--file: {file}: no thesis can be asked: {left_out[-1]}", "give fewer indicators, or fewer --tokens")
        asked = tuple(Question(ids, model.tokenizer.decode(ids), thesis.action) for thesis, ids in kept)
        about = [thesis for thesis, _ in kept]
        log = PredictionLog(out, "", _facts(model, most, about, decoder), len(about))
        made = predict(decoder, model.tokenizer, about, Questions(asked, model.ends), most, log, progress)
    files = () if out is None else tuple(map(str, write_predictions(out, made)))
    log.remove()
    return FilePredictions(tuple(made), tuple(left_out), model.warnings, files)


def _facts(model: _Model, tokens: int, theses: Sequence[Thesis], decoder: HubDecoder) -> dict[str, Any]:
    return {"weights": model.weights, "tokens": tokens, "device": decoder.device.type, "theses": describe_theses(theses)}


def _open_run(path: Path, recipe: Recipe | None, checkpoint: Which, device: str | None) -> _Model:
    if recipe is not None:
        raise UserError(f"--recipe is for Hugging Face folders; {path} has its own", "leave --recipe out")
    if not is_hf_run(path):
        raise UserError(f"{path} is a run of a model of kind gpt, which answers no theses", "name a run of kind huggingface")
    where, run = find_device(device), HubRun.open(path, checkpoint, "to predict with")
    weights = f"{path.resolve()} {run.checkpoint.step} {run.checkpoint.created}"
    asked = run.run.recipe
    corpus, tokens = _corpus(asked, str(path)), _tokens(asked)
    return _Model(lambda: run_decoder(run, where), run.tokenizer, frozenset(run.ends), corpus, tokens, weights, run.warnings)


def _open_folder(path: Path, recipe: Recipe | None, device: str | None) -> _Model:
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path} is no run and no Hugging Face folder: it has neither recipe.yaml nor config.json",
            "windtunnel runs lists runs",
        )
    if recipe is not None and not isinstance(recipe.model, HuggingFaceModel):
        raise UserError(f"recipe {recipe.name} is of a model of kind gpt, and {path} is a Hugging Face folder", "name another")
    where, tokenizer = find_device(device), Folder.from_folder(path, "MODEL")
    # Only for how theses are asked by default; the file is never opened.
    corpus = ThesisCorpus(files=["new"]) if recipe is None else _corpus(recipe, f"recipe {recipe.name}")
    ends = frozenset([*(end_tokens(path) or []), tokenizer.eos])
    tokens = TOKENS if recipe is None else _tokens(recipe)
    return _Model(lambda: folder_decoder(path, where), tokenizer, ends, corpus, tokens, stamp(path))


def _corpus(recipe: Recipe, what: str) -> ThesisCorpus:
    if isinstance(recipe.data.corpus, ThesisCorpus):
        return recipe.data.corpus
    raise UserError(f"{what} is for {recipe.data.corpus.kind}, not for theses", "name a run whose data.corpus.kind is theses")


def _tokens(recipe: Recipe) -> int:
    asked: Answers | None = recipe.sft.answers if recipe.sft is not None else None
    return TOKENS if asked is None else asked.tokens
