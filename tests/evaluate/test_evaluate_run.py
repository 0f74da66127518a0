"""Evaluating a real run folder: checkpoints by the run room, data by the data room, a model trained a little."""

import dataclasses
import html
import json
import math
from contextlib import closing
from pathlib import Path

import pytest
import torch
from random_gpts import random_gpt

from windtunnel.checkpoint import CheckpointStore, Facts, export_run, save_now
from windtunnel.cli import main
from windtunnel.data import Characters, PreparedData, Problem, held_out_problems, load_tokenizer, prepare
from windtunnel.evaluate import evaluate_run, exact_match, samples, wilson
from windtunnel.evaluate.loss import LossByStep, StepLoss
from windtunnel.evaluate.report import prompts_of
from windtunnel.generate import gpt_generator
from windtunnel.model import GPT, build_model, gpt_shape, load_weights, recipe_shape, use_supervision
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import RunFolder
from windtunnel.watch import write_run_page

RECIPE = {
    "name": "tiny",
    "model": {"depth": 2, "aspect": 32, "head_dim": 32, "sequence": 64},
    "data": {"corpus": {"kind": "arithmetic", "documents": 4000, "digits": 1}, "validation": 0.2},
    "stages": {"evaluate": {"bits_per_byte_tokens": 4096, "exact_match_problems": 40, "samples": 3, "sample_tokens": 12}},
}

RECURSIVE = {**RECIPE, "model": {**RECIPE["model"], "value_embeddings": False}, "trm": {"preset": "honest", "supervision": 2}}


