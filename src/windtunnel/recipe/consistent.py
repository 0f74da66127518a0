"""What the sections of a recipe demand of each other: one sentence, with the fix, on what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .corpora import Conversational, SudokuCorpus

if TYPE_CHECKING:
    from .schema import GPTModel, Recipe


def recursion_problem(recipe: Recipe) -> str | None:
    """Say what is wrong with `trm` and the rest of the recipe together; None where nothing is."""
    trm, model = recipe.trm, recipe.model
    if trm is None:
        return "layout.recompute=step is for recursive models; use block or none" if recipe.layout.recompute == "step" else None
    if model.kind != "gpt":
        return "trm needs a model of kind gpt; this one is of kind huggingface"
    if trm.scheme != "looped" and model.value_embeddings:
        return f"trm.scheme={trm.scheme} has no value embeddings; fix: --set model.value_embeddings=false, or trm.scheme=looped"
    if trm.halting and model.causal:
        return "trm.halting needs whole answers, so a model that is not causal; fix: --set trm.halting=false"
    resolved = trm.resolved
    if resolved.updates == "each" and resolved.detach_from > 0:
        return (
            f"trm.updates=each detaches the states after every supervision step, trm.detach_from={resolved.detach_from} only "
            "from that one on; fix: --set trm.detach_from=0, or trm.updates=once"
        )
    return None


def puzzle_problem(recipe: Recipe) -> str | None:
    """Say what is wrong with model, tokenizer and a corpus of puzzles together; None where nothing is."""
    corpus, model = recipe.data.corpus, recipe.model
    if isinstance(corpus, SudokuCorpus):
        return (
            _sudoku_problem(recipe, corpus, model) if model.kind == "gpt" else "data.corpus.kind=sudoku needs a model of kind gpt"
        )
    if model.kind == "gpt" and not model.causal and corpus.kind != "counted":
        return (
            f"model.causal=false is for puzzles, and data.corpus.kind is {corpus.kind}; "
            "fix: --set model.causal=true, or data.corpus.kind=sudoku"
        )
    return None


def _sudoku_problem(recipe: Recipe, corpus: SudokuCorpus, model: GPTModel) -> str | None:
    cells = corpus.box**4
    if model.causal:
        return "data.corpus.kind=sudoku needs a model that sees the whole grid; fix: --set model.causal=false"
    if model.sequence != cells:
        has = f"a Sudoku of box {corpus.box} has {cells} cells and model.sequence is {model.sequence}"
        return f"{has}; fix: --set model.sequence={cells}"
    if recipe.data.tokenizer.kind != "character":
        return "data.corpus.kind=sudoku has the digits as its alphabet; fix: --set data.tokenizer.kind=character"
    return None


def records_problem(recipe: Recipe) -> str | None:
    """Return what is wrong with a corpus of conversations or prompts and the rest of the recipe; None where nothing is."""
    corpus, stages = recipe.data.corpus, {stage.kind for stage in recipe.training}
    sources = getattr(corpus, "sources", None)
    one = sources[0].corpus if sources else corpus  # those of a mixture are of one sort
    kind, talks = one.kind, isinstance(one, Conversational)
    if talks:
        if recipe.model.kind == "gpt":
            return f"data.corpus.kind={kind} needs a model of kind huggingface; this one is a gpt, which trains on documents"
        if recipe.data.tokenizer.kind == "character":
            return f"data.corpus.kind={kind} needs tokens that mark turns; fix: --set data.tokenizer.kind=folder, or bpe"
    loss = {source.corpus.loss for source in sources} if sources and talks else {getattr(corpus, "loss", None)}
    for stage in recipe.training:
        answers = getattr(stage, "answers", None)
        if answers is None or stage.kind != "sft":
            continue
        key = f"stages.{stage.name}.answers"
        if not talks and kind != "counted":
            return f"{key} needs conversations, and data.corpus.kind is {kind}; fix: --set {key}=null"
        if "all" in loss:
            what = f"{key}: with data.corpus.loss=all nothing tells questions from answers"
            return f"{what}; fix: --set data.corpus.loss=answers, or {key}=null"
        if (answers.metric == "format") != bool(answers.task):
            return f"{key}.task is what the metric format asks for, and of no other; fix: give both {key}.metric=format and task"
    if kind == "prompts" and stages and "rl" not in stages:
        return "data.corpus.kind=prompts is for stages of kind rl, and this recipe has none; fix: data.corpus.kind=conversations"
    return None


def stages_problem(recipe: Recipe) -> str | None:
    """Return what is wrong with the stages, beside the model and each other; None where nothing is."""
    names = [stage.name for stage in recipe.training]
    if recipe.stage is not None and recipe.stage not in recipe.stages:
        return f"stage: the recipe has no stage {recipe.stage!r}; its stages: {', '.join(recipe.stages)}"
    for stage in recipe.training:
        if recipe.model.kind == "gpt" and stage.kind in ("sft", "rl"):
            return f"stages.{stage.name} ({stage.kind}) needs a model of kind huggingface; this one is a gpt, which pretrains"
        if recipe.model.kind == "huggingface" and stage.kind == "pretrain":
            return f"stages.{stage.name} (pretrain) needs a model of kind gpt; this one is of kind huggingface: sft or rl"
    if recipe.model.kind == "huggingface" and not names:
        return "a model of kind huggingface needs a stage that trains: stages.sft or stages.rl"
    first = recipe.training[0] if names else None
    if first is not None and first.init_from == "previous" and recipe.stage is None:
        return f"stages.{first.name}.init_from=previous: no stage that trains comes before it; fix: random, a run or a folder"
    # Thirds are written as 0.33 or 0.34; a rounding error is no mistake.
    shares = sum(stage.share or 0.0 for stage in recipe.training)
    if shares > 1 + 1e-9:
        return f"stages: their shares of the budget add up to {shares:g}, more than 1"
    return None
