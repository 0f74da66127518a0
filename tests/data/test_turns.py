"""Turns as templates of public models write them: what ends one, calls of tools, thoughts, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_folders import MARKED, TALK, learned_texts, small_folder, template_of

from windtunnel.data import Folder
from windtunnel.data.bpe import BOS_TEXT, CHATML_END, CHATML_START
from windtunnel.data.conversations import Conversation, check_message
from windtunnel.data.templates import ChatTemplate
from windtunnel.recipe import UserError

TURN = "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
ASKED = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
# As Phi-3's: behind a whole conversation stands a token that ends the text, besides the one that ends the turn.
ENDS_TEXT = (
    f"{{% for m in messages %}}{TURN}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n' }}}}{{% else %}}{{{{ '{BOS_TEXT}' }}}}{{% endif %}}"
)
# As gpt-oss': the last answer ends with another token than earlier ones.
RETURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    f"{{{{ '{BOS_TEXT}' if loop.last and m['role'] == 'assistant' and not add_generation_prompt else '<|im_end|>\\n' }}}}"
    f"{{% endfor %}}{ASKED}"
)
# As StarCoder2's: it asks for an answer at the end of every conversation.
STARCODER = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '### Instruction\\n' + m['content'] + '\\n\\n' }}"
    "{% else %}{{ '### Response\\n' + m['content'] + '<|im_end|>\\n\\n' }}{% endif %}{% endfor %}{{ '### Response\\n' }}"
)
CALL: dict[str, Any] = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, "naïve"]}}}
CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}CALL{% endfor %}{% else %}{{ m['content'] }}{% endif %}"
    f"<|im_end|>\\n{{% endfor %}}{ASKED}"
).replace("\\n{%", "{{ '\\n' }}{%")
# As Qwen2.5's, and as DeepSeek-V3's, which joins arguments to its text and looks for calls beside content null alone.
MAPPED = CALLS.replace("CALL", "{{ c['function']['name'] + (c['function']['arguments'] | tojson) }}")
JOINED = CALLS.replace("CALL", "{{ c['function']['name'] + c['function']['arguments'] }}").replace(
    "{% if m['tool_calls'] %}", "{% if m['content'] is none %}"
)


def with_template(tmp_path: Path, source: str) -> ChatTemplate:
    return template_of(small_folder(tmp_path / "model", source))


def calling(call: dict[str, Any]) -> list[dict[str, Any]]:
    messages = [
        {"role": "user", "content": "1 and 2?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"}, {"role": "assistant", "content": "Three."},
    ]  # fmt: skip
    return [check_message(message) for message in messages]


@pytest.mark.parametrize("loss", ["answers", "last"])
def test_a_token_that_ends_the_whole_text_is_not_learned(tmp_path: Path, loss: str) -> None:
    template = with_template(tmp_path, ENDS_TEXT)
    assert template.render(TALK).endswith(f"{CHATML_END}\n{BOS_TEXT}")
    _, spans = template.spans(Conversation("here:1", TALK), loss)
    text = template.render(TALK)
    assert [text[a:b] for a, b in spans] == [f"Four.{CHATML_END}", f"\nSeven, I think.{CHATML_END}"][-len(spans) :]
    assert len(spans) == (2 if loss == "answers" else 1)


def test_the_only_token_that_ends_an_answer_is_learned(tmp_path: Path) -> None:
    template = with_template(tmp_path, RETURNS)
    text, ((begin, end),) = template.spans(Conversation("here:1", TALK), "last")
    assert text[begin:end] == f"\nSeven, I think.{BOS_TEXT}"
    with pytest.raises(UserError, match=rf"turn 3 otherwise within the whole conversation \('<\|im_end\|>.* \({BOS_TEXT!r}\)"):
        template.spans(Conversation("here:1", TALK), "answers")


def test_a_turn_s_beginning_is_not_learned_where_a_template_marks_it(tmp_path: Path) -> None:
    begun = MARKED.replace("{% generation %}{{ message", "{% generation %}{{ 'OPEN' + message")
    opened = begun.replace("<|im_start|>assistant\n' }}", "<|im_start|>assistant\nOPEN' }}")
    assert opened != begun
    assert learned_texts(with_template(tmp_path / "in-prompts", opened), TALK) == ["Four.!", "\nSeven, I think.!"]
    assert learned_texts(with_template(tmp_path / "in-none", begun), TALK) == ["OPENFour.!", "OPEN\nSeven, I think.!"]


def test_blanks_behind_the_end_are_not_learned_where_a_template_marks_them(tmp_path: Path) -> None:
    wide = MARKED.replace("'<|im_end|>' }}{% endgeneration %}", "'<|im_end|>\n' }}{% endgeneration %}")
    assert wide != MARKED
    assert learned_texts(with_template(tmp_path, wide), TALK) == ["Four.!", "\nSeven, I think.!"]


def test_an_answer_that_a_template_asks_for_at_every_end_is_not_learned(tmp_path: Path) -> None:
    """As StarCoder2's: the prompt of the next answer stands behind every conversation, asked for or not."""
    assert learned_texts(with_template(tmp_path, STARCODER), TALK[1:3]) == ["Four.!"]


