"""What the check of conversations says of good ones and of each kind of bad ones; what it refuses, training refuses too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.data import prepare
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rehearse import Context, run_checks, select


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))


def outcomes(folder: Path, *sets: str) -> dict[str, Outcome]:
    context = Context("finetune", sets, ("H200",), folder=folder)
    return {o.check: o for o in run_checks(select(all_checks(), ["conversations"]), context, isolate=False)}


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"data.corpus.files=[{path}]"


def says(asked: str, answer: str, role: str = "assistant") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": role, "content": answer}]}


GOOD = [says(f"{i} and {i}?", f"{2 * i}") for i in range(200)]


def test_what_ships_holds(tiny: Path, tmp_path: Path) -> None:
    made = outcomes(tmp_path, f"model.config={tiny}", "model.sequence=256", "data.corpus.arithmetic.documents=500")[
        "conversations"
    ]
    assert made.status == "ok", made.evidence
    assert made.facts["held_out"] > 0


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "no turn of the assistant's"),
        (says("x", "y", "bot"), "unknown role 'bot'"),
        (says("x", " "), "assistant's is empty"),
    ],
)
def test_a_bad_record_fails_the_check_as_it_fails_training(tiny: Path, tmp_path: Path, record: dict[str, Any], said: str) -> None:
    files = write(tmp_path / "a.jsonl", [*GOOD, record])
    sets = (f"model.config={tiny}", "model.sequence=256", files)
    made = outcomes(tmp_path, *sets)
    failed = [outcome for outcome in made.values() if outcome.status == "fail"]
    assert any(said in outcome.evidence for outcome in failed), made
    with pytest.raises(UserError, match=said):
        prepare(load_recipe("finetune", sets))
    dropped = outcomes(tmp_path, *sets, "data.corpus.malformed=drop")["conversations"]
    assert dropped.status == "warn"
    assert "1 malformed records left out" in " ".join(dropped.warnings)


def test_long_and_leaked_conversations_are_counted(tiny: Path, tmp_path: Path) -> None:
    long = [says(f"{i} " + "and more " * 300, "4") for i in range(40)]
    made = outcomes(tmp_path, f"model.config={tiny}", "model.sequence=256", write(tmp_path / "a.jsonl", [*GOOD, *long]))
    assert "are longer than model.sequence=256" in " ".join(made["conversations"].warnings)
    few = outcomes(tmp_path, f"model.config={tiny}", "model.sequence=256", write(tmp_path / "b.jsonl", [*long, *GOOD[:10]]))
    assert few["conversations"].status == "fail"
    same = [says("What is it?", str(i)) for i in range(200)]
    leaked = outcomes(tmp_path, f"model.config={tiny}", "model.sequence=256", write(tmp_path / "c.jsonl", same))
    assert "held-out questions are trained on too" in leaked["conversations"].evidence


def test_a_template_whose_answers_do_not_end_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "endless")
    endless = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' ' }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(endless + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
    made = outcomes(tmp_path, f"model.config={folder}", "model.sequence=256", write(tmp_path / "a.jsonl", GOOD))["conversations"]
    assert made.status == "fail"
    assert "the model would not stop" in made.evidence


def test_another_models_tokenizer_is_named(tiny: Path, tmp_path: Path) -> None:
    from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe

    folder = shutil.copytree(tiny, tmp_path / "other")
    train_bpe(["quite other words"] * 9, 300, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    sets = (f"model.config={tiny}", "model.sequence=256", f"data.tokenizer.path={folder}", write(tmp_path / "a.jsonl", GOOD))
    made = outcomes(tmp_path, *sets)["conversations"]
    assert made.status == "fail"
    assert "is another model's tokenizer" in made.evidence
