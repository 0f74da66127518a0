"""Turns of a conversation within the text that a chat template makes of it: where one ends, and whether all of it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from .conversations import Message

CallForm = Literal["mapping", "text", "null"]
# How a template wants calls: arguments as a mapping (most), as JSON text, or so and beside content null (DeepSeek's).
CALL_FORMS: tuple[CallForm, ...] = ("mapping", "text", "null")

# DeepSeek's and Qwen's name, OpenRouter's, and gpt-oss's.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_TAG = re.compile(r"<[^<>\s]*>")
_WORD = re.compile(r"\w+")
_SHOWN = 30

PROBE_TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "sum_of_two",
            "description": "adds",
            "parameters": {"type": "object", "properties": {"first": {"type": "integer"}}, "required": ["first"]},
        },
    }
]
# A conversation whose call has to be in what a template makes of it; ids have the nine characters that Mistral's want.
PROBE: list[Message] = [
    {"role": "user", "content": "1"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "abcdefgh1", "type": "function", "function": {"name": "sum_of_two", "arguments": {"first": 12321}}}
        ],
    },
]


def in_form(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """Return messages with their calls as a template wants them, whether records have arguments as a mapping or as JSON text."""
    return [_in_form(message, form) if message.get("tool_calls") else message for message in messages]


def _in_form(message: Message, form: CallForm) -> Message:
    calls = [_call(call, form) for call in message["tool_calls"]] if isinstance(message["tool_calls"], list) else None
    content = message["content"] or None if form == "null" else message["content"]
    return message if calls is None else {**message, "content": content, "tool_calls": calls}


def _call(call: Any, form: CallForm) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _call(call["function"], form)}
    arguments = call.get("arguments")
    if form != "mapping" and isinstance(arguments, dict):
        return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
    if form == "mapping" and isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except ValueError:
            return call
        return {**call, "arguments": read} if isinstance(read, dict) else call
    return call


def unsaid(message: Message, text: str) -> str | None:
    """Return the beginning of something that a message says and the text of its turn lacks; None: all of it is there.

    Blanks and tags may differ: templates set thoughts apart in their own way.
    """
    calls = message.get("tool_calls")
    named = [c.get("function", c) for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []
    said = [message.get("content"), *(message.get(key) for key in _THOUGHTS)]
    said += [function.get("name") for function in named if isinstance(function, dict)]
    bare = ""
    for part in said:
        if not isinstance(part, str) or not part.strip() or part in text:
            continue
        bare = bare or "".join(text.split())
        if "".join(part.split()) in bare:
            continue
        # In order, with others between: a template may set a text apart line by line.
        words = iter(_WORD.findall(_TAG.sub(" ", text)))
        if not all(word in words for word in _WORD.findall(_TAG.sub(" ", part))):
            return shown(part.strip())
    return None


def thinks(message: Message) -> bool:
    """Return whether a message holds thoughts beside what it says."""
    return any(message.get(key) for key in _THOUGHTS) or "</think>" in (message.get("content") or "")


def parted(one: str, other: str) -> tuple[str, str]:
    """Return how two texts go on where they part, each as it can be shown."""
    at = _shared(one, other)
    return shown(one[at:]), shown(other[at:])


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def shown(text: str) -> str:
    """Return the beginning of a text between quotation marks."""
    return repr(text[:_SHOWN] + ("..." if len(text) > _SHOWN else ""))


class Markers:
    """The special tokens of a tokenizer, found in what a template wrote."""

    def __init__(self, names: Iterable[str]) -> None:
        any_of = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
        self._one, self._two = re.compile(any_of), re.compile(rf"(?:{any_of})\s*(?:{any_of})\s*\Z")

    def end(self, text: str, start: int, end: int) -> int:
        """Return where a turn ends for the model.

        What stands behind the token that ends it is the template's alone, where it is white space or what the turn itself
        was asked for with: some templates (StarCoder2's) ask for an answer at the end of every conversation.
        """
        last = max((m.end() for m in self._one.finditer(text, start, end)), default=end)
        rest = text[last:end]
        return last if not rest.strip() or text.endswith(rest, 0, start) else end

    def twice(self, text: str) -> bool:
        """Return whether a text ends with two special tokens: the second may end the text, not the turn."""
        return self._two.search(text) is not None

    def without_end_of_text(self, text: str, longer: str, least: int) -> int:
        """Return where a text ends without the token that a template puts behind a whole conversation (Phi-3).

        Args:
            text: ends with a turn.
            longer: the same conversation and something behind that turn.
            least: where the turn begins.

        Returns:
            The position, or 0 where the texts part within the turn or the turn has no token of its own that ends it.
        """
        at = _shared(text, longer)
        for either in (text, longer):
            at = min((m.start() for m in self._one.finditer(either, least) if m.start() < at < m.end()), default=at)
        turn = text[least:at].rstrip()
        ended = any(m.end() == len(turn) for m in self._one.finditer(turn))
        return at if ended and text[at:] and not self._one.sub("", text[at:]).strip() else 0