def save(run: RunFolder, model: GPT, step: int, loss: float | None = None) -> None:
    """Save a model as training does."""
    config = {"shape.json": dataclasses.asdict(model.shape)}
    parts = {"model": dict(model.named_parameters())}
    save_now(CheckpointStore(run.checkpoints_dir), parts, Facts(step, {}, loss), config=config, beside=[run.tokenizer_path])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recipe, PreparedData]:
    """A run folder with checkpoints of steps 1 (loss 3), 2 (loss 2, the best) and 3 (loss 4)."""
    root = tmp_path_factory.mktemp("evaluate")
    recipe = Recipe.model_validate(RECIPE)
    data = prepare(recipe, cache=root / "cache")
    with RunFolder.create(root / "runs", recipe, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        for step, loss in ((1, 3.0), (2, 2.0), (3, 4.0)):
            save(run, random_gpt(recipe, data, step), step, loss)
        return run.path, recipe, data


def test_the_best_checkpoint_is_measured_and_reported(made: tuple[Path, Recipe, PreparedData]) -> None:
    path, _, data = made
    seen: list[float] = []
    report = evaluate_run(path, prepared=data, progress=lambda share, _: seen.append(share))
    assert report.step == 2
    # BOS comes after 'newline' only: an untrained model is near or above log2 of the vocabulary.
    assert 3 < report.validation.bits_per_byte < 12
    assert report.validation.tokens == 4096
    assert report.exact_match is not None
    assert report.exact_match.n == 40
    assert len(report.samples) == 3
    assert all(len(s.text) <= 12 and s.prompt.endswith("B") for s in report.samples)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert json.loads((path / "evaluation.json").read_text()) == json.loads(json.dumps(report.to_json()))
    wrong, page = report.exact_match.wrong[0], write_run_page(path).read_text(encoding="utf-8")
    assert html.escape(f"wrong: expected {wrong['expected']}") in page
    assert html.escape(wrong["got"]) in page
    again = evaluate_run(path, prepared=data).to_json()
    for key in ("bits_per_byte", "validation_loss", "exact_match", "samples"):
        assert again[key] == report.to_json()[key]


def test_a_corpus_that_has_changed_since_is_refused(made: tuple[Path, Recipe, PreparedData]) -> None:
    path, _, data = made
    with RunFolder.open(path) as run:
        run.update(data={"checksum": "of other text"})
        with pytest.raises(UserError, match="trained on other data: checksum of other text, now "):
            evaluate_run(path, prepared=data)
        run.update(data={"checksum": data.checksum})


def test_another_checkpoint_can_be_chosen(made: tuple[Path, Recipe, PreparedData]) -> None:
    path, _, data = made
    best = evaluate_run(path, prepared=data)
    assert evaluate_run(path, 1, prepared=data).step == 1
    assert evaluate_run(path, "newest", prepared=data).step == 3
    for name, step in (("evaluation", best.step), ("evaluation-step-1", 1), ("evaluation-newest", 3)):
        assert json.loads((path / f"{name}.json").read_text())["step"] == step
    with pytest.raises(UserError, match="no good checkpoint of step 7"):
        evaluate_run(path, 7, prepared=data)
    with pytest.raises(UserError):
        evaluate_run(path / "nowhere", prepared=data)


def exit_code(*words: str) -> int | str | None:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_a_damaged_best_checkpoint_is_passed_over(made: tuple[Path, Recipe, PreparedData], tmp_path: Path) -> None:
    path, _, data = made
    export = ("export", str(path), "--to")
    assert exit_code(*export, str(tmp_path / "best")) == 0
    best = CheckpointStore(path / "checkpoints").at(2).path / "model/__0_0.distcp"
    content = best.read_bytes()
    try:
        best.write_bytes(content[:-8] + b"\xff" * 8)
        report = evaluate_run(path, prepared=data)
        assert report.step == 1
        assert len(report.warnings) == 1
        assert "step-00000002/model/__0_0.distcp: checksum differs" in report.to_json()["warnings"][0]
        assert report.to_json()["substitute"] is True
        # What was done is not what was asked for, and scripts must see it.
        assert exit_code(*export, str(tmp_path / "next")) == 1
        assert (tmp_path / "next").is_dir()
        assert exit_code("evaluate", str(path), "--json") == 1
    finally:
        best.write_bytes(content)


def test_a_report_that_cannot_be_written_is_not_lost(made: tuple[Path, Recipe, PreparedData]) -> None:
    path, _, data = made
    written = evaluate_run(path, prepared=data)
    assert written.unwritten is None
    (path / "evaluation.json").unlink()
    (path / "evaluation.json").mkdir()
    try:
        again = evaluate_run(path, prepared=data)
    finally:
        (path / "evaluation.json").rmdir()
    assert again.validation == written.validation
    assert "evaluation.json cannot be written" in (again.unwritten or "")
    assert not list(path.glob("*.tmp"))


def test_a_recursive_models_loss_is_told_after_every_step_also_untrained_ones(
    made: tuple[Path, Recipe, PreparedData], tmp_path: Path
) -> None:
    _, _, data = made
    recipe = Recipe.model_validate(RECURSIVE)
    with RunFolder.create(tmp_path / "runs", recipe, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        save(run, random_gpt(recipe, data, 1), 1)
    usual, more = (evaluate_run(run.path, prepared=data, supervision=steps) for steps in (None, 4))
    assert usual.by_step is not None
    assert more.by_step is not None
    assert (usual.by_step.trained, len(usual.by_step.steps), len(more.by_step.steps)) == (2, 2, 4)
    told = json.loads((run.path / "evaluation-supervision-4.json").read_text())["by_step"]
    assert (told["trained"], len(told["bits_per_byte"])) == (2, 4)
    assert told["loss"][1] == pytest.approx(usual.validation.loss)
    assert told["loss"][3] == pytest.approx(more.validation.loss)
    assert len(set(told["loss"])) == 4
    rows = more.by_step.rows()
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[0] for row in rows if "trained" in row[3]] == ["2"]
    lowest = min(rows, key=lambda row: float(row[1]))
    assert [row for row in rows if "lowest" in row[3]] == [lowest]
    assert evaluate_run(made[0], prepared=data).by_step is None


def test_of_many_supervision_steps_some_rows_are_shown() -> None:
    steps = tuple(StepLoss(abs(i - 49) + 1.0, 1.0) for i in range(1, 101))
    rows = LossByStep(20, steps).rows()
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 19, 20, 21, 32, 49, 64, 100]
    assert dict((row[0], row[3]) for row in rows)["49"] == "lowest loss"
    assert LossByStep(8, (StepLoss(1.0, math.nan),)).to_json()["bits_per_byte"] == [None]


