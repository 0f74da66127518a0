"""What benchmarks/vllm_weights.py and benchmarks/vllm_gpu.py do with one engine: right syncs, answers, and faults."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from windtunnel.generate import GenerationJob
from windtunnel.rl import (
    BrokenSnapshot,
    EngineFailed,
    EngineProcess,
    Held,
    Publisher,
    Receipt,
    StaleWeights,
    WeightSender,
    measure_mismatch,
    offer_weights,
    publish_base,
    publish_weights,
    send_weights,
)
from windtunnel.rl.transfer import Way as Bytes
from windtunnel.train import HFJob

FAULTS = ("dropped tensor", "half-updated shard", "swapped ranks", "stale version", "old weights, new number")


def let_find_faults(folder: Path) -> Path:
    """Have the vLLM that is started next find benchmarks/vllm_faults.py; the file that says which fault is given, none yet.

    folder: a new one, for what it reads.
    """
    fault = folder / "fault"
    fault.write_text("none")
    os.environ["WINDTUNNEL_FAULT"] = str(fault)
    # In a folder of its own: others here have names of public packages, which vLLM would then import in their place.
    (folder / "vllm_faults.py").symlink_to(Path(__file__).resolve().with_name("vllm_faults.py"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return fault


class Way(Protocol):
    """How an engine gets a version of the learner's weights."""

    def give(self, version: int) -> tuple[Receipt, dict[str, float]]:
        """Give the engine a version; its receipt, and seconds of each part and in all. Raises what the engine refuses with."""


class Disk:
    """By files.

    Args:
        job: the learner. engine: takes its weights. folder: of the versions.
        dtype: of the weights, and that both compute in. canary: tokens.
    """

    def __init__(self, job: HFJob, engine: EngineProcess, folder: Path, dtype: torch.dtype, canary: Tensor) -> None:
        self._job, self._engine, self._dtype, self._canary = job, engine, dtype, canary
        self._publisher = Publisher(folder, keep=1)

    def give(self, version: int) -> tuple[Receipt, dict[str, float]]:
        """See `Way`."""
        began = time.monotonic()
        path = publish_weights(self._job, self._publisher, version, dtype=self._dtype, canary=self._canary)
        published = time.monotonic()
        assert path is not None
        receipt = self._engine.load(path, version)
        ended = time.monotonic()
        return receipt, {"publish": published - began, "load": ended - published, "all": ended - began}


class Direct:
    """From the learner's memory to the engine's.

    Args:
        job, engine, dtype, canary: as of `Disk`.
        by: way of the bytes. workers: of the engine. limit: seconds for a bucket.
        base: folder for the weights beside which adapters stand: the engine, not yet started, gets them from there, and
            adapters alone are sent; None: all weights are.
    """

    def __init__(
        self, job: HFJob, engine: EngineProcess, dtype: torch.dtype, canary: Tensor, by: Bytes, workers: int, limit: float,
        base: Path | None = None,
    ) -> None:  # fmt: skip
        self._base = None if base is None else publish_base(job, Publisher(base, keep=1), dtype=dtype)
        if self._base is not None:
            engine.prepare({}, canary.size(1), self._base)
        self._job, self._engine, self._dtype, self._canary = job, engine, dtype, canary
        self._held = Held()  # as training has it: for an engine that starts again
        self._sender, self._workers = WeightSender(by, job.ranks.device, limit), workers
        self.join()

    def join(self) -> None:
        """Have the engine join."""
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(self._engine.join, self._sender.invite([self._workers])[0])
            self._sender.connect()
            joined.result()

    def give(self, version: int) -> tuple[Receipt, dict[str, float]]:
        """See `Way`."""
        began = time.monotonic()
        offer = offer_weights(self._job, version, dtype=self._dtype, canary=self._canary, base=self._base)
        offered = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(self._engine.receive, version, offer.config, offer.canary, offer.adapter)

            def check() -> None:
                if receiving.done() and receiving.exception() is not None:
                    raise EngineFailed(str(receiving.exception()))

            try:
                send_weights(self._job, self._sender, offer, dtype=self._dtype, check=check, held=self._held)
            except EngineFailed:
                receiving.result()
                raise
            sent = time.monotonic()
            receipt = receiving.result()
        ended = time.monotonic()
        return receipt, {"canary": offered - began, "transfer": sent - offered, "all": ended - began}


