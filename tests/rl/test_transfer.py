"""Weights that go to an engine without a disk: all of them or an error on both sides, never a mixture and never a hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import CANARY, learner, publish, train
from torch import Tensor

from windtunnel.generate import NoText
from windtunnel.rl import (
    BrokenSnapshot,
    EngineFailed,
    EngineProcess,
    Engines,
    Held,
    Link,
    Offer,
    Publisher,
    Receipt,
    Serving,
    WeightSender,
    offer_weights,
    publish_base,
    send_weights,
)
from windtunnel.rl import send as sending
from windtunnel.train import HFJob, hub_weights

pytestmark = pytest.mark.end_to_end

LIMIT = 60.0


@contextmanager
def linked(limit: float = LIMIT) -> Iterator[tuple[WeightSender, EngineProcess]]:
    """A sender and an engine that has joined it."""
    sender = WeightSender("gloo", torch.device("cpu"), limit)
    with EngineProcess(torch.float32, limit=limit, threads=1) as engine, ThreadPoolExecutor(1) as pool:
        joined = pool.submit(engine.join, sender.invite([1])[0])
        sender.connect()
        joined.result()
        yield sender, engine


def offered(job: HFJob, version: int) -> Offer:
    return offer_weights(job, version, dtype=torch.float32, canary=CANARY)


def sent(job: HFJob, sender: WeightSender, engine: EngineProcess, offer: Offer) -> Receipt:
    """Send a version; what the engine says, or why it could not be sent."""
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(engine.receive, offer.version, offer.config, offer.canary, offer.adapter)

        def check() -> None:
            if receiving.done() and receiving.exception() is not None:
                raise EngineFailed(str(receiving.exception()))

        try:
            send_weights(job, sender, offer, dtype=torch.float32, check=check)
        except EngineFailed:
            receiving.result()
            raise
        return receiving.result()


@pytest.mark.parametrize("adapter", [False, True])
def test_an_engine_computes_what_the_learner_does_after_every_update(
    adapter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BUCKET_BYTES", 5000)  # several buckets a block, and tensors larger than one
    with learner(adapter=adapter) as job, linked() as (sender, engine):
        for version in (1, 2, 5):
            train(job)
            receipt = sent(job, sender, engine, offered(job, version))
            assert receipt.canary is not None
            assert (receipt.version, receipt.canary.largest < 1e-5) == (version, True)
            found = engine.score(CANARY)
            assert found.version == version
            weights = dict(hub_weights(job, torch.float32))
            assert receipt.tensors == len(weights)
            assert receipt.bytes == sum(tensor.nbytes for tensor in weights.values())
        other = engine.load(publish(job, Publisher(tmp_path), 6), 6)  # what files bring is the same, bit for bit
        assert other.tensors == receipt.tensors
        assert torch.equal(engine.score(CANARY).log_probabilities, found.log_probabilities)


def test_adapters_alone_make_the_engine_compute_what_the_learner_does(tmp_path: Path) -> None:
    with learner(adapter=True) as job, linked() as (sender, engine):
        base = publish_base(job, Publisher(tmp_path), dtype=torch.float32)
        for version in (1, 2):
            train(job)
            offer = offer_weights(job, version, dtype=torch.float32, canary=CANARY, base=base)
            engine.prepare(offer.config, offer.tokens, offer.base)
            receipt = sent(job, sender, engine, offer)
            assert receipt.canary is not None
            assert receipt.canary.largest < 1e-5
        trained = [p for p in job.network.parameters() if p.requires_grad]
        assert (receipt.tensors, receipt.bytes) == (len(trained), sum(4 * p.numel() for p in trained))


Damage = Callable[[Iterator[dict[str, Tensor]]], Iterator[dict[str, Tensor]]]


def dropped(buckets: Iterator[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """All but one tensor of the last block."""
    for bucket in buckets:
        yield {name: tensor for name, tensor in bucket.items() if name != "model.layers.1.mlp.down_proj.weight"}


def other(buckets: Iterator[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Another value in one tensor than the learner has."""
    for bucket in buckets:
        for name, tensor in bucket.items():
            if name == "model.layers.1.mlp.down_proj.weight":
                tensor[0] += 1.0
        yield bucket


