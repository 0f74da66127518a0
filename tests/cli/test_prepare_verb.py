"""windtunnel prepare: data of any recipe made ready where there is no GPU, and found again by training."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
import zygote

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RECIPE = """
name: theses
model: {kind: huggingface, config: model, sequence: 1024}
data:
  corpus: {kind: theses, generated: {records: 400, tickers: 4}}
  split: {test_start: 2025-01-01, validation_days: 90}
  tokenizer: {kind: bpe, vocab_size: 500}
stages:
  sft: {batch_tokens: 2048, init_from: random, compile: false, validation_tokens: 2000}
budget: {steps: 2}
"""


def windtunnel(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"WINDTUNNEL_CACHE": str(folder / "cache"), "COLUMNS": "80"} | variables
    return zygote.windtunnel(*arguments, cwd=folder, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "theses.yaml").write_text(RECIPE)
    return tmp_path


def test_theses_are_prepared_written_and_trained_on_as_they_were_prepared(folder: Path) -> None:
    first = windtunnel(folder, "prepare", "theses.yaml", "--out", "out", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert sum(report["theses"]["kept"].values()) + sum(report["theses"]["rejected"].values()) == 400
    assert {gate["name"] for gate in report["gates"]} >= {"theses", "theses-inputs", "theses-periods", "theses-labels"}
    assert len(report["written"]) == 7
    assert all((folder / name).exists() for name in report["written"])
    shown = windtunnel(folder, "prepare", "theses.yaml")
    assert shown.returncode == 0, shown.stderr
    assert f"found in {report['folder']}" in shown.stdout.replace("\n", " ")
    assert max(map(len, shown.stdout.split("\ndata: ")[0].split("gates\n")[1].splitlines())) <= 80
    trained = windtunnel(folder, "train", "theses.yaml", "--yes")
    assert trained.returncode == 0, trained.stderr
    for said in (shown.stdout, trained.stdout):
        assert "more with: windtunnel preview theses.yaml\n" in said
    (run,) = (folder / "runs").iterdir()
    assert json.loads((run / "manifest.json").read_text())["data"]["checksum"] == report["checksum"]
    assert len(list((folder / "cache").glob("theses-*/meta.json"))) == 1


def test_a_gate_that_does_not_hold_ends_with_1(folder: Path) -> None:
    done = windtunnel(folder, "prepare", "theses.yaml", "--set", "data.split.knowledge_cutoff=2025-03-01")
    assert done.returncode == 1
    assert "fail" in done.stdout
    assert "the base model has read texts up to 2025-03-01" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><stock-theses>&a;</stock-theses>', "DOCTYPE"),
        ("<stock-theses><thesis>", "not well-formed XML"),
        ("<stock-theses><thesis as-of-date='2099-01-01'/></stock-theses>", "no record is a thesis"),
    ],
)
def test_bad_files_end_with_2_in_words(folder: Path, content: str, said: str) -> None:
    (folder / "bad.xml").write_text(content)
    done = windtunnel(folder, "prepare", "theses.yaml", "--set", "data.corpus.files=[bad.xml]")
    assert done.returncode == 2
    assert said in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((folder / "cache").glob("theses-*/meta.json"))


def test_other_recipes_are_prepared_too_and_have_no_theses_to_write(folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"line {i} says {i * i}.\n\n" for i in range(2000)))
    sets = ("--set", "data.corpus.kind=text", "--set", "data.corpus.files=[a.txt]", "--set", "data.tokenizer.alphabet=auto")
    done = windtunnel(folder, "prepare", "charlm", *sets, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["train_tokens"] > 10 * report["validation_tokens"] > 0
    refused = windtunnel(folder, "prepare", "charlm", *sets, "--out", "out")
    assert refused.returncode == 2
    assert "--out is for theses, and data.corpus.kind is text" in refused.stderr


def test_theses_are_read_split_and_judged_before_a_model_is_fetched(folder: Path) -> None:
    sets = ["--set", "model.config=deepseek-v3", "--set", "data.tokenizer={kind: folder}", "--set", "data.split.test_days=60"]
    sets += ["--set", "model.sequence=4096"]
    environment = {"WINDTUNNEL_MODELS": str(folder / "none")}
    done = windtunnel(folder, "prepare", "theses.yaml", *sets, "--out", "out", "--json", **environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokenized"] is False
    assert "train_tokens" not in report
    assert "folder" not in report
    assert report["fix"].startswith("windtunnel fetch deepseek-v3 --only tokenizer")
    assert {gate["name"] for gate in report["gates"]} >= {"theses", "theses-copies", "theses-periods"}
    records = [json.loads(line) for line in (folder / "out/theses.jsonl").read_text().splitlines()]
    sizes = [len(f"{r['instruction']}{r['input']}{r['output']}".encode()) for r in records]
    assert sum(report["theses"]["bytes"].values()) == sum(sizes)
    assert report["theses"]["thesis_bytes"]["longest"] == max(sizes)
    shown = windtunnel(folder, "prepare", "theses.yaml", *sets, **environment)
    assert shown.returncode == 0, shown.stderr
    assert "a token is at least a byte" in shown.stdout.replace("\n", " ")
    assert "not tokenized: data.tokenizer.path: not given, and deepseek-v3 is not on this machine" in shown.stdout
    own = windtunnel(folder, "prepare", "theses.yaml", *sets, "--set", "data.tokenizer.path=nowhere", **environment)
    assert own.returncode == 2, "a folder that was named is no model to be fetched"


def test_theses_whose_gate_fails_exit_1_without_a_model_too(folder: Path) -> None:
    sets = ["--set", "model.config=deepseek-v3", "--set", "data.tokenizer={kind: folder}"]
    late = ["--set", "data.split.knowledge_cutoff=2025-03-31"]
    done = windtunnel(folder, "prepare", "theses.yaml", *sets, *late, WINDTUNNEL_MODELS=str(folder / "none"))
    assert done.returncode == 1, done.stderr
    assert "theses-periods" in done.stdout


def test_training_warns_of_a_gate_that_does_not_hold(folder: Path) -> None:
    first = datetime.date(2024, 1, 1)
    record = {"ticker": "ABC", "support": "Sales.", "instruction": "Judge.", "input": "a stock"}
    lines = [
        record
        | {"as_of_date": str(first + datetime.timedelta(day)), "reasoning": f"Day {day} of {7 * day}. " * 9, "action": action}
        for day, action in zip(range(400), itertools.cycle(("BUY", "HOLD", "SELL")), strict=False)
    ]
    (folder / "same.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = ["--set", "data.corpus={kind: theses, files: [same.jsonl], inputs: own}", "--set", "budget.steps=1"]
    trained = windtunnel(folder, "train", "theses.yaml", "--yes", *sets)
    assert trained.returncode == 0, trained.stderr
    assert "warn: theses-inputs: " in trained.stdout
    assert "1 different input: nothing can be learned" in trained.stdout
