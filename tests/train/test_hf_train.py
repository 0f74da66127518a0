"""A Hugging Face model goes through the loop that every model goes through: checkpoint, kill, resume, rewind, export."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import events, final_weights, losses, prepared_run, train_in_processes
from hf_models import MODELS

from windtunnel.checkpoint import CheckpointStore
from windtunnel.data import prepare
from windtunnel.launch import Options
from windtunnel.recipe import Layout, UserError
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import train
from windtunnel.train.hf import HFEngine
from windtunnel.train.methods import build_engine, text_feed
from windtunnel.train.ranks import join_ranks

NewRun = Callable[..., Path]
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.end_to_end]
RECIPE = """
name: tiny-hf
model: {kind: huggingface, config: CONFIG, sequence: 32}
data: {corpus: {kind: arithmetic, documents: 3000, digits: 1, terms: 2}, validation: 0.05}
stages:
  sft: {batch_tokens: 256, micro_batch: 4, validate_every: 5 steps, validation_tokens: 1024, learning_rate: 3e-3, compile: false}
budget: {steps: 12}
checkpoints: {every: 5 steps}
"""


@pytest.fixture
def new_run(tmp_path: Path) -> NewRun:
    """new_run('key=value', ..., ranks=None, model='qwen2') -> the folder of a run that is ready to train."""

    def make(*sets: str, ranks: int | None = None, model: str = "qwen2", config: Path | None = None) -> Path:
        if config is None:
            config = tmp_path / f"{model}.json"
            config.write_text(json.dumps(MODELS[model]))
        path = tmp_path / "tiny-hf.yaml"
        path.write_text(RECIPE.replace("CONFIG", str(config)))
        return prepared_run(path, sets, ranks, Options(root=tmp_path / "runs", yes=True))

    return make


def assert_same(a: Path, b: Path) -> None:
    """Same losses at every step and same trained weights at the end, bit for bit."""
    assert losses(a) == losses(b)
    one, other = final_weights(a), final_weights(b)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("sets", [(), ("model.adapter={rank: 4}",), ("stages.sft.states=int8",)], ids=["full", "lora", "int8"])
def test_a_stopped_run_resumes_as_if_it_had_never_stopped(new_run: NewRun, sets: tuple[str, ...]) -> None:
    whole, halted = new_run(*sets), new_run(*sets)
    assert train(whole) == 0
    assert train(halted, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 7 else None) == 3
    assert train(halted) == 0
    assert "resumed" in events(halted)
    assert_same(whole, halted)
    curve = losses(whole)
    assert sorted(curve) == list(range(1, 13))
    assert curve[1] == pytest.approx(math.log(256), rel=0.05)
    assert curve[12] < curve[1]
    with MetricsReader(RunFolder.open(whole).metrics_path) as reader:
        assert [point.step for point in reader.series("validation_loss")] == [5, 10, 12]
        assert reader.latest()["validation_bits_per_byte"].value > 0
        epochs = [point.value for point in reader.series("epoch")]
    assert epochs == pytest.approx([(step + 1) * epochs[0] for step in range(12)]), "of that step, whatever was taken ahead"


@pytest.mark.parametrize(("where", "saved"), [("forward", 7), ("backward", 7), ("optimizer", 5)])
def test_memory_that_runs_out_in_a_step_costs_that_step_alone(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, where: str, saved: int
) -> None:
    """Until weights change the state before the step is saved; the run then goes on as one that had the memory."""
    whole, short, small = new_run(), new_run(), []
    assert train(whole) == 0

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")

    def shrink(step: int, engine: HFEngine) -> None:
        if step == 7 and not small:
            small.append(step)
            targets = {"forward": (engine.job.network, "forward"), "backward": (torch.Tensor, "backward"),
                       "optimizer": (engine.job.optimizer, "step")}  # fmt: skip
            monkeypatch.setattr(*targets[where], full)

    assert train(short, after_step=shrink) == 1  # type: ignore[arg-type]
    monkeypatch.undo()
    manifest = RunFolder.open(short).manifest
    assert "out of memory in step 8 (20.00 GiB more were not there)" in manifest["reason"]
    assert ("the state after step 7 is saved" in manifest["reason"]) == (saved == 7)
    newest = CheckpointStore(short / "checkpoints").newest_good(with_optimizer=True)
    assert newest is not None
    assert newest.step == saved
    assert train(short) == 0
    assert_same(whole, short)


def test_packed_conversations_are_trained_on_and_resumed_bit_for_bit(new_run: NewRun, tmp_path: Path) -> None:
    talks = tmp_path / "talks.jsonl"
    turns = [
        [{"role": "user", "content": f"What is {a} and {b}?"}, {"role": "assistant", "content": f"It is {a + b}."}]
        for a in range(20)
        for b in range(20)
    ]
    talks.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in turns))
    config = tmp_path / "wide.json"
    config.write_text(json.dumps(MODELS["qwen2"] | {"vocab_size": 512}))
    sets = (
        f"data.corpus={{kind: conversations, files: [{talks}]}}", "data.tokenizer={kind: bpe, vocab_size: 400}",
        "model.sequence=64", "stages.sft.batch_tokens=512",
    )  # fmt: skip
    whole, halted = new_run(*sets, config=config), new_run(*sets, config=config)
    assert train(whole) == 0
    assert train(halted, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 7 else None) == 3
    assert train(halted) == 0
    assert_same(whole, halted)
    assert losses(whole)[12] < losses(whole)[1]
    with MetricsReader(RunFolder.open(whole).metrics_path) as reader:
        assert math.isfinite(reader.latest()["validation_loss"].value)


def test_nan_goes_back_and_skips_batches(new_run: NewRun) -> None:
    folder, poisoned = new_run(), []

    def poison(step: int, engine: HFEngine) -> None:
        if step == 8 and not poisoned:
            poisoned.append(step)
            with torch.no_grad():
                next(iter(engine.job.trained.values())).view(-1)[0] = math.nan

    assert train(folder, after_step=poison) == 0  # type: ignore[arg-type]
    assert "rewind" in events(folder)
    assert sorted(losses(folder)) == list(range(1, 13))
    assert all(math.isfinite(value) for value in losses(folder).values())
    for checkpoint in CheckpointStore(folder / "checkpoints").all():
        assert all(torch.isfinite(array).all() for array in checkpoint.weights().values())


def killed_after_a_checkpoint(folder: Path, ranks: int) -> None:
    process = train_in_processes(folder, ranks)
    while not list((folder / "checkpoints").glob("step-????????")) and process.poll() is None:
        time.sleep(0.005)
    process.kill()


@pytest.mark.timeout(400)
def test_two_killed_ranks_resume_bit_for_bit(new_run: NewRun) -> None:
    ranks = 2
    whole, killed = new_run(ranks=ranks), new_run(ranks=ranks)
    for folder in (whole, killed):
        if folder is killed:
            killed_after_a_checkpoint(folder, ranks)
        process = train_in_processes(folder, ranks)
        output = process.communicate(timeout=300)[0]
        assert process.returncode == 0, output
    assert "resumed" in events(killed)
    assert_same(whole, killed)


def engine_of(folder: Path) -> Any:
    """An engine of a run, at step 0."""
    run = RunFolder.open(folder)
    layout = Layout.of_plan(run.manifest["plan"]["layout"])
    with join_ranks("cpu") as ranks:
        return build_engine(run.recipe, layout, ranks, text_feed(run.recipe, layout, ranks, prepare(run.recipe)))


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_exported_weights_are_loaded_again_by_transformers_and_by_us(new_run: NewRun, tmp_path: Path, model: str) -> None:
    """Whatever names and shapes files have: experts of a layer apart, tables tied."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    engine = engine_of(new_run(model=model))
    engine.step(1, 0.5).result()
    hub = tmp_path / "hub"
    hub.mkdir()
    save_file(dict(engine.export(torch.float32)), hub / "model.safetensors", metadata={"format": "pt"})
    (hub / "config.json").write_text(json.dumps(MODELS[model] | {"architectures": [type(engine.job.network.model).__name__]}))
    mine = engine.validate().loss
    engine.close()
    theirs = AutoModelForCausalLM.from_pretrained(hub, dtype=torch.float32).eval()
    again = engine_of(new_run(config=hub))
    assert again.validate().loss == pytest.approx(mine, rel=1e-6)
    nats = targets = 0.0
    for x, y in again.feed.validation():
        with torch.no_grad():
            logits = theirs(x).logits
        found = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")
        nats, targets = nats + float(found), targets + int((y >= 0).sum())
    assert mine == pytest.approx(nats / targets, rel=1e-4)
    again.close()


def test_weights_that_do_not_belong_to_the_config_are_refused(new_run: NewRun, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    engine = engine_of(new_run(model="llama"))
    weights = dict(engine.export(torch.float32))
    engine.close()
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "config.json").write_text(json.dumps(MODELS["llama"]))
    save_file(weights, hub / "model.safetensors")
    folder = new_run(config=hub)  # which looks at them too; here they change behind its back
    (hub / "config.json").write_text(json.dumps(MODELS["llama"] | {"intermediate_size": 160}))
    with pytest.raises(UserError, match="of shape"):
        engine_of(folder)
    (hub / "config.json").write_text(json.dumps(MODELS["llama"] | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="has no weights for"):
        engine_of(folder)
    (hub / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="cannot be read"):
        engine_of(folder)
