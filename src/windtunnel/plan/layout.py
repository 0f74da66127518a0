"""How the work is spread over a rig."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """Data-parallel ranks with sharded optimizer states. A step is ranks x accumulation x micro_batch sequences."""

    ranks: int
    micro_batch: int
    accumulation: int
    sequence: int
    precision: str
    compile: bool
    device: str  # 'cuda' or 'cpu'

    @property
    def batch_sequences(self) -> int:
        """Sequences of one optimizer step over all ranks."""
        return self.ranks * self.accumulation * self.micro_batch

    @property
    def batch_tokens(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.batch_sequences * self.sequence

    @property
    def micro_tokens(self) -> int:
        """Tokens of one rank's forward pass."""
        return self.micro_batch * self.sequence

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"batch_tokens": self.batch_tokens}

    def describe(self) -> str:
        """One line."""
        per_rank = (
            f"{self.accumulation} x {self.micro_batch} sequences" if self.accumulation > 1 else f"{self.micro_batch} sequences"
        )
        ranks = f"{self.ranks} data-parallel ranks, optimizer states sharded" if self.ranks > 1 else "1 rank"
        return f"{ranks}; {per_rank} of {self.sequence:,} a step each; {self.precision}{', compiled' if self.compile else ''}"
