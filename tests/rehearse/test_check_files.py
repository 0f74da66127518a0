"""What the check of a model's files says of whole folders, of half downloads, and of models that are not here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select


def judged(folder: Path, config: Path | str, *sets: str) -> Outcome:
    context = Context("finetune", (f"model.config={config}", *sets), ("H200",), folder=folder)
    return run_checks(select(all_checks(), ["model-files"]), context, isolate=False)[-1]


def test_a_whole_folder_holds_and_half_a_download_does_not(tiny: Path, tmp_path: Path) -> None:
    held = judged(tmp_path, tiny)
    assert held.status == "ok"
    assert held.facts[str(tiny)]["bytes"] == (tiny / "model.safetensors").stat().st_size
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    cut = judged(tmp_path, folder)
    assert cut.status == "fail"
    assert "is truncated" in cut.evidence
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    pointer = judged(tmp_path, folder)
    assert "a pointer of git-lfs" in pointer.evidence
    assert "git lfs pull" in pointer.fix
    (folder / "model.safetensors").unlink()
    assert judged(tmp_path, folder).status == "warn"  # random weights
    assert judged(tmp_path, folder, "stages.sft.init_from=random").status == "ok"
    assert judged(tmp_path, folder, f"stages.sft.init_from={tiny}").facts[str(tiny)]


def test_a_model_that_is_not_here_says_how_much_is_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path))
    absent = judged(tmp_path, "deepseek-v3")
    assert absent.status == "skip"
    assert "688.36 GB" in absent.evidence
    assert "windtunnel fetch deepseek-v3" in absent.fix
    assert absent.lacks == (("the model's weights", "windtunnel fetch deepseek-v3"),)
    (tmp_path / ".partial-deepseek-v3").mkdir()
    assert "nothing of it" in judged(tmp_path, "deepseek-v3").evidence
    (tmp_path / ".partial-deepseek-v3/config.json").write_text("{}")
    assert "a fetch that was cut off" in judged(tmp_path, "deepseek-v3").evidence
    here = Context("finetune", ("model.config=deepseek-v3",), ("here",), folder=tmp_path)
    outcome = run_checks(select(all_checks(), ["model-files"]), here, isolate=False)[-1]
    assert outcome.status == "fail"
    assert "half of them" in outcome.evidence


@pytest.mark.parametrize("check", ["conversations", "tokenizer-files", "held-out-answers"])
def test_what_needs_a_tokenizer_asks_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """The whole of DeepSeek-V3 is 688 GB."""
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path))
    context = Context("finetune", ("model.config=deepseek-v3",), ("8xH200",), folder=tmp_path)
    outcome = run_checks(select(all_checks(), [check]), context, isolate=False)[-1]
    assert (outcome.check, outcome.status) == (check, "skip")
    assert "windtunnel fetch deepseek-v3 --only tokenizer" in outcome.fix


def test_a_tokenizer_alone_is_said_to_be_one(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path))
    folder = Path(shutil.copytree(tiny, tmp_path / "tiny", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "fetched.json").write_text(json.dumps({"id": "someone/tiny", "source": "a test", "only": "tokenizer"}))
    outcome = judged(tmp_path, "someone/tiny")
    assert outcome.status == "skip"
    assert "windtunnel fetch someone/tiny" in outcome.fix
