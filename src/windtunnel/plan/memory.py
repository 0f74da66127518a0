"""Memory of one rank that trains a GPT, moment by moment and component by component, as arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout

from .calibration import with_correction
from .constants import Constants
from .passes import Passes, plain
from .types import Moment

GIB = 2**30
# Moments of a step: name, shares of (forward, backward) pass done, bytes by component.
_Held = list[tuple[str, tuple[float, float], dict[str, float]]]
# Of a recursive GPT: each state carried, and with it what it is summed from and its gradients. (Traced: 4.5 to 6.)
STATES_AT_WORK = 5

SOURCES = {
    "weights": "fp32 master weights, 4 B a parameter, whole on each rank",
    "gradients": "fp32, 4 B a parameter, whole on each rank (reduce-scattered at the step)",
    "muon_momentum": "fp32, 4 B a matrix parameter, over the ranks",
    "adamw_moments": "two fp32 moments, 8 B a parameter of tables, head and scalars, over the ranks",
    "averaged_weights": "fp32 moving average, 4 B a parameter, over the ranks (trm.ema)",
    "compute_weights": "copies in compute precision that the backward pass keeps",
    "activations": "what autograd keeps per layer and token",
    "states": "recursion's states at the borders of what is computed again",
    "loss": "logits of a chunk or two, gradients of the last hidden states, of the MLP at work and of the head",
    "optimizer_workspace": "what the optimizer step needs beyond the freed activations",
    "recording": "of recorded passes: held between them too, where nothing else may use it",
    "beside_recording": "what validation and the update need, workspaces too, and find no room for in what recorded passes hold",
    "workspaces": "of cuBLAS and Triton",
    "context": "CUDA context and loaded kernels, outside PyTorch's allocator",
    "nccl": "communicators' buffers, outside PyTorch's allocator",
    "process": "the interpreter with torch loaded",
    "fragmentation": "reserved over allocated",
    "correction": "by measurements on this kind of GPU",
}


@dataclass(frozen=True)
class Memory:
    """Moments of a step, in order, their seconds still shares of its passes: (of the forward pass, of the backward pass)."""

    moments: tuple[Moment, ...]
    done: tuple[tuple[float, float], ...]

    @property
    def peak(self) -> Moment:
        """The moment that needs most; of equal ones the first of those that tell what a recording holds."""
        return max(self.moments, key=lambda moment: (round(moment.gib, 6), "recording" not in moment.components))


def memory(shape: GPTShape, layout: Layout, constants: Constants, passes: Passes | None = None) -> Memory:
    """The moments of one optimizer step; of a recursive GPT, of the supervision steps that one backward pass covers."""
    passes = passes or plain(shape)
    element = 4 if layout.precision == "fp32" else 2
    other = shape.parameters - shape.matrix_parameters
    static = {
        "weights": 4.0 * shape.parameters,
        "gradients": 4.0 * shape.parameters,
        "muon_momentum": 4.0 * shape.matrix_parameters / layout.ranks,
        "adamw_moments": 8.0 * other / layout.ranks,
    }
    if passes.averaged:
        static["averaged_weights"] = 4.0 * shape.parameters / layout.ranks
    quantised = 2.0 * shape.matrix_parameters if layout.precision == "fp8" else 0.0
    again = layout.recompute != "none"
    read, blocks = _activation_bytes(shape, layout, constants, element, passes)
    kept = {
        # What is computed again is not there before the backward pass has come to it.
        "activations": read if again else read + blocks,
        # In 8 bits they are kept in both orders, from step to step; in 16 bits only until the backward pass has used them.
        # Applications of the same block share them.
        "compute_weights": quantised or (2.0 * shape.matrix_parameters if element == 2 else 0.0),
    }
    at_end = 0.0
    if passes.recursive:
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
    if layout.recorded:
        moments = _recorded(moments, shape, layout, constants, passes, element)
    closed = [Moment(name, 0.0, _closed(static | held, layout, constants)) for name, _, held in moments]
    return Memory(tuple(closed), tuple(done for _, done, _ in moments))


def components(shape: GPTShape, layout: Layout, constants: Constants) -> dict[str, float]:
    """GiB of each component on one rank at the step's peak; their sum is the peak."""
    return memory(shape, layout, constants).peak.components


def _recorded(moments: _Held, shape: GPTShape, layout: Layout, constants: Constants, passes: Passes, element: int) -> _Held:
    """The same with the passes recorded: their memory is theirs for good, and what else a run needs lies beside it."""
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


def _validation_bytes(shape: GPTShape, layout: Layout, constants: Constants, passes: Passes, element: int) -> float:
    """A forward pass that keeps nothing: one application of a block at a time, the states, a copy of the weights, the loss."""
    read, block = _activation_bytes(shape, layout, constants, element, Passes(1, 1, step=1))
    states = (STATES_AT_WORK + passes.carried) * element * layout.micro_tokens * shape.dim
    weights = 0.0 if element == 4 else 2.0 * shape.matrix_parameters
    return read + block + states + weights + _logit_bytes(shape, layout, constants, element)


def _closed(held: dict[str, float], layout: Layout, constants: Constants) -> dict[str, float]:
    """Bytes as GiB, with what lies around them."""
    gib = {name: size / GIB for name, size in held.items()}
    if layout.device == "cpu":
        return gib | {"process": constants.cpu_context_gib}
    allocated = sum(gib.values())
    gib |= {"workspaces": constants.workspace_gib, "context": constants.context_gib}
    if layout.ranks > 1:
        gib["nccl"] = constants.nccl_gib
    gib["fragmentation"] = constants.fragmentation * allocated
    return with_correction(gib, constants.extra_gib)


def _activation_bytes(
    shape: GPTShape, layout: Layout, constants: Constants, element: int, passes: Passes
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
    """The states at work, those at the borders, and with an update a supervision step those of the other micro-batches."""
    waiting = passes.carried * (layout.accumulation - 1) if passes.updates > 1 else 0
    at_work = STATES_AT_WORK if layout.recompute == "none" else 1
    states = at_work * passes.carried + passes.borders(layout.recompute) + waiting
    return float(element * layout.micro_tokens * shape.dim * states)


def _loss_bytes(shape: GPTShape, layout: Layout, constants: Constants, element: int, passes: Passes) -> float:
    """Logits of a chunk, beside those of the one before; the head in compute precision; gradients."""
    gradients = element * layout.micro_tokens * shape.dim + 4.0 * shape.head_parameters
    return _logit_bytes(shape, layout, constants, element) + passes.joined * gradients


def _logit_bytes(shape: GPTShape, layout: Layout, constants: Constants, element: int) -> float:
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
