"""Engines that answer: how many sequences fit, how fast they are generated, how long new weights take to reach them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from windtunnel.model import HFShape
from windtunnel.recipe import UserError
from windtunnel.rig import Rig

from .constants import HFConstants
from .memory import GIB

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0}
# With fewer sequences at once reading the weights takes most of the time: another GPU per engine is better.
FEW = 8
# GPUs of an engine that are tried: of one node, or of whole ones.
SIZES = (1, 2, 4, 8, 16, 32)


class Asked(Protocol):
    """What engines are asked for: a round of reinforcement learning, or an evaluation. Fields as of `recipe.GRPO`."""

    @property
    def prompts(self) -> int:
        """Different ones."""

    @property
    def samples(self) -> int:
        """Answers to each."""

    @property
    def prompt_tokens(self) -> int:
        """Of a prompt."""

    @property
    def answer_tokens(self) -> int:
        """Most of an answer."""

    @property
    def mean_answer(self) -> float:
        """Mean length of an answer as a share of the most."""

    @property
    def engine_tensor(self) -> int | None:
        """GPUs that share an engine's weights; None: the fewest that do."""

    @property
    def engine_memory(self) -> float:
        """Share of a GPU for weights and KV cache."""

    @property
    def engine_weights(self) -> str:
        """bf16 or fp8."""


@dataclass(frozen=True)
class EnginePlan:
    """What engines of one kind take on `gpus` GPUs, each over `tensor` of them.

    Attributes:
        components: GiB of one GPU. at_once: sequences of mean length that an engine's KV cache holds.
        longest_gib: of KV cache that the longest sequence takes on one GPU.
        prefill, decode: seconds of a round.
    """

    gpus: int
    tensor: int
    components: dict[str, float]
    limit_gib: float
    at_once: float
    longest_at_once: float
    longest_gib: float
    prefill: float
    decode: float

    @property
    def fits(self) -> bool:
        """Whether the longest sequence has room beside the weights."""
        return self.longest_at_once >= 1

    @property
    def seconds(self) -> float:
        """All answers of a round."""
        return self.prefill + self.decode


def plan_engines(
    shape: HFShape, stage: Asked, rig: Rig, gpus: int, c: HFConstants, held_gib: float = 0.0, ahead: int = 0,
    most: int | None = None,
) -> EnginePlan:  # fmt: skip
    """Plan the engines on `gpus` GPUs of a rig: over as few GPUs each as hold weights and a few sequences.

    held_gib: what a learner that takes turns on the same GPUs keeps there meanwhile. ahead: rounds that engines answer ahead of
    the learners. most: GPUs of an engine; None: as many as share the model.

    Raises:
        UserError: engine_tensor does not divide the GPUs or the model, or is more than `most`.
    """
    sizes = [n for n in _sizes(shape, rig) if gpus % n == 0 and n <= (most or gpus)]
    if most is not None and (stage.engine_tensor or 1) > most:
        raise UserError(
            f"stages.rl.engine_tensor: {stage.engine_tensor} GPUs for each engine, and {gpus} are not enough for one a learner",
            f"--set stages.rl.engine_tensor={most}",
        )
    if stage.engine_tensor is not None:
        require_divided(shape, stage.engine_tensor)
        if gpus % stage.engine_tensor:
            raise UserError(
                f"stages.rl.engine_tensor: {stage.engine_tensor} must divide the {gpus} GPUs of the engines",
                f"--set stages.rl.engine_tensor={max(sizes)}",
            )
        return _engine(shape, stage, rig, gpus, stage.engine_tensor, c, held_gib, ahead)
    engines = [_engine(shape, stage, rig, gpus, size, c, held_gib, ahead) for size in sizes]
    # The smallest that is roomy: the same GPUs as more engines talk less among themselves.
    roomy = next((engine for engine in engines if engine.longest_at_once >= FEW), None)
    return roomy or next((engine for engine in reversed(engines) if engine.fits), engines[-1])


def require_divided(shape: HFShape, ranks: int, key: str = "stages.rl.engine_tensor") -> None:
    """Refuse GPUs of an engine that cannot share a model. Raises UserError, by the key that asks for them."""
    if lacking := shape.unshared(ranks):
        fits = max(n for n in range(1, ranks) if not shape.unshared(n))
        raise UserError(f"{key}: {ranks} GPUs cannot share {lacking} of {shape.name} evenly", f"--set {key}={fits}")


def largest_engine(shape: HFShape, stage: Asked, rig: Rig) -> int:
    """Return the most GPUs that an engine may have on a rig: the recipe's, or those that share the model."""
    return stage.engine_tensor or max(_sizes(shape, rig))


def _sizes(shape: HFShape, rig: Rig) -> list[int]:
    per_node = max(1, rig.gpus_per_node)
    whole = [n for n in SIZES if n <= per_node or (n % per_node == 0 and n <= rig.gpus)]
    return [n for n in whole if not shape.unshared(n)]


