"""Verbs that do their work without training: plan and export, on real rigs and a real run folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from zygote import windtunnel

from windtunnel.recipe import load_recipe


def test_plan_prints_a_table_with_sources() -> None:
    done = windtunnel("plan", "charlm", "--on", "8xH100", "--set", "model.depth=4")
    assert done.returncode == 0, done.stderr
    assert "charlm on 8xH100" in done.stdout
    assert "where it comes from" in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_plan_json_is_one_document_with_a_plan_a_rig() -> None:
    done = windtunnel("plan", "charlm", "--on", "8xH100", "--on", "g5.xlarge", "--json")
    plans = json.loads(done.stdout)
    assert [plan["rig"] for plan in plans] == ["8xH100", "g5.xlarge"]
    assert all(key in plans[0] for key in ("fits", "params", "peak_gib", "hours", "dollars", "components", "sources"))
    assert done.returncode == 0


def test_a_plan_that_fits_nowhere_exits_1_and_names_what_would() -> None:
    done = windtunnel("plan", "charlm", "--on", "g5.xlarge", "--set", "model.depth=64")
    assert done.returncode == 1
    assert "does not fit" in done.stdout
    assert "--set model.depth=" in done.stdout
    assert "Alternative(" not in done.stdout


def test_an_unknown_rig_exits_2_with_the_nearest() -> None:
    done = windtunnel("plan", "charlm", "--on", "8xH10")
    assert done.returncode == 2
    assert "did you mean H100?" in done.stderr


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run folder with two checkpoints of a small GPT, the first one better."""
    from windtunnel.checkpoint import CheckpointStore, Facts, save_now
    from windtunnel.data import load_tokenizer
    from windtunnel.model import build_model, gpt_shape
    from windtunnel.recipe import scale_model
    from windtunnel.run import RunFolder

    with RunFolder.create(tmp_path / "runs", scale_model(load_recipe("charlm")), rig={"name": "here"}) as run:
        run.tokenizer_path.write_text(json.dumps({"kind": "character", "alphabet": run.recipe.data.tokenizer.alphabet}))
        shape = gpt_shape(run.recipe.model, load_tokenizer(run.tokenizer_path).vocab)
        model = build_model(shape, device="cpu", seed=1)
        store, beside = CheckpointStore(run.checkpoints_dir), [run.tokenizer_path]
        for step, loss in ((5, 1.0), (9, 2.0)):
            parts = {"model": {name: p.detach() + step for name, p in model.named_parameters()}}
            save_now(store, parts, Facts(step, {}, loss), config={"shape.json": dataclasses.asdict(shape)}, beside=beside)
        return run.path


def test_export_writes_the_best_weights_that_load_again(trained: Path, tmp_path: Path) -> None:
    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.model import load_weights

    done = windtunnel("export", trained.name, "--to", "out", "--dtype", "fp32", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 5
    best = CheckpointStore(trained / "checkpoints").at(5).weights()
    model = load_weights(tmp_path / "out")
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), best[name]), name
    assert (tmp_path / "out" / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()


def test_export_of_another_step_and_of_a_missing_one(trained: Path, tmp_path: Path) -> None:
    done = windtunnel("export", str(trained), "--step", "9")
    assert done.returncode == 0, done.stderr
    assert "step 9" in done.stdout
    assert (trained / "export" / "model.safetensors").is_file()
    done = windtunnel("export", str(trained), "--step", "7")
    assert done.returncode == 2
    assert "steps that were kept: 5, 9" in done.stderr
    (tmp_path / "file").write_text("")
    done = windtunnel("export", str(trained), "--to", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "name another folder with --to" in done.stderr
