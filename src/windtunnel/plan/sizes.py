"""How many GPUs of a rig's kind reinforcement learning needs: the least that fits, the number to take, and why.

Every number is planned as if the rig had no more than that: nothing is scaled from another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from windtunnel.recipe import UserError
from windtunnel.rig import Rig

from .alternatives import rigs_of_kind
from .types import Size

if TYPE_CHECKING:
    from .plan import Draft

# Drafts the stage on a rig; None: it is known at once that it does not fit.
Drafting = Callable[[Rig], "Draft | None"]


def sizes_of(rig: Rig, draft: Drafting) -> tuple[Size, ...]:
    """Return the numbers of GPUs that fit, the fewest first, up to the rig's own.

    Where none of them fits with room for the error, larger ones up to the first that does.
    """
    found: list[Size] = []
    for other in _in_order(rig):
        if other.gpus > rig.gpus and any(size.roomy for size in found):
            break
        try:
            drafted = draft(other)
        except UserError:
            continue  # so many do not divide the model, or the rounds, evenly
        if drafted is not None and not drafted.reasons:
            best = drafted.best
            found.append(Size(
                other.name, other.gpus, drafted.shared, best.layout, best.peak_gib, best.limit_gib,
                drafted.error["memory"], drafted.step_seconds,
            ))  # fmt: skip
    if not found:
        return ()
    # Of layouts that the stated error takes beyond the memory the next run may be the one that ends in an out-of-memory.
    take = min([size for size in found if size.roomy] or found, key=lambda size: size.gpu_seconds)
    return tuple(replace(size, least=size is found[0], recommended=size is take) for size in found)


def _in_order(rig: Rig) -> Iterator[Rig]:
    """Yield rigs of this kind of GPU, the fewest first, this one among them."""
    own = False
    for other in rigs_of_kind(rig):
        if not own and other.gpus >= rig.gpus:
            own = True
            yield rig
        if other.gpus != rig.gpus:
            yield other
    if not own:
        yield rig