def test_one_limit_of_supervision_steps_in_use_holds_for_the_recipe_and_the_command() -> None:
    """A recipe that is accepted names no number that --supervision refuses, and the other way round."""
    for steps, fine in ((1024, True), (1025, False)):
        recipe = {**RECURSIVE, "trm": {**RECURSIVE["trm"], "inference_supervision": steps}}
        model = build_model(recipe_shape(Recipe.model_validate(RECURSIVE), 16))
        if fine:
            assert Recipe.model_validate(recipe).trm.inference_supervision == steps
            use_supervision(model, steps)
            continue
        with pytest.raises(ValueError, match="1024"):
            Recipe.model_validate(recipe)
        with pytest.raises(UserError, match="1 to 1024"):
            use_supervision(model, steps)


def test_export_can_be_loaded_again(made: tuple[Path, Recipe, PreparedData], tmp_path: Path) -> None:
    path, recipe, data = made
    made_of = export_run(path, tmp_path / "out" / "model.safetensors", dtype="fp32", shard_bytes=20_000)
    assert len(made_of.files) > 1
    model, expected = load_weights(made_of.folder), random_gpt(recipe, data, 2)
    x = torch.randint(0, data.tokenizer.vocab, (1, 20))
    with torch.inference_mode():
        torch.testing.assert_close(model(x), expected(x))
    assert load_tokenizer(made_of.folder).pieces == data.tokenizer.pieces
    assert export_run(path, tmp_path / "half").bytes == made_of.bytes / 2
    with pytest.raises(UserError, match="always called"):
        export_run(path, tmp_path / "other.safetensors")


def trained(problems: list[Problem], tokenizer: Characters, end: str = "L\n") -> GPT:
    """A model that has learnt these few documents by heart."""
    recipe = Recipe.model_validate(RECIPE)
    model = build_model(gpt_shape(recipe.model, tokenizer.vocab), seed=0)
    rows = [[tokenizer.bos, *tokenizer.encode(f"{p.prompt}{p.answer}{end}"), tokenizer.bos] for p in problems]
    longest = max(map(len, rows))
    x = torch.tensor([[*map(int, r), *[0] * (longest - len(r))] for r in rows])
    y = torch.tensor([[*map(int, r[1:]), *[-1] * (longest - len(r) + 1)] for r in rows])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()
    return model.eval()


def test_exact_match_counts_what_was_learnt() -> None:
    tokenizer = Characters("0123456789+-HBL.\n")
    known = [Problem("H1+2B", "3"), Problem("H12+34B", "46"), Problem("H5-17B", "-12"), Problem("H9+9+9B", "27")]
    model = trained(known, tokenizer)
    with closing(gpt_generator(model, tokenizer, slots=4)) as generator:
        assert exact_match(generator, known).right == 4
        wrong = [Problem(p.prompt, p.answer + "0") for p in known[:2]]
        result = exact_match(generator, known + wrong)
        assert (result.right, result.n) == (4, 6)
        assert result.low < 4 / 6 < result.high
        assert result.wrong[0] == {"prompt": "H1+2B", "expected": "30", "got": "3L"}


def test_samples_depend_on_the_seed_alone() -> None:
    recipe, tokenizer = Recipe.model_validate(RECIPE), Characters("0123456789+-HBL.\n")
    model = build_model(gpt_shape(recipe.model, tokenizer.vocab), seed=0).eval()
    with closing(gpt_generator(model, tokenizer, slots=2)) as generator:
        one, same, other = (samples(generator, ["H", "H1"], 30, seed) for seed in (1, 1, 2))
        assert one == same != other
        long = samples(generator, ["1" * 100, "1" * 60], 30, 1)  # they lose their beginning
        assert all(len(sample.text) <= 30 for sample in long)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (450, 500, 0.8707, 0.9233)],
)
def test_wilson_interval(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right, n) == pytest.approx((low, high), abs=2e-4)


