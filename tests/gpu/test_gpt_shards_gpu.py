# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""A GPT on two GPUs through NCCL: sharded weights and gradients are trained as whole ones are, in less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from windtunnel.launch import Trial, try_steps
from windtunnel.model import recipe_shape
from windtunnel.plan import Layout, engine_gpt
from windtunnel.plan.constants import load_constants
from windtunnel.recipe import Recipe, load_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

VOCAB, STEPS = 300, 10
KEYS = [
    "model.depth=12", "model.sequence=1024", "data.corpus.documents=20000", "budget.hours=null", "budget.steps=20",
    "stages.pretrain.batch_tokens=32768", "stages.pretrain.precision=bf16",
]  # fmt: skip
SETS = {"relu2": [], "swiglu": ["model.mlp=swiglu", "model.kv_heads=2"]}


def tried(recipe: Recipe, shard: str, precision: str = "bf16", accumulation: int = 2) -> Trial:
    layout = Layout(2, 16 // accumulation, accumulation, 1024, precision, True, "cuda", shard=shard, fused=True)
    trial = try_steps(recipe, layout, steps=STEPS - 2, warm_up=2, vocab=VOCAB)
    assert trial.failure is None, trial.log
    print(f"{shard} {precision} x {accumulation}: losses {trial.losses}")
    print(f"  norms {trial.gradient_norms}")
    print(f"  reserved {trial.reserved_gib:.3f}, allocated {trial.allocated_gib:.3f}, static {trial.static_gib:.3f} GiB")
    print(f"  step {trial.step_seconds:.4f} s; phases {trial.phases}")
    return trial


@pytest.mark.parametrize("name", SETS)
def test_sharded_weights_are_trained_as_whole_ones(name: str) -> None:
    """A micro-batch's gradient is rounded to bf16 before it is summed over ranks, where whole ones add up in fp32."""
    recipe = load_recipe("charlm", [*KEYS, *SETS[name]])
    whole, sharded = tried(recipe, "optimizer"), tried(recipe, "full")
    assert len(sharded.losses) == STEPS
    assert sharded.losses[0] == pytest.approx(whole.losses[0], rel=1e-5)
    assert sharded.losses == pytest.approx(whole.losses, rel=5e-3)
    assert sharded.gradient_norms[0] == pytest.approx(whole.gradient_norms[0], rel=1e-2)
    assert sharded.losses[-1] < 0.98 * sharded.losses[0]
    again = tried(recipe, "full")
    assert again.losses == sharded.losses, "the same bits every time"


def test_in_fp8_sharded_weights_are_trained_as_whole_ones() -> None:
    """Quantised anew whenever they are gathered: from the same bf16, to the same bits."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("fp8 needs a GPU of capability 9.0")
    recipe = load_recipe("charlm", KEYS)
    whole, sharded = (tried(recipe, shard, "fp8") for shard in ("optimizer", "full"))
    assert sharded.losses[0] == pytest.approx(whole.losses[0], rel=1e-5)
    assert sharded.losses == pytest.approx(whole.losses, rel=5e-3)


def test_in_fp32_sharded_weights_are_trained_as_whole_ones() -> None:
    recipe = load_recipe("charlm", KEYS)
    whole, sharded = (tried(recipe, shard, "fp32", accumulation=1) for shard in ("optimizer", "full"))
    assert sharded.losses == pytest.approx(whole.losses, rel=1e-4)


def test_weights_and_gradients_take_half_the_memory_on_each_of_two() -> None:
    """Of a model that is large beside its activations."""
    recipe = load_recipe("charlm", [*KEYS, "model.depth=24", "stages.pretrain.batch_tokens=2048"])
    found = {}
    for shard in ("optimizer", "full"):
        layout = Layout(2, 1, 1, 1024, "bf16", True, "cuda", shard=shard, fused=True)
        trial = try_steps(recipe, layout, steps=4, warm_up=2, vocab=VOCAB)
        assert trial.failure is None, trial.log
        planned = engine_gpt.memory(recipe_shape(recipe, VOCAB), layout, load_constants("H100"))
        inside = planned.peak_gib - sum(planned.around.get(name, 0.0) for name in ("context", "nccl"))
        print(f"{shard}: reserved {trial.reserved_gib:.3f} GiB, planned {inside:.3f}, static {trial.static_gib:.3f}")
        print(f"  {planned.components}\n  {trial.phases}")
        found[shard] = trial
        assert trial.reserved_gib == pytest.approx(inside, rel=0.2)
    parameters = found["full"].parameters
    saved = found["optimizer"].static_gib - found["full"].static_gib
    # Between two steps half of the weights, and gradients, which only then begin to be.
    assert saved == pytest.approx((4.0 / 2 + 4.0) * parameters / 2**30, rel=0.1)
    assert found["full"].reserved_gib < found["optimizer"].reserved_gib - 0.5 * saved


def test_a_sharded_run_goes_on_with_whole_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command line, planned as the recipe says."""
    import subprocess
    import sys

    from windtunnel.run import MetricsReader, RunFolder

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))

    def train(*more: str) -> None:
        command = [
            sys.executable,
            "-m",
            "windtunnel",
            "train",
            "charlm",
            "--root",
            str(tmp_path / "runs"),
            "--yes",
            "--gpus",
            "2",
        ]
        keys = [key for key in KEYS if not key.startswith("budget.steps")]
        for key in [*keys, "checkpoints.every=5 steps", "stages.pretrain.validation_tokens=32768"]:
            command += ["--set", key]
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    train("--set", "layout.shard=full", "--set", "budget.steps=10")
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    plan = RunFolder.open(folder).manifest["plan"]["layout"]
    assert (plan["shard"], plan["ranks"]) == ("full", 2)
    train("--resume", "--run", str(folder), "--set", "layout.shard=optimizer", "--set", "budget.steps=20")
    run = RunFolder.open(folder)
    assert run.manifest["plan"]["layout"]["shard"] == "optimizer"
    with MetricsReader(run.metrics_path) as reader:
        series = {point.step: point.value for point in reader.series("loss")}
        kinds = [event.kind for event in reader.events()]
    assert "resumed" in kinds
    assert max(series) == 20
    assert series[11] < series[1]
