"""A recipe at full size for a few steps: everything but its length is the recipe's, and its runs are not taken for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from zygote import windtunnel

from windtunnel.recipe import dump_recipe, load_recipe, smoke_recipe, validate
from windtunnel.recipe.reading import read_yaml

SMALL = (
    "model.depth=1", "model.aspect=64", "model.head_dim=32", "model.sequence=64", "data.corpus.documents=4000",
    "data.corpus.digits=2", "stages.pretrain.batch_tokens=512", "stages.pretrain.validation_tokens=2048",
    "stages.pretrain.compile=false", "stages.evaluate.bits_per_byte_tokens=2048",
)  # fmt: skip


def test_only_the_length_differs(tmp_path: Path) -> None:
    whole = load_recipe("finetune", ["model.config=deepseek-v3", "stages.evaluate.gates.exact_match=0.5", "budget.dollars=90"])
    few = smoke_recipe(whole, 10)
    assert (few.model, few.data, few.layout) == (whole.model, whole.data, whole.layout)
    assert few.sft is not None
    assert whole.sft is not None
    assert few.sft.batch_tokens == whole.sft.batch_tokens
    assert (few.budget.steps, few.budget.dollars, few.budget.epochs) == (10, 90, None)
    assert few.evaluation.exact_match_problems == 10
    assert few.evaluation.gates is None
    path = tmp_path / "smoke.yaml"
    path.write_text(dump_recipe(few))
    assert validate(read_yaml(path)[0], "smoke") == few
    staged = smoke_recipe(load_recipe("trm"), 10)
    assert [stage.budget.steps for stage in staged.training] == [10, 10]
    assert staged.training[0].gates is not None
    assert not staged.training[0].gates.decreasing


def test_ten_steps_are_trained_and_ten_answers_judged(tmp_path: Path) -> None:
    sets = [part for text in SMALL for part in ("--set", text)]
    command = ["train", "charlm", *sets, "--smoke", "10", "--root", str(tmp_path / "runs")]
    environment = os.environ | {"WINDTUNNEL_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = windtunnel(*command, env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["recipe"] == "charlm-smoke10"
    assert manifest["status"] == "done"
    assert "of 10" in done.stdout or "/10" in done.stdout, done.stdout
    assert "next: the same with --smoke 100" in done.stderr