def test_lines_of_prompts_and_answers_are_judged_at_the_separator(tmp_path: Path) -> None:
    lines = tmp_path / "sums.txt"
    lines.write_text("".join(f"H{i}+{i % 7}B{i + i % 7}L.\n" for i in range(300)) + "no prompt here\n")
    text = {"corpus": {"kind": "text", "files": [str(lines)], "answer_after": "B"}, "validation": 0.3}
    recipe = Recipe.model_validate({**RECIPE, "data": text})
    data = prepare(recipe, cache=tmp_path / "cache")
    assert data.documents == 301, "each line is a document"
    asked = held_out_problems(data, 500, 1, "B")
    assert 50 < len(asked) < data.validation_documents + 1
    assert all(p.prompt.endswith("B") and p.answer.endswith("L.") and p.end == "" for p in asked)
    with RunFolder.create(tmp_path / "runs", recipe, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        save(run, random_gpt(recipe, data, 1), 1)
    report = evaluate_run(run.path, prepared=data, problems=40)
    assert report.exact_match is not None
    assert report.exact_match.n == 40
    assert report.exact_match.share < 0.2, "these weights are random"
    assert all(sample.prompt.endswith("B") for sample in report.samples)


def test_prompts_and_answers_may_be_records_and_what_has_none_is_told(tmp_path: Path) -> None:
    lines = tmp_path / "sums.jsonl"
    lines.write_text("".join(json.dumps({"text": f"{i}+{i % 7}={i + i % 7}"}) + "\n" for i in range(300)))

    def recipe(after: str) -> Recipe:
        text = {"corpus": {"kind": "text", "files": [str(lines)], "answer_after": after}, "validation": 0.3}
        return Recipe.model_validate({**RECIPE, "data": text})

    data = prepare(recipe("="), cache=tmp_path / "cache")
    assert data.documents == 300, "each record is a document"
    assert len(held_out_problems(data, 500, 1, "=")) == data.validation_documents
    with pytest.raises(UserError, match="answer_after: 'B' stands in none of the 300 documents"):
        prepare(recipe("B"), cache=tmp_path / "cache")
    few = recipe("299+5=")  # in one document, which is trained on
    data = prepare(few, cache=tmp_path / "cache")
    assert held_out_problems(data, 500, 1, "299+5=") == []
    with RunFolder.create(tmp_path / "runs", few, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        save(run, random_gpt(few, data, 1), 1)
    report = evaluate_run(run.path, prepared=data)
    assert report.exact_match is None
    assert report.warnings == ("no held-out document has an answer after '299+5=' (data.corpus.answer_after): no exact match",)
    assert not report.substitute


def test_an_answer_at_a_separator_is_right_when_the_document_ends_with_it() -> None:
    tokenizer = Characters("0123456789+-HBL.\n")
    known = [Problem("H1+2B", "3", ""), Problem("H12+34B", "46", ""), Problem("H5-17B", "-12", "")]
    model = trained(known, tokenizer, end="")
    with closing(gpt_generator(model, tokenizer, slots=4)) as generator:
        assert exact_match(generator, known).right == 3
        assert exact_match(generator, [Problem("H12+34B", "4", ""), Problem("H1+2B", "33", "")]).right == 0


def test_samples_of_short_documents_begin_with_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"line {i} of them" for i in range(200)))
    text = {"corpus": {"kind": "text", "files": [str(tmp_path / "a.txt")], "separator": "\n"}, "validation": 0.2}
    recipe = Recipe.model_validate({**RECIPE, "data": text})
    data = prepare(recipe, cache=tmp_path / "cache")
    prompts = prompts_of(recipe, data)
    assert prompts
    assert all("line ".startswith(p) or p.startswith("line ") for p in prompts)
    assert all(0 < len(p) <= 8 for p in prompts), "half of a line, not all of it"


def test_text_corpora_have_samples_but_no_exact_match(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Paragraph {i} says: naïve café number {i * i}." for i in range(200)))
    text = {"corpus": {"kind": "text", "files": [str(tmp_path / "a.txt")], "separator": "\n\n"}, "validation": 0.2}
    recipe = Recipe.model_validate({**RECIPE, "data": text})
    data = prepare(recipe, cache=tmp_path / "cache")
    with RunFolder.create(tmp_path / "runs", recipe, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        save(run, random_gpt(recipe, data, 1), 1)
    report = evaluate_run(run.path, prepared=data)
    assert report.exact_match is None
    assert len(report.samples) == 3
    assert all(s.prompt.startswith("Paragraph") for s in report.samples)
    other = prepare(
        Recipe.model_validate({**RECIPE, "data": {**text, "corpus": {"kind": "arithmetic", "documents": 50}}}),
        cache=tmp_path / "cache",
    )
    with pytest.raises(UserError, match="corpus has changed"):
        evaluate_run(run.path, prepared=other)
