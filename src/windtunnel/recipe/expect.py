"""What is expected of a run: ranges written into the recipe before it, and compared with what came of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from .section import Section, as_tuple, parse_dollars, parse_hours


def _ordered(value: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    low, high = value
    if low is None and high is None:
        raise ValueError("expected [least, most], one of which may be null, such as [0.4, 0.6] or [null, 2]")
    if low is not None and high is not None and low > high:
        raise ValueError(f"expected [least, most], and {low:g} is more than {high:g}")
    return value


def _share(value: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    if any(end is not None and not -1 <= end <= 1 for end in value):
        raise ValueError("expected shares, not percent: [0.4, 0.6] is 40 to 60 %")
    return value


def _each(parse: Any) -> BeforeValidator:
    def parse_ends(value: Any) -> Any:
        return tuple(None if end is None else parse(end) for end in value) if isinstance(value, list | tuple) else value

    return BeforeValidator(parse_ends)


Range = Annotated[tuple[float | None, float | None], BeforeValidator(as_tuple), AfterValidator(_ordered)]
Shares = Annotated[Range, AfterValidator(_share)]
HoursRange = Annotated[Range, _each(parse_hours)]
DollarsRange = Annotated[Range, _each(parse_dollars)]


class Expect(Section):
    """What is expected of the whole recipe, as [least, most]; an end may be null, and what is null is not compared.

    It is copied into the manifest when a run begins, and that copy is compared in the end: an expectation is no gate, it
    stops nothing, and it cannot be changed once the run has begun.
    """

    validation_loss: Range | None = Field(None, description="nats a target of the best checkpoint")
    bits_per_byte: Range | None = Field(None, description="of held-out text")
    accuracy: Shares | None = Field(None, description="share of held-out answers, sums, puzzles or actions that are right")
    macro_f1: Shares | None = Field(None, description="of theses: mean F1 over the actions")
    gain: Shares | None = Field(None, description="what that share gained over the untuned model")
    hours: HoursRange | None = Field(None, description="wall time of all stages that train; '90 min' and '2 h' are read too")
    dollars: DollarsRange | None = Field(None, description="what they cost")
    why: str = Field("", description="where the expectations come from")

    def ranges(self) -> dict[str, list[float | None]]:
        """Return [least, most] by name, of what is expected."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name != "why"}
        return {name: list(value) for name, value in found.items() if value is not None}
