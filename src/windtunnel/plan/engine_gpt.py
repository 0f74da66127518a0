"""The package's own GPT engine: memory of a rank that holds all weights and shares the optimizer's states.

Where weights and gradients are shared too, `gpt_shards` knows what that adds. A recursive GPT applies its blocks many times:
`Passes` counts how often, and how much of it one backward pass covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout

from . import gpt_shards
from .constants import GPTConstants
from .gpt_shards import is_sharded
from .memory import GIB, Ledger, Memory, around

# Of a recursive GPT: each state carried, and with it what it is summed from and its gradients. (Traced: 4.5 to 6.)
STATES_AT_WORK = 5
# Moments of a step: name, shares of (forward, backward) pass done, bytes by component.
_Held = list[tuple[str, tuple[float, float], dict[str, float]]]

SOURCES = {
    "weights": "fp32 master weights, 4 B a parameter, whole on each rank unless the layout shards them",
    "gradients": "fp32, 4 B a parameter, whole on each rank (reduce-scattered at the step) unless the layout shards them",
    "muon_momentum": "fp32, 4 B a matrix parameter, over the ranks",
    "adamw_moments": "two fp32 moments, 8 B a parameter of tables, head and scalars, over the ranks",
    "averaged_weights": "fp32 moving average, 4 B a parameter, over the ranks (trm.ema)",
    "gathered_weights": "of sharded weights: the part of a block at work in compute precision, the root's in fp32",
    "communication": "buffers of gathering the next part and of reducing the last one's gradients",
    "compute_weights": "copies in compute precision that the backward pass keeps",
    "activations": "what autograd keeps per layer and token",
    "states": "recursion's states at the borders of what is computed again",
    "loss": "logits of a chunk or two, gradients of the last hidden states, of the MLP at work and of the head",
    "optimizer_workspace": "what the optimizer step needs beyond the freed activations",
    "recording": "of recorded passes: held between them too, where nothing else may use it",
    "beside_recording": "what validation and the update need, workspaces too, and find no room for in what recorded passes hold",
}


@dataclass(frozen=True)
class Passes:
    """Of one micro-batch. A plain GPT goes through its blocks once.

    Attributes:
        applications: of blocks, in a forward pass over all supervision steps. graded: those of them with a gradient.
        heads: passes through head and loss, one a supervision step.
        step: graded applications of one supervision step.
        joined: supervision steps that one backward pass covers; at a detach boundary it ends, and its memory is freed.
        unit: applications that are computed again together where 'block' is asked for: one, or those of the whole stack.
        ends: normed states kept at the end of every supervision step beside the inputs of what is computed again by 'block'.
        seams: normed states kept where cycles without a gradient end, in one supervision step.
        combined: applications whose input is combined from several states and normed (schemes with a latent).
        carried: states that go from one application to the next beside the embedding.
        updates: optimizer steps a batch. averaged: weights are averaged over the steps too (EMA).
    """

    applications: int
    graded: int
    heads: int = 1
    step: int = 0
    joined: int = 1
    unit: int = 1
    ends: int = 0
    seams: int = 0
    combined: int = 0
    carried: int = 0
    updates: int = 1
    averaged: bool = False

    @property
    def repeat(self) -> bool:
        """Whether any of it happens more than once."""
        return self.carried > 0

    def forward(self, recompute: str) -> int:
        """Applications forwards in a step, computed again or not."""
        return self.applications + (0 if recompute == "none" else self.graded)

    def kept(self, recompute: str) -> int:
        """Applications whose activations are held at once."""
        return {"none": self.joined * self.step, "step": self.step, "block": self.unit}[recompute]

    def borders(self, recompute: str) -> int:
        """States kept between activations, or in place of those that are computed again, each (tokens, dim)."""
        inputs = self.joined * (self.step // self.unit + self.seams)
        return {"none": self.joined * self.seams, "step": self.joined * self.carried + self.seams, "block": inputs}[recompute]


def plain(shape: GPTShape) -> Passes:
    """Count the passes of a GPT whose blocks are applied once."""
    return Passes(shape.layers, shape.layers, step=shape.layers)


def memory(shape: GPTShape, layout: Layout, constants: GPTConstants, passes: Passes | None = None) -> Memory:
    """Note the moments of one optimizer step; of a recursive GPT, of the supervision steps that one backward pass covers."""
    passes = passes or plain(shape)
    element = 4 if layout.precision == "fp32" else 2
    other = shape.parameters - shape.matrix_parameters
    holders = layout.ranks if is_sharded(layout) else 1
    static = {
        "weights": 4.0 * shape.parameters / holders,
        "gradients": 4.0 * shape.parameters / holders,
        "muon_momentum": 4.0 * shape.matrix_parameters / layout.ranks,
        "adamw_moments": 8.0 * other / layout.ranks,
    }
    if passes.averaged:
        static["averaged_weights"] = 4.0 * shape.parameters / layout.ranks
    # Of sharded weights nothing is held in 8 bits: they are quantised where they are gathered.
    quantised = 2.0 * shape.matrix_parameters if layout.precision == "fp8" and holders == 1 else 0.0
    again = layout.recompute != "none"
    read, blocks = _activation_bytes(shape, layout, constants, element, passes)
    kept = {
        # What is computed again is not there before the backward pass has come to it.
        "activations": read if again else read + blocks,
        # In 8 bits they are kept in both orders, from step to step; in 16 bits only until the backward pass has used them.
        # Applications of the same block share them. Sharded, they are gathered again instead.
        "compute_weights": quantised or (2.0 * shape.matrix_parameters if element == 2 and holders == 1 else 0.0),
    }
    at_end = 0.0
    if passes.repeat:
        kept["states"] = _state_bytes(shape, layout, passes, element)
        if layout.recompute == "block":
            at_end = float(element * layout.micro_tokens * shape.dim * passes.joined * passes.ends)
    between = {"compute_weights": quantised}
    # Every supervision step's loss leaves gradients of its last states and of the head until the backward pass takes them:
    # by the time that anything is there again, those of the last step are taken.
    waiting = passes.joined - 1 if again else passes.joined
    head = waiting * (element * layout.micro_tokens * shape.dim + 4.0 * shape.head_parameters)
    # What was kept is still there when the last MLP takes the gradients of its hidden states; of swiglu both halves', and
    # their product.
    mlp = element * layout.micro_tokens * (3.0 if shape.mlp == "swiglu" else 1.0) * shape.hidden
    worked = {"loss": head + 2.0 * element * layout.micro_tokens * shape.dim + (0.0 if again else mlp)}
    if again:
        # Where activations are there again as a whole, the gradients of the first block come on top.
        worked["activations"] = read + blocks + mlp + element * layout.micro_tokens * 2.0 * shape.dim
    optimizer = {"optimizer_workspace": _optimizer_bytes(shape, layout)} | between
    moments: _Held = [
        ("before the step", (0.0, 0.0), between),
        ("forward", (1.0, 0.0), kept),
        ("loss", (1.0, 0.0), kept | {"loss": at_end + _loss_bytes(shape, layout, constants, element, passes)}),
        ("backward", (1.0, 0.0), kept | worked),
        ("optimizer", (1.0, 1.0), optimizer),
    ]
    if is_sharded(layout):
        moments = _gathering(moments, shape, layout, element, read)
    if layout.recorded:
        moments = _recorded(moments, shape, layout, constants, passes, element)
    ledger = Ledger(static)
    for name, done, held in moments:
        ledger.note(name, done, held)
    wasted = 0.0 if layout.device == "cpu" else constants.fragmentation
    return Memory(ledger, around(layout, constants), constants.extra_gib, wasted)


def _gathering(moments: _Held, shape: GPTShape, layout: Layout, element: int, read: float) -> _Held:
    """Add what is gathered and reduced at each moment; at the end of the backward pass tables and root are."""
    whole, found = gpt_shards.gathered(shape, layout, element), []
    for name, done, held in moments:
        more: dict[str, float] = {}
        if name in ("forward", "loss"):
            more = {"gathered_weights": whole.root + whole.part, "communication": whole.gathering}
        elif name == "backward":
            # A part's gradient in compute precision, the last one's on its way to the others.
            more = {"gathered_weights": whole.root + 2 * whole.part, "communication": whole.gathering + 2 * whole.reducing}
        elif name == "optimizer":
            more = {"optimizer_workspace": gpt_shards.exchanged_bytes(shape, layout) - held["optimizer_workspace"]}
        found.append((name, done, {key: held.get(key, 0.0) + more.get(key, 0.0) for key in held | more}))
        if name == "backward":
            last = {
                "activations": read,
                "gathered_weights": 2 * whole.root + 2 * whole.table,
                "communication": whole.gathering + 2 * whole.tables_reducing,
            }
            found.append(("backward, tables and head", (1.0, 1.0), last))
    return found


def _recorded(moments: _Held, shape: GPTShape, layout: Layout, constants: GPTConstants, passes: Passes, element: int) -> _Held:
    """Record the passes: their memory is theirs for good, and what else a run needs lies beside it."""
    during = ("forward", "loss", "backward")
    # Weights in 8 bits are made outside of it.
    outside = 2.0 * shape.matrix_parameters if layout.precision == "fp8" else 0.0
    recording = max(sum(held.values()) for name, _, held in moments if name in during) - outside
    # Where the passes were recorded lies what they are given: tokens, targets, and from one update to the next the states.
    states = passes.carried * element * shape.dim if passes.updates > 1 else 0
    given = float(layout.micro_tokens * (16 * min(2, passes.updates) + states))
    beside = given + max(_optimizer_bytes(shape, layout), _validation_bytes(shape, layout, constants, passes, element))
    # Recorded on a stream of their own, and so with cuBLAS's workspace of that stream.
    beside += constants.workspace_gib * GIB
    found: _Held = []
    for name, done, held in moments:
        if name in during:
            found.append((name, done, held | {"beside_recording": beside}))
        else:
            own = held.get("optimizer_workspace", 0.0)
            found.append((name, done, held | {"beside_recording": beside - own, "recording": recording}))
    return found


def _validation_bytes(shape: GPTShape, layout: Layout, constants: GPTConstants, passes: Passes, element: int) -> float:
    """Count a forward pass that keeps nothing: a block's application at a time, states, a copy of the weights, the loss."""
    read, block = _activation_bytes(shape, layout, constants, element, Passes(1, 1, step=1))
    states = (STATES_AT_WORK + passes.carried) * element * layout.micro_tokens * shape.dim
    weights = 0.0 if element == 4 else 2.0 * shape.matrix_parameters
    return read + block + states + weights + _logit_bytes(shape, layout, constants, element)


