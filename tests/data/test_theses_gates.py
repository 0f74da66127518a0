"""Gates on theses: each says what is wrong with data made wrong in one way, and holds for data that is right."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thesis_files import RIGHT, recipe_of, spread, write_lines

from windtunnel.data import Gate, PreparedData, export_theses, prepare, read_questions, thesis_gates
from windtunnel.data.formats import dataset_files, form_of, records
from windtunnel.recipe import ACTIONS, GeneratedTheses, HuggingFaceModel, ThesisCorpus, UserError


def varied(count: int = 300) -> list[dict[str, Any]]:
    """Theses of different text, indicators and actions."""
    drawn = random.Random(3)
    words = ["margin", "growth", "debt", "cash", "guidance", "demand", "peers", "buyback", "currency", "quarter", "orders"]
    made = spread(count)
    for i, record in enumerate(made):
        said = " ".join(drawn.choices(words, k=20))
        record |= {"reasoning": said, "action": ACTIONS[i % 5], "indicators": {"rsi": f"{drawn.random() * 100:.2f}"}}
    return made


def judge(tmp_path: Path, lines: list[dict[str, Any]], corpus: dict[str, Any] | None = None, **split: Any) -> dict[str, Gate]:
    file = write_lines(tmp_path / "a.jsonl", lines)
    recipe = recipe_of(ThesisCorpus(files=[str(file)], **(corpus or {})), **({"knowledge_cutoff": "2024-05-01"} | split))
    return {gate.name: gate for gate in thesis_gates(recipe, prepare(recipe, cache=tmp_path / "cache"))}


def test_right_theses_pass_but_for_how_few_they_are(tmp_path: Path) -> None:
    gates = judge(tmp_path, varied())
    assert {gate.status for name, gate in gates.items() if name != "theses-periods"} == {"ok"}
    assert gates["theses-periods"].status == "warn"
    assert all("an accuracy there is known to" in fix for fix in gates["theses-periods"].fixes)


def test_one_input_for_all_is_refused_and_rendering_mends_it(tmp_path: Path) -> None:
    """The fault of the data that this was built for: thousands of theses, one question."""
    lines = [record | {"instruction": "Write a thesis.", "input": ""} for record in varied()]
    for record in lines:
        record["input"] = "What do you think?"
    gate = judge(tmp_path, lines, {"inputs": "own"})["theses-inputs"]
    assert (gate.status, gate.text) == ("fail", "286 theses have 1 different input: nothing can be learned from it")
    assert "--set data.corpus.inputs=rendered" in gate.fixes[0]
    assert judge(tmp_path, lines)["theses-inputs"].status == "ok"


def test_inputs_of_ticker_and_date_alone_are_worth_a_warning(tmp_path: Path) -> None:
    gate = judge(tmp_path, [record | {"indicators": {}} for record in varied()])["theses-inputs"]
    assert gate.status == "warn"
    assert "the input tells ticker and date alone" in gate.fixes[0]


@pytest.mark.parametrize(("every", "status"), [(50, "warn"), (4, "fail")])
def test_rejected_records_are_counted_with_the_commonest_reason(tmp_path: Path, every: int, status: str) -> None:
    lines = [record | ({"action": "hold"} if i % every == 0 else {}) for i, record in enumerate(varied())]
    gate = judge(tmp_path, lines)["theses"]
    assert gate.status == status
    assert "as: action none of" in " ".join((gate.text, *gate.fixes))


def test_majority_and_balance_are_as_counted_by_hand(tmp_path: Path) -> None:
    lines = varied()
    for record in lines:
        if record["as_of_date"] >= "2025":
            record["action"] = "HOLD"
        elif record["action"] == "SELL":
            record["action"] = "BUY"
    gate = judge(tmp_path, lines)["theses-labels"]
    assert gate.status == "fail"
    assert "100% of the test period's actions are HOLD" in gate.text
    lines[-1]["action"] = "SELL"
    for record in lines[-40:]:
        record["action"] = "BUY"
    gate = judge(tmp_path, lines)["theses-labels"]
    tested = [record for record in lines if record["as_of_date"] >= "2025-01-01"]
    share = sum(record["action"] == "BUY" for record in tested) / len(tested)
    assert gate.facts["majority"] == "BUY"
    assert gate.facts["majority_accuracy"]["test"] == pytest.approx(share)
    assert any("no thesis trained on has SELL" in fix for fix in gate.fixes)
    assert any("would have to change to be as frequent as in training" in fix for fix in gate.fixes)


@pytest.mark.parametrize(
    ("cutoff", "status", "said"),
    [
        (None, "warn", "knowledge cut-off is unknown"),
        ("2025-01-01", "fail", "the base model has read texts up to 2025-01-01"),
        ("2025-06-30", "fail", "--set data.split.test_start=2025-07-01 or later"),
        ("2024-12-31", "warn", "validation begins on 2024-10-26, before the knowledge cut-off 2024-12-31"),
    ],
)
def test_the_test_period_must_begin_behind_the_knowledge_cutoff(
    tmp_path: Path, cutoff: str | None, status: str, said: str
) -> None:
    gate = judge(tmp_path, varied(), knowledge_cutoff=cutoff)["theses-periods"]
    assert gate.status == status
    assert said in " ".join((gate.text, *gate.fixes))


def test_a_card_that_names_a_later_cutoff_is_worth_a_warning(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "README.md").write_text("Knowledge cutoff: Feb. 2025")
    file = write_lines(tmp_path / "a.jsonl", varied())
    for said, status, words in (
        (None, "fail", "texts up to 2025-02-28 (README.md)"),
        ("2024-05-01", "warn", "is 2024-05-01, and the model's README.md names 2025-02-28"),
        ("2025-03-01", "fail", "texts up to 2025-03-01 (data.split.knowledge_cutoff)"),
    ):
        recipe = recipe_of(ThesisCorpus(files=[str(file)]), knowledge_cutoff=said)
        prepared = prepare(recipe, cache=tmp_path / "cache")
        recipe = recipe.model_copy(update={"model": HuggingFaceModel(config=str(tmp_path / "model"))})
        gate = {gate.name: gate for gate in thesis_gates(recipe, prepared)}["theses-periods"]
        assert gate.status == status
        assert words in " ".join((gate.text, *gate.fixes))


@pytest.mark.parametrize("text", ["dÃ©bÃ¢cle", "the marketâ€™s view", "cut \ufffd off"])
def test_text_that_was_decoded_wrongly_is_counted(tmp_path: Path, text: str) -> None:
    lines = [record | {"reasoning": f"{record['reasoning']} {text}"} for record in varied()]
    gate = judge(tmp_path, lines)["theses-texts"]
    assert gate.status == "fail"
    assert "286 theses hold text that was decoded wrongly" in gate.text
    right = [record | {"reasoning": f"{record['reasoning']} É Ü débâcle — “quoted” Ångström São"} for record in varied()]
    assert judge(tmp_path, right)["theses-texts"].facts["garbled"] == 0


def test_reasoning_that_repeats_is_worth_a_warning(tmp_path: Path) -> None:
    gate = judge(tmp_path, [record | {"reasoning": RIGHT["reasoning"]} for record in varied()])["theses-texts"]
    assert gate.status == "warn"
    assert "286 theses have 1 different reasonings" in gate.fixes[0]


@pytest.mark.parametrize(("copied", "status"), [(2, "warn"), (20, "fail"), (0, "ok")])
def test_copies_with_a_word_changed_across_splits_are_counted(tmp_path: Path, copied: int, status: str) -> None:
    lines = varied()
    tested = [record for record in lines if record["as_of_date"] >= "2025-01-01"]
    for record, other in zip(tested[:copied], lines, strict=False):
        record["reasoning"] = f"Truly {other['reasoning']}"
    gate = judge(tmp_path, lines)["theses-copies"]
    assert gate.status == status
    if copied:
        assert f"{copied} of {len(tested)} in test), such as test.jsonl:1 is 9" in " ".join((gate.text, *gate.fixes))


# What is written for others.


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    corpus = ThesisCorpus(generated=GeneratedTheses(records=600, tickers=6))
    return prepare(recipe_of(corpus), cache=tmp_path_factory.mktemp("cache"))


def test_export_holds_every_thesis_and_is_a_corpus_again(generated: PreparedData, tmp_path: Path) -> None:
    written = {path.name for path in export_theses(generated, tmp_path / "out")}
    names = {"train.jsonl", "validation.jsonl", "test.jsonl", "rejects.jsonl", "prices.parquet", "theses.jsonl", "dataset"}
    assert written == names == {path.name for path in (tmp_path / "out").iterdir()}
    again = prepare(recipe_of(ThesisCorpus(files=[str(tmp_path / "out/theses.jsonl")])), cache=tmp_path / "cache")
    for name in ("train", "validation", "test"):
        theses, others = list(generated.theses(name)), list(again.theses(name))
        assert [thesis.uid for thesis in theses] == [thesis.uid for thesis in others]
        (file,) = dataset_files(str(tmp_path / "out/dataset" / name))
        rows = [row for _, row in records(file, form_of(file, "records"))]
        assert [row["uid"] for row in rows] == [thesis.uid for thesis in theses]
        assert json.loads(rows[0]["indicators"]) == theses[0].indicators
    assert again.checksum == generated.checksum
    splits = prepare(recipe_of(ThesisCorpus(files=[str(tmp_path / "out/dataset")])), cache=tmp_path / "cache")
    assert (splits.facts["kept"], splits.checksum) == (generated.facts["kept"], generated.checksum)
    taken = {Path(path).name for path in dataset_files(str(tmp_path / "out"), every_split=True)}
    assert taken == names - {"rejects.jsonl", "dataset"}
    with pytest.raises(UserError, match="there is something already"):
        export_theses(generated, tmp_path / "out")


def test_a_saved_dataset_can_be_asked_about_and_other_folders_are_named_as_given(generated: PreparedData, tmp_path: Path) -> None:
    export_theses(generated, tmp_path / "out")
    corpus = ThesisCorpus(files=["new"])
    asked, left_out = read_questions(tmp_path / "out/dataset", corpus)
    assert (len(asked), left_out) == (sum(generated.facts["kept"].values()), [])
    assert [one.uid for one in read_questions(tmp_path / "out/dataset/test", corpus)[0]] == [
        one.uid for one in generated.theses("test")
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--file: .* is a directory, without JSON lines"):
        read_questions(tmp_path / "empty", corpus)


def test_theses_too_long_for_training_are_among_the_rejects(generated: PreparedData, tmp_path: Path) -> None:
    longest = int(np.diff(generated.train.starts).max())
    packing = generated.train.packing(longest - 5)
    assert 0 < packing.dropped < generated.train.samples
    export_theses(generated, tmp_path / "out", longest - 5)
    lines = {name: (tmp_path / f"out/{name}.jsonl").read_text().splitlines() for name in ("train", "rejects", "theses")}
    reasons = [json.loads(line)["reason"] for line in lines["rejects"]]
    assert sum(reason.startswith(f"longer than model.sequence={longest - 5}") for reason in reasons) == packing.dropped
    assert len(lines["train"]) == len(packing.order)
    assert len(lines["theses"]) + len(lines["rejects"]) == generated.facts["read"]


def test_hugging_face_datasets_loads_the_folder(generated: PreparedData, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export_theses(generated, tmp_path / "out")
    loaded = datasets.load_from_disk(str(tmp_path / "out/dataset"))
    assert {name: split.num_rows for name, split in loaded.items()} == generated.facts["kept"]
    first = next(iter(generated.theses("test")))
    assert loaded["test"][0]["output"] == first.output
    assert datetime.date.fromisoformat(loaded["test"][0]["as_of_date"]) == first.as_of
