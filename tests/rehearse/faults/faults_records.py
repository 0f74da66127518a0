"""Faults in JSON lines and in the tokenizer that belongs to a Hugging Face model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from planting import Plant, Site, group, sets
from sites import TEMPLATE, edit_json, question, records, text

FORMAT = "DeepSeek-V3 guide, medium risk: data format mismatch, NeMo expects another format"
ONE_INPUT = "DeepSeek-V3 project: 7,496 records with one distinct input; majority class 50.7 %"
ALPHABET = "$1,000 project: guides prompted with '=', which is not in the vocabulary; unknown characters vanished"
TEMPLATES = "DeepSeek-V3 project: 'ChatML' was not ChatML, no end of sequence; training used the unextended tokenizer"
MODEL_PATH = "GRPO guide, pre-flight: update model path, model availability"


def lines(make: Callable[[int], Any]) -> Plant:
    """Write 300 other records."""

    def plant(site: Site) -> None:
        site.lines("train.jsonl", [make(i) for i in range(300)])

    return plant


def broken_line(site: Site) -> None:
    path = site.folder / "train.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    rows[41] = rows[41][:30] + "\n"
    path.write_text("".join(rows))


def other_keys(site: Site) -> None:
    site.lines("train.jsonl", [question(i) if i != 200 else {"question": "Why?", "reply": "So."} for i in range(300)])


def chat(*roles: str) -> Callable[[int], dict[str, Any]]:
    """Conversations of messages by these roles."""
    return lambda i: {"messages": [{"role": role, "content": f"{role} says {i}, then {i * i}"} for role in roles]}


def settings(**changes: Any) -> Plant:
    """Change tokenizer_config.json."""
    return lambda site: edit_json(site.folder / "model/tokenizer_config.json", **changes)


def config(**changes: Any) -> Plant:
    """Change config.json."""
    return lambda site: edit_json(site.folder / "model/config.json", **changes)


def endless(site: Site) -> None:
    """Conversations, and a template that does not close what the assistant says."""
    lines(chat("user", "assistant"))(site)
    settings(chat_template=TEMPLATE.replace("<|im_end|>\n{% endfor", "\n{% endfor"))(site)


def pointer(site: Site) -> None:
    site.file("model/tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7031645\n")


def half_a_file(site: Site) -> None:
    path = site.folder / "model/tokenizer.json"
    path.write_text(path.read_text()[:5000])


def adds_begin(site: Site) -> None:
    """The tokenizer puts BOS before every text, and so does the template."""
    path = site.folder / "model/tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}},
    }
    path.write_text(json.dumps(content))
    edit_json(site.folder / "model/tokenizer_config.json", chat_template="{{ bos_token }}" + TEMPLATE)


def alphabet_skips(site: Site) -> None:
    assert isinstance(site.recipe, dict)
    site.recipe["data"]["tokenizer"] = {"kind": "character", "unknown": "skip", "alphabet": "abcdefghijklmnopqrstuvwxy .\n"}


def many_characters(site: Site) -> None:
    documents = ["".join(chr(0x4E00 + (37 * i + 11 * j) % 6000) for j in range(60)) for i in range(800)]
    site.file("books/a.txt", "\n\n".join(documents))


FAULTS = (
    *group("data", "data-records", records)(
        ("a line that breaks off", FORMAT, ("train.jsonl:42", "not json"), broken_line),
        ("a line with other keys", FORMAT, ("train.jsonl:201", "other keys"), other_keys),
        ("records without a prompt", FORMAT, "no key holds a prompt", lines(lambda i: {"id": i, "body": f"text {i}"})),
        ("prompts that are lists", FORMAT, "expected text", lines(lambda i: {"prompt": [f"q{i}"], "answer": "a"})),
        ("one input in every record", ONE_INPUT, "1 different input", lines(lambda i: {"prompt": "Rate it.", "answer": str(i)})),
        ("nearly all labels the same", ONE_INPUT, "balance the labels", lines(lambda i: question(i) | {"answer": "HOLD"})),
        (
            "answers left empty",
            ONE_INPUT,
            "answers are empty",
            lines(lambda i: question(i) | {"answer": " " * (i > 290) or str(i)}),
        ),
        (
            "the answer in its own prompt",
            ONE_INPUT,
            "only copy",
            lines(lambda i: {"prompt": f"Say: it is {i * i}, of course.", "answer": f"it is {i * i}, of course."}),
        ),
        ("conversations in ShareGPT's roles", FORMAT, "role 'human'", lines(chat("human", "gpt"))),
        ("conversations that end with the user", FORMAT, "nothing to learn", lines(chat("user", "assistant", "user"))),
        ("two messages of one role in a row", FORMAT, "must alternate", lines(chat("user", "user", "assistant"))),
    ),
    *group("data", "tokenizer", text)(
        (
            "a prompt outside the vocabulary",
            ALPHABET,
            ("stages.evaluate.prompts", "lacks"),
            sets("stages.evaluate.prompts=[12=]"),
        ),
        ("characters skipped without a word", ALPHABET, "are left out", alphabet_skips),
        ("a token for each of thousands of characters", ALPHABET, "data.tokenizer.kind=bpe", many_characters),
    ),
    *group("data", "tokenizer-files", records)(
        ("tokens beyond the model's rows", TEMPLATES, "the model has 600 rows", config(vocab_size=600)),
        ("another model's tokenizer", MODEL_PATH, "belongs to another model", config(vocab_size=151936)),
        ("end of sequence of another id", TEMPLATES, "generation would not stop", config(eos_token_id=7)),
        ("no end-of-sequence token", TEMPLATES, "no eos_token", settings(eos_token=None)),
        ("a special token that is none", TEMPLATES, "not in the vocabulary", settings(eos_token="<|end|>")),
        ("padding that is the end of sequence", TEMPLATES, "the end is not learned", settings(pad_token="<|im_end|>")),
        ("a chat template without an end", TEMPLATES, "never learns to stop", endless),
        (
            "a chat template of another tokenizer",
            TEMPLATES,
            "is no token of this tokenizer",
            settings(chat_template=TEMPLATE.replace("<|im_start|>", "<|start_header|>")),
        ),
        (
            "a chat template with an error",
            TEMPLATES,
            "cannot be rendered",
            settings(chat_template=TEMPLATE.replace("endfor", "endfro")),
        ),
        (
            "a chat template that drops messages",
            TEMPLATES,
            "leaves out a message",
            settings(chat_template=TEMPLATE.replace("in messages", "in messages[:2]")),
        ),
        (
            "a chat template without the assistant's beginning",
            TEMPLATES,
            "add_generation_prompt",
            settings(chat_template=TEMPLATE.partition("{% if")[0]),
        ),
        ("begin of sequence put twice", TEMPLATES, "adds another", adds_begin),
        ("tokenizer.json not fetched", MODEL_PATH, "git lfs pull", pointer),
        ("tokenizer.json broken off", MODEL_PATH, "cannot be read", half_a_file),
    ),
)
