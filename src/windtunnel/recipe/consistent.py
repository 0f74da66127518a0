"""What the sections of a recipe demand of each other: one sentence, with the fix, on what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .data import SudokuCorpus
    from .schema import GPTModel, Recipe


def recursion_problem(recipe: Recipe) -> str | None:
    """What is wrong with `trm` and the rest of the recipe together; None where nothing is."""
    trm, model, stage = recipe.trm, recipe.model, recipe.pretrain
    if stage.graphs is True and trm is None:
        fix = "--set stages.pretrain.graphs=auto"
        return f"stages.pretrain.graphs=true records the passes of recursive models, and this one has no trm section; fix: {fix}"
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
    """What is wrong with model, tokenizer and a corpus of puzzles together; None where nothing is."""
    corpus, model = recipe.data.corpus, recipe.model
    if corpus.kind == "sudoku":
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


def phases_problem(recipe: Recipe) -> str | None:
    """What is wrong with the names of the phases; None where nothing is."""
    if recipe.phases and recipe.phase is not None:
        return f"phase is for the recipe of a single phase, and this one has phases; fix: --phase {recipe.phase}"
    names = [phase.name for phase in recipe.phases]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"phases: two are named {twice[0]}; names must differ" if twice else None