class Answers:
    """Collects what an engine answers; `take` is told of each."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}
        self.there = threading.Condition()

    def take(self, number: int, answer: Any) -> None:
        """Take an answer; from the thread that listens to the engine."""
        with self.there:
            self.found[number] = answer
            self.there.notify()

    def ask(self, engine: EngineProcess, jobs: Sequence[GenerationJob], seconds: float = 300) -> list[Any]:
        """Return the answers to jobs, in their order."""
        self.found.clear()
        engine.submit(list(enumerate(jobs)))
        with self.there:
            assert self.there.wait_for(lambda: len(self.found) == len(jobs), seconds), "no answer"
        return [self.found[number] for number in range(len(jobs))]


def compare_answers(
    engine: EngineProcess,
    job: HFJob,
    answers: Answers,
    version: int,
    prompts: Sequence[Sequence[int]],
    new: int,
    temperature: float,
) -> dict[str, Any]:
    """Return how an engine's log-probabilities of its own answers agree with the learner's, and how fast it answered twice."""
    jobs = [GenerationJob(tuple(p), new, temperature=temperature, seed=11 + i, draws=True) for i, p in enumerate(prompts)]
    began = time.monotonic()
    first = answers.ask(engine, jobs)
    middle = time.monotonic()
    again = answers.ask(engine, jobs)
    ended = time.monotonic()
    ours, theirs = [], []
    job.network.temperature = temperature
    for prompt, answer in zip(prompts, first, strict=True):
        assert not isinstance(answer, str), answer
        assert set(answer.versions) == {version}, answer
        tokens = torch.tensor([[*prompt, *(token for token, _ in answer.drawn)]], device=job.ranks.device)
        with torch.no_grad():
            losses = job.network(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())[0]
        ours.append(-losses[0, len(prompt) - 1 :].float().cpu())
        theirs.append(torch.tensor([p for _, p in answer.drawn]))
    job.network.temperature = 1.0
    found = measure_mismatch(torch.cat(ours), torch.cat(theirs))
    rate = found.tokens / min(middle - began, ended - middle)
    same = [a.tokens for a in first] == [a.tokens for a in again]
    return {"version": version, **asdict(found), "temperature": temperature, "same tokens again": same, "tokens/s": round(rate)}


def give_faults(
    way: Way, versions: Iterator[int], learn: Callable[[], None], fault: Path, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return who refuses a version that was taken with each fault; after each the next right one must be taken."""
    caught = {}
    for name in names:
        learn()
        version = next(versions)
        fault.write_text(name)
        caught[name] = refusal(way, version)
        fault.write_text("none")
        way.give(next(versions))
    return caught


def refusal(way: Way, version: int) -> dict[str, Any]:
    """Return who refuses a version that is taken wrongly; raise where nobody does."""
    try:
        way.give(version)
    except (BrokenSnapshot, StaleWeights) as error:
        return {"caught by": "the canary" if "canary" in str(error) else "the receipts", "words": str(error)}
    raise SystemExit(f"version {version} was taken for good")


def as_json(receipt: Receipt, seconds: dict[str, float] | None = None) -> dict[str, Any]:
    """Return what a receipt says, and what the sync took."""
    assert receipt.canary is not None
    ranks = [
        {"rank": one["rank"], "version": one["version"], "compared": one["compared"], "unseen": one["unseen"],
         "digest": one["found"]}
        for one in receipt.ranks
    ]  # fmt: skip
    took = {} if seconds is None else {"seconds": {name: round(value, 4) for name, value in seconds.items()}}
    return {
        "version": receipt.version, "bytes": receipt.bytes, **took, "canary": asdict(receipt.canary), "ranks": ranks,
    }  # fmt: skip
