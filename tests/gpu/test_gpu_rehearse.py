# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""The rungs above the CPU on real GPUs: the check of the GPUs, and full-size steps beside their plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.check import all_checks
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.model import hf_shape, weights_folder
from windtunnel.rehearse import run_checks, select
from windtunnel.rehearse.climbing import full_size, node, one_gpu
from windtunnel.rehearse.context import Rehearsal

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def rehearsal(folder: Path) -> Rehearsal:
    return Rehearsal("charlm", ("model.depth=12", "stages.pretrain.deterministic=false"), ("here",), folder)


def test_the_gpus_hold(tmp_path: Path) -> None:
    made = run_checks(select(all_checks(), ["gpu"]), rehearsal(tmp_path))[-1]
    print(made.evidence, made.seconds)
    assert made.status == "ok", made.evidence


@pytest.mark.parametrize("stage", [one_gpu, node])
def test_full_size_steps_are_held_against_the_plan(stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.rehearse.climbing.GATE", 0.5)  # how far off plans are, benchmarks/planning.py tells
    made = rehearsal(tmp_path)
    if stage is node and made.here.gpus < 2:
        pytest.skip("needs two GPUs")
    evidence = stage(made, print)
    print(evidence.text)
    assert evidence.absent is None
    assert not evidence.warnings
    assert len(evidence.facts["losses"]) >= 10


SMOLLM2 = "smollm2-135m-instruct"
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def random_model(folder: Path, **changes: object) -> str:
    """Write a model of SmolLM2's shape, but for changes, with random weights and a small tokenizer; return its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    texts = [f"What is {i}+{3 * i}? Answer with the number alone.\nuser assistant" for i in range(300)]
    train_bpe(texts, 400, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    told = {"eos_token": CHATML_END, "bos_token": CHATML_START, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "chat_template.jinja").write_text(CHAT)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**hf_shape(SMOLLM2).raw | ends | changes)).save_pretrained(folder)
    return str(folder)


def saved_and_loaded(config: str, folder: Path, *sets: str) -> None:
    """Train a model at full size for a few steps, save, load, export and evaluate it."""
    made = Rehearsal("finetune", (f"model.config={config}", "data.corpus.arithmetic.documents=5k", *sets), ("here",), folder)
    evidence = full_size(made, print)
    print(evidence.text)
    assert evidence.facts["parameters"] == hf_shape(config).parameters
    assert evidence.facts["checkpoint_bytes"] > evidence.facts["export_bytes"] > evidence.facts["parameters"]
    assert 0 < evidence.facts["loss"] < 20
    assert not list(folder.glob("full*/"))


@pytest.mark.timeout(240)
def test_a_fine_tuned_model_at_full_size_is_saved_loaded_exported_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2 where its folder is in $WINDTUNNEL_MODELS, else a random model of its shape."""
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    saved_and_loaded(SMOLLM2 if weights_folder(SMOLLM2) else random_model(tmp_path / "random"), tmp_path)