@pytest.mark.parametrize(
    ("damage", "words"), [(dropped, "lacks model.layers.1.mlp.down_proj.weight"), (other, "scores the canary")]
)
def test_what_is_not_the_learners_is_refused_and_the_next_version_taken(
    damage: Damage, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true: Any = WeightSender.send

    def send(self: WeightSender, version: int, buckets: Any, *more: Any) -> Any:
        return true(self, version, damage(buckets) if version == 2 else buckets, *more)

    monkeypatch.setattr(WeightSender, "send", send)
    with learner() as job, linked() as (sender, engine):
        sent(job, sender, engine, offered(job, 1))
        before = engine.score(CANARY).log_probabilities
        train(job)
        with pytest.raises(BrokenSnapshot, match=words):
            sent(job, sender, engine, offered(job, 2))
        assert torch.equal(engine.score(CANARY).log_probabilities, before)  # refused as a whole
        receipt = sent(job, sender, engine, offered(job, 3))
        assert receipt.canary is not None
        assert receipt.canary.largest < 1e-5


def test_bytes_that_change_on_the_way_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = sending.digest
    monkeypatch.setattr(sending, "digest", lambda flat: digest(flat.flip(0)))
    with learner() as job, linked() as (sender, engine):
        with pytest.raises(BrokenSnapshot, match="bucket 0 of version 1 is not what was sent"):
            sent(job, sender, engine, offered(job, 1))


def test_an_engine_that_dies_while_it_receives_is_an_error_and_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BUCKET_BYTES", 5000)
    with learner() as job:
        with linked() as (sender, engine):
            true: Any = WeightSender._send

            def send(self: WeightSender, number: int, *rest: Any) -> None:
                if number == 3:
                    os.kill(engine.pid, signal.SIGKILL)
                true(self, number, *rest)

            monkeypatch.setattr(WeightSender, "_send", send)
            with pytest.raises(EngineFailed):
                sent(job, sender, engine, offered(job, 1))
            monkeypatch.setattr(WeightSender, "_send", true)
            with EngineProcess(torch.float32, limit=LIMIT, threads=1) as second, ThreadPoolExecutor(1) as pool:
                joined = pool.submit(second.join, sender.invite([1])[0])
                sender.connect()
                joined.result()
                assert sent(job, sender, second, offered(job, 1)).version == 1


def test_a_learner_that_gives_up_tells_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with learner() as job, linked() as (sender, engine), ThreadPoolExecutor(1) as pool:
        offer = offered(job, 1)
        receiving = pool.submit(engine.receive, 1, offer.config, offer.canary)

        def buckets() -> Iterator[dict[str, Tensor]]:
            yield {"a": torch.zeros(3)}
            raise OSError("the learner's own trouble")

        with pytest.raises(OSError, match="own trouble"):
            sender.send(1, buckets(), lambda: None)
        with pytest.raises(EngineFailed, match="gave up at bucket 1 of version 1: OSError: the learner's own trouble"):
            receiving.result()


def test_of_two_engines_one_dies_while_both_receive_and_both_have_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BUCKET_BYTES", 5000)
    said, processes, true = list[str](), dict[int, EngineProcess](), WeightSender._send

    def start(number: int, answered: Any, ended: Any) -> EngineProcess:
        serving = Serving(4, 64, (1,))
        processes[number] = EngineProcess(torch.float32, limit=LIMIT, threads=1, serving=serving, answered=answered, ended=ended)
        return processes[number]

    def send(self: WeightSender, number: int, *rest: Any) -> None:
        if number == 3:
            monkeypatch.setattr(WeightSender, "_send", true)
            os.kill(processes[0].pid, signal.SIGKILL)
        true(self, number, *rest)

    link = Link(WeightSender("gloo", torch.device("cpu"), LIMIT), 1)
    made = Engines(2, start, NoText(128, (1,)), tokens=64, slots=4, exact=True, say=said.append)
    with learner() as job, closing(made) as engines:
        for version in (1, 2, 3):
            offer = offered(job, version)

            def give(sender: WeightSender, held: Held, check: Callable[[], None], offer: Offer = offer) -> None:
                send_weights(job, sender, offer, dtype=torch.float32, check=check, held=held)

            if version == 2:
                monkeypatch.setattr(WeightSender, "_send", send)
            receipts = engines.receive(link, offer, give)
            assert [receipt.version for receipt in receipts] == [version] * 2
            assert max(receipt.canary.largest for receipt in receipts if receipt.canary is not None) < 1e-5
            train(job)
    assert len(said) == engines.restarts == 1
