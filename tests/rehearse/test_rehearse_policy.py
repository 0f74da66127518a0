"""Rehearsals of reinforcement learning: the scale model's rules, its judges, and a whole rehearsal of stages sft and rl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.check import CheckFailed
from windtunnel.data import PromptFile, prepare
from windtunnel.model import hf_shape
from windtunnel.recipe import GRPO, HuggingFaceModel, PromptCorpus, load_recipe
from windtunnel.rehearse.conduct import rehearsal_checks
from windtunnel.rehearse.context import Rehearsal
from windtunnel.rehearse.policy import policy_scale, policy_stages, vllm_here
from windtunnel.rig import detect_rig, parse_rig
from windtunnel.rl.checks import judges

pytestmark = pytest.mark.end_to_end

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64, "tie_word_embeddings": True, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
RECIPE = """
name: sums
model: {kind: huggingface, config: CONFIG, sequence: 32}
data: {corpus: {kind: arithmetic, digits: 2, terms: 3, documents: 1000}}
stages:
  sft: {batch_tokens: 1024, learning_rate: 3e-3, budget: {steps: 300}, compile: false}
  rl:
    set: {data.corpus: {kind: prompts, arithmetic: {digits: 2, terms: 3, documents: 1000}}}
    prompts: 16
    samples: 8
    best: 5
    prompt_tokens: 14
    answer_tokens: 6
    learning_rate: 5e-5
    rewards: [{kind: function, function: "JUDGE:right"}]
    answers: {every: 20 steps, prompts: 64}
    budget: {steps: 20}
    compile: false
