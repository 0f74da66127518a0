"""Fine-tuning planned for a machine without a GPU: something to train with, refused where memory is too little."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.plan import lines, make_plan
from windtunnel.recipe import Recipe, load_recipe
from windtunnel.rig import Rig, detect_rig

CONFIG = {
    "model_type": "qwen2", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return load_recipe("sft", [f"model.config={tmp_path}", "model.sequence=32", "stages.sft.batch_tokens=1536"])


@pytest.fixture
def rig() -> Rig:
    return replace(detect_rig(measure_cpu=False), gpu=None, gpus_per_node=0, ram_gib=4.0)


def test_a_tiny_model_is_planned_on_one_rank_in_fp32(recipe: Recipe, rig: Rig) -> None:
    plan = make_plan(recipe, rig)
    assert plan.fits
    layout = plan.layout
    assert (layout.ranks, layout.precision, layout.compile, layout.device) == (1, "fp32", False, "cpu")
    assert layout.batch_tokens == 1536
    assert layout.micro_batch == 16
    assert sum(plan.components.values()) == pytest.approx(plan.peak_gib)
    assert plan.step_seconds > 0
    assert lines(plan)
    assert json.loads(json.dumps(plan.to_json()))["layout"]["batch_tokens"] == 1536


def test_a_large_one_is_refused_with_what_it_needs(recipe: Recipe, rig: Rig) -> None:
    plan = make_plan(load_recipe("sft"), rig)
    assert not plan.fits
    assert "GiB" in plan.reasons[0]


def test_a_precision_that_a_cpu_does_not_compute_in_is_said() -> None:
    sets = ["model.config=smollm2-135m", "stages.sft.precision=bf16"]
    made = make_plan(load_recipe("sft", sets), detect_rig(gpus=False))
    assert "stages.sft.precision: bf16 has no effect on a CPU, which computes this in fp32" in made.notes
