"""Deep supervision: the loss after every supervision step, and its gradients, in as little memory as detaching allows.

    w_i = b^i / sum_j b^j
    L = (1/N) (sum_i w_i l_i - s sum_{i>0} (l_{i-1} - l_i) / (l_{i-1} + 1e-8)),  l_{i-1} taken as a constant

l_i is the mean cross-entropy of a micro-batch after supervision step i of N. Without the reward (s = 0) gradients do not
depend on how a batch is cut into micro-batches; the reward is relative to each micro-batch's own loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.recipe import ResolvedRecursion

from .loss import scored_cross_entropy
from .recording import Replay
from .recursive import RecursiveGPT
from .schemes import Carry, Inputs

Batches = Iterable[Iterable[Tensor]]
TINY = 1e-8


@dataclass(frozen=True)
class Objective:
    """How supervision steps are scored.

    Attributes:
        weights: w_i of each supervision step; their sum is 1.
        improvement_reward: s.
        detach_from: states are detached after supervision steps of this number and above, counted from 0.
        updates: 'once' a batch, or after 'each' supervision step. With 'each' states are always detached, and an update's
            loss is N^2 times its term of L, so that equal weights make it plain cross-entropy.
        halting_weight: of the halting head's cross-entropy beside l_i.
    """

    weights: tuple[float, ...]
    improvement_reward: float
    detach_from: int
    updates: str
    halting_weight: float = 0.5


def objective_of(recursion: ResolvedRecursion, supervision: int | None = None) -> Objective:
    """Return the objective of a recipe's `trm` section, in which the preset is resolved.

    Args:
        recursion: the section, resolved.
        supervision: supervision steps; None: the section's.
    """
    base, reward, detach, updates = (
        recursion.weight_base, recursion.improvement_reward, recursion.detach_from, recursion.updates,
    )  # fmt: skip
    count = supervision or recursion.supervision
    # The largest exponent is 0, so that no base overflows.
    raw = [base ** (i - (count - 1 if base > 1 else 0)) for i in range(count)]
    return Objective(tuple(w / sum(raw) for w in raw), reward, detach, updates)


@dataclass
class SupervisedSums:
    """Sums over the micro-batches seen, float64 on the device; N supervision steps.

    Attributes:
        losses: (N,) true cross-entropy in nats; divide by `targets`.
        targets: targets counted.
        objective: L of each micro-batch times its targets; divide by `targets`. Not a cross-entropy.
        halting: (N,) the halting head's cross-entropy; solved: (N,) sequences answered right; judged: (N,) sequences of
            which the halting head told so or not rightly. Divide by `sequences`. Zero without a halting head.
    """

    losses: Tensor
    targets: Tensor
    objective: Tensor
    halting: Tensor
    solved: Tensor
    judged: Tensor
    sequences: int = 0


def train_supervised(
    model: RecursiveGPT,
    batches: Batches,
    objective: Objective,
    *,
    scale: float,
    after_step: Callable[[int], None] | None = None,
) -> SupervisedSums:
    """Run forward, loss and backward over micro-batches and supervision steps; add to the gradients that are there.

    Args:
        model: the recursive model.
        objective: what the loss is made of.
        batches: (x, y), each (B, T); y is -1 where there is no target.
        scale: factor of every micro-batch's L times its targets: 1 / targets of the whole batch.
        after_step: with updates='each', called after supervision step i of all micro-batches: update the weights there.
    """
    return Supervision(model, objective, scale).step(batches, after_step)


class Supervision:
    """Deep supervision of a model, step by step.

    Args:
        scale: factor of every micro-batch's L times its targets: 1 / targets of the whole batch.
        run: runs the work of a micro-batch, or of one supervision step of it; see `windtunnel.model.recording`.
    """

    def __init__(self, model: RecursiveGPT, objective: Objective, scale: float, run: Replay | None = None) -> None:
        self.model, self.objective, self.scale = model, objective, scale
        self.count = len(objective.weights)
        self._run = run or Replay()
        # One tensor for all sums: they are zeroed at once, and lie where recorded work finds them.
        self._numbers = torch.zeros(4 * self.count + 2, dtype=torch.float64, device=model.head.weight.device)
        losses, halting, solved, judged = self._numbers[:-2].view(4, self.count)
        self.sums = SupervisedSums(losses, self._numbers[-2], self._numbers[-1], halting, solved, judged)
        # What an update after each supervision step leaves for the next one.
        self._states: tuple[Tensor, ...] = ()

    def step(self, batches: Batches, after_step: Callable[[int], None] | None = None) -> SupervisedSums:
        """Forward, loss and backward; see `train_supervised`. The sums are valid until the next step."""
        self._numbers.zero_()
        self.sums.sequences = 0
        if self.objective.updates == "each":
            self._each([(x, y) for x, y in batches], after_step)
        else:
            for x, y in batches:
                self.sums.sequences += len(x)
                self.model.refresh()  # what is recorded finds weights quantised
                self._run("once", self._once, x, y)
        return self.sums

    def _once(self, x: Tensor, y: Tensor) -> None:
        """Take all supervision steps of a micro-batch; each stretch between detached states goes backward as soon as it ends."""
        cuts = range(self.objective.detach_from, self.count - 1)
        with self.model.shared_weights():
            read = self.model.read(x)
            # Embeddings are read by every stretch: their own gradients wait for the last.
            inputs = _leaves(read) if cuts else read
            carry = self.model.begin(inputs)
            before: Tensor | None = None
            pending: Tensor | None = None
            self.sums.targets += (y >= 0).sum()
            for i in range(self.count):
                carry = self.model.advance(inputs, carry)
                loss, before = self._loss(i, carry, y, before)
                pending = loss if pending is None else pending + loss
                if i in cuts:
                    pending.backward()
                    # The graph of the stretch is gone with its backward pass: memory holds one stretch at a time.
                    carry, pending = tuple(t.detach() for t in carry), None
            assert pending is not None
            del carry
            pending.backward()
            if cuts:
                _backward(read, inputs)

    def _each(self, batches: list[tuple[Tensor, Tensor]], after_step: Callable[[int], None] | None) -> None:
        """Go supervision step by supervision step, all micro-batches in each; the detached states wait in between."""
        waiting: list[tuple[Tensor, ...]] = [()] * len(batches)
        self.sums.sequences = sum(len(x) for x, _ in batches)
        for i in range(self.count):
            self.model.refresh()
            for j, (x, y) in enumerate(batches):
                self._run(("each", i), partial(self._one, i), x, y, *waiting[j])
                # Of several micro-batches each needs its own until its turn comes again: the places are shared.
                waiting[j] = self._states if len(batches) == 1 else tuple(t.clone() for t in self._states)
            if after_step is not None:
                after_step(i)

    def _one(self, i: int, x: Tensor, y: Tensor, *states: Tensor) -> None:
        """Take supervision step i of a micro-batch. states: what the step before left, the last of them its loss."""
        if i == 0:
            self.sums.targets += (y >= 0).sum()
        with self.model.shared_weights():
            inputs = self.model.read(x)
            carry, before = (states[:-1], states[-1]) if states else (self.model.begin(inputs), None)
            after = self.model.advance(inputs, carry)
            loss, value = self._loss(i, after, y, before)
            (loss * self.count**2).backward()
            self._leave(*after, value)  # only now: in their places lie the states that this step began with

    def _leave(self, *states: Tensor) -> None:
        """Put them where the next supervision step finds them, whatever runs it."""
        if [t.shape for t in self._states] != [t.shape for t in states]:
            self._states = tuple(torch.empty_like(t) for t in states)
        for place, state in zip(self._states, states, strict=True):
            place.copy_(state.detach())

    def _loss(self, i: int, carry: Carry, y: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what supervision step i adds to the objective, times `scale` and the targets; and l_i, detached."""
        model, o, sums = self.model, self.objective, self.sums
        answer = model.answer(carry)
        halting = model.recursion.halting
        _, hits, total = scored_cross_entropy(
            answer, model.head.weight, y, model.shape.vocab, model.shape.softcap, hits=halting
        )  # fmt: skip
        valid = y >= 0
        targets = valid.sum()
        value = total.detach() / targets.clamp(min=1)
        sums.losses[i] += total.detach()
        loss = o.weights[i] * total
        constant = torch.zeros_like(value)
        if before is not None and o.improvement_reward:
            # The derivative of -s (before - l) / before, in which `before` is a constant: s / before for each nat.
            slope = o.improvement_reward / (before + TINY)
            loss = loss + slope * total
            constant = slope * before * targets
        if hits is not None:
            loss = loss + o.weights[i] * o.halting_weight * targets * self._halting(i, model.halting(answer), hits | ~valid)
        loss = loss / self.count
        sums.objective += loss.detach() - constant / self.count
        return loss * self.scale, value

    def _halting(self, i: int, logits: Tensor, right: Tensor) -> Tensor:
        """Return the cross-entropy of the halting head, mean over sequences."""
        solved = right.all(-1)
        each = F.binary_cross_entropy_with_logits(logits, solved.float(), reduction="sum")
        self.sums.halting[i] += each.detach()
        self.sums.solved[i] += solved.sum()
        self.sums.judged[i] += ((logits.detach() > 0) == solved).sum()
        return each / len(logits)


def _leaves(read: Inputs) -> Inputs:
    return Inputs(read.first.detach().requires_grad_(), [e.detach().requires_grad_() for e in read.extras])


def _backward(read: Inputs, leaves: Inputs) -> None:
    """Hand the gradients that the leaves have gathered on to the embeddings."""
    # Every stretch has added to the leaves; the embeddings' own backward pass is done once.
    pairs = zip([read.first, *read.extras], [leaves.first, *leaves.extras], strict=True)
    with_gradient = [(t, leaf.grad) for t, leaf in pairs if leaf.grad is not None]
    torch.autograd.backward([t for t, _ in with_gradient], [grad for _, grad in with_gradient])
