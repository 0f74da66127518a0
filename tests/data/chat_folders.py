"""Folders of small tokenizers with chat templates of every sort, for the tests of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windtunnel.data import (
    Folder,
)
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.data.conversations import Conversation
from windtunnel.data.templates import ChatTemplate, choose_template

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "\nAnd naïve 漢字 three?"},
    {"role": "assistant", "content": "\nSeven, I think."},
]
# As SmolLM2's: no generation blocks, a default system message, a line's end behind every turn.
LIKE_SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = LIKE_SMOL.replace(
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
    "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}",
)
# As reasoning models': thoughts of earlier answers are left out once another turn follows.
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('.')[0] }}{% else %}{{ m['content'] }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_folder(path: Path, template: str | None) -> Path:
    """A tokenizer folder as transformers saves it."""
    path.mkdir(parents=True)
    texts = [json.dumps(TALK, ensure_ascii=False)] * 20 + ["the answer is four and seven, I think so. " * 20]
    train_bpe(texts, 600, (CHATML_START, CHATML_END)).save(path / "tokenizer.json")
    settings = {"bos_token": CHATML_START, "eos_token": CHATML_END, "pad_token": CHATML_END}
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


def template_of(folder: Path, wanted: str = "auto") -> ChatTemplate:
    return choose_template(wanted, Folder.from_folder(folder), fallback="chatml")


def learned_texts(template: ChatTemplate, messages: list[dict[str, Any]], loss: str = "answers") -> list[str]:
    (encoded,) = template.encode([Conversation("here:1", messages)], loss)
    runs, tokenizer = [], template.tokenizer
    for i, (token, flag) in enumerate(zip(encoded.ids.tolist(), encoded.learned.tolist(), strict=True)):
        if flag:
            if i == 0 or not encoded.learned[i - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tokenizer.decode(run) + ("!" if tokenizer.eos in run else "") for run in runs]  # type: ignore[attr-defined]
