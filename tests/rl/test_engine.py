"""An engine loads what the learner published, computes what the learner does, and refuses everything else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from learners import ALONE, CANARY, learner, publish, train
from safetensors.torch import load_file, save_file
from waiting import until

from windtunnel.checkpoint import checksum
from windtunnel.recipe import GRPO
from windtunnel.rl import (
    BrokenSnapshot,
    EngineFailed,
    EngineProcess,
    InferenceEngine,
    Publisher,
    Serving,
    StaleWeights,
    measure_mismatch,
    open_snapshot,
    require_fresh,
    score,
)
from windtunnel.rl.engine_share import EngineShare, engines_of
from windtunnel.rl.sampler import _gpus, _way
from windtunnel.rl.vllm_engine import SOCKETS, Interpreter, VLLMSettings, _named
from windtunnel.train import Ranks


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of a learner in fp32. Copy it before changing it."""
    with learner() as job:
        return publish(job, Publisher(tmp_path_factory.mktemp("published")), 1)


def altered(published: Path, folder: Path, change: Any) -> Path:
    """A copy whose tensors were changed by `change`, with a manifest that fits the file."""
    copy = folder / published.name
    shutil.copytree(published, copy)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    manifest = json.loads((copy / "snapshot.json").read_text())
    manifest["tensors"] = {
        name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "file": file.name}
        for name, t in tensors.items()
    }
    manifest["files"][file.name] = checksum(file).to_json()
    (copy / "snapshot.json").write_text(json.dumps(manifest))
    return copy


def cast(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].double()


def swap(tensors: dict[str, Any]) -> None:
    first, second = (f"model.layers.{i}.mlp.up_proj.weight" for i in (0, 1))
    tensors[first], tensors[second] = tensors[second], tensors[first]


CHANGES: dict[str, Any] = {
    "lacks lm_head.weight": lambda tensors: tensors.pop("lm_head.weight"),
    "has extra.weight": lambda tensors: tensors.update({"extra.weight": torch.ones(2)}),
    "another shape of model.norm.weight": lambda tensors: tensors.update({"model.norm.weight": torch.ones(16)}),
    "model.norm.weight is float64, the engine holds float32": cast,
    "scores the canary otherwise": swap,
}


@pytest.mark.parametrize("words", CHANGES)
def test_weights_that_are_not_the_models_are_refused_and_the_old_ones_stay(words: str, published: Path, tmp_path: Path) -> None:
    engine = InferenceEngine(torch.float32)
    engine.load(published, 1)
    before = engine.score(CANARY)
    wrong = altered(published, tmp_path, CHANGES[words])
    assert open_snapshot(wrong).problem() is None
    with pytest.raises(BrokenSnapshot, match=words):
        engine.load(wrong, 1)
    after = engine.score(CANARY)
    assert (after.version, before.version) == (1, 1)
    assert torch.equal(after.log_probabilities, before.log_probabilities)


def test_an_engine_that_computes_something_else_than_it_loaded_refuses_itself(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = InferenceEngine._build

    def repacked(self: InferenceEngine, *given: Any, **options: Any) -> Any:
        model = true(self, *given, **options)
        with torch.no_grad():
            model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))  # as a kernel's own packing that was not renewed
        return model

    monkeypatch.setattr(InferenceEngine, "_build", repacked)
    engine = InferenceEngine(torch.float32)
    with pytest.raises(BrokenSnapshot, match="scores the canary otherwise"):
        engine.load(published, 1)
    with pytest.raises(StaleWeights, match="no weights yet"):
        engine.score(CANARY)


def test_an_engine_has_the_version_it_was_told_to_load(published: Path) -> None:
    engine = InferenceEngine(torch.float32)
    with pytest.raises(StaleWeights, match=r"holds version 1 .* asked for was version 2"):
        engine.load(published, 2)
    assert engine.version == -1
    receipt = engine.load(published, 1)
    assert receipt.version == engine.version == 1
    assert receipt.canary is not None
    assert receipt.canary.largest < 1e-5
    assert receipt.tensors == 21


@pytest.mark.parametrize(("found", "learner_has"), [(2, 3), (4, 3), (-1, 0)])
def test_weights_of_another_version_are_not_fresh(found: int, learner_has: int) -> None:
    require_fresh(learner_has, learner_has)
    with pytest.raises(StaleWeights, match=f"version {found} of the weights, the learner version {learner_has}"):
        require_fresh(found, learner_has)


@pytest.fixture
def process() -> Iterator[EngineProcess]:
    with EngineProcess(torch.bfloat16, threads=1) as engine:
        yield engine


