"""Peak memory of one rank, component by component, as arithmetic."""

from __future__ import annotations

from windtunnel.model import GPTShape

from .constants import Constants
from .layout import Layout

GIB = 2**30

SOURCES = {
    "weights": "fp32 master weights, 4 B a parameter, whole on each rank",
    "gradients": "fp32, 4 B a parameter, whole on each rank (reduce-scattered at the step)",
    "muon_momentum": "fp32, 4 B a matrix parameter, over the ranks",
    "adamw_moments": "two fp32 moments, 8 B a parameter of tables, head and scalars, over the ranks",
    "compute_weights": "copies in compute precision that the backward pass keeps",
    "activations": "what autograd keeps per layer and token",
    "loss": "one chunk of logits, and the gradient of the last hidden states",
    "optimizer_workspace": "what the optimizer step needs beyond the freed activations",
    "device": "CUDA context, workspaces, communicators; on a CPU the process itself",
    "fragmentation": "reserved over allocated",
}


def components(shape: GPTShape, layout: Layout, constants: Constants) -> dict[str, float]:
    """GiB of each component on one rank at the step's peak; their sum is the peak."""
    element = 4 if layout.precision == "fp32" else 2
    other = shape.parameters - shape.matrix_parameters
    saved = {
        "activations": _activation_bytes(shape, layout, constants, element),
        "compute_weights": _copies_bytes(shape, layout, element),
        "loss": _loss_bytes(shape, layout, constants, element),
    }
    held = {
        "weights": 4.0 * shape.parameters,
        "gradients": 4.0 * shape.parameters,
        "muon_momentum": 4.0 * shape.matrix_parameters / layout.ranks,
        "adamw_moments": 8.0 * other / layout.ranks,
        **saved,
        # Activations are gone when the optimizer runs: only what it needs beyond them adds to the peak.
        "optimizer_workspace": max(0.0, _optimizer_bytes(shape, layout) - sum(saved.values())),
    }
    gib = {name: size / GIB for name, size in held.items()}
    if layout.device == "cpu":
        return gib | {"device": constants.cpu_context_gib}
    gib["device"] = constants.context_gib + constants.workspace_gib + (constants.nccl_gib if layout.ranks > 1 else 0.0)
    gib["fragmentation"] = constants.fragmentation * sum(size / GIB for size in held.values())
    return gib


def _copies_bytes(shape: GPTShape, layout: Layout, element: int) -> float:
    """bf16 copies of what is multiplied; with fp8 the blocks' matrices also in 8 bits, in both orders."""
    if element == 4:
        return 0.0
    return 2.0 * (shape.matrix_parameters + shape.head_parameters) + (
        2.0 * shape.matrix_parameters if layout.precision == "fp8" else 0.0
    )


def _activation_bytes(shape: GPTShape, layout: Layout, constants: Constants, element: int) -> float:
    kv_share = shape.kv_dim / shape.dim
    # Of saved_dims, k before and after RoPE and v have the width of the key/value heads.
    dims = shape.dim * (constants.saved_dims - 3 + 3 * kv_share)
    hidden = shape.hidden * (constants.saved_hidden + (1 if shape.mlp == "swiglu" else 0))
    per_layer = element * (dims + hidden) + 4 * shape.heads  # + log-sum-exp of attention
    values = element * shape.kv_dim * len(shape.value_layers)
    factor = 1.0 if layout.compile else constants.eager_factor
    return layout.micro_tokens * (factor * (shape.layers * per_layer + values) + 2 * element * shape.dim)


def _loss_bytes(shape: GPTShape, layout: Layout, constants: Constants, element: int) -> float:
    chunk = min(constants.loss_chunk_tokens, layout.micro_tokens) * shape.padded_vocab * constants.logit_bytes * element / 2
    return chunk + element * layout.micro_tokens * shape.dim + 4.0 * shape.head_parameters


def _optimizer_bytes(shape: GPTShape, layout: Layout) -> float:
    """Muon stacks equal matrices: a rank's share of the largest group in fp32 and thrice in bf16, and the exchange's buffer."""
    group = shape.layers * max(shape.dim * shape.hidden, shape.dim * shape.dim)
    share = group / layout.ranks
    exchanged = 4.0 * group if layout.ranks > 1 else 0.0
    return share * (4 + 3 * 2) + exchanged
