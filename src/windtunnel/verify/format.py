"""Format: does the answer have the parts that it should have, in their order, whatever they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import UserError

from .extract import blank, boxed, empty_box, tagged
from .reading import flag_of, only_known, without_doubles
from .schema import check_schema, violation
from .types import Verdict, accept, refuse

MOST_ANSWER = 1 << 20


@dataclass(frozen=True)
class FormatVerifier:
    r"""Accepts an answer by its form; what is None or empty is not looked at.

    Attributes:
        tags: each exactly once, in this order, not nested, and none empty.
        boxed: there is a \boxed{...} that is not empty.
        only_tags: nothing but blanks stands outside the tags.
        schema: the answer (or what stands in the last tag) is JSON that a JSON schema accepts.
    """

    tags: Sequence[str] = ()
    boxed: bool = False
    only_tags: bool = False
    schema: Mapping[str, Any] | None = None

    @staticmethod
    def of(spec: Mapping[str, Any]) -> FormatVerifier:
        """Read a verifier from plain JSON: {'tags': ['think', 'answer'], 'boxed': true, 'only_tags': true, 'schema': {...}}.

        Raises:
            UserError: a key is unknown or of another type, or nothing is asked.
        """
        only_known(spec, ("tags", "boxed", "only_tags", "schema"), "format")
        tags, schema = spec.get("tags", []), spec.get("schema")
        if (
            not isinstance(tags, list)
            or not all(isinstance(t, str) and t.isidentifier() for t in tags)
            or len({*tags}) < len(tags)
        ):
            raise UserError("format task: 'tags' is not a list of different names", "for example: [think, answer]")
        if schema is not None:
            check_schema(schema)
        boxed, only_tags = (flag_of(spec, key, "format") for key in ("boxed", "only_tags"))
        if not tags and not boxed and schema is None:
            raise UserError("format task: nothing is asked", "give tags, boxed or schema")
        return FormatVerifier(tags, boxed, only_tags, schema)

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        if len(answer) > MOST_ANSWER:
            return refuse("format", "too-long", f"the answer has {len(answer):,} characters, at most {MOST_ANSWER:,}")
        if fault := self._tags(answer):
            return refuse("format", "tags", fault)
        # An empty box has the form asked for, and would be the cheapest way to it.
        if self.boxed and empty_box(boxed(answer) or ""):
            return refuse("format", "not-boxed", "there is no \\boxed{...} with an answer in it")
        if self.schema is not None and (fault := self._json(answer)):
            return refuse("format", "json", fault)
        return accept("format", "the answer has the form asked for")

    def _tags(self, answer: str) -> str:
        at = 0
        outside = []
        for tag in self.tags:
            first, last = f"<{tag}>", f"</{tag}>"
            # Twice is refused too: which of two answers counts is nothing to guess.
            if answer.count(first) != 1 or answer.count(last) != 1:
                return f"{first}...{last} must stand exactly once"
            start, end = answer.find(first), answer.find(last)
            if start < at or end < start:
                return f"{first}...{last} does not stand where it should: the order is {', '.join(self.tags)}"
            if blank(answer[start + len(first) : end]):
                return f"{first}...{last} is empty"
            outside.append(answer[at:start])
            at = end + len(last)
        if self.only_tags and not all(map(blank, (*outside, answer[at:]))):
            return "nothing may stand outside the tags"
        return ""

    def _json(self, answer: str) -> str:
        # The last tag holds the answer itself, those before it what led there.
        text = tagged(answer, self.tags[-1]) if self.tags else answer
        try:
            # Python takes NaN, and the last of two equal keys; other readers do not, so neither is JSON here.
            value = json.loads(text or "", parse_constant=_no_number, object_pairs_hook=without_doubles)
            return violation(value, {} if self.schema is None else self.schema)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON's")
