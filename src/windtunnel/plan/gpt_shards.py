"""A GPT whose weights and gradients are sharded over the ranks too: what a rank holds of them for a while, and what it sends.

FSDP2 gathers attention, MLP and tables one by one, in compute precision, for the forward pass and again for the backward pass;
embedding mixes and head once a micro-batch, in fp32. Gradients are reduced in fp32, part by part. Muon's matrices are
exchanged once a step, so that each is whole on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from .constants import GPTConstants
from .memory import FP32
from .steptime import FAST_LINK_GBS, Exchange, ring_seconds

# Parts of a block that are gathered for themselves.
PARTS = 2
# Of matrices, fp32 while they are exchanged: weights; gradients to send, received, and in their places.
EXCHANGED = FP32 * 4
# A rank makes all its matrices of a shape whole at once up to this size, and one by one beyond it.
ROUND_BYTES = 2.0**30


def is_sharded(layout: Layout) -> bool:
    """Whether ranks hold parts of weights and gradients."""
    return layout.shard == "full" and layout.ranks > 1


@dataclass(frozen=True)
class Gathered:
    """Bytes of what is whole for a while.

    Attributes:
        part: the largest part of a block in compute precision. table: the largest table. root: the rest, fp32.
        gathering: buffers of the gathering stream: the next part's, the last one's until it is copied out, this rank's share.
        reducing: fp32 gradients of a part on their way. tables_reducing: of a table, or of the root.
    """

    part: float
    table: float
    root: float
    gathering: float
    reducing: float
    tables_reducing: float


def gathered(shape: GPTShape, layout: Layout, element: int) -> Gathered:
    """Size what FSDP2 gathers and reduces."""
    attention = 2.0 * shape.dim * (shape.dim + shape.kv_dim)
    part = max(attention, float(shape.matrix_parameters) / shape.layers - attention)
    table = float(shape.padded_vocab * shape.dim)
    root = root_parameters(shape)
    largest = element * max(part, table)
    # Beside what was gathered lies what of it is quantised, in both orders, and put together for that.
    quantised = (2.0 + element) * part if layout.precision == "fp8" else 0.0
    return Gathered(
        part=element * part + quantised,
        table=element * table,
        root=FP32 * root,
        gathering=largest * (2 + 1 / layout.ranks),
        reducing=FP32 * part,
        tables_reducing=FP32 * max(table, root),
    )


def root_parameters(shape: GPTShape) -> float:
    """Count what belongs to no block and is no table that tokens are looked up in."""
    places = 0 if shape.causal else shape.sequence * shape.dim
    return float(shape.parameters - shape.matrix_parameters - shape.table_parameters + places)


def exchanged_bytes(shape: GPTShape, layout: Layout) -> float:
    """Count what the update needs to make matrices whole, of the shape that takes most."""
    matrix = FP32 * shape.dim * max(shape.hidden, shape.dim)
    share = shape.layers * matrix / layout.ranks
    return EXCHANGED / FP32 * (share if share <= ROUND_BYTES else matrix)


def exchange(shape: GPTShape, layout: Layout, rig: Rig, c: GPTConstants) -> Exchange:
    """Count gathers in both passes of each micro-batch, reductions after it, and once a step the matrices' exchange."""
    element, ranks = (4.0 if layout.precision == "fp32" else 2.0), layout.ranks
    root, rest = root_parameters(shape), shape.parameters - root_parameters(shape)
    gathers = layout.accumulation * (2 * element * rest + FP32 * root)
    reductions = layout.accumulation * FP32 * shape.parameters
    beside = ring_seconds(gathers, ranks, 1, rig, c) + ring_seconds(reductions, ranks, 1, rig, c)
    # A rank sends its rows alone: gradients and weights to where they are whole, weights back.
    update = ring_seconds(3 * FP32 * shape.matrix_parameters / ranks, ranks, 1, rig, c)
    # The first part's weights and the last one's gradients have nothing to hide behind.
    ends = ring_seconds(FP32 * root + (element + FP32) * shape.padded_vocab * shape.dim, ranks, 1, rig, c)
    busy = (gathers + reductions) * (ranks - 1) / ranks / (FAST_LINK_GBS * 1e9 * c.link_efficiency)
    return Exchange({"communication": beside + update}, max(0.0, beside - layout.accumulation * ends), busy)


def copied_bytes(shape: GPTShape, layout: Layout) -> float:
    """Return the bytes that a step moves by copies: casts before gathering, copies out of buffers, gradients to be reduced."""
    element, ranks = (4.0 if layout.precision == "fp32" else 2.0), layout.ranks
    gathering = 2 * ((FP32 + element) / ranks + 2 * element)
    reducing = element + FP32 + (2 + 3) * FP32 / ranks
    exchanged = 3 * 4 * FP32 / ranks
    # Read for the largest, read again and written in both orders, for either pass.
    quantised = layout.accumulation * 2 * 6.0 if layout.precision == "fp8" else 0.0
    return layout.accumulation * (gathering + reducing) * shape.parameters + (exchanged + quantised) * shape.matrix_parameters