def _activation_bytes(
    shape: GPTShape, layout: Layout, constants: GPTConstants, element: int, passes: Passes
) -> tuple[float, float]:  # fmt: skip
    """(of what is read before the blocks, of as many applications of blocks as are held at once)."""
    kv_share = shape.kv_dim / shape.dim
    # Of saved_dims k and v have the width of the key/value heads.
    dims = shape.dim * (constants.saved_dims - 2 + 2 * kv_share)
    if layout.precision == "fp8":
        dims += shape.dim * constants.fp8_saved_dims
    hidden = shape.hidden * (constants.saved_hidden + (1 if shape.mlp == "swiglu" else 0))
    per_layer = element * (dims + hidden) + 4 * shape.heads  # + log-sum-exp of attention
    values = element * shape.kv_dim * len(shape.value_layers)
    factor = 1.0 if layout.device == "cuda" else constants.eager_factor
    applied = factor * passes.kept(layout.recompute) * per_layer
    return layout.micro_tokens * (factor * values + 2 * element * shape.dim), layout.micro_tokens * applied


def _state_bytes(shape: GPTShape, layout: Layout, passes: Passes, element: int) -> float:
    """Count the states at work, at the borders, and with an update a supervision step those of the other micro-batches."""
    waiting = passes.carried * (layout.accumulation - 1) if passes.updates > 1 else 0
    at_work = STATES_AT_WORK if layout.recompute == "none" else 1
    states = at_work * passes.carried + passes.borders(layout.recompute) + waiting
    return float(element * layout.micro_tokens * shape.dim * states)


