"""A canary: a few sequences that the learner scored. It travels with the weights, and an engine must score it alike.

It catches what no checksum does: an engine that reports success and computes something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windtunnel.train import HFJob

from .mismatch import Mismatch, measure_mismatch

# Nats, mean and largest, over the canary's tokens. Scale models of all families that the trainer takes differ by 3e-7 and 1e-6
# in fp32, by 4e-3 and 0.09 in bf16: there merged adapters are rounded, and a router now and then chooses another expert.
TOLERANCE = {torch.float32: (1e-5, 1e-3), torch.bfloat16: (0.02, 0.5)}
# Of a trained model random tokens have logits of 20 to 40, of which bf16 keeps a tenth: SmolLM2-135M and vLLM differed by
# 0.097 and 0.49 on an H100 with the same weights. So an engine's first version may differ by more, and how far it does says
# how far apart the two are: every later version may differ by twice that on average, and by four times that at its worst token.
# The worst of some hundred tokens is a matter of luck: a right second version had 2.3 nats after 1.15 on an H100, at 0.079 on
# average after 0.07. One matrix that is missing moves the average tenfold.
FIRST_TOLERANCE = {torch.float32: TOLERANCE[torch.float32], torch.bfloat16: (0.25, 3.0)}


@dataclass(frozen=True)
class Canary:
    """Sequences and what the learner makes of them.

    Attributes:
        tokens: (B, T) int64. log_probabilities: (B, T - 1) fp32, of each token but the first given those before it.
        mean, largest: nats by which an engine may differ.
    """

    tokens: Tensor
    log_probabilities: Tensor
    mean: float
    largest: float

    def compare(self, engine: Tensor) -> tuple[Mismatch, bool]:
        """Return an engine's log-probabilities against the learner's, and whether they agree."""
        found = measure_mismatch(self.log_probabilities, engine)
        return found, found.mean <= self.mean and found.largest <= self.largest

    def as_json(self) -> dict[str, Any]:
        """Return JSON that `from_json` reads; fp32 survives exactly."""
        lists = {"tokens": self.tokens.tolist(), "log_probabilities": self.log_probabilities.double().tolist()}
        return lists | {"mean": self.mean, "largest": self.largest}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Canary:
        """Read one from JSON values; raise KeyError, TypeError or ValueError for what is no canary."""
        tokens = torch.tensor(value["tokens"], dtype=torch.int64)
        scores = torch.tensor(value["log_probabilities"], dtype=torch.float32)
        if tokens.dim() != 2 or scores.shape != (tokens.size(0), tokens.size(1) - 1):
            raise ValueError(f"a canary of {tuple(tokens.shape)} tokens with {tuple(scores.shape)} log-probabilities")
        return Canary(tokens, scores, float(value["mean"]), float(value["largest"]))


@torch.no_grad()
def score(job: HFJob, tokens: Tensor) -> Tensor:
    """Return the learner's log-probabilities of tokens (B, T) int64, each given those before it: (B, T - 1) fp32 on the host.

    Without dropout, which engines do not have either. All ranks must call it together.
    """
    tokens = tokens.to(job.ranks.device)
    network = job.network
    training, temperature = network.training, network.temperature
    # Dropout would give another score each time, which no engine could match.
    network.eval()
    network.temperature = 1.0  # whatever answers are drawn at
    losses = network(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())[0]
    network.train(training)
    network.temperature = temperature
    return -losses.float().cpu()


def tolerance_after(computed: torch.dtype, seen: Mismatch | None) -> tuple[float, float]:
    """Return the nats, mean and largest, by which an engine may differ.

    Args:
        computed: the dtype that learner and engine compute in.
        seen: how far it was apart on its first version; None: this is the first.
    """
    if seen is None:
        return FIRST_TOLERANCE[computed]
    mean, largest = TOLERANCE[computed]
    return max(mean, 2 * seen.mean), max(largest, 4 * seen.largest)


def make_canary(job: HFJob, tokens: Tensor, tolerance: tuple[float, float]) -> Canary:
    """Return the learner's canary. All ranks must call it together.

    Args:
        job: the learner.
        tokens: (B, T) int64, the sequences to score.
        tolerance: nats, mean and largest, by which an engine may differ.
    """
    mean, largest = tolerance
    return Canary(tokens.cpu(), score(job, tokens), mean, largest)
