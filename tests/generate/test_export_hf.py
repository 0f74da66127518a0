"""Fine-tuned Hugging Face runs exported: what transformers and peft load computes what was trained."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from hf_models import MODELS
from hf_runs import base_of, trained

from windtunnel.checkpoint import verify_export
from windtunnel.cli import main
from windtunnel.convert import Choice, convert_folder, decoded_weights
from windtunnel.data import prepare
from windtunnel.generate import GenerationJob, export_model, load_source
from windtunnel.launch import Options, prepare_run
from windtunnel.model import decode_fp8, encode_fp8
from windtunnel.recipe import UserError
from windtunnel.run import RunFolder


@pytest.fixture(autouse=True)
def _small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, which tiny models are faster with, and a cache of the tests' own."""
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(40)[None] % 300).logits


def served(path: Path, **options: Any) -> tuple[tuple[int, ...], str]:
    """What a source answers greedily to one question."""
    with closing(load_source(path, device="cpu", **options).generator) as generator:
        prompt = tuple(generator.text.chat([{"role": "user", "content": "one 2 and 3"}]))
        (answer,) = generator.generate([GenerationJob(prompt, 24, temperature=0)])
    return answer.tokens, answer.text


@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_transformers_loads_what_was_trained(tmp_path: Path, family: str, adapter: bool) -> None:
    base = base_of(tmp_path / "base", family)
    run = trained(tmp_path, base, *(["model.adapter={rank: 4}", "seed=3"] if adapter else []))
    made = export_model(run, tmp_path / "out", dtype="fp32")
    assert made.rounding == (0.0 if adapter else None)
    out = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert made.step == 3
    assert verify_export(tmp_path / "out")["dtype"] == "fp32"
    assert not torch.equal(logits_of(out), logits_of(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)))
    assert load_file(tmp_path / "out" / made.files[0]).keys() == load_file(base / "model.safetensors").keys()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [type(out).__name__]
    assert (config["dtype"], config["tie_word_embeddings"]) == ("float32", family == "qwen2")
    assert config.get("num_nextn_predict_layers", 0) == 0, "transformers claims blocks that it has not saved"
    assert served(run) == served(tmp_path / "out")
    if adapter and family == "deepseek_v3":
        with pytest.raises(UserError, match="peft would take them for the experts"):
            export_model(run, tmp_path / "adapter", adapter=True)
    elif adapter:
        from peft import PeftModel

        beside = export_model(run, tmp_path / "adapter", adapter=True)
        assert (beside.files, beside.dtype) == (("adapter_model.safetensors",), "fp32")
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path / "adapter")
        torch.testing.assert_close(logits_of(loaded), logits_of(out), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_what_was_trained_on_fp8_is_exported_without_it(tmp_path: Path, adapter: bool) -> None:
    """A run on a coded folder gives the same model as one on the folder that it is converted into."""
    coded, plain = tmp_path / "fp8", tmp_path / "bf16"
    convert_folder(base_of(tmp_path / "base", "deepseek_v3"), coded, Choice(to="fp8"))
    convert_folder(coded, plain)
    made = []
    for base in (coded, plain):
        (tmp_path / f"of-{base.name}").mkdir()
        run = trained(tmp_path / f"of-{base.name}", base, *(["model.adapter={rank: 4}"] if adapter else []), "budget.steps=2")
        made.append(export_model(run, tmp_path / f"out-{base.name}").folder)
    configs = [json.loads((folder / "config.json").read_text()) for folder in made]
    assert "quantization_config" not in configs[0]
    first, second = (load_file(folder / "model.safetensors") for folder in made)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert AutoModelForCausalLM.from_pretrained(made[0]).dtype == torch.bfloat16


def test_answers_end_and_are_asked_for_as_in_training(tmp_path: Path) -> None:
    """A base model without a template learns ChatML: its export knows the template, and generation ends where answers did."""
    base = base_of(tmp_path / "base", "llama", template=False)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    generation = json.loads((base / "generation_config.json").read_text())
    (base / "generation_config.json").write_text(
        json.dumps(generation | {"eos_token_id": 0, "temperature": 0.7, "do_sample": True})
    )
    run = trained(tmp_path, base, "budget.steps=1")
    out = export_model(run, tmp_path / "out").folder
    tokenizer = AutoTokenizer.from_pretrained(out)
    talk = [{"role": "user", "content": "one 1 and 2"}]
    asked = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert asked == "<|im_start|>user\none 1 and 2<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"
    found = GenerationConfig.from_pretrained(out)
    assert (set(found.eos_token_id), found.temperature) == ({0, 2}, 0.7)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == found.eos_token_id
    answered = [*talk, {"role": "assistant", "content": "two 3"}]
    ids = tokenizer.apply_chat_template(answered, return_dict=False)
    prepared = prepare(RunFolder.open(run).recipe)
    samples = [list(part.sample(i)[0]) for part in (prepared.train, prepared.validation) for i in range(part.samples)]
    assert ids in samples


def test_what_rounding_takes_from_an_adapter_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = base_of(tmp_path / "base", "llama")
    run = trained(tmp_path, base, "model.adapter={rank: 4}")
    frozen = load_file(base / "model.safetensors")
    whole, rounded = (
        load_file(export_model(run, tmp_path / dtype, dtype=dtype).folder / "model.safetensors") for dtype in ("fp32", "bf16")
    )
    adapted = [name for name in whole if not torch.equal(whole[name], frozen[name].float())]
    error = sum(float((rounded[name].float() - whole[name]).square().sum()) for name in adapted)
    change = sum(float((whole[name] - frozen[name].float()).square().sum()) for name in adapted)
    made = export_model(run, tmp_path / "out")
    assert made.rounding == pytest.approx((error / change) ** 0.5, rel=1e-4)
    assert made.rounding > 0.1  # three steps change little
    with pytest.raises(SystemExit):
        main(["export", str(run), "--to", str(tmp_path / "out")])
    assert "of what the adapter changes: --dtype fp32, or --adapter, keeps all of it" in capsys.readouterr().out


def test_an_adapter_needs_the_model_that_it_was_trained_on(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "llama")
    run = trained(tmp_path, base, "model.adapter={rank: 2}", "budget.steps=1")
    moved = base.rename(tmp_path / "moved")
    for use in (lambda **o: export_model(run, tmp_path / "out", **o), lambda **o: load_source(run, device="cpu", **o)):
        with pytest.raises(UserError, match=r"is not in .*/base") as missing:
            use()
        assert "bring" in (missing.value.fix or "")
        result = use(base=moved)
        if hasattr(result, "generator"):
            result.generator.close()
    weights = load_file(moved / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] *= 1.01  # the same shapes, further trained
    other = tmp_path / "base"
    shutil.copytree(moved, other)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="another model than the one"):
        export_model(run, tmp_path / "out")
    with pytest.raises(UserError, match="another model than the one"):
        prepare_run(RunFolder.open(run).recipe, Options(run=run, resume=True, yes=True), lambda text: None)
    with pytest.raises(UserError, match="another model than the one"):
        trained(tmp_path, other, "model.adapter={rank: 2}", f"stages.sft.init_from={run}", steps=False)
    shutil.rmtree(other)
    moved.rename(base)
    again = trained(tmp_path, base, "model.adapter={rank: 2}", f"stages.sft.init_from={run}", "budget.steps=2")
    assert export_model(again, tmp_path / "again").step == 2