"""
RIGHT = "def right(prompt, answer, truth):\n    return float(answer.strip().rstrip('.L') == str(truth).strip())\n"
WRONG = "def right(prompt, answer, truth):\n    return 1.0\n"


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def recipe_file(folder: Path, judge: str = RIGHT) -> Path:
    """Write recipe, config and judge."""
    folder.mkdir(exist_ok=True)
    path, config, function = folder / "sums.yaml", folder / "tiny.json", folder / "sums.py"
    config.write_text(json.dumps(CONFIG))
    function.write_text(judge)
    path.write_text(RECIPE.replace("CONFIG", str(config)).replace("JUDGE", str(function)))
    return path


def rehearsal(folder: Path, *sets: str, judge: str = RIGHT) -> Rehearsal:
    return Rehearsal(str(recipe_file(folder, judge)), sets, ("H100",), folder / "rehearsal")


def test_the_scale_model_is_small_in_numbers_and_whole_in_kind(tmp_path: Path) -> None:
    context = rehearsal(tmp_path, "stages.rl.loss=cispo", "stages.rl.reference=true", "stages.rl.kl=0.1")
    context.before = tmp_path / "run"
    small = policy_scale(context)
    stage = small.rl
    assert isinstance(stage, GRPO)
    assert [one.name for one in small.training] == ["rl"]
    assert (stage.prompts, stage.samples, stage.best, stage.answer_tokens) == (6, 3, 2, 6)
    assert (stage.loss, stage.reference, stage.kl) == ("cispo", True, 0.1)
    assert stage.answers is not None
    assert stage.answers.prompts == 3
    assert stage.init_from == str(tmp_path / "run")
    assert [source.kind for source in stage.rewards] == ["function", "function"]
    assert stage.rewards[0] == context.recipe.rl.rewards[0]  # type: ignore[union-attr]
    assert small.budget.steps == 6
    assert small.model.sequence == stage.prompt_tokens + stage.answer_tokens


def test_stages_share_model_and_tokenizer_and_each_has_its_data(tmp_path: Path) -> None:
    small = policy_stages(rehearsal(tmp_path))
    assert [stage.name for stage in small.training] == ["sft", "rl"]
    assert [small.stages[name].budget.steps for name in ("sft", "rl")] == [10, 2]  # type: ignore[union-attr]
    assert isinstance(small.model, HuggingFaceModel)
    assert (Path(small.model.config) / "model.safetensors").is_file()
    written = tmp_path / "stages.yaml"
    from windtunnel.recipe import dump_recipe, stage_recipe

    written.write_text(dump_recipe(small))
    read = load_recipe(written)
    first, last = (stage_recipe(read, name) for name in ("sft", "rl"))
    assert first.model == last.model.model_copy(update={"sequence": first.model.sequence})
    assert isinstance(last.data.corpus, PromptCorpus)
    assert isinstance(prepare(last).validation, PromptFile)
    assert prepare(first).tokenizer.pieces == prepare(last).tokenizer.pieces


def test_a_model_that_is_not_here_gets_one_tokenizer_for_all_stages(tmp_path: Path) -> None:
    asked = {"documents": 300, "digits": 2}
    path = tmp_path / "chat.yaml"
    path.write_text(
        json.dumps(
            {
                "name": "chat",
                "model": {"kind": "huggingface", "config": "smollm2-135m-instruct", "sequence": 256},
                "data": {"corpus": {"kind": "conversations", "arithmetic": asked}, "tokenizer": {"kind": "folder", "path": None}},
                "stages": {
                    "sft": {"batch_tokens": 1024},
                    "rl": {
                        "set": {"data.corpus": {"kind": "prompts", "arithmetic": asked}},
                        "rewards": [{"kind": "exact"}], "prompt_tokens": 64, "answer_tokens": 8, "budget": {"steps": 10},
                    },
                },
            }
        )
    )  # fmt: skip
    small = policy_stages(Rehearsal(str(path), (), ("H100",), tmp_path / "rehearsal"))
    from windtunnel.recipe import stage_recipe

    first, last = (prepare(stage_recipe(small, name)) for name in ("sft", "rl"))
    assert first.tokenizer.pieces == last.tokenizer.pieces
    text = last.tokenizer.decode(last.validation.prompt(0).ids)  # type: ignore[union-attr]
    assert text.startswith("user\n")  # a template, as in the stage before
    assert text.endswith("assistant\n")


def test_what_the_stage_of_kind_rl_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = rehearsal(tmp_path)
    context.__dict__["here"] = parse_rig("cpu")
    monkeypatch.delenv("WINDTUNNEL_VLLM_PYTHON", raising=False)
    names = [check.name for check in rehearsal_checks(context) if check.applies(context)]
    assert len(set(names)) == len(names)
    assert ("vllm" in names) == (vllm_here() is not None)
    order = [names.index(name) for name in ("stages", "kill", "resume", "bit-exact", "ranks", "evaluate", "export", "serve")]
    assert order == sorted(order)
    assert {"learning", "judges"} <= set(names)
    assert "saving" not in names
    assert "full size" not in names


@pytest.mark.parametrize(("version", "engine", "shown"), [
    ("0.32.0", "in-turn", True), ("0.32.0", "transformers", True), ("0.32.0", "vllm", False), ("0.9.2", "in-turn", False),
])  # fmt: skip
def test_vllm_that_is_here_answers_a_rehearsal_whose_recipe_does_not_ask_for_it(
    version: str, engine: str, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", str(python))
    context = rehearsal(tmp_path, f"stages.rl.engine={engine}")
    context.__dict__["here"] = parse_rig("cpu")
    names = [check.name for check in rehearsal_checks(context) if check.applies(context)]
    assert ("vllm" in names) == shown


def test_right_answers_are_accepted_and_a_judge_that_accepts_everything_is_told(tmp_path: Path) -> None:
    found = judges(rehearsal(tmp_path / "a"), lambda text: None)
    assert found.facts == {"accepted": 3, "refused": 4}
    with pytest.raises(CheckFailed, match="is accepted as an answer"):
        judges(rehearsal(tmp_path / "b", judge=WRONG), lambda text: None)


def test_two_trainings_beside_each_other_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    context = rehearsal(tmp_path)
    context.threads = 4
    for beside, threads in ((True, "2"), (False, "4")):
        context.__dict__["side_by_side"] = beside
        if context.here.gpu is None:
            assert context.environment == {"OMP_NUM_THREADS": threads}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_with_reinforcement_learning_is_rehearsed_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windtunnel", "rehearse", str(recipe_file(tmp_path)), "--on", "H100", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"COLUMNS": "80"}, text=True, capture_output=True, timeout=900, check=False
    )
    assert done.stdout, done.stderr
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert not [(name, c["evidence"]) for name, c in checks.items() if c["status"] == "fail" and name != "data-duplicates"]
    for name in ("stages", "kill", "resume", "bit-exact", "ranks", "learning", "judges", "evaluate", "export", "serve"):
        assert checks[name]["status"] in ("ok", "warn"), checks[name]
    assert checks["bit-exact"]["numbers"]["differences"] == 0
    assert checks["export"]["numbers"]["largest_difference"] == 0
    assert checks["ranks"]["numbers"]["ranks"] == [1, 2]
    assert "0" in checks["learning"]["numbers"]["held_out"]
    if vllm_here() and not detect_rig().gpus:
        assert checks["vllm"]["status"] == "ok", checks["vllm"]
        assert checks["vllm"]["numbers"]["largest_mismatch"] < 1e-3


def test_the_recipe_kernels_is_rehearsed_with_the_verifier_and_the_data_s_own_kernels_are_accepted(tmp_path: Path) -> None:
    context = Rehearsal("kernels", (), ("8xH100",), tmp_path)
    small = policy_stages(context)
    stage = small.rl
    assert isinstance(stage, GRPO)
    assert (stage.prompts, stage.samples, stage.best) == (6, 3, 2)
    assert stage.rewards[0].kind == "kernel"
    assert small.sft is not None
    assert small.sft.budget.steps == 10
    assert small.evaluation.exact_match_problems == 3
    found = judges(context, lambda text: None)
    assert found.facts == {"accepted": 3, "refused": 4}
    assert "by kernel" in found.text


def test_a_recipe_with_vllm_on_several_nodes_is_rehearsed_here_without_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Rehearsal("grpo-production", ("stages.rl.placement=ray",), ("2x(8xH100)",), tmp_path)
    monkeypatch.delenv("WINDTUNNEL_VLLM_PYTHON", raising=False)
    stage = policy_stages(context).rl
    assert isinstance(stage, GRPO)
    assert (stage.placement, stage.engine, stage.overlap, stage.engine_tensor) == ("local", "transformers", 0, None)
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", "/an/interpreter/that/has/it")
    stage = policy_stages(context).rl
    assert isinstance(stage, GRPO)
    assert stage.engine == "vllm"
    assert hf_shape(policy_stages(context).model.config).head_dim == 32  # type: ignore[union-attr]
