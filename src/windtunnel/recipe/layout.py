"""How the work of one stage is spread over a rig: what a plan chooses, a run records and training follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

# Who runs a layout: the package's own engine, or Megatron-Bridge where matrices, experts or layers are split over ranks.
OWN_ENGINE = "windtunnel"
MEGATRON = "megatron-bridge"

_SHARDS = {"none": "replicated", "optimizer": "optimizer states sharded", "full": "weights sharded"}


@dataclass(frozen=True)
class Layout:
    """Ranks and what each does. A step is data x accumulation x micro_batch sequences.

    ranks = data x tensor x pipeline; `expert` ranks, taken from data x tensor, share the experts of a
    layer. `shard` is over the data-parallel ranks. `offload` 'optimizer' keeps states in CPU memory.
    """

    ranks: int
    micro_batch: int
    accumulation: int
    sequence: int
    precision: str
    compile: bool
    device: str  # 'cuda' or 'cpu'
    shard: str = "optimizer"  # 'none', 'optimizer' or 'full'
    tensor: int = 1
    expert: int = 1
    pipeline: int = 1
    recompute: str = "none"  # or 'step' (a supervision step of a recursive GPT), or 'block'
    kept_blocks: int = 0  # of 'block': the last ones, which there is room to keep
    recorded: bool = False  # passes are CUDA graphs
    # A GPT's blocks are fused kernels: `compile` says whether the optimizer's updates are too. Follows from the device.
    fused: bool = field(default=False, compare=False)
    offload: str = "none"  # or 'optimizer'
    engine: str = OWN_ENGINE

    @classmethod
    def of_plan(cls, layout: Mapping[str, Any]) -> Layout:
        """Read the layout of a plan's JSON; what older plans do not name has its default."""
        # A run's manifest may be older or newer than this version.
        return cls(**{f.name: layout[f.name] for f in fields(cls) if f.name in layout})

    @property
    def data(self) -> int:
        """Data-parallel ranks: each group of tensor x pipeline ranks works on its own sequences."""
        return self.ranks // (self.tensor * self.pipeline)

    @property
    def batch_sequences(self) -> int:
        """Sequences of one optimizer step over all ranks."""
        return self.data * self.accumulation * self.micro_batch

    @property
    def batch_tokens(self) -> int:
        """Return the tokens of one optimizer step over all ranks."""
        return self.batch_sequences * self.sequence

    @property
    def micro_tokens(self) -> int:
        """Return the tokens of one rank's forward pass."""
        return self.micro_batch * self.sequence

    def as_dict(self) -> dict[str, Any]:
        """Return the layout as JSON values."""
        return asdict(self) | {"data": self.data, "batch_tokens": self.batch_tokens}

    def describe(self) -> str:
        """Return the layout in one line."""
        per_rank = f"{self.accumulation} x {self.micro_batch}" if self.accumulation > 1 else f"{self.micro_batch}"
        per_rank += " sequence" if per_rank == "1" else " sequences"
        parts = [f"{per_rank} of {self.sequence:,} a step each", self.precision + self._kernels()]
        if self.recompute != "none":
            again = {"step": "supervision steps recomputed", "block": "blocks recomputed"}[self.recompute]
            parts.append(again + (f" but the last {self.kept_blocks}" if self.kept_blocks else ""))
        if self.recorded:
            parts.append("passes recorded")
        if self.offload == "optimizer":
            parts.append("optimizer states in CPU memory")
        if self.engine != OWN_ENGINE:
            parts.append(f"engine {self.engine}")
        return "; ".join([self._spread(), *parts])

    def _kernels(self) -> str:
        """How what runs on the device is made."""
        return (", fused kernels" if self.fused else "") + (", compiled" if self.compile and not self.fused else "")

    def _spread(self) -> str:
        if self.ranks == 1:
            return "1 rank"
        if self.ranks == self.data and self.expert == 1:
            return f"{self.ranks} data-parallel ranks, {_SHARDS[self.shard]}"
        axes = [("tensor", self.tensor), ("pipeline", self.pipeline), ("expert", self.expert), ("data", self.data)]
        split = " x ".join(f"{name} {size}" for name, size in axes if size > 1 and name != "expert")
        experts = f", experts over {self.expert}" if self.expert > 1 else ""
        return f"{self.ranks} ranks: {split}{experts}, {_SHARDS[self.shard]}"
