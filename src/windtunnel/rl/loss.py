"""The policy's loss of each token: clipped ratio times advantage, corrected for the sampler, and the distance from a reference.

Written as functions of the tokens' log-probabilities that autograd differentiates; the head's pass asks for both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from windtunnel.recipe import GRPO

GATES = 1.0, 1.05
"""How steep SAPO's gate is for tokens of better and of worse answers."""


@dataclass(frozen=True)
class Tokens:
    """What the loss knows of answers' tokens, all (n,) fp32; prompts' tokens have weight 0.

    Attributes:
        weight: of the token's loss in the sum.
        advantage: of its answer.
        sampler: the log-probability that it was drawn with.
        old: the policy's before the round's first update; None: the policy has not changed since, and what it gives now is it.
        reference: the reference policy's; None: there is none.
        moved: of GSPO, the mean over the token's answer of what the policy gives before the update less `old`; None: 0.
    """

    weight: Tensor
    advantage: Tensor
    sampler: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    moved: Tensor | None = None

    def at(self, places: Tensor) -> Tokens:
        """Return some of them."""
        chosen: dict[str, Any] = {f.name: None if (t := getattr(self, f.name)) is None else t[places] for f in fields(self)}
        return Tokens(**chosen)


@dataclass(frozen=True)
class LossSettings:
    """How tokens are weighed.

    Attributes:
        form: what a ratio of new to old probability does. clip: it is clipped at 1 - low and 1 + high (PPO; clip-higher, DAPO,
            arXiv:2503.14476); weight: it is a weight without gradient, at most 1 + high (CISPO, MiniMax-M1, arXiv:2506.13585);
            gate: a sigmoid takes the clip's place (SAPO, arXiv:2511.20347).
        whole: an answer's tokens share the geometric mean of their ratios (GSPO, arXiv:2507.18071).
        low, high: see `form`.
        kl: weight of Schulman's k3 estimate of the divergence from the reference.
        mismatch: what to do where the policy gives a token another probability than the sampler did. truncate: its weight is
            their ratio, at most `cap` (truncated importance sampling, fengyao.notion.site/off-policy-rl); mask: its weight is the
            ratio within `band` and 0 outside (IcePop); ignore: 1.
    """

    form: Literal["clip", "weight", "gate"] = "clip"
    whole: bool = False
    low: float = 0.2
    high: float = 0.2
    kl: float = 0.0
    mismatch: Literal["truncate", "mask", "ignore"] = "ignore"
    cap: float = 2.0
    band: tuple[float, float] = (0.5, 5.0)

    @classmethod
    def of(cls, stage: GRPO) -> LossSettings:
        """Return those of a stage."""
        high = stage.clip if stage.clip_higher is None else stage.clip_higher
        form: Literal["clip", "weight", "gate"] = {"cispo": "weight", "sapo": "gate"}.get(stage.loss, "clip")  # type: ignore[assignment]
        return cls(
            form, stage.loss == "gspo", stage.clip, high, stage.kl, stage.mismatch, stage.mismatch_cap, stage.mismatch_band
        )


def token_losses(new: Tensor, tokens: Tokens, settings: LossSettings) -> Tensor:
    """Return the losses (n,) of tokens, without their weights; differentiable in `new`, their log-probabilities (n,)."""
    old = new.detach() if tokens.old is None else tokens.old
    ratio = ratios(new, old, tokens, settings)
    if settings.form == "weight":
        losses = -ratio.clamp(max=1 + settings.high).detach() * tokens.advantage * new
    elif settings.form == "gate":
        # A sigmoid rises by steep / 4 at its middle: with 4 / steep the gradient at ratio 1 is that of the plain ratio.
        steep = torch.where(tokens.advantage > 0, *GATES)
        losses = -torch.sigmoid(steep * (ratio - 1)) * 4 / steep * tokens.advantage
    else:
        # The worse of both: the clip ends what there is to gain, but not the way back from a ratio that went wrong.
        clipped = ratio.clamp(1 - settings.low, 1 + settings.high)
        losses = -torch.min(ratio * tokens.advantage, clipped * tokens.advantage)
    if settings.mismatch != "ignore":
        losses = losses * sampler_weights(old, tokens.sampler, settings)
    if settings.kl and tokens.reference is not None:
        # With the ratio its gradient is that of the divergence; the estimate's own is not (DeepSeek-V3.2, arXiv:2512.02556).
        losses = losses + settings.kl * torch.exp(new - old) * k3(new, tokens.reference)
    return losses


