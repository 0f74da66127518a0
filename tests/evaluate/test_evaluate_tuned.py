"""A fine-tuned Hugging Face run is measured against the model that it was made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny_hf import tiny_llama

from windtunnel.cli import main
from windtunnel.data import ConversationFile, prepare
from windtunnel.evaluate import Answer, Answered, Question, evaluate_folder, evaluate_run, judge_evaluation
from windtunnel.evaluate.paired import gain_over, mcnemar
from windtunnel.generate import export_model
from windtunnel.launch import Options, prepare_run
from windtunnel.recipe import EvaluationGates, UserError, load_recipe
from windtunnel.run import RunFolder
from windtunnel.train import train

RECIPE = """
name: colours
model: {kind: huggingface, config: CONFIG, sequence: 64}
data: {corpus: {kind: conversations, files: [talks.jsonl]}, tokenizer: {kind: folder}, validation: 0.3}
stages:
  sft:
    {batch_tokens: 512, micro_batch: 4, validate_every: 40 steps, learning_rate: 1e-2, compile: false,
     answers: {every: 20 steps, prompts: 6, tokens: 6, metric: exact_match}}
  evaluate: {exact_match_problems: 12, samples: 2}
budget: {steps: 40}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the model 'base', a recipe, and a run of it that has learned to say 'yes'."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(folder / "cache"))
        patch.setenv("COLUMNS", "80")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        base = tiny_llama(folder / "base")
        words = ["red", "green", "blue", "one", "two", "cat", "mat", "sun", "sea"]
        talks = [
            {"messages": [{"role": "user", "content": f"{a} {b}?"}, {"role": "assistant", "content": "the cat"}]}
            for a, b in product(words, words)
        ]
        (folder / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
        (folder / "colours.yaml").write_text(RECIPE.replace("CONFIG", str(base)))
        recipe = load_recipe(folder / "colours.yaml")
        run = prepare_run(recipe, Options(root=folder / "runs", yes=True), lambda text: None)
        run.close()
        (folder / "runs" / "colours").symlink_to(run.path)
        assert train(run.path) == 0
        yield folder
        torch.set_num_threads(threads)


def test_a_run_is_better_than_the_untuned_model_on_the_same_questions(place: Path) -> None:
    report = evaluate_run(place / "runs" / "colours")
    assert report.tuned is not None
    untuned = report.tuned.untuned
    assert untuned is not None
    assert untuned.answers is not None
    assert untuned.gain is not None
    mine = report.tuned.answers
    assert mine is not None
    assert mine.n == untuned.answers.n == 12
    assert [a.question for a in mine.answers] == [a.question for a in untuned.answers.answers]
    assert (mine.share, untuned.answers.share) == (1.0, 0.0)
    assert (untuned.gain.better, untuned.gain.worse) == (12, 0)
    assert untuned.gain.p == pytest.approx(2 * 0.5**12)
    assert untuned.loss.low <= untuned.loss.difference <= untuned.loss.high < 0
    assert untuned.loss.difference == pytest.approx(report.validation.loss - untuned.validation.loss)
    written = json.loads((place / "runs" / "colours" / "evaluation.json").read_text())
    assert written["answers"]["right"] == 12
    assert written["untuned"]["gain"]["better"] == 12
    assert written["samples"][0]["text"] == "the cat" != written["samples"][0]["untuned"]
    held = {r.name: r.held for r in judge_evaluation(EvaluationGates(exact_match=0.9, gain=0.3), report)}
    assert held == {"exact_match": True, "gain": True}
    assert not judge_evaluation(EvaluationGates(gain=0.99), report)[0].held


def reference_loss(folder: Path, recipe_file: Path, **changes: Any) -> tuple[float, int]:
    """Nats a target by plain transformers, labels -100 where nothing is learned; and targets."""
    from transformers import AutoModelForCausalLM

    data = prepare(load_recipe(recipe_file))
    assert isinstance(data.validation, ConversationFile)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    nats = targets = 0.0
    for number in range(data.validation.samples):
        ids, learned = data.validation.sample(number)
        labels = torch.where(torch.from_numpy(learned), torch.from_numpy(ids), -100)[None]
        count = int((labels[:, 1:] >= 0).sum())
        with torch.no_grad():
            nats += float(model(torch.from_numpy(ids)[None], labels=labels).loss) * count
        targets += count
    return nats / targets, int(targets)


def test_the_held_out_loss_is_that_of_transformers_before_and_after(place: Path) -> None:
    report = evaluate_run(place / "runs" / "colours")
    assert report.tuned is not None
    assert report.tuned.untuned is not None
    export_model(place / "runs" / "colours", place / "exported", dtype="fp32")
    after, targets = reference_loss(place / "exported", place / "colours.yaml")
    before, _ = reference_loss(place / "base", place / "colours.yaml")
    assert report.validation.tokens == targets
    assert report.validation.loss == pytest.approx(after, rel=1e-5)
    assert report.tuned.untuned.validation.loss == pytest.approx(before, rel=1e-5)
    # What training measured over packed sequences, at the same step.
    assert report.step is not None
    from windtunnel.checkpoint import CheckpointStore

    saved = CheckpointStore(place / "runs" / "colours" / "checkpoints").at(report.step)
    assert report.validation.loss == pytest.approx(saved.validation_loss, abs=1e-6)


def test_a_folder_is_measured_as_the_run_that_it_was_exported_from(place: Path) -> None:
    export_model(place / "runs" / "colours", place / "out", dtype="fp32")
    run = evaluate_run(place / "runs" / "colours").to_json()
    folder = evaluate_folder(place / "out", load_recipe(place / "colours.yaml")).to_json()
    for key in ("validation_loss", "bits_per_byte", "tokens", "samples"):
        assert folder[key] == pytest.approx(run[key]) if isinstance(run[key], float) else folder[key] == run[key]
    assert folder["answers"] == run["answers"]
    assert folder["untuned"]["gain"] == run["untuned"]["gain"]
    assert folder["step"] is None


def verb(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `windtunnel evaluate`: exit code, standard output and error."""
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_verb_shows_both_models_within_80_columns(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verb(capsys, "colours", "--root", place / "runs", "--problems", 5)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in ("5 of 5 (100.0%)", "0 of 5 (0.0%)", "McNemar p = 0.062"):
        assert words in out
    _, out, _ = verb(capsys, "colours", "--root", place / "runs", "--no-untuned", "--json")
    assert json.loads(out)["untuned"] is None
    folder = (place / "base", "--root", place / "runs")
    code, _, told = verb(capsys, *folder)
    assert (code, "nothing says what to measure it on" in told) == (2, True)
    _, out, _ = verb(capsys, *folder, "--recipe", "colours", "--problems", 3, "--json")
    found = json.loads(out)
    assert (found["answers"]["right"], found["untuned"]) == (0, None)
    assert "names none, or this very folder" in found["warnings"][0]


@pytest.mark.parametrize(("least", "code", "held"), [(0.2, 0, "yes"), (0.99, 1, "NO")])
def test_the_evaluate_stage_of_a_job_judges_its_gates(
    place: Path, capsys: pytest.CaptureFixture[str], least: float, code: int, held: str
) -> None:
    gates = f"stages.evaluate.gates={{exact_match: 0.9, gain: {least}}}"
    with pytest.raises(SystemExit) as ended:
        main(["train", str(place / "colours.yaml"), "--stage", "evaluate", "--root", str(place / "runs"), "--set", gates])
    assert (ended.value.code or 0) == code
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert next(line[1] for line in lines if line[0] == "gain") == held
    assert next(line[1] for line in lines if line[0] == "exact_match") == "yes"


def test_data_other_than_the_run_was_trained_on_is_refused(place: Path) -> None:
    talks = place / "talks.jsonl"
    whole = talks.read_text()
    try:
        talks.write_text("".join(whole.splitlines(keepends=True)[:-3]))
        with pytest.raises(UserError, match="was trained on other data"):
            evaluate_run(place / "runs" / "colours")
    finally:
        talks.write_text(whole)


def test_questions_that_chose_the_best_checkpoint_are_told(place: Path) -> None:
    data = prepare(RunFolder.open(place / "runs" / "colours").recipe)
    assert isinstance(data.validation, ConversationFile)
    few = evaluate_run(place / "runs" / "colours", problems=data.validation.samples - 6, untuned=False)
    every = evaluate_run(place / "runs" / "colours", problems=data.validation.samples, untuned=False)
    assert few.warnings == ()
    assert every.warnings == (
        f"6 of the {data.validation.samples} questions have also chosen the best checkpoint: their share is a little too good",
    )


def test_a_gain_is_paired_and_leaves_out_what_is_not_judged_of_both() -> None:
    def answered(*right: bool | None) -> Answered:
        return Answered("m", tuple(Answer(Question((1,), "", ""), "", r, False) for r in right))

    gain = gain_over(answered(True, True, True, False, None), answered(True, False, False, True, True))
    assert gain is not None
    assert (gain.n, gain.better, gain.worse, gain.difference) == (4, 2, 1, 0.25)
    assert gain.p == 1.0
    assert gain.low < 0.25 < gain.high
    assert gain_over(answered(None), answered(True)) is None
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(10, 2) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert mcnemar(2000, 1900) == pytest.approx(0.1128, abs=2e-3)


def run_verb(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *words])
    return int(ended.value.code or 0)


def test_attempts_at_each_question_are_drawn_and_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(place / "runs" / "colours")
    assert run_verb(run, "--attempts", "3", "--temperature", "0.7", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["attempts"]["questions"], found["attempts"]["each"]) == (12, 3)
    assert found["attempts"]["pass_at"]["1"]["value"] > found["untuned"]["attempts"]["pass_at"]["1"]["value"]
    assert found["attempts"]["pass_at"]["1"]["value"] <= found["attempts"]["pass_at"]["3"]["value"]
    assert found["untuned"]["pass_at_difference"]["1"]["low"] > 0
    assert run_verb(run, "--attempts", "3", "--temperature", "0.7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == found["attempts"]
    assert run_verb(run, "--attempts", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("pass@3" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert run_verb(run, "--attempts", "0") == 2
    assert "--attempts 0: expected 1 to" in capsys.readouterr().err
    assert run_verb(run, "--temperature", "0.5") == 2
    assert "--attempts" in capsys.readouterr().err
