"""Generation where several ranks share the experts of a model, each with attention and a cache of its own sequences.

The first rank leads: a `BatchedGenerator` asks its decoder for one forward pass after the other, and the decoder tells the
other ranks, which do their rows of the same pass. In every layer all ranks pass the experts together, those without rows too.
Slots are dealt out round robin; logits are gathered on the first rank, which samples.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from windtunnel.convert import block_of_experts, decoded_weights, load_experts
from windtunnel.model import (
    ExpertGroup,
    FP8Experts,
    from_hub,
    holds_experts,
    hollow,
    share_experts_fp8,
    shared_experts_of,
)
from windtunnel.recipe import UserError

from .hf import SCORED_AT_ONCE, HFDecoder, passes_of_ends
from .protocol import GenerationFailed


def sharing_model(
    config: dict[str, Any], base: Path, device: torch.device, dtype: torch.dtype, group: ExpertGroup
) -> tuple[PreTrainedModel, set[str]]:
    """Return a model with this rank's experts in fp8, the rest of it still without numbers.

    Args:
        config: the mapping of a config.json without anything about quantisation.
        base: the folder of its weights.
        device: where it computes.
        dtype: of all weights but experts.
        group: the ranks that share the experts.

    Returns:
        The model, and the names in the files of all experts' tensors, which nobody has to read any more.

    Raises:
        UserError: there is no such model, its experts cannot be shared out, or are missing.
    """
    model, block = hollow(config), block_of_experts(base)
    nn.Module.to(model, dtype)
    for module in [module for module in model.modules() if holds_experts(module)]:
        share_experts_fp8(module, group, block)
    # After the experts were taken out: with them the model may not fit the device.
    model.to_empty(device=device)
    model.tie_weights()
    with torch.no_grad():
        for module in model.modules():
            # What is computed from the config and not saved, such as the frequencies of rotary embeddings.
            if module._non_persistent_buffers_set and not isinstance(module, FP8Experts):
                model._init_weights(module)
    return model, load_experts(model, base)


def load_coded(folder: Path, device: torch.device, dtype: torch.dtype, group: ExpertGroup) -> PreTrainedModel:
    """Return the model of a folder in fp8: experts as they are stored, this rank's alone; all else decoded.

    Raises:
        UserError: weights are missing, or coded in a way that is not known.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Else transformers would look for the quantiser that these name.
    config = {key: value for key, value in config.items() if key not in ("quantization_config", "compression_config")}
    model, experts = sharing_model(config, folder, device, dtype, group)
    places: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    wanted = places | dict(model.named_buffers())
    files = {name: read for name, read in decoded_weights(folder).items() if name not in experts}
    written = fill_model(model, from_hub(model, files, wanted))
    require_whole(folder, places, written)
    return model.eval()


def require_whole(folder: Path, places: Mapping[str, Tensor], written: Collection[int]) -> None:
    """Raise UserError where a folder lacks a weight: `written` are the ids of those places that have one."""
    # By the place, not the name: weights that are tied are one tensor, which files have under either name.
    missing = sorted(name for name, place in places.items() if id(place) not in written)
    if missing:
        raise UserError(f"{folder} has no weights for {', '.join(missing[:3])} ({len(missing)} in all)", "download it again")


