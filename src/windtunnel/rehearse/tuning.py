"""Rehearse fine-tuning: a scale model of the recipe, and what an exported and served model that chats must show.

The scale model is the real one where it is small and here: a few steps on a few short conversations. A larger one, or one
whose weights are elsewhere, is stood in for by a random model of the same architecture.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    Budget,
    Conversational,
    ConversationCorpus,
    Every,
    FolderTokenizer,
    HuggingFaceModel,
    PromptCorpus,
    Recipe,
    Schedule,
    ThesisCorpus,
    find_model,
)

from .context import Context, Rehearsal, Stage, learns_policy
from .conversion import holds_fp8, write_random
from .scale import HEAD_DIM, VLLM_HEAD_DIM, VOCAB, small_config
from .serving import ask_server, expect, stream

if TYPE_CHECKING:
    from windtunnel.data import PreparedData

MOST_PARAMETERS = 200e6
"""Of a real model that a CPU trains in seconds a step."""
STEPS, EVERY, BEYOND = 8, 3, 2
"""Of the real model, the last beyond the resumed checkpoint: a step takes seconds and a checkpoint a gigabyte and a half."""
RANDOM_STEPS, RANDOM_EVERY = 48, 6
DOCUMENTS, KERNEL_TASKS, EXERCISES = 1500, 24, 120
# The recipe's share of a few hundred conversations would be none.
HELD_OUT = 0.1
SHORTEST, LONGEST = 128, 1024
"""Sequence of the scale model: so that half of the conversations fit."""
ANSWERS, ANSWER_TOKENS = 4, 8
ASKED = "What is 2+3? Answer with the number alone."
TOKENS = 12
LOGITS = 64
NEAR = 1e-4
"""Most difference of logits in fp32, summed in another order, relative to their largest."""


def tunes(context: Context) -> bool:
    """Return whether fine-tuning of the recipe can be rehearsed here: a Hugging Face model, on data that is there."""
    return not context.is_gpt and context.recipe.sft is not None and context.has_data


def tunes_or_learns(context: Context) -> bool:
    """Return whether fine-tuning or reinforcement learning of the recipe can be rehearsed here."""
    return tunes(context) or learns_policy(context)


def uses_real_model(recipe: Recipe) -> bool:
    """Return whether the model's weights are here and small enough to be trained on a CPU."""
    from windtunnel.model import hf_shape, weights_folder

    assert isinstance(recipe.model, HuggingFaceModel)
    return weights_folder(recipe.model.config) is not None and hf_shape(recipe.model.config).parameters <= MOST_PARAMETERS


