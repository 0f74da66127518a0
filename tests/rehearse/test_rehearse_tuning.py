"""Rehearsals of fine-tuning: the scale model's rules, a whole rehearsal of a tiny model, and one at full size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.recipe import BPETokenizer, HuggingFaceModel, load_recipe
from windtunnel.rehearse.climbing import full_recipe, full_size
from windtunnel.rehearse.conduct import rehearsal_checks
from windtunnel.rehearse.context import Rehearsal
from windtunnel.rehearse.tuning import tuning_scale, uses_real_model

pytestmark = pytest.mark.end_to_end

SMALL = (
    "model.sequence=256", "stages.sft.batch_tokens=512", "data.corpus.arithmetic.documents=400", "stages.sft.compile=false",
    "data.corpus.arithmetic.digits=2",
)  # fmt: skip


def rehearsal(folder: Path, *sets: str) -> Rehearsal:
    return Rehearsal("finetune", sets, ("H200",), folder)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_real_model_that_is_small_is_its_own_scale_model(tiny: Path, tmp_path: Path) -> None:
    context = rehearsal(tmp_path, f"model.config={tiny}", "model.adapter.rank=4", "data.corpus.loss=last")
    assert uses_real_model(context.recipe)
    small = tuning_scale(context)
    assert isinstance(small.model, HuggingFaceModel)
    assert Path(small.model.config) == tiny
    assert small.model.adapter == context.recipe.model.adapter  # type: ignore[union-attr]
    assert small.data.corpus.loss == "last"  # type: ignore[union-attr]
    assert small.model.sequence == 128
    assert small.sft is not None
    assert small.sft.batch_tokens == 128
    assert small.budget.steps == 8


def test_a_model_that_is_not_here_has_a_random_one_with_what_tokenizer_there_is(tiny: Path, tmp_path: Path) -> None:
    nowhere = tuning_scale(rehearsal(tmp_path / "a"))
    assert isinstance(nowhere.model, HuggingFaceModel)
    assert isinstance(nowhere.data.tokenizer, BPETokenizer)
    assert json.loads((Path(nowhere.model.config) / "config.json").read_text())["vocab_size"] == 512
    shape = tmp_path / "shape"
    shape.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (shape / name).write_bytes((tiny / name).read_bytes())
    small = tuning_scale(rehearsal(tmp_path / "b", f"model.config={shape}"))
    assert small.data.tokenizer.path == str(shape)  # type: ignore[union-attr]
    assert (Path(small.model.config) / "model.safetensors").is_file()  # type: ignore[union-attr]


def test_long_conversations_get_a_longer_sequence_and_are_never_refused(tiny: Path, tmp_path: Path) -> None:
    says = [{"role": "user", "content": "2+3? " * 60}, {"role": "assistant", "content": "5"}]
    lines = [json.dumps({"messages": [{**says[0], "content": f"{i} {says[0]['content']}"}, says[1]]}) for i in range(60)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(lines))
    sets = (f"model.config={tiny}", f"data.corpus.files=[{path}]", "data.corpus.overlong=refuse")
    small = tuning_scale(rehearsal(tmp_path / "a", *sets))
    assert 256 <= small.model.sequence <= 512
    assert small.data.corpus.overlong == "truncate"  # type: ignore[union-attr]


def test_what_no_stage_shows_a_check_shows(tiny: Path, tmp_path: Path) -> None:
    def names(*sets: str) -> list[str]:
        context = rehearsal(tmp_path, *sets)
        return [check.name for check in rehearsal_checks(context) if check.applies(context)]

    for found in (names(), names(f"model.config={tiny}")):
        assert len(set(found)) == len(found)
        assert {"kill", "resume", "bit-exact", "ranks", "learning", "export", "evaluate", "serve"} <= set(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_model_is_rehearsed_from_end_to_end(tiny: Path, tmp_path: Path) -> None:
    sets = (part for value in (f"model.config={tiny}", *SMALL) for part in ("--set", value))
    command = [sys.executable, "-m", "windtunnel", "rehearse", "finetune", *sets, "--on", "H200", "--steps", "24", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"COLUMNS": "80"}, text=True, capture_output=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    checks = {check["check"]: check for check in report["checks"]}
    assert not [(name, c["evidence"]) for name, c in checks.items() if c["status"] == "fail"]
    assert report["ready"] is True
    assert done.returncode == 0
    assert checks["bit-exact"]["numbers"]["differences"] == 0
    assert checks["export"]["numbers"]["largest_difference"] == 0
    assert checks["export"]["numbers"]["chat_template"] is True
    assert checks["evaluate"]["numbers"]["step"] > 0
    assert isinstance(checks["serve"]["numbers"]["chat"], str)


def test_a_model_at_full_size_is_saved_exported_and_evaluated_once(tiny: Path, tmp_path: Path) -> None:
    context = rehearsal(tmp_path, f"model.config={tiny}", *SMALL)
    recipe = full_recipe(context)
    assert recipe.model == context.recipe.model
    assert recipe.sft is not None
    assert recipe.sft.batch_tokens == 512
    said: list[str] = []
    evidence = full_size(context, said.append)
    assert evidence.facts["checkpoint_bytes"] > evidence.facts["export_bytes"] > 0
    assert evidence.facts["loss"] > 0
    assert not (tmp_path / "full").exists()
    assert not (tmp_path / "full-export").exists()


def test_a_gpt_at_full_size_keeps_its_size(tmp_path: Path) -> None:
    context = Rehearsal("charlm", ("model.depth=6",), ("H200",), tmp_path)
    recipe = full_recipe(context)
    assert recipe.model == load_recipe("charlm", ["model.depth=6"]).model
    assert recipe.pretrain.batch_tokens == context.resolved.pretrain.batch_tokens
    assert recipe.budget.steps == 4
