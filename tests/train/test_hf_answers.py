"""Held-out questions answered in training decide which checkpoint is the best, and change nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import events, final_weights, losses, prepared_run, train_in_processes
from hf_models import MODELS

from windtunnel.checkpoint import CheckpointStore, choose_checkpoint
from windtunnel.data import prepare
from windtunnel.evaluate import generate_answers, held_out_questions
from windtunnel.launch import Options
from windtunnel.recipe import Layout, UserError
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import train
from windtunnel.train.hf import plain_model
from windtunnel.train.methods import build_engine, text_feed
from windtunnel.train.ranks import join_ranks

NewRun = Callable[..., Path]
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.end_to_end]
RECIPE = """
name: tiny-answers
model: {kind: huggingface, config: CONFIG, sequence: 64}
data:
  corpus: {kind: conversations, files: [TALKS]}
  tokenizer: {kind: bpe, vocab_size: 400}
  validation: 0.1
stages:
  sft:
    {batch_tokens: 512, micro_batch: 4, validate_every: 5 steps, validation_tokens: 1024, learning_rate: 3e-3, compile: false,
     answers: {every: 4 steps, prompts: 7, tokens: 8, metric: METRIC}}
budget: {steps: 12}
checkpoints: {every: 5 steps, keep_last: 1}
"""
# What an untrained model says is noise, but the same noise for the same weights.
NOISE = "import zlib\ndef judge(prompt, answer, truth):\n    return zlib.crc32((prompt + answer).encode()) % 2\n"
# Right is what came first: the loss falls meanwhile.
FIRST = "calls = []\ndef judge(prompt, answer, truth):\n    calls.append(answer)\n    return len(calls) <= 7\n"


@pytest.fixture
def new_run(tmp_path: Path) -> NewRun:
    """new_run('key=value', ..., ranks=None, judge=source) -> the folder of a run that is ready to train."""

    def make(*sets: str, ranks: int | None = None, judge: str = NOISE, model: str = "llama") -> Path:
        talks, config, path = (tmp_path / name for name in ("talks.jsonl", f"{model}.json", "tiny-answers.yaml"))
        (tmp_path / "judge.py").write_text(judge)
        turns = [
            [{"role": "user", "content": f"What is {a} and {b}?"}, {"role": "assistant", "content": f"It is {a + b}."}]
            for a in range(20)
            for b in range(20)
        ]
        talks.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in turns))
        config.write_text(json.dumps(MODELS[model] | {"vocab_size": 512, "max_position_embeddings": 96}))
        text = RECIPE.replace("CONFIG", str(config)).replace("TALKS", str(talks)).replace("METRIC", "'judge.py:judge'")
        path.write_text(text)
        return prepared_run(path, sets, ranks, Options(root=tmp_path / "runs", yes=True))

    return make


def scores(folder: Path) -> dict[int, float]:
    """Share of right answers by step."""
    with MetricsReader(RunFolder.open(folder).metrics_path) as reader:
        return {point.step: point.value for point in reader.series("answers_right")}


def said(folder: Path) -> list[dict[str, Any]]:
    """What was recorded of the answers, those that were not right among it, in order."""
    with MetricsReader(RunFolder.open(folder).metrics_path) as reader:
        return [event.data for event in reader.events() if event.kind == "answers"]


def test_the_best_checkpoint_is_the_one_with_the_most_right_answers_and_not_the_lowest_loss(new_run: NewRun) -> None:
    folder = new_run(judge=FIRST)
    assert train(folder) == 0
    assert scores(folder) == {4: 1.0, 8: 0.0, 12: 0.0}
    with MetricsReader(RunFolder.open(folder).metrics_path) as reader:
        validation = {point.step: point.value for point in reader.series("validation_loss")}
    assert sorted(validation) == [4, 5, 8, 10, 12]
    assert validation[12] < validation[4]
    store = CheckpointStore(folder / "checkpoints")
    best = store.best()
    assert best is not None
    assert (best.step, best.score, best.validation_loss) == (4, 1.0, validation[4])
    assert choose_checkpoint(folder, "best").checkpoint.step == 4
    assert [c.step for c in store.all()] == [4, 12]  # the best one and the last
    assert RunFolder.open(folder).manifest["summary"] | {"best_loss": None} == {
        "step": 12, "best_step": 4, "best_loss": None, "best_answers": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("sets", [(), ("model.adapter={rank: 4}",)], ids=["full", "lora"])
def test_a_stopped_run_resumes_with_the_same_losses_answers_and_weights(new_run: NewRun, sets: tuple[str, ...]) -> None:
    whole, halted, off = new_run(*sets), new_run(*sets), new_run(*sets, "stages.sft.answers=null")
    assert train(whole) == 0
    assert train(halted, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 7 else None) == 3
    assert sorted(scores(halted)) == [4], "who is told to stop does not begin to answer"
    assert train(halted) == 0
    assert train(off) == 0
    assert "resumed" in events(halted)
    assert scores(whole) == scores(halted)
    assert said(whole) == said(halted)
    assert sorted(scores(whole)) == [4, 8, 12]
    assert losses(whole) == losses(halted) == losses(off)
    for name, tensor in final_weights(whole).items():
        assert torch.equal(tensor, final_weights(halted)[name])
        assert torch.equal(tensor, final_weights(off)[name])


def test_who_is_told_to_stop_while_answering_saves_at_once(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.train import held_out_answers

    true = held_out_answers.generate_answers

    def told(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return true(*arguments)

    halted, whole = new_run("stages.sft.answers.tokens=30"), new_run("stages.sft.answers.tokens=30")
    with monkeypatch.context() as patch:
        patch.setattr(held_out_answers, "generate_answers", told)
        assert train(halted) == 3
    assert scores(halted) == {}
    assert max(losses(halted)) == 5
    assert train(halted) == train(whole) == 0
    assert losses(halted) == losses(whole)


def test_answers_for_which_there_is_no_memory_cost_only_themselves(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.train import held_out_answers

    def too_much(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(held_out_answers, "plain_model", too_much)
    folder, off = new_run(), new_run("stages.sft.answers=null")
    assert train(folder) == train(off) == 0
    assert scores(folder) == {}
    assert losses(folder) == losses(off)
    with MetricsReader(RunFolder.open(folder).metrics_path) as reader:
        told = [event for event in reader.events() if event.kind == "answers_failed"]
    assert told[0].message == "held-out answers of step 4 are left out: out of memory (2.00 GiB more were not there)"
    assert "answers.prompts" in told[0].data["advice"]


@pytest.mark.timeout(400)
def test_two_ranks_answer_as_one_does(new_run: NewRun) -> None:
    one, two = new_run(), new_run(ranks=2)
    assert train(one) == 0
    process = train_in_processes(two, 2)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert scores(two) == scores(one)
    assert said(two) == said(one)
    assert len(set(scores(one).values())) > 1, "the same score each time shows nothing"


@pytest.mark.parametrize(
    ("model", "sets"),
    [
        ("llama", ()),
        ("qwen2", ("model.adapter={rank: 4}",)),
        ("qwen3_moe", ()),
        ("mistral", ()),
    ],
    ids=["llama", "tied-lora", "experts", "window"],
)
def test_the_model_that_answers_is_the_one_that_is_trained(new_run: NewRun, model: str, sets: tuple[str, ...]) -> None:
    run = RunFolder.open(new_run(*sets, model=model))
    layout = Layout.of_plan(run.manifest["plan"]["layout"])
    data = prepare(run.recipe)
    with join_ranks("cpu") as ranks:
        engine = build_engine(run.recipe, layout, ranks, text_feed(run.recipe, layout, ranks, data))
        for step in range(1, 4):
            engine.step(step, 0.1).result()
        plain = plain_model(engine.job, torch.float32)  # type: ignore[attr-defined]
        nats = targets = 0.0
        for batch in engine.feed.validation():
            # Every conversation of a pack alone.
            documents, starts = batch.document_ids, (batch.position_ids == 0).nonzero()
            assert documents is not None
            for row, start in starts.tolist():
                end = start + int((documents[row] == documents[row, start]).sum())
                ids, wanted = batch.input_ids[row, start:end], batch.targets[row, start:end]
                if (wanted >= 0).any():
                    with torch.no_grad():
                        logits = plain(ids[None]).logits[0].float()
                    nats += float(torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-1, reduction="sum"))
                    targets += int((wanted >= 0).sum())
        assert engine.validate().loss == pytest.approx(nats / targets, rel=1e-5)
        engine.close()


def test_greedy_answers_are_those_of_transformers(new_run: NewRun) -> None:
    run = RunFolder.open(new_run())
    layout = Layout.of_plan(run.manifest["plan"]["layout"])
    data = prepare(run.recipe)
    questions = held_out_questions(data, run.recipe, 9, tokens=8)
    with join_ranks("cpu") as ranks:
        engine = build_engine(run.recipe, layout, ranks, text_feed(run.recipe, layout, ranks, data))
        engine.step(1, 0.1).result()
        model = plain_model(engine.job, torch.float32)  # type: ignore[attr-defined]
        engine.close()
    theirs = []
    for question in questions.asked:
        ids = torch.tensor([question.ids])
        made = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=list(questions.ends),
            pad_token_id=0,
        )  # fmt: skip
        new = made[0, len(question.ids) :].tolist()
        theirs.append(data.tokenizer.decode([i for i in new if i < data.tokenizer.vocab]))
    assert [said.text for said in generate_answers(model, data.tokenizer, questions.asked, questions.ends, 8)] == theirs


def test_a_metric_that_cannot_be_used_is_refused_before_training(new_run: NewRun) -> None:
    folder = new_run(judge="def other():\n    pass\n")
    with pytest.raises(UserError, match="has no function judge"):
        train(folder)
    folder = new_run("stages.sft.answers.tokens=95")
    with pytest.raises(UserError, match="none can be asked"):
        train(folder)
