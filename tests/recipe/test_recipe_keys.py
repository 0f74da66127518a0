"""The list of all keys, its page, and other people's words for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.recipe import Recipe, UserError, find_keys, keys_page, load_recipe, recipe_keys
from windtunnel.recipe.synonyms import KEYS, OF_KIND, VALUES

PAGE = Path(__file__).parents[2] / "docs" / "recipe-keys.md"


def paths() -> set[str]:
    return {key.path for group in recipe_keys() for key in group.keys}


def test_the_page_is_current() -> None:
    made = keys_page(recipe_keys())
    assert PAGE.read_text(encoding="utf-8") == made, "write it anew: windtunnel recipe --keys --markdown > docs/recipe-keys.md"


def test_every_key_says_what_it_means_and_what_is_there_otherwise() -> None:
    for group in recipe_keys():
        assert group.meaning, group.title
        for key in group.keys:
            assert key.meaning, f"{key.path}: give it a description in the schema"
            assert key.accepts
            assert key.default
    units = {key.path: key.unit for group in recipe_keys() for key in group.keys}
    assert (units["budget.hours"], units["budget.dollars"], units["model.sequence"]) == ("h", "$", "tokens")
    assert units["checkpoints.every"] == "steps or time"


def test_shipped_recipes_have_no_key_that_is_not_listed() -> None:
    known = paths()

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                here = f"{path}.{key}" if path else key
                assert here in known or f"{path}.NAME" in known or any(k.startswith(f"{here}.") for k in known), here
                walk(inner, here)

    written = load_recipe("charlm").model_dump(mode="json", exclude={"stages": {"__all__": {"overridden", "budget", "set"}}})
    walk(written, "")
    assert set(Recipe.model_fields) <= {path.split(".")[0] for path in known}


def test_a_part_is_found_by_section_key_word_and_other_peoples_words() -> None:
    assert [group.title for group in find_keys("model")][:2] == ["model, kind gpt", "model, kind huggingface"]
    assert next(group.title for group in find_keys("stages.sft")) == "stages.sft, kind sft"
    assert {key.path for group in find_keys("budget.hours") for key in group.keys} == {"budget.hours"}
    assert any(key.path == "bands.overfit_patience" for group in find_keys("overfit") for key in group.keys)
    assert [group.title for group in find_keys("rl")] == ["stages.rl, kind rl"]
    assert {key.path for group in find_keys("n_embd") for key in group.keys} == {"model.aspect"}
    with pytest.raises(UserError, match=r"no key of a recipe is called 'modle'"):
        find_keys("modle")


def test_the_keys_of_a_recipe_are_those_of_its_kinds(tmp_path: Path) -> None:
    titles = [group.title for group in find_keys("charlm")]
    assert {"the recipe itself", "model, kind gpt", "data.corpus, kind arithmetic", "stages.pretrain, kind pretrain"} <= {*titles}
    assert not any("huggingface" in title or "stages.rl" in title or "sudoku" in title for title in titles)
    assert {"model, kind huggingface", "data.corpus.generated", "stages.evaluate.backtest"} <= {
        group.title for group in find_keys("thesis")
    }
    (tmp_path / "mine.yaml").write_text("extends: charlm\n")
    assert [group.title for group in find_keys(str(tmp_path / "mine.yaml"))] == titles


def test_every_key_that_a_foreign_word_leads_to_is_one() -> None:
    known = paths()
    for word, (key, _) in KEYS.items():
        none = isinstance(OF_KIND["pretrain"].get(key), str)  # a reason why there is no such key
        assert none or key.replace("NAME", "pretrain") in known or key.startswith(("--gpus", "--root")), word
    assert VALUES["shard"]["zero3"] == "full"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("model.n_embd=768", "n_embd is model.aspect here"),
        ("model.n_layer=12", "n_layer is model.depth here"),
        ("block_size=1024", "block_size is model.sequence here"),
        ("batch_size=32", "batch_size is stages.pretrain.micro_batch here"),
        ("training.max_iters=5000", "max_iters is budget.steps here"),
        ("stages.pretrain.dropout=0.1", "dropout: there is none"),
        ("stages.evaluate.lr=1e-3", "lr is stages.pretrain.optimizer.matrix_lr here"),
        ("stages.pretrain.optimizer.name=adamw", "matrices are trained by Muon"),
        ("use_master_weights=1", "weights that learn are fp32"),
        ("layout.shard=zero3", "nearest: full"),
        ("model.sequence=4k", "nearest: 4096"),
        ("budget.hours=none", "nearest: null"),
        ("budget.steps=-1", "nearest: null"),
        ("stages.pretrain.precision=fp16", "nearest: bf16"),
        ("stages.pretrain.precision=float32", "nearest: fp32"),
        ("stages.pretrain.precision=4bit", "nearest: fp8"),
        ("model.sequence=0.5k", "nearest: 512"),
        ("layout.recompute=off", "nearest: none"),
        ("layout.precision=bf16", "precision is stages.pretrain.precision here (auto, fp32, bf16 or fp8)"),
        ("layout.sharding=fsdp", "sharding is layout.shard here (none, optimizer or full)"),
        ("base=trm", "base is extends here"),
        ("depth=12", "unknown key; nearest: model.depth"),
        ("tokens=1e9", "nearest: budget.tokens"),
        ("compile=false", "nearest: stages.pretrain.compile"),
        ("model.depht=12", "nearest: depth"),
        ("wandb_run=x", "wandb_run is notify.track here"),
        ("training.local_batch_size=8", "local_batch_size is stages.pretrain.micro_batch here"),
        ("lr_scheduler.min_lr_factor=0.1", "min_lr_factor is stages.pretrain.schedule.final here"),
        ("activation_checkpoint.mode=full", "mode is layout.recompute here"),
        ("adam_beta1=0.9", "adam_beta1: AdamW's betas and epsilon are fixed"),
        ("input_val_bin=x", "input_val_bin is data.validation here"),
        ("num_generations=8", "num_generations is stages.rl.samples here (of a stage of kind rl)"),
        ("strict=1", "strict: unknown key; valid: name, description"),
    ],
)
def test_other_peoples_words_are_refused_with_ours(given: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("charlm", [given])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "given", "told"),
    [
        ("finetune", "learning_rate=1e-4", "learning_rate is stages.sft.learning_rate here"),
        ("finetune", "max_grad_norm=1", "max_grad_norm: gradients are scaled down to a norm of 1"),
        ("finetune", "flash_attention=true", "flash_attention is stages.sft.attention here"),
        ("finetune", "sample_packing=true", "sample_packing: sequences are packed"),
        ("grpo", "actor_rollout_ref.actor.optim.lr=1e-6", "lr is stages.sft.learning_rate or stages.rl.learning_rate here"),
        ("grpo", "actor_rollout_ref.rollout.n=8", "n is stages.rl.samples here (answers per prompt)"),
        ("grpo", "actor_rollout_ref.model.path=qwen", "path is model.config here"),
        ("grpo", "stages.rl.train_batch_size=8", "train_batch_size is stages.rl.prompts here"),
        ("trm", "batch_size=8", "batch_size is stages.validation.micro_batch or stages.quality.micro_batch here"),
    ],
)
def test_other_peoples_words_lead_to_stages_that_the_recipe_has(recipe: str, given: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, [given])
    assert told in str(caught.value)


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_every_key_that_a_foreign_word_leads_to_is_one_in_stages_of_other_kinds(kind: str) -> None:
    known = paths()
    for word, (key, _) in KEYS.items():
        if key.startswith("stages.NAME."):
            other = OF_KIND[kind].get(key, (key, ""))
            # A schedule's keys are listed once, those of pretraining.
            listed = (
                other if isinstance(other, str) else other[0].replace("NAME.schedule", "pretrain.schedule").replace("NAME", kind)
            )
            assert isinstance(other, str) or listed in known, (word, other)


@pytest.mark.parametrize("word", ["fp32", "float32", "tf32"])
def test_a_precision_that_fine_tuning_lacks_leads_to_one_that_it_has(word: str) -> None:
    with pytest.raises(UserError, match="nearest: auto"):
        load_recipe("sft", [f"stages.sft.precision={word}"])


@pytest.mark.parametrize(
    ("recipe", "given", "nearest"),
    [
        ("finetune", "stages.sft.attention=sdpa", "auto"),
        ("finetune", "data.corpus.loss=assistant", "answers"),
        ("finetune", "data.corpus.format=openai", "messages"),
        ("grpo", "stages.rl.loss=bnpo", "dapo"),
        ("grpo", "stages.rl.engine=sglang", "vllm"),
        ("grpo", "stages.rl.advantages=rloo", "leave-one-out"),
        ("grpo", "stages.rl.mismatch=icepop", "mask"),
        ("charlm", "data.corpus.kind=parquet", "text"),
        ("charlm", "data.tokenizer.kind=gpt2", "folder"),
        ("charlm", "layout.shard=2", "optimizer"),
        ("charlm", "model.mlp=geglu", "swiglu"),
    ],
)
def test_other_peoples_values_are_refused_with_ours(recipe: str, given: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, [given])
    assert str(caught.value).endswith(f"; nearest: {nearest}")


def test_minutes_are_no_millions() -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("charlm", ["budget.hours=90m"])
    assert "nearest" not in str(caught.value)


def test_4bit_weights_are_int4() -> None:
    with pytest.raises(UserError, match="nearest: int4"):
        load_recipe("sft", ["model.weights=4bit"])


@pytest.mark.parametrize("word", ["base", "inherits", "parent"])
def test_another_word_for_extends_is_refused_before_what_it_would_bring_is_missed(word: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"model: {{depth: 4}}\n{word}: charlm\n")
    with pytest.raises(UserError, match=rf"mine.yaml:2: {word}: unknown key; {word} is extends here") as caught:
        load_recipe(file)
    assert caught.value.fix == "extends: charlm"
