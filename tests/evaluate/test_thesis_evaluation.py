"""A run on theses: its actions are predicted, measured beside the untuned model, and gone on with after an interruption."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny_hf import tiny_llama

from windtunnel.cli import main
from windtunnel.data import encode_questions, prepare, read_questions
from windtunnel.evaluate import (
    EvaluationReport,
    evaluate_folder,
    evaluate_run,
    held_out_questions,
    judge_evaluation,
    predict_file,
    predictions,
    read_signals,
)
from windtunnel.evaluate.predictions import CLOSE, COLUMNS, Prediction, PredictionLog, score_actions
from windtunnel.generate import HFDecoder, export_model, load_hf
from windtunnel.launch import Options, prepare_run
from windtunnel.recipe import ACTIONS, EvaluationGates, UserError, load_recipe
from windtunnel.run import MetricsReader, RunFolder, compare_expected
from windtunnel.train import train

pytestmark = pytest.mark.end_to_end

RECIPE = """
name: mini
model: {kind: huggingface, config: CONFIG, sequence: 128}
data:
  corpus: {kind: theses, files: [theses.jsonl], instruction: Act.}
  tokenizer: {kind: folder, add: TOKENS}
  split: {test_start: 2024-04-01, validation_days: 20}
stages:
  sft:
    {batch_tokens: 512, micro_batch: 4, validate_every: 60 steps, validation_tokens: 1024, learning_rate: 1e-2, compile: false,
     answers: {every: 120 steps, prompts: 8, tokens: 60, metric: action}}
  evaluate: {exact_match_problems: 40, samples: 1, backtest: {prices: PRICES, hold: 2}}