def test_a_base_in_fp8_comes_out_as_it_was_trained_beside(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "llama")
    run = trained(tmp_path, base, "model.adapter={rank: 2}", "budget.steps=1")
    recipe = run / "recipe.yaml"  # a CPU cannot train beside fp8
    assert "weights: bf16" in recipe.read_text()
    recipe.write_text(recipe.read_text().replace("weights: bf16", "weights: fp8"))
    weights = load_file(export_model(run, tmp_path / "out", dtype="fp32").folder / "model.safetensors")
    before = load_file(base / "model.safetensors")
    frozen = "model.layers.0.mlp.up_proj.weight"
    rounded = decode_fp8(*encode_fp8(before[frozen]), torch.bfloat16).float()
    change = (weights[frozen] - rounded).abs().max()
    assert 0 < change < (before[frozen] - rounded).abs().max(), "the adapter's change, not the rounding"
    assert torch.equal(weights["model.embed_tokens.weight"], before["model.embed_tokens.weight"].float())
    assert export_model(run, tmp_path / "out", adapter=True).warnings
    with pytest.raises(UserError, match="an adapter without its model"):
        load_source(tmp_path / "out")


def test_what_has_no_adapter_says_so(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "qwen3_moe")
    run = trained(tmp_path, base, "budget.steps=1")
    with pytest.raises(UserError, match="has no adapter"):
        export_model(run, tmp_path / "out", adapter=True)


