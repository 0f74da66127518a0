"""A chat template rendered and read back: contents whole and in order, markers that are tokens, an end after each answer."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any

from .types import Findings

if TYPE_CHECKING:
    import tokenizers

SYSTEM, QUESTION, ANSWER, AGAIN, LAST = "You count zebras.", "How many zebras?", "Seventeen zebras.", "And lions?", "Four lions."
_MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_turn>")

# transformers' own tag, which marks what the assistant says and prints nothing.
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


class _Refused(Exception):
    """The template itself raised."""


def judge_template(
    template: str,
    inner: tokenizers.Tokenizer,
    special: dict[str, str],
    ends: set[int],
    found: Findings,
    *,
    adds_bos: bool,
    chats: bool,
) -> None:
    """Render a conversation and judge it.

    Args:
        special: texts of bos, eos and pad by name. ends: ids at which generation stops.
        adds_bos: whether the tokenizer itself puts BOS before every text.
        chats: whether conversations are trained on, so that the template decides what is learned.
    """
    turns = _turns(QUESTION, ANSWER, AGAIN, LAST)
    try:
        try:
            text = render(template, [{"role": "system", "content": SYSTEM}, *turns], special)
        except _Refused:  # some models know no system message
            text = render(template, turns, special)
        asked = render(template, turns[:3], special, add_generation_prompt=True)
        bare = render(template, turns[:3], special)
    except Exception as error:
        what = f"the chat template cannot be rendered: {type(error).__name__}: {error}"
        found.problem(what, "copy the template from the model's own tokenizer_config.json")
        return
    _judge_contents(text, found)
    _judge_markers(template, inner, found)
    _judge_end(text, inner, special, ends, found, chats)
    if asked == bare:
        found.warn("the chat template ignores add_generation_prompt: add the beginning of the assistant's turn")
    elif not render(template, turns, special).startswith(asked):
        found.warn("a prompt is rendered otherwise than at the beginning of the whole conversation: loss masks would be off")
    if adds_bos and "bos" in special and text.startswith(special["bos"]):
        found.warn("the template begins with BOS and the tokenizer adds another: encode its text with add_special_tokens=False")


def render(template: str, messages: list[dict[str, str]], special: dict[str, str], *, add_generation_prompt: bool = False) -> str:
    """The conversation as text, as transformers renders it (Jinja, sandboxed). Raises whatever the template raises."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise _Refused(message)

    def now(form: str) -> str:
        return datetime.datetime(2026, 1, 1).strftime(form)

    def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], undefined=jinja2.Undefined
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    tokens = {f"{name}_token": text for name, text in special.items()}
    made = environment.from_string(_GENERATION.sub("", template))
    return made.render(messages=messages, tools=None, add_generation_prompt=add_generation_prompt, **tokens)


def _turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def _judge_contents(text: str, found: Findings) -> None:
    at = -1
    for content in (QUESTION, ANSWER, AGAIN, LAST):
        if text.count(content) != 1 or text.index(content) < at:
            times = text.count(content)
            what = "leaves out" if times == 0 else "repeats" if times > 1 else "puts in another order"
            found.problem(
                f"the chat template {what} a message ({content!r})",
                "copy the template from the model's own tokenizer_config.json",
            )
            return
        at = text.index(content)


def _judge_markers(template: str, inner: tokenizers.Tokenizer, found: Findings) -> None:
    for marker in dict.fromkeys(_MARKER.findall(template)):
        ids = inner.encode(marker, add_special_tokens=False).ids
        if len(ids) != 1:
            what = f"the chat template's {marker} is no token of this tokenizer: it is split into {len(ids)}"
            found.warn(f"{what}; unless the model was trained so, use the template that belongs to it")
            return


def _judge_end(
    text: str, inner: tokenizers.Tokenizer, special: dict[str, str], ends: set[int], found: Findings, chats: bool
) -> None:
    """Behind the last answer there must be a token at which generation stops."""
    eos = inner.token_to_id(special["eos"]) if "eos" in special else None
    stop = ends if eos is None else ends | {eos}
    if LAST not in text or not stop:
        return
    after = set(inner.encode(text[text.index(LAST) + len(LAST) :], add_special_tokens=False).ids)
    if after & stop:
        return
    shown = text[text.index(LAST) :][:60]
    what = f"no end-of-sequence token follows an answer in the chat template ({shown!r}): the model never learns to stop"
    fix = "end the assistant's turn with eos_token, or name what ends it as eos_token"
    if chats:
        found.problem(what, fix, shows="end")
    else:
        found.warn(f"{what}; {fix}")
