"""Which part of an answer counts. Plain scanning: no pattern whose time could grow faster than the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal, get_args

from windtunnel.recipe import UserError

from .reading import shown

Where = Literal["all", "last-line", "boxed", "answer-tag", "hashes"]
WHERE = get_args(Where)
HASHES = "####"
BOX = re.compile(r"\\boxed[ \t\n]{0,4}\{")
LATEX_BLANKS = re.compile(r"\\[ ,;:!]|\\q?quad(?![A-Za-z])|[~{}$]")
UNSEEN_KINDS = {"Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me"}
UNSEEN = "\u115f\u1160\u3164\uffa0\u2800"  # letters and a symbol without a shape


def where_of(spec: Mapping[str, Any], kind: str, default: Where) -> Where:
    """Return which part of an answer a task says that counts. Raises UserError where it names none."""
    where: Where = spec.get("where", default)
    if where not in WHERE:
        raise UserError(f"{kind} task: where is {shown(where)}", f"one of {', '.join(WHERE)}")
    return where


def extract(answer: str, where: Where) -> str | None:
    """Return the part of an answer that counts, or None when there is none."""
    if where == "all":
        return answer
    if where == "last-line":
        lines = [line.strip() for line in answer.splitlines() if line.strip()]
        return lines[-1] if lines else None
    if where == "boxed":
        return boxed(answer)
    if where == "hashes":  # as GSM8K's solutions end
        _, found, line = answer.rpartition(HASHES)
        return line.strip().partition("\n")[0].strip() or None if found else None
    return tagged(answer, "answer")


def boxed(answer: str) -> str | None:
    r"""Return what stands in the last \boxed{...}, braces balanced."""
    # The last one: models write down what they consider first.
    at = max((found.end() for found in BOX.finditer(answer)), default=-1)
    if at < 0:
        return None
    depth, escaped = 1, False
    for end in range(at, len(answer)):
        depth += {"{": 1, "}": -1}.get(answer[end], 0) if not escaped else 0
        if depth == 0:
            return answer[at:end].strip()
        escaped = answer[end] == "\\" and not escaped  # \\ is a new line and escapes nothing
    return None


def blank(text: str) -> bool:
    """Return whether nothing of a text can be seen: spaces, controls, joiners, marks on nothing."""
    return all(unicodedata.category(sign) in UNSEEN_KINDS or sign in UNSEEN for sign in text)


def empty_box(content: str) -> bool:
    """Return whether nothing in a box can be seen: also where it holds LaTeX's own spaces and empty braces alone."""
    return blank(LATEX_BLANKS.sub("", content))


def tagged(answer: str, tag: str) -> str | None:
    """Return what stands between the last <tag> and the </tag> that follows it."""
    start = answer.rfind(f"<{tag}>")
    end = answer.find(f"</{tag}>", start)
    return answer[start + len(tag) + 2 : end].strip() if 0 <= start < end else None