def tuning_scale(
    context: Context, whole: Recipe | None = None, given: tuple[HuggingFaceModel, Any] | None = None, steps: int | None = None
) -> Recipe:
    """Return the scale model of a recipe that fine-tunes.

    Rules: the same kind of data, of which few; the model itself where it is here and has at most 200 M parameters, else a
    random one of its architecture with the same tokenizer; eight sequences a step (of the real model one) of 128 to 1,024
    tokens, whichever half of the conversations fit into; 48 steps (8) with saves and validations between them. What is
    structural stays: template, what is learned, adapter, format of the weights, precision of the optimizer's states.

    Args:
        context: of the check or the rehearsal.
        whole: the recipe; None: the context's.
        given: a random model with its tokenizer, which other stages have too; None: by the rules.
        steps: None: by the rules.
    """
    whole = whole or context.recipe
    recipe = context.excerpted(whole)
    stage = recipe.sft
    assert stage is not None
    real = given is None and uses_real_model(recipe)
    model, tokenizer = given or (_own_model(recipe) if real else small_model(context, recipe))
    data = recipe.data.model_copy(update={"corpus": fewer(recipe.data.corpus), "tokenizer": tokenizer})
    if data.split is None:  # else the periods decide
        data = data.model_copy(update={"validation": HELD_OUT})
    recipe = recipe.model_copy(update={"model": model, "data": data})
    sequence = _sequence(recipe, whole.model.sequence)
    steps = steps or context.steps or (STEPS if real else RANDOM_STEPS)
    every = EVERY if real else RANDOM_EVERY
    sequences = 8 if given is None and not real else 1
    # Targets, of which a short conversation has few: the real model would score sequences for a quarter of a minute.
    scored = sequence // 2 if real else 2 * sequence
    answers = stage.answers and stage.answers.model_copy(
        update={
            # Of the real model at the end alone: answering takes as long as many of its steps.
            "every": stage.answers.every and Every(steps=steps if real else steps // 2),
            "prompts": ANSWERS,
            "tokens": min(stage.answers.tokens, ANSWER_TOKENS),
        }
    )
    small: dict[str, Any] = {
        "name": "sft", "gates": None, "set": {}, "budget": Budget(), "share": None, "init_from": None, "overridden": {},
        "batch_tokens": sequences * sequence, "micro_batch": max(1, sequences // 2), "compile": False,
        "learning_rate": stage.learning_rate if real else 3e-3, "schedule": Schedule(warmup_steps=1),
        "validate_every": Every(steps=max(1, steps // 2)), "validation_tokens": scored, "answers": answers,
    }  # fmt: skip
    evaluate = recipe.evaluation.model_copy(
        update={
            "name": "evaluate", "gates": None, "bits_per_byte_tokens": scored, "exact_match_problems": 2 * ANSWERS,
            "samples": 2, "sample_tokens": ANSWER_TOKENS,
        }
    )  # fmt: skip
    return recipe.model_copy(
        update={
            "stage": None,
            "model": model.model_copy(update={"sequence": sequence}),
            "stages": {"sft": stage.model_copy(update=small), "evaluate": evaluate},
            "budget": Budget(steps=steps),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": Every(steps=every)}),
        }
    )


def _own_model(recipe: Recipe) -> tuple[HuggingFaceModel, Any]:
    """Return the real model and its tokenizer."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    own = find_model(model.config)
    assert own is not None
    return model.model_copy(update={"config": str(own.resolve())}), recipe.data.tokenizer


def small_model(context: Context, recipe: Recipe, *, staged: bool = False) -> tuple[HuggingFaceModel, Any]:
    """Return a random model of the recipe's architecture, written to files, and its tokenizer.

    Args:
        context: of the check or the rehearsal, in whose folder the files are made.
        recipe: whose model and tokenizer are stood in for.
        staged: other stages, of other text, have the same tokenizer: one that is made here is kept in a folder.
    """
    from windtunnel.model import hf_shape

    model, tokenizer = recipe.model, recipe.data.tokenizer
    assert isinstance(model, HuggingFaceModel)
    own = find_model(model.config)
    vocab = VOCAB
    if isinstance(tokenizer, FolderTokenizer):
        if tokenizer.path is None and (own is None or not (own / "tokenizer.json").is_file()):
            tokenizer = _small_tokenizer(context, recipe, tokenizer, staged=staged)
        else:
            path = str(Path(tokenizer.path or str(own)).expanduser().resolve())
            tokenizer = tokenizer.model_copy(update={"path": path})
            vocab = hf_shape(model.config).vocab
    folder = (context.folder / "random-model").resolve()
    # A policy may be sampled by vLLM.
    heads = HEAD_DIM if context.recipe.rl is None else VLLM_HEAD_DIM
    write_random(small_config(hf_shape(model.config).raw, vocab, heads), folder, context.seed, fp8=holds_fp8(recipe))
    return model.model_copy(update={"config": str(folder)}), tokenizer


def _small_tokenizer(
    context: Context, recipe: Recipe, wanted: FolderTokenizer, *, staged: bool
) -> BPETokenizer | FolderTokenizer:  # fmt: skip
    """Return a tokenizer of the recipe's own text; where tokens are added to it, in a folder, with spare rows for them."""
    from windtunnel.data import prepare

    # Then every stage's data may train its own, as long as nobody else has to read its numbers.
    if not wanted.add and not staged:
        return BPETokenizer(vocab_size=VOCAB)
    folder = (context.folder / "small-tokenizer").resolve()
    if not (folder / "tokenizer.json").is_file():
        small = BPETokenizer(vocab_size=VOCAB - len(wanted.add))
        data = recipe.data.model_copy(update={"corpus": fewer(recipe.data.corpus), "tokenizer": small})
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(prepare(recipe.model_copy(update={"data": data})).folder / "tokenizer.json", folder / "tokenizer.json")
    return FolderTokenizer(path=str(folder), add=wanted.add)


def fewer(corpus: Any) -> Any:
    """Return a corpus with fewer documents, where they are generated, and none too long."""
    if isinstance(corpus, ArithmeticCorpus):
        return corpus.model_copy(update={"documents": min(corpus.documents, DOCUMENTS)})
    if isinstance(corpus, PromptCorpus) and corpus.arithmetic is not None:
        return corpus.model_copy(update={"arithmetic": fewer(corpus.arithmetic)})
    for key, count, most in (("kernels", "tasks", KERNEL_TASKS), ("exercises", "count", EXERCISES)):
        asked = getattr(corpus, key, None)
        if asked is not None:
            some = asked.model_copy(update={count: min(getattr(asked, count), most)})
            return corpus.model_copy(update={key: some})
    if not isinstance(corpus, Conversational):
        return corpus
    overlong = {"overlong": "truncate" if corpus.overlong == "refuse" else corpus.overlong}
    if isinstance(corpus, ThesisCorpus) and not corpus.files and corpus.generated is not None:
        few = corpus.generated.model_copy(update={"records": min(corpus.generated.records, DOCUMENTS)})
        return corpus.model_copy(update=overlong | {"generated": few})
    if not isinstance(corpus, ConversationCorpus) or corpus.files or corpus.arithmetic is None:
        return corpus.model_copy(update=overlong)
    return corpus.model_copy(update=overlong | {"arithmetic": fewer(corpus.arithmetic)})


def _sequence(recipe: Recipe, whole: int) -> int:
    """Return the smallest power of two that at least half of the conversations fit into, within limits."""
    import numpy as np

    from windtunnel.data import conversation_files, prepare

    lengths = [np.diff(file.starts) for file in conversation_files(prepare(recipe))]
    half = int(np.median(np.concatenate(lengths))) if lengths else SHORTEST
    # A power of two: kernels and compiled code are made for few lengths.
    return min(whole, max(SHORTEST, min(LONGEST, 1 << (half - 1).bit_length())))


def learning(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Compare the first validation and training losses with the last."""
    from windtunnel.run import MetricsReader, RunFolder

    assert rehearsal.run is not None
    with MetricsReader(RunFolder.open(rehearsal.run).metrics_path) as metrics:
        losses = [point.value for point in metrics.series("loss")]
        validation = [point.value for point in metrics.series("validation_loss")]
    if len(validation) < 2:
        raise CheckFailed(f"the run was validated {len(validation)} times, and two are compared", blocks=False)
    text = (
        f"validation loss {validation[0]:.3f} to {validation[-1]:.3f}, training loss {losses[0]:.3f} to {losses[-1]:.3f} in "
        f"{len(losses)} steps of {_what(rehearsal)}"
    )
    numbers = {"validation_losses": validation, "first_loss": losses[0], "last_loss": losses[-1]}
    if not (validation[-1] < validation[0] or losses[-1] < losses[0]):
        raise CheckFailed(f"{text}: it did not learn", blocks=False)
    return Evidence(text, numbers)


def _what(rehearsal: Rehearsal) -> str:
    if uses_real_model(rehearsal.recipe):
        return "the real model"
    return "a random model of its architecture: the real one is " + (
        "too large for a CPU" if find_model(rehearsal.recipe.model.config) else "not on this machine"  # type: ignore[union-attr]
    )


def export(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Export the weights; hold transformers' own reading of the folder against the run's model."""
    assert rehearsal.run is not None
    return compare_export(rehearsal.run, rehearsal.folder / "export", rehearsal.prepared, say)


def compare_export(run: Path, folder: Path, prepared: PreparedData, say: Say) -> Evidence:
    """Export a run of a Hugging Face model in fp32, load the folder with transformers alone, and compare logits on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from windtunnel.generate import HubRun, export_model
    from windtunnel.model import without_bar

    made = export_model(run, folder, dtype="fp32")
    say("loading it with transformers alone")
    file: Any = getattr(prepared.validation, "parts", (prepared.validation,))[0]
    # The first few dozen positions see every layer, and a CPU computes them in a moment.
    ids = file.sample(0)[0][:LOGITS] if file.packed else file.array[:LOGITS]
    tokens = torch.from_numpy(ids.astype("int64"))[None]
    with without_bar():
        theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        loaded = theirs.eval()(tokens).logits
        del theirs
        ours: Any = HubRun.open(run, made.step, "to compare").load(torch.device("cpu"))
        expected = ours(tokens).logits
    scale = float(expected.abs().max())
    difference = float((loaded - expected).abs().max())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = bool(tokenizer.chat_template)
    text = (
        f"{made.bytes / 1e6:,.1f} MB of safetensors; transformers reads the folder alone, and its logits "
        + ("are the run's bit for bit" if difference == 0 else f"differ by {difference / scale:.0e} of the largest")
        + ("; with its chat template" if chats else "; without a chat template")
    )
    if difference > NEAR * scale:
        raise CheckFailed(f"{text}: other weights were exported")
    return Evidence(text, {"bytes": made.bytes, "largest_difference": difference, "chat_template": chats})


def serve(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Ask the served run for a completion and a chat, at once and streamed."""
    said = ask_server(rehearsal, lambda client: _ask(client, say), say)
    text = f"asked {ASKED!r} over HTTP it says {said['chat']!r}; a chat and a completion each streamed the same; SIGTERM ended it"
    return Evidence(text, said)


def _ask(client: Any, say: Say) -> dict[str, Any]:
    name = expect(client.get("/v1/models"), 200)["data"][0]["id"]
    shared = {"model": name, "max_tokens": TOKENS, "temperature": 0}
    bodies = {
        "/v1/chat/completions": shared | {"messages": [{"role": "user", "content": ASKED}]},
        "/v1/completions": shared | {"prompt": ASKED},
    }
    said = {}
    for path, body in bodies.items():
        say(f"asking {path}")
        choice = expect(client.post(path, json=body), 200)["choices"][0]
        whole = choice["message"]["content"] if "chat" in path else choice["text"]
        streamed, _ = stream(client, path, body)
        if streamed != whole:
            raise CheckFailed(f"{path}: streamed {streamed!r}, answered at once {whole!r}")
        said["chat" if "chat" in path else "completion"] = whole
    return said


CHECKS = (
    Stage(
        "learning", "the loss falls", "look at the losses in report.html; lower stages.sft.learning_rate, or check the data",
        learning, shows="end", needs=("resume",), applies=tunes,
    ),
    Stage(
        "export", "transformers loads the exported folder alone, as the same model", "look at the free disk", export,
        shows="end", needs=("resume",), applies=tunes_or_learns,
    ),
    Stage(
        "serve", "over HTTP it completes and chats, streamed the same", "read serve.log in the rehearsal's folder; the server "
        "must be able to open a port on 127.0.0.1", serve, shows="end", needs=("resume",), applies=tunes_or_learns,
    ),
)  # fmt: skip
