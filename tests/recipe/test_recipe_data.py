"""The data section: kinds of corpus, and what they ask of the rest of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.recipe import (
    ConversationCorpus,
    FolderTokenizer,
    MixtureCorpus,
    PromptCorpus,
    UserError,
    load_recipe,
    stage_recipe,
)

CONVERSATIONS = "{kind: conversations, files: [a.jsonl]}"


def recipe(tmp_path: Path, corpus: str, tokenizer: str = "{kind: folder}", extends: str = "sft") -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(f"extends: {extends}\nname: r\ndata:\n  corpus: {corpus}\n  tokenizer: {tokenizer}\n")
    return path


def test_files_of_every_source_are_found_beside_the_recipe(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "tok").mkdir()
    sources = ", ".join(f"{{corpus: {{kind: conversations, files: [{name}]}}}}" for name in ("a.jsonl", "b.jsonl"))
    loaded = load_recipe(recipe(tmp_path, f"{{kind: mixture, sources: [{sources}]}}", "{kind: folder, path: tok}"))
    assert isinstance(loaded.data.corpus, MixtureCorpus)
    assert isinstance(loaded.data.tokenizer, FolderTokenizer)
    assert loaded.data.files == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]
    assert loaded.data.tokenizer.path == f"{tmp_path}/tok"
    assert isinstance(loaded.data.corpus.sources[0].corpus, ConversationCorpus)


@pytest.mark.parametrize(
    ("corpus", "tokenizer", "extends", "says"),
    [
        (CONVERSATIONS, "{kind: bpe}", "charlm", "needs a model of kind huggingface"),
        (CONVERSATIONS, "{kind: character}", "sft", "needs tokens that mark turns"),
        ("{kind: prompts, files: [a.jsonl]}", "{kind: folder}", "sft", "is for stages of kind rl"),
        ("{kind: prompts}", "{kind: folder}", "rl", "come from files, arithmetic, kernels or exercises"),
        (f"{{kind: mixture, sources: [{{corpus: {CONVERSATIONS}}}, {{corpus: {{kind: stdlib}}}}]}}", "{kind: folder}", "sft",
         "documents and conversations cannot be mixed"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said(tmp_path: Path, corpus: str, tokenizer: str, extends: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_recipe(recipe(tmp_path, corpus, tokenizer, extends))


@pytest.mark.parametrize(
    ("set_", "asked"),
    [
        ("seed=1", "chat"),
        ("data.corpus.template=alpaca", "alpaca"),
        ("stages.rl.set.data.corpus.template=plain", "plain"),
        ("stages.sft=null", "auto"),
    ],
)
def test_prompts_are_put_as_the_conversations_that_the_model_learned_from(set_: str, asked: str) -> None:
    own = stage_recipe(load_recipe("kernels", [set_]), "rl")
    assert isinstance(own.data.corpus, PromptCorpus)
    assert own.data.corpus.template == asked
    assert stage_recipe(own, "rl") == own


@pytest.mark.parametrize("sets", [("tasks=12",), ("tasks=12", "levels=[1]"), ("levels=[1]", "tasks=12")])
def test_what_set_decides_reaches_a_stage_that_reads_the_data_as_another_kind(sets: tuple[str, ...]) -> None:
    loaded = load_recipe("kernels", [f"data.corpus.kernels.{one}" for one in sets])
    asked = [getattr(stage_recipe(loaded, name).data.corpus, "kernels", None) for name in ("sft", "rl")]
    assert asked[0] == asked[1]
    assert asked[1].tasks == 12
    assert asked[1].levels == ([1] if len(sets) == 2 else [1, 2, 3])
