"""The reference at one size and dtype, with what its cases have in common and need not compute twice. Imports torch.

Its answers exist in the judge's process alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.verify.kernel.child.compare import Rounding, drawn_part, is_large, rounding_of, values_differ
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.products import ProductsByZero
from windtunnel.verify.kernel.hidden import may_have_products

# What TF32 rounds off is for these about the same part of the mean magnitude as for plain values.
AS_PLAIN = ("plain", "negated", "scaled")


class Group:
    """Cases that share a model. message: as the judge's.

    flops: what one call multiplies, None where nobody needs to know. finite: whether the reference is, with plain inputs.
    """

    def __init__(self, message: dict[str, Any], size: str, dtype: str) -> None:
        self.key, self.name = (size, dtype), f"{size} {dtype}"
        self.drawn = Drawn.of(message, size, dtype)
        self.flops: int | None = message["flops"].get(self.name)
        self._may_be_tf32 = message["tf32"] and dtype == "float32" and "float32" not in message["tolerance"]
        self._counts = bool(message["timed"] or self._may_be_tf32)
        self._plain: list[Rounding | None] | None = None
        self._source, self._tolerance = message["sources"][size], message["tolerance"]
        self.finite = False

    @property
    def rounds_again(self) -> bool:
        """Whether a factor of a product may be rounded once more: one of 16 bits, times a constant, as attention scales it."""
        return self.key[1] in ("float16", "bfloat16") and may_have_products(self._source)

    def is_rough(self, own: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> bool:
        """Return whether the reference in its dtype would itself be refused: no candidate can be asked for more digits."""
        pairs = zip(own, exact, strict=True)
        return any(values_differ(mine, mine, right, "it", self._tolerance, 0.0) is not None for mine, right in pairs)

    @property
    def tf32(self) -> bool:
        """Whether products may be in TF32, and there are any. Once there are answers."""
        return bool(self._may_be_tf32 and self.flops)

    def answers(self, inputs: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
        """Return the reference's outputs in its dtype and in float64, and what kind they are."""
        own, kind = self.own(inputs)
        return own, self.drawn.exact(inputs), kind

    def own(self, inputs: list[Any]) -> tuple[list[torch.Tensor], str]:
        """Return the reference's outputs in its dtype, and what kind they are. What it multiplies is counted once."""
        if self.flops is not None or not self._counts:
            return self.drawn.own(inputs)
        with FlopCounterMode(display=False) as counter, ProductsByZero() as zeros:
            own = self.drawn.own(inputs)
        self.flops = counter.get_total_flops() - zeros.flops
        return own

    def known_roundings(self, variation: str) -> list[Rounding | None] | None:
        """Return of each output what TF32 rounds off, where that is known from other inputs."""
        return self._plain if variation in AS_PLAIN else None

    def roundings(
        self,
        variation: str,
        inputs: list[Any],
        own: Sequence[torch.Tensor],
        exact: Sequence[torch.Tensor],
        part: int,
        *,
        double: bool = True,
    ) -> list[Rounding | None]:
        """Return of each output what TF32 rounds off with these inputs, or in 16 bits another rounding of them, by another run.

        exact: the same in float64, or what stands for that. part: what blocks of large outputs were drawn by. double: whether
        that run is in float64.
        """
        found = []
        others = self.drawn.coarse(inputs, double=double) if self.tf32 else self.drawn.rounded_again(inputs)
        for coarse, right, mine in zip(others, exact, own, strict=True):
            # As the judge has it: of large outputs the same drawn part.
            large = is_large(mine)
            found.append(rounding_of(*(drawn_part(some, part) if large else some for some in (coarse, mine, right))))
        if variation == "plain":
            self._plain = found
        return found