@pytest.mark.parametrize("source", [MAPPED, JOINED], ids=["mapping", "text"])
def test_arguments_of_calls_are_written_alike_however_records_have_them(tmp_path: Path, source: str) -> None:
    template = with_template(tmp_path, source)
    as_text = {**CALL, "function": CALL["function"] | {"arguments": '{"a": 1, "b": [2, "naïve"]}'}}
    texts = [template.render(calling(call)) for call in (CALL, as_text)]
    assert texts[0] == texts[1]
    assert 'add{"a": 1, "b": [2, "naïve"]}<|im_end|>' in texts[0]
    assert learned_texts(template, calling(as_text)) == ['add{"a": 1, "b": [2, "naïve"]}!', "Three.!"]


def test_what_is_left_out_of_an_answer_is_refused(tmp_path: Path) -> None:
    """A call, thoughts, text that a template wants in parts: the turn would be learned without it."""
    silent = "{% if m['tool_calls'] and m['nothing'] %}"
    template = with_template(tmp_path / "silent", MAPPED.replace("{% if m['tool_calls'] %}", silent))
    with pytest.raises(UserError, match=r"here:1: the chat template \(model\) leaves out what turn 2 says: 'add'"):
        template.encode([Conversation("here:1", calling(CALL))], "answers")
    plain = with_template(tmp_path / "plain", f"{{% for m in messages %}}{TURN}{{% endfor %}}{ASKED}")
    thoughtful = [*TALK[:2], TALK[2] | {"reasoning_content": "Two twice."}]
    with pytest.raises(UserError, match=r"leaves out what turn 3 says: 'Two twice.'") as caught:
        plain.encode([Conversation("here:1", thoughtful)], "answers")
    assert "write it into the content" in str(caught.value.fix)
    parts = "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
    pictures = with_template(tmp_path / "parts", f"{{% for m in messages %}}{parts}<|im_end|>{{% endfor %}}")
    with pytest.raises(UserError, match="leaves out what turn 2 says: 'Two and two"):
        pictures.encode([Conversation("here:1", TALK)], "all")


def test_thoughts_set_apart_in_another_way_are_there(tmp_path: Path) -> None:
    trimmed = TURN.replace(
        "m['content']", "(m['content'] | replace('<think>', '<|im_start|>') | replace('</think>', ' ') | trim)"
    )
    template = with_template(tmp_path, f"{{% for m in messages %}}{trimmed}{{% endfor %}}{ASKED}")
    talk = [*TALK[:2], {"role": "assistant", "content": "<think>\nTwo  twice.\n</think>\n\nFour. "}]
    text, ((begin, end),) = template.spans(Conversation("here:1", talk), "answers")
    assert text[begin:end] == f"{CHATML_START}\nTwo  twice.\n \n\nFour.{CHATML_END}"


def test_a_prompt_that_opens_thoughts_asks_for_them(tmp_path: Path) -> None:
    opens = f"{{% for m in messages %}}{TURN}{{% endfor %}}{ASKED}".replace("assistant\\n'", "assistant\\n<think>\\n'")
    template = ChatTemplate("model", opens, Folder.from_folder(small_folder(tmp_path / "model", opens)))
    with pytest.raises(UserError, match=r"\('Four.<\|im_end\|>\\n'\) than when it is asked for it \('<think>\\n'\)") as caught:
        template.spans(Conversation("here:1", TALK[:3]), "answers")
    assert "reasoning_content" in str(caught.value.fix)
    talk = [*TALK[:2], {"role": "assistant", "content": "<think>\nTwice.</think>Four."}]
    text, ((begin, end),) = template.spans(Conversation("here:1", talk), "answers")
    assert text[begin:end] == f"Twice.</think>Four.{CHATML_END}"