def _loss_bytes(shape: GPTShape, layout: Layout, constants: GPTConstants, element: int, passes: Passes) -> float:
    """Logits of a chunk, beside those of the one before; the head in compute precision; gradients."""
    gradients = element * layout.micro_tokens * shape.dim + 4.0 * shape.head_parameters
    return _logit_bytes(shape, layout, constants, element) + passes.joined * gradients


def _logit_bytes(shape: GPTShape, layout: Layout, constants: GPTConstants, element: int) -> float:
    """Of a chunk and the one before it, and the head in compute precision."""
    chunks = min(2.0, layout.micro_tokens / constants.loss_chunk_tokens)
    copy = 0.0 if element == 4 else 2.0 * shape.head_parameters
    return chunks * constants.loss_chunk_tokens * shape.padded_vocab * element + copy


def _optimizer_bytes(shape: GPTShape, layout: Layout) -> float:
    """Muon stacks a rank's share of the largest group of equal matrices, in bf16 three times (on a CPU also in fp32).

    With several ranks the updated parts of all groups are copied to be sent: that is more.
    """
    share = shape.layers * max(shape.dim * shape.hidden, shape.dim * shape.dim) / layout.ranks
    stacked = share * (6 if layout.device == "cuda" else 10)
    return stacked if layout.ranks == 1 else max(stacked, 4.0 * shape.parameters / layout.ranks)
