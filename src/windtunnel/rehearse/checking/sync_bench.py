"""A learner of the scale model and an engine in another process, with what lies between them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import model_causal
from .context import Context
from .sync_faults import watched_publisher
from .types import CheckFailed, Say

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from windtunnel.rl import EngineProcess, Mismatch, Publisher, Receipt
    from windtunnel.train import CausalJob

NOISE = 0.02
"""Added to every weight, so that none is silent: biases and fresh adapters begin at zero, norms at one."""
RATE, LEAST_STEPS, MOST_STEPS = 3e-3, 3, 30
"""A small adapter needs more steps than a few until its learner stands apart from the engine."""
STALE = 3.0
"""Before a sync learner and engine must differ by so many times what they may differ by after it."""
ANSWERS, PROMPT, NEW = 3, 8, 24
LIMIT = 200.0


@dataclass(frozen=True)
class Bench:
    """What a round of the check works with.

    Attributes:
        canary: (4, 64) random tokens. allowed: nats by which learner and engine may differ on average over it.
        cut_off: the publisher leaves here what is on the disk in the middle of a publication.
    """

    job: CausalJob
    engine: EngineProcess
    publisher: Publisher
    dtype: torch.dtype
    folder: Path
    canary: Tensor
    allowed: float
    seed: int
    say: Say

    @property
    def cut_off(self) -> Path:
        """Where the watched publisher leaves its photographs."""
        return self.folder / "cut-off"

    def publish(self, version: int) -> Path:
        """The learner's weights as they are now. Raises CheckFailed."""
        from windtunnel.rl import publish_weights

        self.say(f"version {version} of the weights, {self.dtype}")
        try:
            path = publish_weights(self.job, self.publisher, version, dtype=self.dtype, canary=self.canary, compute=self.dtype)
        except RuntimeError as error:
            raise CheckFailed(str(error)) from None
        assert path is not None
        return path

    def load(self, path: Path, version: int) -> Receipt:
        """Into the engine. Raises CheckFailed where it refuses."""
        from windtunnel.rl import BrokenPublication, StaleWeights

        try:
            return self.engine.load(path, version)
        except (BrokenPublication, StaleWeights) as error:
            raise CheckFailed(f"the engine refuses what the learner published: {error}") from None

    def train_away(self) -> float:
        """Steps until the learner stands apart from the engine; by how many nats on average. Raises CheckFailed."""
        from windtunnel.rl import measure_mismatch, score

        engine, apart = self.engine.score(self.canary).log_probabilities, 0.0
        x, y = model_causal.random_batch(model_causal.vocabulary_of(self.job), self.seed)
        for step in range(1, MOST_STEPS + 1):
            self.say(f"step {step}, {self.dtype}")
            self.job.step([(x, y)], y.numel(), RATE)
            if step >= LEAST_STEPS:
                apart = measure_mismatch(score(self.job, self.canary), engine).mean
                if apart >= STALE * self.allowed:
                    return apart
        raise CheckFailed(
            f"after {MOST_STEPS} steps without a sync learner and engine differ by only {apart:.2g} on average, "
            f"{STALE * self.allowed:.2g} or more is expected"
        )

    def sampled(self, version: int) -> Mismatch:
        """On answers that the engine samples, with its cache, and the learner scores whole. Raises CheckFailed."""
        import torch

        from windtunnel.rl import measure_mismatch, score

        self.say(f"{ANSWERS} answers sampled by the engine, {self.dtype}")
        prompts = self.canary[:ANSWERS, :PROMPT]
        answers = self.engine.generate(prompts, NEW, seed=self.seed)
        if answers.version != version:
            raise CheckFailed(f"answers carry version {answers.version} of the weights, the engine loaded version {version}")
        whole = torch.cat([prompts, answers.tokens], dim=1)
        found = measure_mismatch(score(self.job, whole)[:, PROMPT - 1 :], answers.log_probabilities)
        if found.mean > self.allowed:
            raise CheckFailed(
                f"the engine's log-probabilities of its own answers differ from the learner's by {found.mean:.2g} on average, "
                f"{self.allowed:.2g} is allowed"
            )
        return found


@contextmanager
def open_engines(dtypes: Sequence[torch.dtype]) -> Iterator[list[EngineProcess]]:
    """An engine for each; before there is a learner they start quickest."""
    from windtunnel.rl import EngineProcess

    with ExitStack() as stack:
        yield [stack.enter_context(EngineProcess(dtype, limit=LIMIT, threads=1)) for dtype in dtypes]


@contextmanager
def open_bench(context: Context, dtype: torch.dtype, engine: EngineProcess, say: Say) -> Iterator[Bench]:
    """A learner that computes in `dtype`, with noise in its weights, beside an engine that holds that dtype."""
    import torch

    from windtunnel.model import causal_shape
    from windtunnel.rl import TOLERANCE

    folder = context.folder / "weight-sync" / str(dtype).removeprefix("torch.")
    shutil.rmtree(folder, ignore_errors=True)
    small = causal_shape(str(model_causal.write_scale_config(context)))
    with closing(model_causal.build_job(context, small.raw, dtype)) as job:
        _stir(job, context.seed)
        draw = torch.Generator().manual_seed(context.seed + 1)
        canary = torch.randint(0, model_causal.vocabulary_of(job), (4, 64), generator=draw)
        publisher = watched_publisher(folder / "published", folder / "cut-off")
        yield Bench(job, engine, publisher, dtype, folder, canary, TOLERANCE[dtype][0], context.seed, say)


def _stir(job: CausalJob, seed: int) -> None:
    import torch

    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in job.network.named_parameters():
            if not name.endswith(("_fp8", "_scale")):  # packed bytes are no numbers
                own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                own += (NOISE * torch.randn(own.shape, generator=draw)).to(own.dtype)
