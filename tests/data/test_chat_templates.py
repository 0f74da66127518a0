"""Chat templates: what they write, and which tokens of it are learned."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from chat_folders import MARKED, TALK, learned_texts, small_folder, template_of
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import Folder, time_limit
from windtunnel.data.conversations import Conversation
from windtunnel.data.templates import ChatTemplate
from windtunnel.recipe import UserError

ANSWERS = ["Four.!", "\nSeven, I think.!"]


@pytest.mark.parametrize("name", ["smol", "marked", "none"])
def test_only_answers_and_their_end_are_learned(folders: Path, name: str) -> None:
    template = template_of(folders / name)
    assert learned_texts(template, TALK) == ANSWERS
    assert learned_texts(template, TALK, "last") == ANSWERS[1:]
    assert learned_texts(template, [*TALK[:4], TALK[4] | {"train": False}]) == ANSWERS[:1]
    assert learned_texts(template, [*TALK[:2], TALK[2] | {"weight": 0}, *TALK[3:]]) == ANSWERS[1:]


@pytest.mark.parametrize("wanted", ["chatml", "alpaca", "plain"])
def test_templates_of_ours_end_answers_with_the_end_token(folders: Path, wanted: str) -> None:
    template = template_of(folders / "smol", wanted)
    assert learned_texts(template, TALK) == ANSWERS
    asked, whole = template.render(TALK[:2], ask=True), template.render(TALK)
    assert whole.startswith(asked)


def test_alpaca_is_as_published(folders: Path) -> None:
    messages = [{"role": "user", "content": "Add.\n\n2, 2", "instruction": "Add.", "input": "2, 2"}]
    assert template_of(folders / "smol", "alpaca").render(messages, ask=True) == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n2, 2\n\n### Response:\n"
    )


def conversations() -> st.SearchStrategy[list[dict[str, str]]]:
    said = st.text(st.sampled_from("ab .\n漢é'<|>"), min_size=1, max_size=12).filter(str.strip)
    turns = st.lists(st.tuples(said, said), min_size=1, max_size=3)

    def messages(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
        return [m for q, a in pairs for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})]

    return turns.map(messages)


@given(conversations(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_chatml_is_written_as_its_jinja_would_be(folders: Path, talk: list[dict[str, str]], system: bool, ask: bool) -> None:
    written = template_of(folders / "none", "chatml")
    jinja = ChatTemplate("jinja", written.source, written.tokenizer, written.special)
    messages = [{"role": "system", "content": "Be brief.\n"}, *talk] if system else talk
    assert written.render(messages, ask=ask) == jinja.render(messages, ask=ask)
    for loss in ("answers", "last", "all"):
        assert written.spans(Conversation("", messages), loss) == jinja.spans(Conversation("", messages), loss)


@settings(deadline=None, max_examples=60)
@given(messages=conversations())
def test_prefixes_generation_blocks_and_use_agree(folders: Path, messages: list[dict[str, str]]) -> None:
    """Three ways to the same ids and mask: rendering prefixes, {% generation %} blocks, and what is asked in use."""
    by_prefix, by_mark = template_of(folders / "smol"), template_of(folders / "marked")
    (one,) = by_prefix.encode([Conversation("x:1", messages)], "answers")
    (other,) = by_mark.encode([Conversation("x:1", messages)], "answers")
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.learned, other.learned)
    begins = np.flatnonzero(np.diff(one.learned.astype(int)) == 1) + 1
    first = by_prefix.encode_prompts([messages[:1]])[0]
    assert one.ids[: begins[0]].tolist() == first.tolist()
    ends = np.flatnonzero(np.diff(np.append(one.learned, False).astype(int)) == -1)
    assert len(begins) == len(ends) == len(messages) // 2
    for start, end, answer in zip(begins, ends, messages[1::2], strict=True):
        assert one.ids[end] == by_prefix.tokenizer.eos
        assert by_prefix.tokenizer.decode(one.ids[start : end + 1]) == answer["content"]


def compare_with_transformers(folder: Path, marked: str, talks: list[list[dict[str, str]]]) -> int:
    """Our ids and masks against transformers' own, for contents that no merge crosses."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    template = template_of(folder, "model")
    compared = 0
    for messages in talks:
        (ours,) = template.encode([Conversation("x:1", messages)], "answers")
        plain = theirs.apply_chat_template(messages, tokenize=True, return_dict=True)
        if ours.ids.tolist() != plain["input_ids"]:
            continue  # a merge crosses the beginning of an answer; the test above says why ours differ
        wanted = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, chat_template=marked
        )
        assert plain["input_ids"] == wanted["input_ids"]
        assert ours.learned.astype(int).tolist() == wanted["assistant_masks"]
        compared += 1
    return compared


def test_masks_are_those_of_transformers(folders: Path) -> None:
    pairs = [("Two and two?", "Four."), ("Why?", "Because it is so, 漢字."), ("naïve", "é" * 5)]
    talks = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] * 2 for q, a in pairs]
    assert compare_with_transformers(folders / "smol", MARKED, talks) == len(talks)


def test_a_template_that_forgets_is_refused(folders: Path) -> None:
    template = template_of(folders / "forgets")
    messages = [*TALK[:2], {"role": "assistant", "content": "Think. Four."}, *TALK[3:]]
    with pytest.raises(UserError, match=r"here:1: the chat template .* writes turn 3 otherwise") as caught:
        template.encode([Conversation("here:1", messages)], "answers")
    assert "loss=last" in str(caught.value.fix)
    assert learned_texts(template, messages, "last") == ANSWERS[1:]


def test_a_template_with_an_endless_loop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "TEMPLATE_SECONDS", 0.2)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = template_of(small_folder(tmp_path / "endless", endless))
    with pytest.raises(UserError, match=r"here:1: the chat template \(model\) refuses it: it computes for too long"):
        template.encode([Conversation("here:1", TALK)], "answers")


def test_templates_that_cannot_be_had_are_named(folders: Path) -> None:
    with pytest.raises(UserError, match="no chat template of its own"):
        template_of(folders / "none", "model")
    bad = ChatTemplate("model", "{{ raise_exception('no system role') }}", Folder.from_folder(folders / "none"))
    with pytest.raises(UserError, match=r"x:7: the chat template .* refuses it: no system role"):
        bad.encode([Conversation("x:7", TALK)], "answers")


@pytest.mark.skipif("WINDTUNNEL_SMOLLM2" not in os.environ, reason="WINDTUNNEL_SMOLLM2 names no folder with SmolLM2's tokenizer")
def test_smollm2_as_it_is() -> None:
    """The real template and tokenizer: masks as transformers gives them with generation blocks put in."""
    folder = Path(os.environ["WINDTUNNEL_SMOLLM2"])
    source = Folder.from_folder(folder).template
    assert source is not None
    turn = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    assert turn in source
    marked = source.replace(turn, MARKED[MARKED.index("{{ '<|im_start|>' + message['role']") : MARKED.index("{% endfor %}")])
    texts = [(f"What is {i} plus {i}?", f"It is {2 * i}. " * (1 + i % 5)) for i in range(300)]
    talk = [
        [{"role": "user", "content": q}, {"role": "assistant", "content": a.strip()}] * (1 + i % 3)
        for i, (q, a) in enumerate(texts)
    ]
    assert compare_with_transformers(folder, marked, talk) == len(talk)
