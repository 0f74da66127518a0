# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Training a recursive model on a GPU: averages and updates staged beside the compute lose nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from windtunnel.checkpoint import MODEL, OPTIMIZER, CheckpointStore
from windtunnel.launch import Options, prepare_run
from windtunnel.recipe import load_recipe
from windtunnel.run import MetricsReader
from windtunnel.train import train

pytestmark = pytest.mark.gpu

RECIPE = """
extends: charlm
name: small
model: {depth: 4, aspect: 64, head_dim: 64, sequence: 256, mlp: swiglu, value_embeddings: false}
trm: {preset: aggressive, supervision: 4, ema: 0.99}
data: {corpus: {kind: arithmetic, documents: 60000, digits: 2, terms: 2}, validation: 0.05}
stages:
  pretrain: {batch_tokens: 16384, validate_every: 10 steps, validation_tokens: 32768}
budget: {hours: null, steps: 40}
checkpoints: {every: 7 steps}
"""


@pytest.mark.parametrize(
    "sets",
    [
        ("trm.updates=once", "stages.pretrain.graphs=false"),
        ("trm.preset=honest", "trm.updates=each", "stages.pretrain.graphs=false"),
        ("trm.scheme=two_latent", "stages.pretrain.graphs=false"),
        ("trm.scheme=looped", "stages.pretrain.graphs=false"),
        ("trm.updates=once", "stages.pretrain.graphs=true"),
        ("trm.preset=honest", "trm.updates=each", "stages.pretrain.graphs=true"),
        ("trm.scheme=two_latent",),
        ("trm.scheme=looped",),
        ("trm.preset=honest", "trm.updates=each", "stages.pretrain.precision=fp8"),
    ],
    ids=[
        "once",
        "each",
        "two_latent",
        "looped",
        "once, recorded",
        "each, recorded",
        "two_latent, recorded",
        "looped, recorded",
        "each, recorded, fp8",
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...]) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "small.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "small.yaml", sets)
    folders = []
    for stop in (None, 17):
        run = prepare_run(recipe, Options(root=tmp_path / "runs", yes=True), lambda text: None)
        run.close()
        folders.append(run.path)

        def interrupt(step: int, _: object, stop: int | None = stop) -> None:
            if step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        assert train(run.path, after_step=interrupt) == (0 if stop is None else 3)
        if stop is not None:
            assert train(run.path) == 0
    curves = []
    for folder in folders:
        with MetricsReader(folder / "metrics.sqlite") as metrics:
            curves.append({name: [p[:2] for p in metrics.series(name)] for name in ("loss", "loss_step_0", "gradient_norm")})
    assert curves[0] == curves[1]
    assert curves[0]["loss"][-1][1] < curves[0]["loss"][0][1] - 0.5
    one, other = (CheckpointStore(folder / "checkpoints").newest_good(with_optimizer=True) for folder in folders)
    assert one is not None
    assert other is not None
    for part in (MODEL, OPTIMIZER):
        states = dict(other.part(part).tensors())
        for name, tensor in one.part(part).tensors():
            assert torch.equal(tensor, states.pop(name)), f"{part} {name}"
        assert not states