def test_a_tokenizer_made_here_is_exported_too(tmp_path: Path) -> None:
    """Random weights of a config.json, and tokens of our own: BOS stands before every text there."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODELS["qwen2"] | {"vocab_size": 420}))
    for kind, sets in {
        "bpe": ("data.tokenizer={kind: bpe, vocab_size: 400}",),
        "character": ("data.tokenizer={kind: character}", "data.corpus={kind: arithmetic, documents: 500, digits: 1, terms: 2}"),
    }.items():
        run = trained(tmp_path, config, *sets, "budget.steps=1")
        out = export_model(run, tmp_path / kind).folder
        tokenizer, own = AutoTokenizer.from_pretrained(out), load_source(run, device="cpu")
        with closing(own.generator) as generator:
            assert tokenizer.encode("H1+2") == generator.text.encode("H1+2")
            assert tokenizer.decode(tokenizer.encode("H1+2"), skip_special_tokens=True) == "H1+2"
            assert 0 in generator.text.ends or kind == "bpe"
            if kind == "bpe":
                talk = [{"role": "user", "content": "one"}]
                assert tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True).startswith(
                    "<|bos|><|im_start|>"
                )


def test_stages_one_after_the_other(tmp_path: Path) -> None:
    """All weights, all weights again from that run, then an adapter over the second one's export."""
    first = trained(tmp_path, base_of(tmp_path / "base", "qwen2"), "budget.steps=2")
    second = trained(tmp_path, tmp_path / "base", f"stages.sft.init_from={first}", "budget.steps=2")
    middle = export_model(second, tmp_path / "middle", dtype="fp32").folder
    with pytest.raises(UserError, match=r"trained all weights, and .* adapter of rank 4") as refused:
        trained(tmp_path, tmp_path / "base", f"stages.sft.init_from={second}", "model.adapter={rank: 4}")
    assert "export" in (refused.value.fix or "")
    third = trained(tmp_path, tmp_path / "base", f"stages.sft.init_from={middle}", "model.adapter={rank: 4}", "budget.steps=2")
    last = export_model(third, tmp_path / "last", dtype="fp32").folder
    norm = "model.layers.0.input_layernorm.weight"
    assert torch.equal(load_file(last / "model.safetensors")[norm], load_file(middle / "model.safetensors")[norm])
    assert not torch.equal(load_file(last / "model.safetensors")[norm], load_file(tmp_path / "base/model.safetensors")[norm])
    assert served(third) == served(last)


@pytest.mark.parametrize("family", ["deepseek_v3", "mixtral"])
def test_an_adapter_beside_fp8_experts_is_saved_loaded_and_merged(tmp_path: Path, family: str) -> None:
    """Experts come out as the adapter saw them, whatever a family calls them in its files."""
    base = tmp_path / "coded"
    convert_folder(base_of(tmp_path / "base", family), base, Choice(to="fp8"))
    sets = ("model.adapter={rank: 4, targets: attention}", "model.weights=fp8-experts", "layout.recompute=block")
    run = trained(tmp_path, base, *sets)
    out = AutoModelForCausalLM.from_pretrained(export_model(run, tmp_path / "out", dtype="fp32").folder, dtype=torch.float32)
    merged, plain = load_file(tmp_path / "out/model.safetensors"), decoded_weights(base)
    assert merged.keys() == plain.keys()
    expert = next(name for name in plain if ".experts.3." in name)
    assert torch.equal(merged[expert], plain[expert]().float())
    query = next(name for name in plain if name.endswith(("self_attn.q_proj.weight", "self_attn.q_b_proj.weight")))
    assert not torch.equal(merged[query], plain[query]().float())
    assert served(run) == served(tmp_path / "out")
    export_model(run, tmp_path / "adapter", adapter=True)
    convert_folder(base, tmp_path / "plain")
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32), tmp_path / "adapter"
    )
    torch.testing.assert_close(logits_of(loaded.merge_and_unload()), logits_of(out), rtol=1e-4, atol=1e-4)
