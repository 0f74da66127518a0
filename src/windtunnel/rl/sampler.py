"""Where a round's answers come from: the learners themselves, in turn with learning, or engines that take published weights."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from windtunnel.actors import joined, own_address
from windtunnel.generate import Generator, WholeText
from windtunnel.recipe import GRPO, UserError
from windtunnel.run import LOGS
from windtunnel.train import COMPUTE, HFEngine, Ranks, adapter_settings, vocabulary_of

from .canary import tolerance_after
from .engine import Receipt, Serving
from .engine_process import EngineProcess, RemoteEngine, Told
from .engine_share import EngineShare
from .engines import Engines
from .link import Link
from .mismatch import Mismatch
from .patience import last_line
from .placed_engine import PlacedEngine
from .send import Held, WeightSender
from .snapshot import Publisher, version_folder
from .sync import offer_weights, publish_base, publish_weights, send_weights
from .transfer import Way
from .vllm_engine import VLLMSettings
from .vllm_python import require_vllm

MOST_SLOTS = 256
"""Answers written together by one model."""
CANARIES, CANARY_TOKENS, CANARY_SEED = 4, 64, 211


class Sampler(Protocol):
    """Answers prompts by the policy as it is."""

    def generator(self) -> contextlib.AbstractContextManager[Generator]:
        """Yield the policy as a generator; all ranks call it together."""

    def require_well(self) -> None:
        """Raise the UserError that keeps answers from coming, if there is one."""

    def forget(self) -> None:
        """Begin anew with versions: the learner went to other weights than its own next ones."""

    def metrics(self) -> Mapping[str, float]:
        """Return what the last round showed, on this rank; the largest of all ranks is logged."""

    def close(self) -> None:
        """End what answers."""


def most_tokens(stage: GRPO) -> int:
    """Return the most tokens of a sequence."""
    return stage.prompt_tokens + stage.answer_tokens


def most_slots(stage: GRPO, ranks: Ranks) -> int:
    """Return the answers that a learner's share of a round has written together."""
    return min(MOST_SLOTS, stage.prompts * stage.samples // ranks.world)


class EngineSampler:
    """Engines in processes of their own. Weights reach them from all learners together, by the disk or directly, with a canary.

    Args:
        share: engines of all ranks together; see `engines_of`.
        folder: of the published versions; gone when this is closed, but for what is to stay.
        say: told what happened to engines.

    Attributes:
        engines: of this rank.
    """

    def __init__(
        self, inner: HFEngine, stage: GRPO, ranks: Ranks, text: WholeText, share: EngineShare, folder: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._inner, self._stage, self._ranks, self._share, self._folder = inner, stage, ranks, share, folder
        self._dtype, self._elsewhere, self._count = COMPUTE[inner.layout.precision], joined(), share.count // ranks.world
        self._newest: tuple[Path, int] | None = None
        self._published = 0.0
        # An engine on the learner's GPU needs the memory that PyTorch's allocator keeps for later.
        self._shared = share.memory is not None and ranks.device.type == "cuda"
        way = _way(stage, ranks, share)
        by_files = ranks.first and way is None
        self._apart = folder if stage.engine_adapter == "apart" else None
        self._adapter = None if self._apart is None else adapter_settings(inner.job)
        self._base: Path | None = None
        # Rounds ahead are answered by older versions, which stay as long as a round needs them.
        self._publisher = Publisher(folder, keep=2 + stage.overlap, empty=not stage.overlap) if by_files else None
        # The same tokens for every version: what changes in the score is the weights' doing.
        draw = torch.Generator().manual_seed(CANARY_SEED)
        length = min(CANARY_TOKENS, inner.layout.sequence - 1)  # vLLM only scores what one more token fits behind
        self._canary = torch.randint(0, vocabulary_of(inner.job), (CANARIES, length), generator=draw)
        self._seen: Mismatch | None = None
        self._metrics: dict[str, float] = {}

        vllm = stage.engine == "vllm"
        self._python = require_vllm() if vllm and not self._elsewhere else ""
        slots = -(-most_slots(stage, ranks) // self._count)
        self._serving = Serving(slots, most_tokens(stage), tuple(sorted(text.ends)))
        workers, host = share.tensor if vllm else 1, own_address() if self._elsewhere else "127.0.0.1"
        self._link = None if way is None else Link(WeightSender(way, ranks.device, stage.engine_seconds, host), workers)
        self.engines = Engines(
            self._count, self._start, text, tokens=self._serving.tokens, slots=slots, exact=not vllm and not stage.in_flight,
            in_flight=stage.in_flight, say=say, heard=lambda number: last_line(self._log(number)),
        )  # fmt: skip

    def _log(self, number: int) -> Path:
        return (self._folder.parent / LOGS / f"engine-{self._ranks.rank}-{number}.log").resolve()

    def _start(self, number: int, answered: Told, ended: Callable[[str], None]) -> RemoteEngine:
        """Start an engine; see `windtunnel.rl.engines.Start`."""
        stage, ranks, share = self._stage, self._ranks, self._share
        gpus = None if self._elsewhere else _gpus(ranks, share, number)
        settings, log = None, self._log(number)
        if stage.engine == "vllm":
            devices = None if gpus is None else ",".join(str(gpu) for gpu in gpus)
            settings = VLLMSettings(
                share.tensor, share.memory or stage.engine_memory, devices, log, python=self._python, adapter=self._adapter
            )
        given: dict[str, Any] = {
            "limit": stage.engine_seconds, "serving": self._serving, "answered": answered, "ended": ended, "vllm": settings,
            "log": log,
        }  # fmt: skip
        if self._elsewhere:
            name = f"engine {number} of learner {ranks.rank}"
            return PlacedEngine(self._elsewhere, ranks.rank * self._count + number, name, self._dtype, **given)
        return EngineProcess(self._dtype, "cpu" if gpus is None else f"cuda:{gpus[0]}", **given)

    @contextlib.contextmanager
    def generator(self) -> Iterator[Generator]:
        """See `Sampler`."""
        if self._shared:
            torch.cuda.empty_cache()  # what learning has kept for itself is the engine's now
        self._metrics = self.take(*self.publish()) if self._link is None else self._give(self._link)
        before = self.engines.restarts
        yield self.engines
        self._metrics["engine_restarts"] += self.engines.restarts - before

    def publish(self) -> tuple[Path, int]:
        """Publish the weights as they are now, unless they are; the folder and their version. All ranks call it together."""
        began, version = time.monotonic(), self._inner.job.optimizer.steps
        if self._newest is None or self._newest[1] != version:
            path = publish_weights(
                self._inner.job, self._publisher, version, dtype=self._dtype, canary=self._canary,
                tolerance=tolerance_after(self._dtype, self._seen),
            )  # fmt: skip
            # Rank 0 wrote it; the others' engines read it there.
            self._newest = Path(self._ranks.share(None if path is None else str(path))), version
        self._published = time.monotonic() - began
        return self._newest

    def published(self, version: int) -> Path | None:
        """Return the folder of an earlier version, if it is there still."""
        path = version_folder(self._folder, version)
        return path if path.is_dir() else None

    def take(self, path: Path, version: int) -> dict[str, float]:
        """Have this rank's engines take a version; see `Engines.take`. What it showed."""
        began, before, published = time.monotonic(), self.engines.restarts, self._published
        receipts = self.engines.take(path, version)
        return self._shown(receipts, published, time.monotonic() - began, before)

    def _give(self, link: Link) -> dict[str, float]:
        """Have the engines of all ranks receive the weights as they are now. All ranks call it together. What it showed."""
        began, before, job = time.monotonic(), self.engines.restarts, self._inner.job
        version = job.optimizer.steps
        # The base goes by the disk, once: only adapters change.
        if self._apart is not None and self._base is None:
            path = publish_base(job, Publisher(self._apart, keep=1) if self._ranks.first else None, dtype=self._dtype)
            self._base = Path(self._ranks.share(None if path is None else str(path)))
        offer = offer_weights(
            job, version, dtype=self._dtype, canary=self._canary, base=self._base,
            tolerance=tolerance_after(self._dtype, self._seen),
        )  # fmt: skip
        offered = time.monotonic()

        def send(sender: WeightSender, held: Held, check: Callable[[], None]) -> None:
            send_weights(job, sender, offer, dtype=self._dtype, check=check, held=held)

        receipts = self.engines.receive(link, offer, send)
        return self._shown(receipts, offered - began, time.monotonic() - offered, before)

    def _shown(self, receipts: Sequence[Receipt], published: float, loaded: float, restarts: int) -> dict[str, float]:
        canaries = [receipt.canary for receipt in receipts if receipt.canary is not None]
        # Of the first version, which the later ones' tolerance is taken from; the worst engine of this rank decides.
        if self._seen is None:
            self._seen = max(canaries, key=lambda canary: canary.mean)
        return {
            "publish_seconds": published,
            "load_seconds": loaded,
            "canary": max((canary.mean for canary in canaries), default=0.0),
            "engine_restarts": float(self.engines.restarts - restarts),
        }

    def forget(self, after: int | None = None) -> None:
        """See `Sampler`. Versions up to `after` stay; None: none does."""
        self._newest = None
        if self._publisher is not None:
            self._publisher.forget(after)

    def require_well(self) -> None:
        """See `Sampler`."""
        self.engines.require_well()

    def metrics(self) -> Mapping[str, float]:
        """See `Sampler`."""
        return self._metrics

    def close(self, kept: Collection[int] = ()) -> None:
        """See `Sampler`. kept: versions that stay on the disk."""
        self.engines.close()
        if self._publisher is not None:
            self._publisher.keep_only(kept)
        if self._apart is not None and self._ranks.first:
            shutil.rmtree(self._apart, ignore_errors=True)


def _way(stage: GRPO, ranks: Ranks, share: EngineShare) -> Way | None:
    """Return how weights go to engines directly; None: by the disk."""
    cpu = ranks.device.type == "cpu"
    if stage.sync == "disk" or stage.overlap or (stage.sync == "auto" and cpu and stage.engine_adapter == "merged"):
        return None
    if cpu:
        return "gloo"
    return "nccl" if share.memory is None else "ipc"  # NCCL refuses two processes on one GPU


def _gpus(ranks: Ranks, share: EngineShare, number: int) -> list[int] | None:
    """Return the GPUs of a rank's engine: behind those of the learners, or the rank's own; None: there are no GPUs.

    Args:
        ranks: of the learners.
        share: engines of all of them.
        number: of this one.

    Raises:
        UserError: there are not so many GPUs.
    """
    if ranks.device.type != "cuda":
        return None
    if share.memory is not None:
        return [ranks.device.index or 0]
    count, tensor = share.count // ranks.world, share.tensor
    # Learners have the first GPUs of the machine, one each.
    first, there = ranks.world + (ranks.rank * count + number) * tensor, torch.cuda.device_count()
    if first + tensor > there:
        raise UserError(
            f"{ranks.world} learners and {ranks.world * count} engines of {tensor} GPUs need "
            f"{ranks.world * (1 + count * tensor)} GPUs, and this machine has {there}",
            "take fewer: stages.rl.learners, stages.rl.engines; or --set stages.rl.engine=in-turn",
        )
    return list(range(first, first + tensor))