@pytest.mark.parametrize("adapter", [False, True])
def test_an_engine_elsewhere_follows_the_learner(adapter: bool, process: EngineProcess, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    with learner(dtype=torch.bfloat16, adapter=adapter) as job:
        process.load(publish(job, publisher, 1, torch.bfloat16), 1)
        train(job, 6)
        stale = process.score(CANARY)
        assert measure_mismatch(score(job, CANARY), stale.log_probabilities).mean > 0.02
        receipt = process.load(publish(job, publisher, 2, torch.bfloat16), 2)
        assert receipt.canary is not None
        assert receipt.canary.mean < 0.02
        answers = process.generate(CANARY[:, :5], 12, seed=1)
        again = process.generate(CANARY[:, :5], 12, seed=1)
        found = score(job, torch.cat([CANARY[:, :5], answers.tokens], 1))[:, 4:]
    assert (stale.version, answers.version) == (1, 2)
    assert torch.equal(answers.tokens, again.tokens)
    assert answers.tokens.shape == answers.log_probabilities.shape == (3, 12)
    assert measure_mismatch(found, answers.log_probabilities).mean < 0.02


def test_a_refusal_reaches_the_learner_and_the_engine_lives_on(process: EngineProcess, published: Path) -> None:
    with pytest.raises(BrokenSnapshot, match="the engine holds bfloat16"):
        process.load(published, 1)
    with pytest.raises(StaleWeights):
        process.load(published, 7)
    with pytest.raises(BrokenSnapshot, match="is not a whole snapshot"):
        process.load(published.parent, 1)
    with pytest.raises(StaleWeights, match="no weights yet"):
        process.score(CANARY)


def test_an_engine_that_hangs_or_dies_is_named(published: Path) -> None:
    with EngineProcess(torch.float32, threads=1) as engine:
        engine.load(published, 1)
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="ended with exit code -9 when asked to score"):
            engine.score(CANARY)
    with EngineProcess(torch.float32, threads=1) as engine:
        engine.load(published, 1)
        engine._limit = 0.3
        os.kill(engine._process.pid, signal.SIGSTOP)
        with pytest.raises(EngineFailed, match=r"did not answer 'load' within 0\.3 s"):
            engine.load(published, 1)


def test_scoring_takes_no_part_in_training() -> None:
    with learner(attention_dropout=0.5) as job:
        first, second = score(job, CANARY), score(job, CANARY)
        assert torch.equal(first, second)
        assert job.network.training
        assert all(p.grad is None for p in job.network.parameters())
        assert job.ranks is ALONE


def test_a_mismatch_says_how_far_apart_probabilities_are() -> None:
    engine = torch.zeros(4, 25)
    learner_has = engine.clone()
    learner_has[0, :5] = 0.2  # ratio 1.22
    found = measure_mismatch(learner_has, engine)
    assert found.mean == pytest.approx(0.01)
    assert (found.largest, found.outside, found.tokens) == (pytest.approx(0.2), 0.05, 100)
    assert found.k3 == pytest.approx(0.05 * (2.718281828**0.2 - 1 - 0.2))
    assert measure_mismatch(engine, engine).largest == 0
    learner_has[0, 0] = float("nan")
    assert measure_mismatch(learner_has, engine).mean == float("inf")


CORE = """#!/bin/sh
sleep 1000 &
echo $! > {core}
exec sleep 1000
"""


def test_an_engine_that_is_killed_is_missed_at_once_and_leaves_no_core_behind(tmp_path: Path) -> None:
    # vLLM's core is a process of its own: it has the pipe's end too, and keeps the GPU as long as it lives.
    script, core = tmp_path / "python", tmp_path / "core"
    script.write_text(CORE.format(core=core))
    script.chmod(0o755)
    told: list[str] = []
    settings = VLLMSettings(tensor=1, memory=0.3, devices=None, log=tmp_path / "log", python=str(script))
    engine = EngineProcess(torch.float32, serving=Serving(1, 8, (0,)), vllm=settings, ended=told.append)
    with engine:
        until(lambda: core.exists() and core.read_text().strip())
        number = int(core.read_text())
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="the engine's process ended with exit code -9"):
            engine.load(tmp_path, 1)
        until(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
        assert told == ["the engine's process ended with exit code -9"]


def test_vllms_sockets_go_with_its_process(tmp_path: Path) -> None:
    name = f"os.environ[{SOCKETS!r}]"
    code = f"import os, time; open(os.path.join({name}, 'socket'), 'w'); print({name}, flush=True)"
    process = Interpreter([sys.executable, "-c", f"{code}; time.sleep(600)"], dict(os.environ), 1, tmp_path / "log")
    until(lambda: (tmp_path / "log").read_text().endswith("\n"))
    folder = Path((tmp_path / "log").read_text().strip())
    assert [path.name for path in folder.iterdir()] == ["socket"]
    process.join(0.01)
    assert folder.exists()  # it runs
    process.kill()
    process.join(60)
    assert not folder.exists()


def test_an_engine_on_its_learners_gpu_gets_weights_from_its_memory() -> None:
    plan = {"layout": {"device": "cuda"}, "roles": {"engine": {"gpus": 1, "facts": {"memory_share": 0.15}}}}
    stage, ranks = GRPO(name="rl", engine="vllm"), Ranks(0, 1, torch.device("cuda", 0), None)
    share = engines_of(stage, plan, 1)
    assert share == EngineShare(1, 1, 0.15)
    assert _gpus(ranks, share, 0) == [0]
    assert _way(stage, ranks, share) == "ipc", "NCCL refuses two processes on one GPU"
    assert _way(stage, ranks, EngineShare(1, 1)) == "nccl"
    assert _way(stage.model_copy(update={"sync": "disk"}), ranks, share) is None


@pytest.mark.parametrize(
    ("devices", "visible", "expected"), [("0,1", None, "0,1"), ("1", "4,7", "7"), ("0", "GPU-a,GPU-b", "GPU-a")]
)
def test_gpus_are_named_as_the_environment_names_them(devices: str, visible: str | None, expected: str) -> None:
    assert _named(devices, visible) == expected
