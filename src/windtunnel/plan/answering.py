"""What `windtunnel evaluate` and `windtunnel predict` take: the package's own decoder, on one GPU or over a node's.

A model that one GPU holds is loaded there in bf16, whatever it was trained beside. Experts in fp8 are shared out over the GPUs of
one node, as in training; what else there is lies on each of them whole. Up to ANSWERED_AT_ONCE questions are answered together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.model import DECODED_BYTES, HFShape
from windtunnel.rig import Rig

from .constants import HFConstants
from .hf_steptime import DECODED_TRAFFIC
from .hf_work import ANSWERED_AT_ONCE, FORMATS
from .memory import GIB
from .rollout import Asked

# Theses that are answered, and kept, before the next ones are begun.
GROUP = 4 * ANSWERED_AT_ONCE
# Of a thesis, by which each of the five actions gets its probability.
SCORING_PASSES = 2
# Up to so many rows an expert on average its codes are multiplied by as they lie, at this share of the memory's bandwidth: 3.05
# TB/s on an H200 for DeepSeek-V3's experts. With more they are written in bf16 first.
FEW_ROWS, FEW_ROWS_BANDWIDTH = 32, 0.64
# What a layer of a step takes beyond that where GPUs share the experts: rows that travel there and back, ranks that wait for one
# another's hosts. Measured on two H200s with one and two layers of DeepSeek-V3 (benchmarks/results/moe-answers-h200.json).
SHARED_LAYER_SECONDS = 0.0103


@dataclass(frozen=True)
class Answering:
    """What answering takes with the package's own decoder.

    Attributes:
        ranks: GPUs that share the model.
        at_once: answers written together, as far as there is memory; 0: the model does not fit.
        weights_gib: of one GPU.
        prompt_seconds, step_seconds: of a pass of one prompt through the model, and of a step of all answers under way.
        prompts, steps: how many of these all questions take; a thesis is read three times.
    """

    ranks: int
    at_once: int
    weights_gib: float
    limit_gib: float
    prompt_seconds: float
    step_seconds: float
    prompts: float
    steps: float

    @property
    def fits(self) -> bool:
        """Whether one answer has room beside the weights."""
        return self.at_once > 0

    @property
    def seconds(self) -> float:
        """All questions, once the model is loaded."""
        return self.prompts * self.prompt_seconds + self.steps * self.step_seconds


def plan_answering(shape: HFShape, asked: Asked, rig: Rig, c: HFConstants, *, shared: bool, scored: bool) -> Answering:
    """Plan all questions, answered by the package's own decoder.

    shared: experts stay in fp8 and are shared out over GPUs of a node. scored: the questions are theses, whose actions get
    probabilities.
    """
    assert rig.gpu is not None
    ranks = math.gcd(shape.experts.count, rig.gpus_per_node) if shared and shape.experts is not None else 1
    coded = shape.expert_parameters if shared else 0
    plain = 2.0 * (shape.parameters - coded)
    weights = (plain + FORMATS["fp8-experts"][0] * coded / ranks) / GIB
    limit = rig.gpu.memory_gib * c.usable_share
    fixed = c.context_gib + c.workspace_gib + (c.nccl_gib if ranks > 1 else 0.0) + (DECODED_BYTES / GIB if coded else 0.0)
    room = (limit - weights - fixed) * GIB
    answer = asked.mean_answer * asked.answer_tokens
    at_once = min(ANSWERED_AT_ONCE, asked.prompts, ranks * max(0, int(room / (2 * _cached(shape, asked.prompt_tokens + answer)))))
    bandwidth = rig.gpu.bandwidth_gbs * 1e9
    reading = plain / (bandwidth * c.decode_bandwidth)

    def one(tokens: float) -> float:
        """Return the seconds of a pass of so many tokens, over all ranks."""
        if not coded:
            launches = 0.0 if shape.same_steps else shape.layers * c.eager_launch_seconds / 2
            return max(reading, launches) + c.decode_overhead_seconds
        # Each layer waits for the host, which must know how many rows come to an expert: what it launches hides behind nothing.
        launches = shape.layers * c.eager_launch_seconds
        traffic, share = _expert_traffic(shape, tokens, rig)
        decoding = traffic * coded / ranks / (bandwidth * (share or c.bandwidth_efficiency))
        return reading + decoding + launches + c.decode_overhead_seconds

    # Keys and values of the answers under way, each half written.
    cache = at_once / ranks * _cached(shape, asked.prompt_tokens + answer / 2) / (bandwidth * c.decode_bandwidth)
    prompts = asked.prompts * (1 + SCORING_PASSES * scored)
    step = one(at_once) + cache + (shape.layers * SHARED_LAYER_SECONDS if ranks > 1 else 0.0)
    steps = _steps(asked.prompts, at_once, answer, asked.answer_tokens, GROUP if scored else asked.prompts)
    return Answering(ranks, at_once, weights, limit, one(asked.prompt_tokens), step, prompts, steps)


def _expert_traffic(shape: HFShape, tokens: float, rig: Rig) -> tuple[float, float | None]:
    """Return bytes moved for each weight of the experts by so many tokens, and at which share of the bandwidth if it is known."""
    assert shape.experts is not None
    assert rig.gpu is not None
    chosen = shape.experts.per_token / shape.experts.count
    # Triton reads e4m3 from this capability on.
    if tokens * chosen > FEW_ROWS or rig.gpu.capability < (8, 9):
        return DECODED_TRAFFIC, None
    return 1 - (1 - chosen) ** tokens, FEW_ROWS_BANDWIDTH


def _cached(shape: HFShape, tokens: float) -> float:
    """Bytes of keys and values of a sequence as transformers keeps them: of every head, latent ones too, in bf16."""
    return 2.0 * tokens * sum(count * (block.k_dim + block.v_dim) for block, count in shape.kinds.items())


def _steps(questions: int, at_once: int, mean: float, longest: float, group: int) -> float:
    """Return the steps of decoding: others begin as some end, until the last of a group are under way."""
    steps, left = 0.0, questions
    while left > 0 and at_once > 0:
        here = min(group, left)
        steps += max(0, here - at_once) / at_once * mean + longest
        left -= here
    return steps
