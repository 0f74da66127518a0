"""Held-out questions answered by the model in training: every rank answers its share, rank 0 judges."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from windtunnel.data import PreparedData, Tokenizer
from windtunnel.evaluate import Answered, Completion, Judge, Judging, Question, Questions, generate_answers, held_out_questions
from windtunnel.recipe import Recipe
from windtunnel.run import StopRequest

from .engine import COMPUTE
from .hf import HFEngine, plain_model
from .ranks import Ranks


class Writer(Protocol):
    """Writes greedy answers by the weights as they are, in the middle of training."""

    def __call__(self, questions: Sequence[Question]) -> list[Completion] | None:
        """Answer this rank's questions; None: told to stop. All ranks call it together, also with no question."""


@dataclass(frozen=True)
class ByCopy:
    """Answers as transformers' own model with a copy of the weights, in what training computes in, freed afterwards.

    No random number is drawn that training would have drawn.

    Args:
        engine: whose model is asked.
        tokenizer: of the data.
        ends: tokens that end an answer.
        tokens: most of an answer.
        stop: asked every now and then.
    """

    engine: HFEngine
    ranks: Ranks
    tokenizer: Tokenizer
    ends: frozenset[int]
    tokens: int
    stop: Callable[[], bool]

    def __call__(self, questions: Sequence[Question]) -> list[Completion] | None:
        """See `Writer`."""
        with training_undisturbed(self.ranks.device):
            model = plain_model(self.engine.job, COMPUTE[self.engine.layout.precision])
            made = generate_answers(model, self.tokenizer, questions, self.ends, self.tokens, self.stop)
            del model
        return made


class HeldOutAnswers:
    """Asks the model that is trained; called on all ranks together, between steps.

    Args:
        write: answers.
        questions: what is asked.
        judge: rank 0's; None elsewhere.
        stop: why this process is to stop, if it is: then answering ends at once, and there is no score.
    """

    def __init__(
        self, write: Writer, ranks: Ranks, questions: Questions, judge: Judging | None, stop: StopRequest
    ) -> None:  # fmt: skip
        self._write, self._ranks, self._questions, self._judge, self._stop = write, ranks, questions, judge, stop

    def __call__(self) -> Answered | None:
        """Answer and judge; return None on ranks other than the first."""
        asked = self._questions.asked
        # Dealt out one by one: each rank has as many to write, give or take one.
        mine = self._write(asked[self._ranks.rank :: self._ranks.world])
        stopped = mine is None or self._stop.requested is not None
        said = self._ranks.gather(None if stopped or mine is None else [asdict(one) for one in mine])
        # Answers of a part of the questions are no score: they would be the easier or the harder ones.
        if self._judge is None or None in said:
            return None
        every = [Completion(**said[i % self._ranks.world][i // self._ranks.world]) for i in range(len(asked))]
        return self._judge.judge(asked, every, self._questions.too_long)


@contextlib.contextmanager
def tuned_answers(
    recipe: Recipe, engine: Any, ranks: Ranks, data: PreparedData, stop: StopRequest
) -> Iterator[HeldOutAnswers | None]:
    """Yield what fine-tuning asks of held-out conversations, if anything.

    Raises:
        UserError: there is no held-out conversation to ask, or answers cannot be judged.
    """
    asked = recipe.sft.answers if recipe.sft is not None else None
    if asked is None or asked.every is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        judge = stack.enter_context(Judge(asked)) if ranks.first else None
        questions = held_out_questions(data, recipe, asked.prompts, tokens=asked.tokens)
        write = ByCopy(engine, ranks, data.tokenizer, questions.ends, asked.tokens, lambda: stop.requested is not None)
        yield HeldOutAnswers(write, ranks, questions, judge, stop)


@dataclass
class Memory:
    """What becomes of memory that training did not take.

    Attributes:
        free: it is given back; else it is kept for the next time.
    """

    free: bool = True


@contextlib.contextmanager
def training_undisturbed(device: torch.device) -> Iterator[Memory]:
    """Leave random numbers, threads and memory as training has them."""
    threads, memory = torch.get_num_threads(), Memory()
    # Building a model draws numbers, after which training would not be that of a run without answers.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield memory
    torch.set_num_threads(threads)  # the generator's thread has its own number, which new threads would take over
    if not memory.free:
        return
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