def ratios(new: Tensor, old: Tensor, tokens: Tokens, settings: LossSettings) -> Tensor:
    """Return ratios of new to old probability; 1 in a round's only update, where just their gradient counts."""
    if not settings.whole:
        return torch.exp(new - old)
    # Of one value for all tokens of an answer, and each with its own gradient.
    moved = torch.zeros_like(new) if tokens.moved is None else tokens.moved
    return torch.exp(new - new.detach() + moved)


def answer_means(values: Tensor, owner: Tensor) -> Tensor:
    """Return at each position (n,) the mean of its answer's values; 0 where the owner is -1."""
    numbers, which = torch.unique(owner, return_inverse=True)
    mine = torch.arange(len(numbers), device=owner.device)[:, None] == which  # sums of rows are the same each time on a GPU too
    means = (mine * values).sum(1) / mine.sum(1)
    return torch.where(owner >= 0, means[which], 0.0)


def sampler_weights(old: Tensor, sampler: Tensor, settings: LossSettings) -> Tensor:
    """Return what tokens weigh because the policy would have drawn them with another probability than the sampler did."""
    # By the policy before the round's updates: what the updates change is the clip's business.
    ratio = torch.exp(old - sampler)
    if settings.mismatch == "mask":
        low, high = settings.band
        return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
    return ratio.clamp(max=settings.cap) if settings.mismatch == "truncate" else torch.ones_like(ratio)


def k3(new: Tensor, other: Tensor) -> Tensor:
    """Return Schulman's estimate of KL(new || other) at tokens drawn from `new` (joschu.net/blog/kl-approx.html)."""
    # Never below zero, and of less variance than the plain difference of log-probabilities.
    difference = other - new
    return torch.exp(difference) - difference - 1


@dataclass
class PolicyLoss:
    """The loss of one micro-batch, as the head asks for it; see `windtunnel.train.TokenObjective`.

    Attributes:
        tokens: of every position of the micro-batch, flattened.
        share: what the micro-batch adds to the number by which the sum over a step is divided.
        seen: (n,) log-probabilities of all positions as the forward pass gave them, 0 where nothing was asked.
        owner: (n,) int64, the answer that a position's target belongs to; -1: it has none.
        clipped: tokens whose gradient was cut off by the clip, on the device; None: of this form there is none.
    """

    tokens: Tokens
    settings: LossSettings
    share: float
    owner: Tensor

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self.seen = torch.zeros_like(self.tokens.weight)
        self.clipped = torch.zeros((), device=self.seen.device) if self.settings.form == "clip" else None

    @property
    def scored(self) -> Tensor:
        """Return (n,) bool, the positions of answers' tokens, learned from or not."""
        return self.owner >= 0

    def __call__(self, log_probabilities: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted losses of the tokens at these positions, and their derivatives."""
        tokens = self.tokens.at(at)
        with torch.enable_grad():
            new = log_probabilities.detach().requires_grad_()
            losses = tokens.weight * token_losses(new, tokens, self.settings)
            (slope,) = torch.autograd.grad(losses.sum(), new)
        # The metrics of the round need them, and a pass of its own would cost as much as this one.
        self.seen[at] = log_probabilities.detach()
        if tokens.old is not None and self.clipped is not None:
            ratio = ratios(log_probabilities, tokens.old, tokens, self.settings)
            # Only towards what the advantage asks for: on the way back nothing is clipped.
            cut = torch.where(tokens.advantage > 0, ratio > 1 + self.settings.high, ratio < 1 - self.settings.low)
            self.clipped += (cut & (tokens.weight > 0) & (tokens.advantage != 0)).sum()
        return losses.detach(), slope
