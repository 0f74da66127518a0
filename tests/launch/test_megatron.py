"""Jobs for Megatron-Bridge: a folder that its driver, sbatch and its data reader can use, or a refusal with what to do."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from windtunnel.cli import main
from windtunnel.cluster import read_batch_script
from windtunnel.data import conversation_files, prepare
from windtunnel.recipe import load_recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny_hf import tiny_llama

SMALL = ("data.corpus.arithmetic.documents=400", "model.sequence=64", "stages.sft.answers=null", "stages.sft.batch_tokens=2048")
SPLIT = ("layout.tensor=2", "layout.pipeline=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4)


def arguments(model: Path, to: Path, *sets: str, on: str = "2x(8xH100)") -> list[str]:
    given = [part for each in (f"model.config={model}", *SMALL, *sets) for part in ("--set", each)]
    return ["launch", "finetune", "--on", on, "--to", str(to), *given]


def launch(given: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 0


@pytest.fixture(scope="module")
def job(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("jobs") / "job"
    launch(arguments(model, to, *SPLIT))
    return to


def read(job: Path, name: str) -> Any:
    return json.loads((job / name).read_text())


def test_a_job_holds_all_that_its_driver_reads(job: Path, model: Path) -> None:
    found = read(job, "job.json")
    assert found["model"] == str(model)
    layout = found["layout"]
    assert (layout["tensor"], layout["pipeline"], layout["data"], layout["ranks"]) == (2, 2, 4, 16)
    assert found["batch_sequences"] * found["sequence"] == 2048
    assert layout["stages"] == [["embedding", "decoder", "decoder"], ["decoder", "loss"]]
    assert found["learning_rate"]["final"] < found["learning_rate"]["peak"]
    driver = (job / "megatron_driver.py").read_text()
    used = {node.slice.value for node in ast.walk(ast.parse(driver)) if _is_key_of(node, "job")}
    assert used == found.keys() - {"needs"}
    assert {node.slice.value for node in ast.walk(ast.parse(driver)) if _is_key_of(node, "layout")} <= layout.keys()


def _is_key_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name


def test_ranks_hold_what_the_config_says(job: Path) -> None:
    first, last = read(job, "parameters.json")
    assert len(first) == 1 + 2 * 6
    assert first["decoder.layers.1.self_attention.linear_qkv.weight"] == [(8 + 2 * 4) * 8 // 2, 64]
    assert first["decoder.layers.0.mlp.linear_fc1.weight"] == [128, 64]
    assert first["decoder.layers.0.mlp.linear_fc2.weight"] == [64, 64]
    assert set(last) >= {
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    }


def test_sbatch_takes_the_script(job: Path) -> None:
    script = read_batch_script(job / "job.sbatch")
    assert not script.problems
    assert not script.warnings
    assert (script.nodes, script.gpus_per_node) == (2, 8)
    assert script.seconds is not None
    assert script.seconds >= 3600
    assert [line.split()[-1] for line in script.commands if line.startswith("run ")] == ["check", "train", "export"]


def test_the_data_are_the_tokens_that_are_trained_on_here(job: Path) -> None:
    prepared = prepare(load_recipe(str(job / "recipe.yaml")))
    (file,) = conversation_files(prepared)
    rows = parquet.read_table(job / "data" / "training.idx.parquet").to_pylist()
    packing = file.packing(64)
    assert len(rows) == len(packing)
    learned = 0
    for number, row in enumerate(rows):
        samples = packing.order[packing.starts[number] : packing.starts[number + 1]]
        starts = [*row["seq_start_id"], len(row["input_ids"])]
        assert len(starts) == len(samples) + 1
        for sample, begin, end in zip(samples, starts, starts[1:], strict=False):
            ids, flags = file.sample(int(sample))
            assert row["input_ids"][begin:end] == ids.tolist()
            assert row["loss_mask"][begin:end] == [*flags[1:].astype(int).tolist(), 0]
            learned += sum(row["loss_mask"][begin:end])
    assert learned == int(packing.targets.sum())


def test_the_driver_imports_nothing_heavy_or_ours_before_it_is_asked_to(job: Path) -> None:
    tree = ast.parse((job / "megatron_driver.py").read_text())
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert top == {"__future__", "json", "sys", "pathlib", "typing"}


@pytest.mark.parametrize(
    ("sets", "words", "fix"),
    [
        ((), "the plan is for the package's own engine", "windtunnel train finetune"),
        ((*SPLIT, "model.adapter.rank=8"), "all weights are trained there", "model.adapter=null"),
        ((*SPLIT, "stages.sft.precision=fp8"), "the job computes in bf16", "stages.sft.precision=auto"),
        (("layout.tensor=8",), "4 key-value heads cannot be shared out over 8 ranks", "layout"),
        (("layout.tensor=2", "data.corpus.files=[none.jsonl]"), "none.jsonl", ""),
    ],
)
def test_what_cannot_be_handed_over_is_refused_and_nothing_is_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sets: tuple[str, ...], words: str, fix: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments(model, tmp_path / "job", *sets))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert fix in said
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_kept(model: Path, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (job / "job.json").read_bytes()
    with pytest.raises(SystemExit):
        main(arguments(model, job, *SPLIT))
    assert "is there already" in capsys.readouterr().err
    assert (job / "job.json").read_bytes() == before


def test_json_names_files_and_what_each_stage_holds(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch([*arguments(model, tmp_path / "job", *SPLIT), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"job.json", "job.sbatch", "megatron_driver.py", "parameters.json", "recipe.yaml"} <= set(found["files"])
    assert len(found["stages"]) == 2
    assert found["layout"]["engine"] == "megatron-bridge"
