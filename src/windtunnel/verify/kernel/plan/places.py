"""Where the tensors of a plan's steps lie: which there are, and the same step elsewhere. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windtunnel.verify.kernel.plan.schema import (
    Choice,
    DescriptorValue,
    Launch,
    ListValue,
    Operation,
    Plan,
    Step,
    Tensor,
    TensorValue,
    TupleValue,
)

# A buffer and an offset in it, in elements.
Place = tuple[int, int]


def tensors_in(part: Any) -> Iterator[Tensor]:
    """Yield the tensors of a step or value, in order; a descriptor's with the shape that it claims too."""
    match part:
        case Tensor():
            yield part
        case TensorValue(tensor=tensor):
            yield tensor
        case DescriptorValue(descriptor=made):
            yield made.base
            # Hardware goes by these.
            yield made.base.model_copy(update={"shape": made.shape, "stride": made.strides})
        case ListValue(list=inner) | TupleValue(tuple=inner) | Choice(choice=inner) | tuple(inner):
            for one in inner:
                yield from tensors_in(one)
        case Launch():
            yield from tensors_in(tuple(part.arguments.values()))
        case Operation():
            yield from tensors_in((*part.arguments, *part.keywords.values(), *part.results))


def places(step: Step) -> dict[Place, list[Tensor]]:
    """Return each place at which tensors of a step lie, once, in the order of the first ones, with those that lie there."""
    found: dict[Place, list[Tensor]] = {}
    for tensor in tensors_in(step):
        found.setdefault((tensor.buffer, tensor.offset), []).append(tensor)
    return found


def carried(plan: Plan) -> list[tuple[int, Step]]:
    """Return what is carried out, in order: each time the step's number, and the step as it is then."""
    if not plan.order:
        return list(enumerate(plan.steps))
    own = [list(places(step)) for step in plan.steps]
    # Loops come back to the same places: making their tensors anew each time would take most of the time here.
    made: dict[tuple[int, Place], Tensor] = {}
    turns = []
    for number, *numbers in plan.order:
        where = dict(zip(own[number], zip(numbers[::2], numbers[1::2], strict=True), strict=True))
        turns.append((number, _moved(plan.steps[number], where, made)))
    return turns


def _moved(part: Any, where: Mapping[Place, Place], made: dict[tuple[int, Place], Tensor]) -> Any:
    """Return a part of a step with its tensors elsewhere. made: tensors that were moved before, by the original's id."""

    def moved(inner: Any) -> Any:
        return _moved(inner, where, made)

    match part:
        case Tensor():
            place = where[part.buffer, part.offset]
            key = id(part), place
            if key not in made:
                made[key] = part.model_copy(update={"buffer": place[0], "offset": place[1]})
            return made[key]
        case TensorValue(tensor=tensor):
            # Without checks: what was checked once lies elsewhere, and is the same.
            return TensorValue.model_construct(tensor=moved(tensor))
        case DescriptorValue(descriptor=described):
            return DescriptorValue(descriptor=described.model_copy(update={"base": moved(described.base)}))
        case ListValue(list=inner):
            return ListValue.model_construct(list=moved(inner))
        case TupleValue(tuple=inner):
            return TupleValue.model_construct(tuple=moved(inner))
        case Choice(choice=inner):
            return Choice.model_construct(choice=moved(inner))
        case Launch():
            return part.model_copy(update={"arguments": moved(part.arguments)})
        case Operation():
            changed = {name: moved(getattr(part, name)) for name in ("arguments", "keywords", "results")}
            return part.model_copy(update=changed)
        case tuple():
            return tuple(map(moved, part))
        case dict():
            return {name: moved(value) for name, value in part.items()}
    return part
