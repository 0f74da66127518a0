"""Read the action out of a model's answer, strictly: what can be read in two ways is not read at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_OPEN = re.compile(r"<\s*action\s*>", re.IGNORECASE)
_CLOSE = re.compile(r"<\s*/\s*action\s*>", re.IGNORECASE)
_ELEMENT = re.compile(r"<\s*action\s*>(.*?)<\s*/\s*action\s*>", re.IGNORECASE | re.DOTALL)
# Any of Unicode's hyphens: models write them as they read them.
_BETWEEN_WORDS = re.compile(r"[\s_\-\u2010-\u2015]+")
_SHOWN = 40


@dataclass(frozen=True)
class Reading:
    """What an answer says.

    Attributes:
        action: one of the actions; None: it cannot be read.
        why: what is in the way; '' where there is an action.
        element: where the text of the last action element begins, behind its opening tag; None: there is no such element.
    """

    action: str | None
    why: str = ""
    element: int | None = None


def read_action(text: str, actions: Sequence[str]) -> Reading:
    """Return the action of an answer.

    Only whole `<action>` elements count, wherever they stand; letter case is ignored, and blanks, hyphens and underscores
    between words are alike. Nothing else of the answer is looked at, so that 'I would not buy' is no BUY. Several elements
    must all say the same, and a tag that is opened and not closed (an answer that was cut) makes the answer unreadable:
    'STRONG' may have become STRONG_SELL. Of an answer without any tag the whole text must be one action and nothing more.

    Args:
        text: the answer.
        actions: those there are, of capital letters and underscores.
    """
    opened, closed, found = _OPEN.findall(text), _CLOSE.findall(text), list(_ELEMENT.finditer(text))
    if not opened and not closed:
        bare = _as_action(text, actions)
        return Reading(bare, "" if bare is not None else "no action element")
    if not found or len(opened) != len(found) or len(closed) != len(found):
        return Reading(None, "an action element is not closed" if len(opened) > len(closed) else "its action tags do not match")
    said = [_as_action(match[1], actions) for match in found]
    element = found[-1].start(1)
    if None in said:
        words = found[said.index(None)][1].strip()
        return Reading(None, f"{words[:_SHOWN]!r} is no action" if words else "the action element is empty", element)
    if len(set(said)) > 1:
        return Reading(None, f"actions that contradict each other: {', '.join(map(str, said))}", element)
    return Reading(said[-1], "", element)


def _as_action(text: str, actions: Sequence[str]) -> str | None:
    name = _BETWEEN_WORDS.sub("_", text.strip()).upper()
    return name if name in actions else None
