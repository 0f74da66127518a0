"""Tokens added to a model's own, from the recipe to the exported folder: their rows begin as means, are trained and kept."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from hf_runs import base_of, trained

from windtunnel.checkpoint import CheckpointStore
from windtunnel.cli import main
from windtunnel.generate import GenerationJob, export_model, load_source
from windtunnel.run import RunFolder
from windtunnel.train import train

pytestmark = pytest.mark.end_to_end

ADDED = ["two", "<action>"]
ADD = f"data.tokenizer.add={json.dumps(ADDED)}"
FAMILIES = ["llama", "qwen2", "mixtral", "deepseek_v3"]


@pytest.fixture(autouse=True)
def _small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def resized(base: Path, begin: str = "pieces") -> torch.nn.Module:
    """The base with rows for the new tokens as transformers makes them, set to means of the known rows."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows = model.config.vocab_size
    model.resize_token_embeddings(max(rows, 302), mean_resizing=False)
    with torch.no_grad():
        for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            for row, text in enumerate(ADDED, start=300):
                pieces = tokenizer(text, add_special_tokens=False).input_ids if begin == "pieces" else range(300)
                table[row] = table[list(pieces)].double().mean(0).float()
    return model.eval()


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(260, 302)[None]).logits


@pytest.mark.parametrize("begin", ["pieces", "mean"])
@pytest.mark.parametrize("rows", [300, 304], ids=["grown", "spare"])
@pytest.mark.parametrize("family", FAMILIES)
def test_untrained_rows_are_those_that_transformers_gives(tmp_path: Path, family: str, rows: int, begin: str) -> None:
    """At a learning rate of nearly nothing the export computes what transformers' own resized model does."""
    base = base_of(tmp_path / "base", family, vocab_size=rows)
    adapter = ["model.adapter={rank: 2}"] if (begin == "mean") == (rows == 300) else []
    run = trained(tmp_path, base, ADD, f"data.tokenizer.begin={begin}", "stages.sft.learning_rate=1e-30", *adapter)
    out = export_model(run, tmp_path / "out", dtype="fp32").folder
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == max(rows, 302)
    torch.testing.assert_close(logits_of(model), logits_of(resized(base, begin)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_new_rows_are_learned_and_their_text_is_answered(tmp_path: Path, family: str, adapter: bool) -> None:
    base = base_of(tmp_path / "base", family)
    run = trained(tmp_path, base, ADD, *(["model.adapter={rank: 8}", "budget.steps=80"] if adapter else ["budget.steps=30"]))
    out = export_model(run, tmp_path / "out", dtype="fp32").folder
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), AutoTokenizer.from_pretrained(out)
    assert (model.config.vocab_size, len(tokenizer)) == (302, 302)
    assert [tokenizer(text, add_special_tokens=False).input_ids for text in ADDED] == [[300], [301]]
    began = resized(base).get_input_embeddings().weight.detach()
    moved = (model.get_input_embeddings().weight.detach()[300:] - began[300:]).abs().amax(1)
    assert float(moved[0]) > 1e-3, "'two' begins every answer"
    for place in (run, out):
        with closing(load_source(place, device="cpu").generator) as generator:
            prompt = tuple(generator.text.chat([{"role": "user", "content": "one 2 and 3"}]))
            (answer,) = generator.generate([GenerationJob(prompt, 8, temperature=0)])
        assert answer.tokens[0] == 300
        assert answer.text.startswith("two")


@pytest.mark.parametrize("rows", [300, 304], ids=["grown", "spare"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral"])
def test_peft_loads_the_adapter_with_its_rows(tmp_path: Path, family: str, rows: int) -> None:
    from peft import AutoPeftModelForCausalLM, PeftModel

    base = base_of(tmp_path / "base", family, vocab_size=rows)
    run = trained(tmp_path, base, ADD, "model.adapter={rank: 4, targets: attention}", "seed=3")
    out = AutoModelForCausalLM.from_pretrained(export_model(run, tmp_path / "out", dtype="fp32").folder, dtype=torch.float32)
    folder = export_model(run, tmp_path / "adapter", adapter=True).folder
    about = json.loads((folder / "adapter_config.json").read_text())["trainable_token_indices"]
    assert about == {name: [300, 301] for name in ("model.embed_tokens", *(["lm_head"] if family != "qwen2" else []))}
    assert len(AutoTokenizer.from_pretrained(folder)) == 302
    with_tokenizer = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # it adds rows by itself
    beside = PeftModel.from_pretrained(resized(base), folder)
    wanted = logits_of(out)
    torch.testing.assert_close(logits_of(beside), wanted, rtol=1e-4, atol=1e-4)
    known = max(302, rows) if rows > 300 else 302
    torch.testing.assert_close(logits_of(with_tokenizer)[..., :known], wanted[..., :known], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(beside.merge_and_unload()), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, adapter: bool) -> None:
    """Stopped after two of four steps, it ends where one ends that was not stopped."""
    sets = [ADD, *(["model.adapter={rank: 2}"] if adapter else []), "checkpoints.every=2 steps", "budget.steps=4"]
    base, ended = base_of(tmp_path / "base", "llama"), []
    for stopped in (False, True):
        folder = tmp_path / str(stopped)
        folder.mkdir()
        run = trained(folder, base, *sets, steps=False)
        if stopped:
            assert train(run, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None) == 3
        assert train(run) == 0
        newest = CheckpointStore(run / "checkpoints").newest_good()
        assert newest is not None
        assert newest.step == 4
        ended.append(dict(newest.part().tensors()))
    assert ended[0].keys() == ended[1].keys()
    assert any("token_adapter" in name for name in ended[0]) == adapter
    assert all(torch.equal(tensor, ended[1][name]) for name, tensor in ended[0].items())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_plan_counts_what_is_trained(tmp_path: Path, family: str) -> None:
    run = trained(tmp_path, base_of(tmp_path / "base", family), ADD, "model.adapter={rank: 4}", "budget.steps=1")
    plan = RunFolder.open(run).manifest["plan"]
    newest = CheckpointStore(run / "checkpoints").newest_good()
    assert newest is not None
    held = dict(newest.part().tensors())
    assert plan["parameters"]["trained"] == sum(tensor.numel() for tensor in held.values())
    assert (plan["vocab"], plan["sources"]["vocab"]) == (302, "config.json, 2 tokens added")
    assert sum("token_adapter" in name for name in held) == (1 if family == "qwen2" else 2)


def verb(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints; it ends well."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert not ended.value.code
    return capsys.readouterr().out


def test_what_the_data_never_has_is_told_and_what_it_has_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = base_of(tmp_path / "base", "llama")
    trained(tmp_path, base, ADD, steps=False)
    recipe, sets = tmp_path / "talk.yaml", ("--set", ADD)
    assert "4 learned, 1 of them added to the model's own" in verb(capsys, "preview", recipe, "-n", 1, *sets)
    found = verb(capsys, "check", recipe, "--only", "added-tokens", "--json", *sets)
    assert "grow from 300 to 302 rows" in found
    assert "never in the training data looked at: <action>" in found
    found = verb(capsys, "check", recipe, "--only", "model", "--json", *sets, "--set", "model.adapter={rank: 2}")
    assert "gradients reach all" in found
