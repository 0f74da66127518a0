"""The recursive GPT: blocks applied again and again, an answer after every supervision step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from windtunnel.recipe import MOST_SUPERVISION, UserError

from .fused import wide
from .gpt import GPT, Attend, Attention, Write, fp8_now, write_whole
from .loss import capped_cross_entropy
from .products import stacked
from .residual import last_norm
from .schemes import SCHEMES, Carry, Inputs, again, application, post_norm
from .shape import GPTShape, RecursionShape

RECOMPUTE = ("none", "step", "block")
# Initially nothing is held to be solved (Samsung's Tiny Recursive Model).
HALT_BIAS = -5.0


class RecursiveGPT(GPT):
    """A GPT that recurses as its shape says; see `windtunnel.model.schemes`. Built by `build_model`.

    Args:
        recompute: what is computed again in the backward pass: 'none'; 'step': all of a supervision step but the states
            at its border; 'block': all of one application of a block (layerwise) or of the stack (others) but its input.

    Attributes:
        supervision: supervision steps where none are asked for; first as many as trained.
    """

    def __init__(self, shape: GPTShape, compute: torch.dtype = torch.float32, recompute: str = "none") -> None:
        super().__init__(shape, compute)
        assert shape.recursion is not None
        assert recompute in RECOMPUTE, recompute
        assert shape.mixes_embedding or not shape.value_layers, "only the looped scheme has value embeddings"
        self.recompute = recompute
        self.supervision = shape.recursion.supervision
        if self.recursion.halting:
            self.halt_weight = nn.Parameter(torch.empty(shape.dim))
            self.halt_bias = nn.Parameter(torch.empty(1))
        self._step = SCHEMES[self.recursion.scheme]
        # What is compiled, or computed again: the largest piece of a scheme that is the same every time.
        units: dict[str, Callable[..., Any]] = {"layerwise": application, "two_latent": post_norm, "looped": GPT.stack}
        self._whole = units[self.recursion.scheme]

    @property
    def recursion(self) -> RecursionShape:
        """Tell how often blocks are applied."""
        assert self.shape.recursion is not None
        return self.shape.recursion

    @torch.no_grad()
    def initialise(self, seed: int, write: Write = write_whole) -> None:
        """Set initial weights, those of the plain GPT; the halting head says that nothing is solved."""
        super().initialise(seed, write)
        if self.recursion.halting:
            write(self.halt_weight, torch.zero_)
            write(self.halt_bias, lambda whole: whole.fill_(HALT_BIAS))

    def compile(self, *_: object, **__: object) -> None:
        """Compile what is applied again and again, once, on CPUs; on GPUs it consists of fused kernels already."""
        if self.head.weight.device.type == "cpu":
            self._whole = torch.compile(self._whole, dynamic=False)

    def unit(self, attention: Attend | None) -> Callable[..., Any]:
        """Return what a scheme applies: f of a block (layerwise) or of the stack; recomputed if recompute is 'block'."""
        run = attention or self.attention
        on = self.recompute == "block"
        if self.recursion.scheme == "layerwise":
            return lambda block, u, same: again(on, self._whole, block, u, same, run)
        if self.recursion.scheme == "two_latent":
            return lambda u: again(on, self._whole, self, u, run)
        return lambda y, first, extras: again(on, self._whole, self, y, first, extras, run)

    @contextlib.contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Let all applications of a block use one copy of its weights in the compute dtype; weights may not change."""
        self.refresh()
        parts = list(self.parts()) if self.head.weight.is_cuda else []
        for part in parts:
            for name, weights in part.products().items():
                # The gate's product reads the input's first channels, and goes with its own weights.
                gated = isinstance(part, Attention) and part.value_gate is not None and name == "qkv"
                if not fp8_now(part, name) and not gated:
                    part.prepared[name] = stacked(weights, self.compute)
        try:
            yield
        finally:
            for part in parts:
                part.prepared.clear()

    def read(self, idx_BT: Tensor) -> Inputs:
        """Turn tokens into what the recursion works on."""
        embedded, extras = self.look_up(idx_BT)
        return Inputs(last_norm(embedded, None), extras)

    def begin(self, inputs: Inputs) -> Carry:
        """Return the states before the first supervision step: the answer is the embeddings, the latent state zero."""
        first = inputs.first
        # A latent state of zero says nothing yet; the embeddings are the first guess at an answer.
        return (first,) if self.recursion.scheme == "looped" else (first, torch.zeros_like(first))

    def advance(self, inputs: Inputs, carry: Carry, attention: Attend | None = None) -> Carry:
        """Take one supervision step."""
        after: Carry = again(self.recompute == "step", self._step, self, inputs, carry, attention)
        return after

    def answer(self, carry: Carry) -> Tensor:
        """Return the states that the head reads (B, T, C), normed."""
        return carry[0] if self.recursion.scheme == "looped" else last_norm(carry[0], None)

    def halting(self, answer_BTC: Tensor) -> Tensor:
        """Return the logits (B,) fp32 of every target of a sequence being answered right, from its mean state."""
        return (wide(answer_BTC).mean(1) * self.halt_weight).sum(-1) + self.halt_bias

    def answers(self, idx_BT: Tensor, supervision: int | None = None) -> Iterator[Tensor]:
        """Yield the answer's states (B, T, C) after each supervision step."""
        with self.shared_weights():
            inputs = self.read(idx_BT)
            carry = self.begin(inputs)
            for _ in range(supervision or self.supervision):
                carry = self.advance(inputs, carry)
                yield self.answer(carry)

    def forward(
        self, idx_BT: Tensor, targets_BT: Tensor | None = None, reduction: str = "mean", supervision: int | None = None
    ) -> Tensor:
        """Return logits (B, T, vocab) or the true cross-entropy of the last supervision step, as the plain GPT's.

        It is not the objective of training, which `train_supervised` computes.

        Args:
            idx_BT: token ids (B, T).
            targets_BT: the tokens to be predicted (B, T), -1 where there is none; None: logits are wanted.
            reduction: 'mean' over targets, 'sum', or 'none' for (B, T).
            supervision: supervision steps, also more than were trained; None: as many as `self.supervision` says.
        """
        # The earlier answers are let go as they come: a list would keep the states of all supervision steps.
        (x,) = deque(self.answers(idx_BT, supervision), maxlen=1)
        return self._scored(x, targets_BT, reduction)

    @torch.no_grad()
    def step_losses(self, idx_BT: Tensor, targets_BT: Tensor, supervision: int | None = None) -> Tensor:
        """Return the nats of each supervision step (N, B, T), 0 where there is no target."""
        head, vocab, softcap = self.head.weight, self.shape.vocab, self.shape.softcap
        answers = self.answers(idx_BT, supervision)
        return torch.stack([capped_cross_entropy(x, head, targets_BT, vocab, softcap)[0] for x in answers])

    @torch.no_grad()
    def solve_steps(self, idx_BT: Tensor, supervision: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the likeliest tokens after each supervision step (N, B, T), and the halting logits (N, B) or None."""
        tokens, halting = [], []
        for x in self.answers(idx_BT, supervision):
            tokens.append(self.logits(x).argmax(-1))
            if self.recursion.halting:
                halting.append(self.halting(x))
        return torch.stack(tokens), torch.stack(halting) if halting else None


def use_supervision(model: GPT, steps: int | None) -> str | None:
    """Use a model with `steps` supervision steps, None for as many as it has been given.

    Returns:
        What to tell whoever uses it, where it recurses.

    Raises:
        UserError: the model does not recurse, or `steps` is no number of steps.
    """
    if not isinstance(model, RecursiveGPT):
        if steps is not None:
            raise UserError(f"--supervision {steps}: this model does not recurse", "leave --supervision out")
        return None
    if steps is not None:
        if not 1 <= steps <= MOST_SUPERVISION:
            raise UserError(f"--supervision {steps}: expected 1 to {MOST_SUPERVISION} supervision steps")
        model.supervision = steps
    used, trained = model.supervision, model.recursion.supervision
    return f"{used} supervision step{'s' if used > 1 else ''}" + ("" if used == trained else f" (trained with {trained})")
