"""Exact match: the answer's last line, boxed text, tagged text or all of it equals one of the accepted texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from windtunnel.recipe import UserError

from .extract import Where, extract, where_of
from .reading import only_known, shown
from .types import Verdict, accept, refuse

Fold = Literal["none", "blanks", "case"]


@dataclass(frozen=True)
class ExactVerifier:
    """Accepts an answer that is one of the given texts.

    Attributes:
        accepted: any of these texts is right.
        where: which part of the answer counts.
        fold: 'none' compares as it is, 'blanks' treats any run of blanks as one space, 'case' also ignores case; both compare
            Unicode in its composed form (NFC).
        within: it is enough that the text holds an accepted one as whole words, so that 12 is in 'It is 12.' and not in '112'.
    """

    accepted: Sequence[str]
    where: Where = "all"
    fold: Fold = "blanks"
    within: bool = False

    @staticmethod
    def of(spec: Mapping[str, Any]) -> ExactVerifier:
        """Read a verifier from plain JSON: {'answer': text or list of texts, 'where': ..., 'fold': ...}.

        Raises:
            UserError: a key is missing, unknown or of another type, or an accepted text is empty.
        """
        only_known(spec, ("answer", "where", "fold"), "exact")
        answers = spec.get("answer")
        answers = [answers] if isinstance(answers, str) else answers
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) for a in answers):
            raise UserError("exact task: 'answer' is not a text or a list of texts", "for example: answer: '42'")
        where, fold = where_of(spec, "exact", "all"), spec.get("fold", "blanks")
        if fold not in get_args(Fold):
            raise UserError(f"exact task: fold is {shown(fold)}", f"one of {', '.join(get_args(Fold))}")
        verifier = ExactVerifier(answers, where, fold)
        # An empty text would be found in every answer, or be what an empty one is.
        if not all(map(verifier._folded, answers)):
            raise UserError("exact task: 'answer' holds an empty text", "give a text that is right, or leave it out")
        return verifier

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        found = extract(answer, self.where)
        if found is None:
            return refuse("extract", "no-answer", f"the answer holds no {self.where.replace('-', ' ')} text")
        if any(self._matches(self._folded(found), self._folded(text)) for text in self.accepted):
            return accept("match", "the answer matches")
        return refuse("match", "wrong-result", "the answer is another one", evidence={"found": found[:200]})

    def _matches(self, found: str, text: str) -> bool:
        if not self.within:
            return found == text
        # Not \b: an accepted text may begin or end with a sign that is no letter.
        return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", found) is not None

    def _folded(self, text: str) -> str:
        if self.fold == "none":
            return text
        text = " ".join(unicodedata.normalize("NFC", text).split())
        return text.casefold() if self.fold == "case" else text