@torch.no_grad()
def fill_model(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> set[int]:
    """Write weights by transformers' names into a model's parameters and buffers; return the ids of those written into."""
    places = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    written = set()
    for name, tensor in weights:
        if name in places:
            places[name].copy_(tensor)
            written.add(id(places[name]))
    return written


@dataclass(frozen=True)
class Team:
    """The ranks that generate together: rank 0 leads.

    Attributes:
        control: a group of the host's, over which the first rank says what to do.
        experts: the group that shares the experts; all ranks of the team are in it.
    """

    rank: int
    size: int
    control: dist.ProcessGroup
    experts: ExpertGroup

    def mine(self, slots: Sequence[int], rank: int | None = None) -> list[int]:
        """Return the places in `slots` of those that a rank (this one) decodes."""
        rank = self.rank if rank is None else rank
        return [place for place, slot in enumerate(slots) if slot % self.size == rank]


@dataclass(frozen=True)
class Order:
    """What all ranks do next, together.

    Attributes:
        kind: 'feed', 'step', 'passes' (the first rank alone has rows), 'reset' or 'end'.
        slots, given: of a feed or a step, as a `Decoder` gets them.
        passes: how many.
        freed: slots to be emptied first.
    """

    kind: str
    slots: tuple[int, ...] = ()
    given: tuple[Any, ...] = ()
    freed: tuple[int, ...] = ()
    passes: int = 1


@dataclass
class Leader:
    """A `Decoder` on the first rank that has the others do their part. `end` it when nobody generates any more.

    What is scored is scored by this rank alone, while the others hold their experts ready.
    """

    local: HFDecoder
    team: Team
    _freed: list[int] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)
    _failed: str = ""

    def __post_init__(self) -> None:
        self.context, self.vocab, self.device = self.local.context, self.local.vocab, self.local.device
        self.weights = self.local.weights
        self.ragged = self.ahead = False

    def feed(self, slots: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Append parts of prompts; see `Decoder`."""
        # The other ranks take a feed as one pass; whether it is must be decided here, for all.
        if len(slots) > 1 and not self._begun.isdisjoint(slots):
            # Each is a pass of its own, on whichever rank.
            return torch.cat([self.feed([slot], [part]) for slot, part in zip(slots, parts, strict=True)])
        logits = self._together("feed", slots, tuple(tuple(part) for part in parts))
        self._begun |= set(slots)
        return logits

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; see `Decoder`."""
        return self._together("step", slots, tuple(tokens))

    def score(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Score a text; see `Decoder`."""
        parts = self.local.score(tokens)
        for _ in range(0, len(tokens), SCORED_AT_ONCE):
            # One order for a part, sent when it is asked for: a reader that stops early leaves no rank waiting.
            self._tell(Order("passes", freed=self._emptied()))
            with self._guard():
                logits = next(parts)
            yield logits

    def score_ends(self, start: Sequence[int], ends: Sequence[Sequence[int]]) -> Tensor:
        """Score ends that follow the same text; see `HubDecoder`."""
        self._tell(Order("passes", freed=self._emptied(), passes=passes_of_ends(ends)))
        with self._guard():
            return self.local.score_ends(start, ends)

    def free(self, slot: int) -> None:
        """Empty a slot; the other ranks hear of it with the next order."""
        self._freed.append(slot)
        self._begun.discard(slot)

    def reset(self) -> None:
        """Empty all slots; see `Decoder`."""
        self._tell(Order("reset"))
        self._freed, self._begun = [], set()
        self.local.reset()

    def fail(self, why: str) -> None:
        """Let the pass under way be the last; from another thread too."""
        self._failed = self._failed or why

    def end(self) -> None:
        """Let the other ranks go."""
        if not self._failed:
            self.fail("the team has ended")
            _send(Order("end"), self.team)

    def _emptied(self) -> tuple[int, ...]:
        freed, self._freed = tuple(self._freed), []
        for slot in freed:
            self.local.free(slot)
        return freed

    def _together(self, kind: str, slots: Sequence[int], given: tuple[Any, ...]) -> Tensor:
        order = Order(kind, tuple(slots), given, self._emptied())
        self._tell(order)
        with self._guard():
            logits = perform(order, self.local, self.team)
        assert logits is not None
        return logits

    def _tell(self, order: Order) -> None:
        self._require_well()
        with self._guard():
            _send(order, self.team)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Make an exception the last: the ranks are no longer at the same place, and no further pass is possible."""
        try:
            yield
        except BaseException:
            self.fail("a rank failed in the middle of a pass, and the others wait for it")
            raise
        # What came of a pass that another rank did not end means nothing.
        self._require_well()

    def _require_well(self) -> None:
        if self._failed:
            raise GenerationFailed(f"{self._failed}: start anew")


def follow(local: HFDecoder, team: Team) -> None:
    """Do this rank's part of the leader's passes until it ends."""
    while True:
        held: list[Any] = [None]
        dist.broadcast_object_list(held, src=0, group=team.control)
        order: Order = held[0]
        # Before the pass, as the leader freed them: the caches of all ranks stay alike.
        for slot in order.freed:
            local.free(slot)
        if order.kind == "end":
            return
        with torch.inference_mode():
            if order.kind == "reset":
                local.reset()
            elif order.kind == "passes":
                for _ in range(order.passes):
                    pass_without_tokens(local.model)
            else:
                perform(order, local, team)


def _send(order: Order, team: Team) -> None:
    dist.broadcast_object_list([order], src=0, group=team.control)


def perform(order: Order, local: HFDecoder, team: Team) -> Tensor | None:
    """Do this rank's rows of a feed or a step; return the logits (N, vocab) of all slots on rank 0, None elsewhere."""
    mine = team.mine(order.slots)
    do = local.feed if order.kind == "feed" else local.step
    logits = torch.empty(0, local.vocab, device=local.device)
    if mine:
        logits = do([order.slots[i] for i in mine], [order.given[i] for i in mine])
    else:
        pass_without_tokens(local.model)
    places = [team.mine(order.slots, rank) for rank in range(team.size)]
    # A gather takes tensors of one shape: ranks with fewer rows send zeros too.
    most = max(len(rows) for rows in places)
    padded = torch.zeros(most, local.vocab, device=local.device)
    padded[: len(mine)] = logits
    gathered = [torch.empty_like(padded) for _ in places] if team.rank == 0 else None
    dist.gather(padded, gathered, dst=0)
    if gathered is None:
        return None
    # Back in the order of the slots, which were dealt out round robin.
    out = padded.new_empty(len(order.slots), local.vocab)
    for rows, found in zip(places, gathered, strict=True):
        out[rows] = found[: len(rows)]
    return out


def pass_without_tokens(model: nn.Module) -> None:
    """Pass all experts of a model without a row, so that other ranks' rows get through."""
    for module in shared_experts_of(model).values():
        weights = module.weights("gate_up_proj")
        none = weights.scale.new_empty(0, weights.inputs)
        # Its collectives must be called as often as on ranks that have rows.
        module(none.to(next(model.parameters()).dtype), none[:, :1].long(), none[:, :1])