def _engine(
    shape: HFShape, stage: Asked, rig: Rig, gpus: int, tensor: int, c: HFConstants, held_gib: float, ahead: int
) -> EnginePlan:
    assert rig.gpu is not None
    limit = rig.gpu.memory_gib * stage.engine_memory
    weights = WEIGHT_BYTES[stage.engine_weights] * shape.parameters / tensor / GIB
    fixed = {"engine_weights": weights, "engine_workspaces": c.engine_workspace_gib, "context": c.context_gib}
    if tensor > 1:
        fixed["nccl"] = c.nccl_gib
    if held_gib:
        fixed["learner"] = held_gib
    cache = max(0.0, limit - sum(fixed.values()))
    answer = stage.mean_answer * stage.answer_tokens
    longest = stage.prompt_tokens + stage.answer_tokens
    at_once = cache * GIB * tensor / _cached(shape, stage.prompt_tokens + answer, tensor)
    longest_gib = _cached(shape, longest, tensor) / tensor / GIB
    longest_at_once = cache / longest_gib
    prefill, decode = _generation(shape, stage, rig, gpus // tensor, tensor, max(1.0, at_once), c, ahead)
    return EnginePlan(gpus, tensor, fixed | {"kv_cache": cache}, limit, at_once, longest_at_once, longest_gib, prefill, decode)


def _cached(shape: HFShape, tokens: float, tensor: int) -> float:
    """Bytes of KV cache of one sequence over all GPUs of an engine; what cannot be split lies on each."""
    # Heads of keys and values are split as long as there are some; beyond that, and of a latent, each GPU has its own copy.
    copies = tensor if shape.mla else max(1.0, tensor / shape.kv_heads)
    return shape.kv_bytes(math.ceil(tokens)) * copies


def _generation(
    shape: HFShape, stage: Asked, rig: Rig, engines: int, tensor: int, at_once: float, c: HFConstants, ahead: int
) -> tuple[float, float]:
    """Seconds of prefill and of decoding a round's answers.

    Answers start as others end until the last are under way; then ever fewer remain until the longest is done. Engines that
    are several rounds ahead begin answers of the next round meanwhile.
    """
    assert rig.gpu is not None
    sequences = math.ceil(stage.prompts * stage.samples / engines)
    answer = stage.mean_answer * stage.answer_tokens
    # Answers to one prompt share its prefill.
    prompts = math.ceil(stage.prompts / engines) * stage.prompt_tokens
    prefill = 2.0 * shape.active_parameters * prompts / (tensor * rig.gpu.bf16_tflops * 1e12 * c.generate_efficiency)
    if ahead > 1:
        batch = min(float(sequences * ahead), at_once)
        return prefill, sequences * answer / batch * _token_seconds(shape, stage, rig, tensor, batch, c)
    batch = min(float(sequences), at_once)
    early = (sequences - batch) * answer / batch
    full = _token_seconds(shape, stage, rig, tensor, batch, c)
    thinning = _token_seconds(shape, stage, rig, tensor, max(1.0, batch * stage.mean_answer), c)
    return prefill, early * full + stage.answer_tokens * thinning


def _token_seconds(shape: HFShape, stage: Asked, rig: Rig, tensor: int, batch: float, c: HFConstants) -> float:
    """Return the seconds of one token of `batch` sequences: products or reading weights and KV cache, whichever takes longer."""
    assert rig.gpu is not None
    context = stage.prompt_tokens + stage.mean_answer * stage.answer_tokens / 2
    # Of experts only those are read that some sequence of the batch chose; of few sequences that is a small part.
    used = shape.parameters if shape.experts is None else _touched(shape, batch)
    read = WEIGHT_BYTES[stage.engine_weights] * used + batch * _cached(shape, context, tensor)
    reading = read / tensor / (rig.gpu.bandwidth_gbs * 1e9 * c.decode_bandwidth)
    peak = rig.gpu.fp8_tflops if stage.engine_weights == "fp8" and rig.gpu.fp8_tflops else rig.gpu.bf16_tflops
    computing = 2.0 * shape.active_parameters * batch / (tensor * peak * 1e12 * c.generate_efficiency)
    # A token's sums are a few kilobytes: what they wait for is latency, not bandwidth.
    latency = c.reduce_latency_seconds if tensor <= rig.gpus_per_node else c.node_latency_seconds
    talking = 2 * shape.layers * latency if tensor > 1 else 0.0
    return max(reading, computing) + talking + c.decode_overhead_seconds


def _touched(shape: HFShape, batch: float) -> float:
    """Parameters read for a batch: an expert is read if any of the sequences chose it."""
    assert shape.experts is not None
    # Choices taken as even and independent: uneven ones touch fewer experts, so this is on the slow side.
    missed = (1 - shape.experts.per_token / shape.experts.count) ** batch
    return shape.parameters - shape.expert_parameters * missed


def sync_seconds(shape: HFShape, stage: Asked, rig: Rig, apart: bool, c: HFConstants) -> float:
    """Return the seconds of new weights to every engine: over links inside a node, over the network between nodes."""
    size = WEIGHT_BYTES[stage.engine_weights] * shape.parameters
    # Apart and on several nodes, some engine is on another node than the learners.
    rate = rig.network_gbs if apart and rig.nodes > 1 else rig.link_gbs
    return c.sync_seconds + size / (max(rate, 1.0) * 1e9 * c.sync_efficiency)