budget: {steps: 120}
checkpoints: {every: 120 steps}
expect: {accuracy: [0.6, 1.0], macro_f1: [null, 0.1], gain: [0.3, null]}
"""
REASONING = "The cat sat on the mat. The cat sat on the mat. one."
# What the model sees of each action, one letter; and how often it is the right one.
SIGNS = dict(zip("qwxjv", ACTIONS, strict=True))
NOISE = 9
TOKENS = [*(f"<{end}{name}>" for name in ("reasoning", "support", "action") for end in ("", "/")), *ACTIONS]


def prices() -> str:
    """Closes of the three tickers on every day of the year, up and down."""
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=number) for number in range(366)]
    closes = [f"{day},{100 + i % 7},{50 + i % 5},{20 + i % 3}\n" for i, day in enumerate(days) if day.weekday() < 5]
    return "date,A,B,C\n" + "".join(closes)


def records() -> list[dict[str, Any]]:
    """Theses of half a year, three a day; the action is that of the sign, but for every ninth."""
    made, first = [], datetime.date(2024, 1, 1)
    for number in range(3 * 160):
        sign = "qwxjv"[(number * 7 + number // 5) % 5]
        action = ACTIONS[(ACTIONS.index(SIGNS[sign]) + (number % NOISE == 0)) % 5]
        made.append({
            "ticker": "ABC"[number % 3], "as_of_date": str(first + datetime.timedelta(days=number // 3)), "reasoning": REASONING,
            "support": sign * 3, "action": action, "indicators": {"s": sign * 3},
        })  # fmt: skip
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the model 'base', a recipe, and a run of it that has learned what the signs mean."""
    folder = tmp_path_factory.mktemp("theses")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(folder / "cache"))
        patch.setenv("COLUMNS", "80")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        base = tiny_llama(folder / "base")
        (folder / "theses.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records()))
        text = RECIPE.replace("PRICES", str(folder / "prices.csv")).replace("CONFIG", str(base))
        (folder / "mini.yaml").write_text(text.replace("TOKENS", json.dumps(TOKENS)))
        (folder / "prices.csv").write_text(prices())
        run = prepare_run(load_recipe(folder / "mini.yaml"), Options(root=folder / "runs", yes=True), lambda text: None)
        run.close()
        (folder / "runs" / "mini").symlink_to(run.path)
        assert train(run.path) == 0
        yield folder
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def report(place: Path) -> EvaluationReport:
    """The evaluation of that run."""
    return evaluate_run(place / "runs" / "mini")


def facts(made: list[Prediction]) -> list[tuple[Any, ...]]:
    """Predictions without what differs from time to time."""
    return [(one.uid, one.predicted, one.text, one.probabilities) for one in made]


def written(folder: Path, name: str = "predictions") -> list[Prediction]:
    """What stands in a file of JSON lines."""
    return [Prediction.of_record(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_a_model_that_has_read_the_test_period_is_not_trained(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(place / "mini.yaml"), "--yes", "--root", str(place / "refused")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--set", "data.split.knowledge_cutoff=2024-04-02"])
    assert ended.value.code == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "the test period begins on 2024-04-01, and the base model has read texts up to 2024-04-02" in said
    assert "--set data.split.test_start=2024-04-03 or later" in said
    assert not (place / "refused").exists()


def test_actions_are_better_than_the_untuned_models_by_dates(report: EvaluationReport) -> None:
    assert report.tuned is not None
    mine, untuned = report.tuned.actions, report.tuned.untuned
    assert mine is not None
    assert untuned is not None
    assert untuned.actions is not None
    assert untuned.gain is not None
    assert untuned.macro_f1 is not None
    assert mine.scores.n == untuned.actions.scores.n == 40
    assert mine.scores.accuracy.value > 0.4 > untuned.actions.scores.accuracy.value
    assert mine.scores.accuracy.low < mine.scores.accuracy.value < mine.scores.accuracy.high
    assert untuned.gain.difference == pytest.approx(mine.scores.accuracy.value - untuned.actions.scores.accuracy.value)
    assert 0 < untuned.gain.low < untuned.gain.difference < untuned.gain.high
    assert (untuned.gain.how, untuned.gain.test) == ("bootstrap over dates", "signs of dates flipped")
    assert untuned.gain.p < 0.01
    assert 0 < untuned.macro_f1.low < untuned.macro_f1.value
    assert mine.base.ahead.value == pytest.approx(mine.scores.accuracy.value - mine.base.majority.accuracy.value)
    assert sum(mine.base.share.values()) == pytest.approx(1.0)
    assert mine.calibration is not None
    assert mine.calibration.n + mine.calibration.without == 40
    assert mine.calibration.skill > 0
    assert 0 < mine.latency.p50 <= mine.latency.p95
    answers = report.tuned.answers
    assert answers is not None
    assert answers.right == round(40 * mine.scores.accuracy.value)


def test_gates_and_expectations_are_judged_by_it(place: Path, report: EvaluationReport) -> None:
    held = {r.name: r.held for r in judge_evaluation(EvaluationGates(macro_f1=0.3, above_majority=0.0), report)}
    assert held == {"macro_f1": True, "above_majority": True}
    failed = judge_evaluation(EvaluationGates(macro_f1=0.99, above_majority=0.9), report)
    assert [gate.held for gate in failed] == [False, False]
    assert all(gate.advice for gate in failed)
    met = {item.name: item.met for item in compare_expected(RunFolder.open(place / "runs" / "mini"))}
    assert (met["macro_f1"], met["gain"]) == (False, True)


def test_predictions_are_those_of_the_test_split_in_both_files(place: Path, report: EvaluationReport) -> None:
    folder = place / "runs" / "mini" / "evaluation"
    with open(folder / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    made = written(folder)
    assert tuple(rows[0]) == COLUMNS
    assert [row["uid"] for row in rows] == [one.uid for one in made]
    assert [row["predicted"] or None for row in rows] == [one.predicted for one in made]
    assert [row["as_of_date"] for row in rows] == sorted(row["as_of_date"] for row in rows)
    data = prepare(RunFolder.open(place / "runs" / "mini").recipe)
    right = {thesis.uid: thesis.action for thesis in data.theses("test")}
    assert all(right[one.uid] == one.action for one in made)
    for one, row in zip(made, rows, strict=True):
        if one.probabilities is not None and one.predicted is not None:
            assert sum(one.probabilities.values()) == pytest.approx(1.0)
            assert float(row["confidence"]) == float(row[f"p_{one.predicted}"])
    untuned = written(folder, "predictions-untuned")
    assert [one.uid for one in untuned] == [one.uid for one in made]
    assert (folder / "actions.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.glob("*.part"))


def test_a_backtest_reads_the_predictions(place: Path, report: EvaluationReport) -> None:
    folder = place / "runs" / "mini" / "evaluation"
    for name in ("predictions.csv", "predictions.jsonl"):
        signals = read_signals(folder / name)
        assert len(signals.rows) == 40
        assert {row.action for row in signals.rows} <= {*ACTIONS, None}


def interrupted(place: Path, patch: pytest.MonkeyPatch, groups: int, **options: Any) -> int:
    """Evaluate in groups of 8 until so many are answered; return how many theses were asked about."""
    asked, true = [], predictions.answer_questions

    def count(*arguments: Any) -> Any:
        if len(asked) == groups:
            raise KeyboardInterrupt
        asked.append(len(arguments[2]))
        return true(*arguments)

    patch.setattr(predictions, "GROUP", 8)
    patch.setattr(predictions, "answer_questions", count)
    with contextlib.suppress(KeyboardInterrupt):
        evaluate_run(place / "runs" / "mini", untuned=False, **options)
    return sum(asked)


def test_an_interrupted_evaluation_goes_on_with_the_same_predictions(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "runs" / "mini" / "evaluation"
    for file in folder.glob("*"):
        file.unlink()
    with monkeypatch.context() as patch:
        assert interrupted(place, patch, 99) == 40
    whole = written(folder)
    with monkeypatch.context() as patch:
        assert interrupted(place, patch, 3) == 24
    (kept,) = folder.glob("*.part")
    kept.write_bytes(kept.read_bytes() + b'{"uid": "torn')
    with monkeypatch.context() as patch:
        assert interrupted(place, patch, 99, problems=16) == 16, "others than those that were interrupted"
    assert kept.exists()
    with monkeypatch.context() as patch:
        assert interrupted(place, patch, 99) == 16
    assert facts(written(folder)) == facts(whole)
    assert not list(folder.glob("*.part"))


def test_a_log_keeps_whole_groups_and_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "GROUP", 2)
    one = Prediction("u", "A", "2024-01-01", "BUY", None, "no action element", None, 0.5, "\u2028 text")
    log = PredictionLog(tmp_path / "out", "", {"weights": "a"}, 5)
    assert log.read() == []
    log.add([one, one])
    log.add([one, one])
    log.add([one])
    assert log.read() == [one] * 5
    (file,) = (tmp_path / "out").glob("*.part")
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    assert log.read() == [one] * 4
    assert PredictionLog(tmp_path / "out", "", {"weights": "b"}, 5).read() == []
    file.write_bytes(content[:20])
    assert log.read() == []


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_probabilities_are_those_of_whole_texts(tmp_path: Path, kind: str) -> None:
    folder = tiny_llama(tmp_path / kind, kind=kind, **({"sliding_window": 8} if kind == "mistral" else {}))
    from windtunnel.data import Folder

    tokenizer, model = Folder.from_folder(folder), load_hf(folder, torch.device("cpu"), torch.float32)
    prompt = [1, *tokenizer.encode("user one two three").tolist()]
    answer = "<reasoning>The cat sat on the mat.</reasoning><action>SELL</action> and more"
    element = answer.index("SELL")
    found = score_actions(HFDecoder(model), tokenizer, prompt, answer, element, ACTIONS)
    nats = []
    for action in ACTIONS:
        written_ids = tokenizer.encode(answer[:element] + action + CLOSE).tolist()
        ids = torch.tensor([[*prompt, *written_ids]])
        with torch.no_grad():
            p = model(input_ids=ids).logits[0].log_softmax(-1)
        nats.append(-sum(float(p[len(prompt) + i - 1, token]) for i, token in enumerate(written_ids)))
    assert list(found.values()) == pytest.approx(torch.softmax(-torch.tensor(nats), 0).tolist(), abs=1e-4)
    assert list(found) == list(ACTIONS)


def test_right_actions_were_counted_in_training(place: Path) -> None:
    folder = RunFolder.open(place / "runs" / "mini")
    with MetricsReader(folder.metrics_path) as reader:
        shares = [point.value for point in reader.series("answers_right")]
        metrics = {event.data["metric"] for event in reader.events() if event.kind == "answers"}
    assert len(shares) == 1
    assert shares == [folder.manifest["summary"]["best_answers"]]
    assert metrics == {"action"}


def verb(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line: exit code, standard output and error."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_verb_shows_it_within_80_columns(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verb(capsys, "evaluate", "mini", "--root", place / "runs")
    assert code == 0
    tables = out.partition("  prompt:")[0].splitlines()
    assert max(map(len, tables)) <= 80
    for words in ("theses, dates", "95 %, by dates", "confusion matrix", "majority of training", "macro f1"):
        assert words in out


def test_an_exported_folder_is_measured_alike_and_written_where_asked(
    place: Path, report: EvaluationReport, tmp_path: Path
) -> None:
    export_model(place / "runs" / "mini", tmp_path / "model")
    out = tmp_path / "out"
    found = evaluate_folder(tmp_path / "model", load_recipe(place / "mini.yaml"), problems=24, out=out)
    assert found.tuned is not None
    assert found.tuned.actions is not None
    assert found.tuned.untuned is not None
    assert found.tuned.actions.scores.accuracy.value > 0.4
    assert len(written(out)) == len(written(out, "predictions-untuned")) == 24
    assert json.loads((out / "evaluation.json").read_text())["actions"]["n"] == 24


NEW = """<stock-theses ticker="A" generated-by="hand" version="1">
  <thesis><as-of-date>2024-06-03</as-of-date><s>qqq</s></thesis>
  <thesis as-of-date="2024-06-04"><s>vvv</s><reasoning>of no use</reasoning></thesis>
  <thesis><as-of-date>3 June</as-of-date><s>xxx</s></thesis>
</stock-theses>
"""


def test_new_theses_are_predicted_from_xml(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.xml").write_text(NEW)
    common = ("predict", "mini", "--root", place / "runs", "--file", tmp_path / "new.xml", "--out", tmp_path / "out")
    code, out, told = verb(capsys, *common)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "new.xml:4: date not written as year-month-day" in told
    assert "Loading weights" not in told  # a library's progress bar
    code, out, _ = verb(capsys, *common, "--json")
    found = json.loads(out)
    assert [one["as_of_date"] for one in found["predictions"]] == ["2024-06-03", "2024-06-04"]
    for one in found["predictions"]:
        assert one["action"] == ""
        assert one["predicted"] in (None, *ACTIONS)
        assert one["predicted"] is None or one["confidence"] == one[f"p_{one['predicted']}"]
        assert one["latency_s"] > 0
    assert found["latency_s"]["p95"] > 0
    assert len(found["left_out"]) == 1
    assert len(written(tmp_path / "out")) == 2


def test_a_folder_is_asked_as_the_run_that_it_is_exported_from(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.xml").write_text(NEW)
    export_model(place / "runs" / "mini", tmp_path / "model")
    said = []
    for recipe in ("mini", place / "runs" / "mini", place / "mini.yaml"):
        words = ("predict", tmp_path / "model", "--recipe", recipe, "--root", place / "runs", "--file", tmp_path / "new.xml")
        code, out, told = verb(capsys, *words, "--json")
        assert code == 0, told
        said.append([(one["text"], one["predicted"]) for one in json.loads(out)["predictions"]])
    assert said[0] == said[1] == said[2]


def test_a_recipe_stands_for_its_newest_run(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.xml").write_text(NEW)
    (tmp_path / "runs").mkdir()
    name = RunFolder.open(place / "runs" / "mini").recipe.name
    command = ("predict", name, "--root", tmp_path / "runs", "--file", tmp_path / "new.xml")
    code, _, told = verb(capsys, *command)
    assert code == 2
    assert "no run folder" in told
    (tmp_path / "runs" / f"{name}-20250101-000000").symlink_to(place / "runs" / "mini")
    code, out, told = verb(capsys, *command)
    assert code == 0, told
    assert f"the newest run of {name}: {tmp_path / 'runs' / name}-20250101-000000" in told.replace("\n", "")
    assert "2024-06-04" in out


def test_a_thesis_is_asked_as_in_training_and_predicted_as_in_the_evaluation(place: Path, tmp_path: Path) -> None:
    recipe = RunFolder.open(place / "runs" / "mini").recipe
    data = prepare(recipe)
    questions = held_out_questions(data, recipe, 1000, tokens=60, test=True)
    theses = list(data.theses("test"))
    (tmp_path / "known.jsonl").write_text("".join(json.dumps(thesis.to_record()) + "\n" for thesis in theses))
    read, left_out = read_questions(tmp_path / "known.jsonl", recipe.data.corpus)
    assert left_out == []
    assert [(one.uid, one.action) for one in read] == [(one.uid, one.action) for one in theses]
    ids = encode_questions(read, recipe.data.corpus, data.tokenizer)
    assert {number: ids[number] for number in questions.numbers} == {
        number: question.ids for number, question in zip(questions.numbers, questions.asked, strict=True)
    }
    export_model(place / "runs" / "mini", tmp_path / "model")
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(thesis.to_record()) + "\n" for thesis in theses[:6]))
    of_run = predict_file(place / "runs" / "mini", tmp_path / "few.jsonl")
    of_folder = predict_file(tmp_path / "model", tmp_path / "few.jsonl", recipe=recipe)
    assert [one.text for one in of_run.made] == [one.text for one in of_folder.made]
    assert [one.action for one in of_run.made] == [thesis.action for thesis in theses[:6]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not well-formed"),
        ("<stock-theses ticker='A'><thesis/></stock-theses>", "date missing"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><stock-theses>&a;</stock-theses>', "new.xml"),
        ("<stock-theses><thesis>", "new.xml"),
        (None, "cannot be read"),
    ],
)
def test_files_without_theses_are_refused_in_words(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "new.xml").write_text(content)
    code, out, told = verb(capsys, "predict", place / "runs" / "mini", "--file", tmp_path / "new.xml")
    assert (code, out) == (2, "")
    assert says in told
    assert "Traceback" not in told
    assert "fix:" in told


def test_predictions_never_take_the_place_of_what_is_asked_about(place: Path, tmp_path: Path) -> None:
    (tmp_path / "predictions.jsonl").write_text('{"ticker": "A", "as_of_date": "2024-06-03", "indicators": {"s": "qqq"}}\n')
    before = (tmp_path / "predictions.jsonl").read_bytes()
    with pytest.raises(UserError, match="would write over"):
        predict_file(place / "runs" / "mini", tmp_path / "predictions.jsonl", out=tmp_path)
    assert (tmp_path / "predictions.jsonl").read_bytes() == before


def test_models_that_predict_no_theses_are_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.xml").write_text(NEW)
    with pytest.raises(UserError, match=r"neither recipe\.yaml nor config\.json"):
        predict_file(tmp_path, tmp_path / "new.xml")
    with pytest.raises(UserError, match="its own"):
        predict_file(place / "runs" / "mini", tmp_path / "new.xml", recipe=load_recipe(place / "mini.yaml"))
    with pytest.raises(UserError, match="no thesis can be asked"):
        predict_file(place / "runs" / "mini", tmp_path / "new.xml", tokens=9_999)


def test_predictions_are_traded_beside_them(report: EvaluationReport, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.tuned is not None
    assert report.backtest is not None
    file = Path(report.tuned.files[0])
    assert {"backtest.png", "trades.csv", "equity.csv"} <= {path.name for path in file.parent.iterdir()}
    with contextlib.suppress(SystemExit):
        main(["backtest", str(file), "--prices", str(place / "prices.csv"), "--hold", "2", "--json"])
    alone = json.loads(capsys.readouterr().out)
    assert alone["final_equity"] == report.backtest.account.equity[-1]
    assert alone["trades"] > 0
    assert report.to_json()["backtest"]["final_equity"] == alone["final_equity"]


def test_an_evaluation_is_not_lost_with_its_prices(place: Path) -> None:
    with contextlib.ExitStack() as stack:
        hidden = place / "hidden.csv"
        (place / "prices.csv").rename(hidden)
        stack.callback(hidden.rename, place / "prices.csv")
        made = evaluate_run(place / "runs" / "mini", untuned=False, problems=4)
    assert made.backtest is None
    assert any("not backtested" in warning and "prices.csv" in warning for warning in made.warnings)
