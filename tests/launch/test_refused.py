"""What is wrong with a fine-tuning is refused by `check` and by `train` alike, before anything is trained, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from windtunnel.check import all_checks
from windtunnel.launch import Options, prepare_run
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rehearse import Context, run_checks, select

RECIPE = """
name: tuned
model: {kind: huggingface, config: FOLDER/good, sequence: 64}
data: {corpus: {kind: conversations, files: [FOLDER/talks.jsonl]}, tokenizer: {kind: folder}, validation: 0.05}
stages:
  sft: {batch_tokens: 256, micro_batch: 1, validate_every: 5 steps, validation_tokens: 1024, compile: false}
budget: {steps: 6}
"""
CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True,
    "max_position_embeddings": 128,
}  # fmt: skip
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHECKED = ("recipe", "data", "tokenizer-files", "plan", "training")


def talk(*turns: tuple[str, str]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


TALKS = [talk(("user", f"What is {a} and {b}?"), ("assistant", f"It is {a + b}.")) for a in range(20) for b in range(20)]


def write_talks(path: Path, talks: list[dict[str, object]], odd: object = None) -> None:
    """JSON lines, an odd one at line 51."""
    lines = [json.dumps(one) for one in talks]
    if odd is not None:
        lines.insert(50, odd if isinstance(odd, str) else json.dumps(odd))
    path.write_text("\n".join(lines) + "\n")


def write_tokenizer(folder: Path, texts: list[str], chat: str | None = CHAT, special: list[str] = SPECIAL) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    told = {"eos_token": special[-1], "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | ({"chat_template": chat} if chat else {})))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, conversations and a model that can be trained."""
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("good")
    write_talks(folder / "talks.jsonl", TALKS)
    write_tokenizer(folder / "good", [json.dumps(one) for one in TALKS])
    (folder / "good/config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "good"))
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "good/model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class Case:
    """Something that is wrong: how it comes about, keys set, what a message names, and what the fix says."""

    make: Callable[[Path], object]
    sets: tuple[str, ...]
    names: tuple[str, ...]
    fix: str


def edit(name: str, **changes: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "good" / name).write_text(
        json.dumps(json.loads((folder / "good" / name).read_text()) | changes)
    )


def adapter(folder: Path) -> None:
    (folder / "lora").mkdir()
    (folder / "lora/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-7B"}))
    (folder / "lora/adapter_model.safetensors").write_bytes(b"")


def nothing(folder: Path) -> None:
    """Leave all as it is."""


