"""Which columns of a record hold the prompt and its right answer: named, found by usual names, nested, or JSON in a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windtunnel.recipe import PromptCorpus, UserError

from .conversations import Malformed, Message, check_message, from_sharegpt
from .formats import half_character
from .nested import json_in, look_up, shown_names

READER_VERSION = 2  # changes when the same records are read otherwise, so that what is prepared is not used again
PROMPT_KEYS = ("prompt", "messages", "question", "problem", "context_messages", "conversations", "question_content")
"""The first that a record has; letter case aside."""
ANSWER_KEYS = (
    "answer", "truth", "ground_truth", "final_answer", "expected_answer", "reward_model.ground_truth", "reward_spec.ground_truth",
    "verification_info.ground_truth", "verifiers.answer", "golden_answers", "label", "solution", "target",
)  # fmt: skip
"""The same; what judges are told to compare with comes before solutions, which are often written out."""
_INNER = ("target", "value", "ground_truth", "answer")


def find_prompt(where: str, record: dict[str, Any], corpus: PromptCorpus) -> tuple[str, str | list[Message]]:
    """Return the name of a record's prompt and the prompt: text, or checked messages.

    Raises:
        UserError: there is none, or it is none; names what the record has.
    """
    known = [corpus.prompt_key] if corpus.prompt_key is not None else list(_spelt(record, PROMPT_KEYS))
    there = [(key, _messages(value)) for key in known if (value := look_up(record, key)) is not None]
    if not there:
        names = ", ".join([corpus.prompt_key] if corpus.prompt_key is not None else PROMPT_KEYS)
        raise UserError(
            f"{where}: no key with a prompt ({names}); it has {shown_names(record)}",
            f"name it: {named('prompt_key')}",
        )
    # Data sets that were made for fine-tuning too have the whole conversation beside the question.
    key, prompt = next((one for one in there if not _is_answered(one[1])), there[0])
    if _is_answered(prompt):
        fix = f"leave that turn out, or name the key of the question alone: {named('prompt_key')}"
        raise UserError(f"{where}: {key} ends with the assistant's turn, so nothing is asked", fix)
    if isinstance(prompt, list) and prompt:
        try:
            return key, [check_message(message) for message in prompt]
        except Malformed as error:
            raise UserError(f"{where}: {key}: {error}", "mend the record") from None
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"{where}: {key} is {type(prompt).__name__}, expected text or messages, and not empty", "mend the record")
    if half := half_character(prompt):
        raise UserError(f"{where}: {key} {half}", "mend the record or leave it out")
    return key, prompt


def named(key: str) -> str:
    """Return how a key of the corpus is set, for messages: recipes of several stages have prompts in the stage rl alone."""
    return f"--set data.corpus.{key}=KEY, or OUTER.INNER; of data that a stage has to itself stages.rl.set.data.corpus.{key}"


def find_answer(where: str, record: dict[str, Any], corpus: PromptCorpus) -> tuple[str | None, Any]:
    """Return the name of a record's right answer and the answer; None where it has none.

    Raises:
        UserError: the name was given, and the record has nothing there.
    """
    if corpus.answer_key is not None:
        value = look_up(record, corpus.answer_key)
        if value is None and corpus.answer_key not in record:
            fix = f"mend the record, or {named('answer_key')}; it has {shown_names(record)}"
            raise UserError(f"{where}: no key {corpus.answer_key!r} with the answer", fix)
        return corpus.answer_key, _single(value)
    for key in _spelt(record, ANSWER_KEYS):
        if (value := look_up(record, key)) is not None:
            return key, _single(value)
    return None, None


def _spelt(record: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Yield names as a record spells them: some data sets begin theirs with a capital."""
    folded = {key.casefold(): key for key in reversed(record)}
    for name in names:
        yield name if name in record or "." in name else folded.get(name, name)


def _messages(value: Any) -> Any:
    """Return a prompt with messages that are JSON in a text, or in ShareGPT's form, as messages; another as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        found = json_in(value)
        value = found if isinstance(found, list) and found and all(map(_is_turn, found)) else value
    if isinstance(value, list) and value and all(isinstance(turn, dict) and {"from", "value"} <= set(turn) for turn in value):
        try:
            return from_sharegpt({"conversations": value})
        except Malformed:
            return value  # the check of messages says what is wrong
    return value


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and ({"role", "content"} <= set(value) or {"from", "value"} <= set(value))


def _is_answered(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[-1], dict) and prompt[-1].get("role") == "assistant"


def _single(value: Any) -> Any:
    """Return an answer out of a list of one, or of a table that holds nothing else."""
    if isinstance(value, str) and value.lstrip().startswith('["'):
        found = json_in(value)
        value = found if isinstance(found, list) and all(isinstance(one, str) for one in found) else value
    if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in _INNER:
        value = value[name]
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) else value