CASES = {
    "no chat template": Case(
        lambda f: write_tokenizer(f / "good", [json.dumps(one) for one in TALKS], None),
        ("data.corpus.template=model",), ("data.corpus.template", "no chat template"), "chatml",
    ),
    "no answer": Case(
        lambda f: write_talks(f / "talks.jsonl", TALKS, talk(("user", "hello"))), (), ("talks.jsonl:51", "assistant"),
        "malformed=drop",
    ),
    "unknown role": Case(
        lambda f: write_talks(f / "talks.jsonl", TALKS, talk(("robot", "x"), ("assistant", "y"))),
        (), ("talks.jsonl:51", "'robot'", "system, developer, user, assistant, tool"), "malformed=drop",
    ),
    "calls of tools that the template leaves out": Case(
        lambda f: write_talks(f / "talks.jsonl", TALKS, {"messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        ]}), (), ("talks.jsonl:51", "turn 2 calls tools"), "into the content",
    ),
    "no JSON": Case(lambda f: write_talks(f / "talks.jsonl", TALKS, "{nope"), (), ("talks.jsonl:51",), ""),
    "no conversations": Case(
        lambda f: write_talks(f / "talks.jsonl", [{"q": "a", "a": "b"}] * 9), (), ("talks.jsonl:1", "a, q"), "malformed=drop",
    ),
    "an empty file": Case(lambda f: (f / "talks.jsonl").write_text(""), (), ("talks.jsonl", "empty"), "remove it"),
    "no file": Case(lambda f: (f / "talks.jsonl").unlink(), (), ("talks.jsonl",), "file"),
    "all too long": Case(
        lambda f: write_talks(f / "talks.jsonl", [talk(("user", f"{i} " * 99), ("assistant", "x")) for i in range(30)]),
        (), ("model.sequence=64", "29 conversations"), "overlong=truncate",
    ),
    "another model's tokenizer": Case(
        lambda f: write_tokenizer(f / "other", ["zebras graze where lions sleep"] * 9 + ["quagga " * i for i in range(99)]),
        ("data.tokenizer.path=FOLDER/other",), ("data.tokenizer.path", "another model's tokenizer"), "data.tokenizer.path=null",
    ),
    "ids beyond the table": Case(
        edit("config.json", vocab_size=250), ("stages.sft.init_from=random",), ("vocab_size", "250", "beside it"),
        "correct vocab_size",
    ),
    "another tokenizer's ids beyond the table": Case(
        lambda f: (shutil.copytree(f / "good", f / "own"), edit("config.json", vocab_size=250)(f)),
        ("stages.sft.init_from=random", "data.tokenizer.path=FOLDER/own"), ("vocab_size", "250"),
        "give the model's own tokenizer as data.tokenizer.path",
    ),
    "a chat template that is no Jinja": Case(
        lambda f: write_tokenizer(f / "good", [json.dumps(one) for one in TALKS], "{% for m in messages %}{{ m['content'] }}"),
        (), ("data.corpus.template", "no Jinja", "endfor"), "chatml",
    ),
    "a chat template that marks nothing": Case(
        lambda f: write_tokenizer(
            f / "good", [json.dumps(one) for one in TALKS], CHAT + "{% generation %}{% endgeneration %}",
        ),
        (), ("nothing to learn in any of 400 conversations", "marks no text"), "generation",
    ),
    "a chat template that has the last message alone": Case(
        lambda f: write_tokenizer(f / "good", [json.dumps(one) for one in TALKS], "{{ messages[-1]['content'] }}"),
        (), ("talks.jsonl:1", "writes turn 2 otherwise"), "another data.corpus.template",
    ),
    "a tokenizer with half of ChatML's markers": Case(
        lambda f: write_tokenizer(f / "good", [json.dumps(one) for one in TALKS], None, SPECIAL[:2]),
        (), ("<|im_end|> is no token",), "alpaca",
    ),
    "one conversation": Case(
        lambda f: write_talks(f / "talks.jsonl", TALKS[:1]), (), ("none different", "training and validation"), "differ",
    ),
    "weights that are no safetensors": Case(
        lambda f: (f / "good/model.safetensors").rename(f / "good/pytorch_model.bin"), (),
        ("pytorch_model.bin", "only safetensors"), "save_pretrained",
    ),
    "products in fp8": Case(
        nothing, ("stages.sft.precision=fp8",), ("stages.sft.precision: fp8", "bf16"), "stages.sft.precision=auto",
    ),
    "a layout for another engine": Case(
        nothing, ("layout.tensor=2", "layout.offload=optimizer"),
        ("layout.tensor=2, layout.offload=optimizer", "megatron-bridge"), "--set layout.tensor=null --set layout.offload=null",
    ),
    "an adapter in place of weights": Case(
        adapter, ("stages.sft.init_from=FOLDER/lora",), ("stages.sft.init_from", "Qwen/Qwen2.5-7B"), "merge",
    ),
    "an adapter as the model": Case(
        adapter, ("model.config=FOLDER/lora",), ("model.config", "holds an adapter (of Qwen/Qwen2.5-7B)"), "merge",
    ),
    "an adapter with a config as the model": Case(
        lambda f: (adapter(f), shutil.copy(f / "good/config.json", f / "lora")),
        ("model.config=FOLDER/lora",), ("model.config", "holds an adapter (of Qwen/Qwen2.5-7B)"), "merge",
    ),
    "a misspelt folder": Case(
        nothing, ("model.config=FOLDER/goood",), ("model.config", "there is no folder"), "made/good",
    ),
    "no such weights": Case(nothing, ("stages.sft.init_from=FOLDER/none",), ("stages.sft.init_from", "none"), "name a run"),
    "a model that is not here": Case(
        nothing, ("model.config=meta-llama/Llama-3.1-8B",), ("meta-llama/Llama-3.1-8B", "not on this machine"),
        "windtunnel fetch",
    ),
    "weights to begin with that are not here": Case(
        nothing, ("stages.sft.init_from=Qwen/Qwen2.5-0.5B",),
        ("stages.sft.init_from", "Qwen/Qwen2.5-0.5B", "not on this machine"), "windtunnel fetch Qwen/Qwen2.5-0.5B",
    ),
    "a run that is not there": Case(
        nothing, ("stages.sft.init_from=runs/tuned-1",), ("stages.sft.init_from", "no run or folder runs/tuned-1"), "name a run",
    ),
    "damaged weights": Case(
        lambda f: (f / "good/model.safetensors").write_bytes(b"no weights"), (), ("is truncated",), "windtunnel fetch",
    ),
    "weights of another shape": Case(edit("config.json", intermediate_size=80), (), ("down_proj", "[32, 80]"), "config.json"),
    "weights of fewer layers": Case(
        edit("config.json", num_hidden_layers=3), (), ("has no weights for model.layers.2",), "config.json",
    ),
    "no tokenizer": Case(lambda f: (f / "good/tokenizer.json").unlink(), (), ("tokenizer.json",), "tokenizer.json"),
    "a damaged tokenizer": Case(lambda f: (f / "good/tokenizer.json").write_text("{"), (), ("cannot be read",), "again"),
    "a damaged config": Case(lambda f: (f / "good/config.json").write_text("{"), (), ("config.json", "as JSON"), "fetch"),
    "positions that the model lacks": Case(nothing, ("model.sequence=256",), ("model.sequence", "128"), "128"),
    "4-bit weights": Case(
        nothing, ("model.weights=int4", "model.adapter={rank: 4}"), ("int4", "bitsandbytes"), "model.weights=bf16",
    ),
    "reinforcement learning without a judge": Case(
        nothing, ("stages={rl: {prompt_tokens: 8, answer_tokens: 8}}",), ("rl", "judges"), "rewards",
    ),
    "reinforcement learning with engines beside": Case(
        nothing, ("stages={rl: {prompt_tokens: 8, answer_tokens: 8, overlap: true}}",), ("rl", "overlap"), "overlap=0",
    ),
    "reinforcement learning from conversations": Case(
        nothing, ("stages={rl: {prompt_tokens: 8, answer_tokens: 8, rewards: [{kind: math}]}}",), ("rl", "prompts"),
        "data.corpus",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["nothing", *CASES])
def test_check_and_train_agree(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "made"
    shutil.copytree(good, folder)
    case = CASES.get(name, Case(nothing, (), (), ""))
    case.make(folder)
    recipe = folder / "tuned.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(folder)))
    sets = tuple(text.replace("FOLDER", str(folder)) for text in case.sets)
    refused: UserError | None = None
    try:
        prepare_run(load_recipe(recipe, sets), Options(root=tmp_path / "runs", yes=True), lambda _: None).close()
    except UserError as error:
        refused = error
    checked: list[tuple[str, str]] = []
    try:
        context = Context(str(recipe), sets, ("here",), folder=tmp_path)
        for outcome in run_checks(select(all_checks(), list(CHECKED)), context, isolate=False):
            if outcome.status == "fail":
                checked.append((outcome.evidence + str(outcome.problems), outcome.fix or ""))
    except UserError as error:
        checked.append((error.message, error.fix or ""))
    assert (refused is not None) == (name in CASES), refused
    assert bool(checked) == (name in CASES), checked
    if refused is None:
        return
    assert not list((tmp_path / "runs").glob("*/manifest.json"))
    for part in case.names:
        assert part in refused.message
        assert any(part in message for message, _ in checked), checked
    assert case.fix in (refused.fix or "")
    assert refused.fix or name == "no JSON"
    assert "Traceback" not in refused.message


def test_a_run_begins_with_a_models_weights_that_were_fetched_by_name(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "models"))
    fetched = tmp_path / "models" / "tuned-before"
    shutil.copytree(good / "good", fetched)
    (fetched / "fetched.json").write_text(json.dumps({"id": "Someone/Tuned-Before", "source": "a test"}))
    recipe = tmp_path / "tuned.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(good)))
    loaded = load_recipe(recipe, ("stages.sft.init_from=Someone/Tuned-Before",))
    with prepare_run(loaded, Options(root=tmp_path / "runs", yes=True), lambda _: None) as run:
        assert run.manifest["base"]["folder"] == str(fetched.resolve())
    (fetched / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match="is truncated"):
        prepare_run(loaded, Options(root=tmp_path / "runs", yes=True), lambda _: None)


def test_a_run_begins_with_an_adapter_of_its_own_kind_alone(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.train import train

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "tuned.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(good)))
    options = Options(root=tmp_path / "runs", yes=True)
    adapted = load_recipe(recipe, ("model.adapter.rank=4", "budget.steps=2"))
    with prepare_run(adapted, options, lambda _: None) as run:
        first = run.path
    assert train(first) == 0
    begin = f"stages.sft.init_from={first}"
    for sets, asked in ((("model.adapter.rank=8", begin), "rank 8"), ((begin,), "all weights")):
        with pytest.raises(UserError, match=f"trained an adapter of rank 4.*{asked}") as caught:
            prepare_run(load_recipe(recipe, sets), options, lambda _: None)
        assert "--set model.adapter='{rank: 4, alpha: 32, targets: all}'" in (caught.value.fix or "")
        context = Context(str(recipe), sets, ("here",), folder=tmp_path, root=tmp_path / "runs")
        outcomes = run_checks(select(all_checks(), ["training"]), context, isolate=False)
        assert {outcome.status for outcome in outcomes if outcome.check == "training"} == {"fail"}
    with prepare_run(load_recipe(recipe, ("model.adapter.rank=4", begin)), options, lambda _: None) as run:
        assert run.manifest["init"]["run"] == str(first.resolve())


def test_random_weights_are_told_of(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "tuned.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(good)))
    bare = shutil.copytree(good / "good", tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    told, checked = {}, {}
    cases: dict[str, tuple[str, ...]] = {
        "own": (), "bare": (f"model.config={bare}",),
        "asked": ("stages.sft.init_from=random", "model.adapter={rank: 4}"),
    }  # fmt: skip
    for name, sets in cases.items():
        lines: list[str] = []
        prepare_run(load_recipe(recipe, sets), Options(root=tmp_path / "runs", yes=True), lines.append).close()
        told[name] = [line for line in lines if line.startswith(("weights: random", "warn: an adapter"))]
        context = Context(str(recipe), sets, ("here",), folder=tmp_path, root=tmp_path / "runs")
        outcomes = run_checks(select(all_checks(), ["model-files"]), context, isolate=False)
        checked[name] = next(outcome for outcome in outcomes if outcome.check == "model-files")
    assert told["own"] == []
    assert "has none" in told["bare"][0]
    assert "init_from asks" in told["asked"][0]
    # What an adapter learned is of no use without the weights beneath it.
    assert [len(lines) for lines in told.values()] == [0, 1, 2]
    assert [any("nothing keeps those" in warning for warning in one.warnings) for one in checked.values()] == [False, False, True]
