"""Bad model configs: each says what is wrong, in which file and key, and what would be accepted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from causal_configs import VARIANTS, small_config
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.model import HFShape, hf_shape, require_weights
from windtunnel.recipe import UserError


def refusal(config: Any, folder: Path) -> str:
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(UserError) as caught:
        hf_shape(str(file))
    assert str(file) in caught.value.message
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("qwen2.5-8b", "qwen2.5-7b"), ("lama-3.1-8b", "llama-3.1-8b"), ("Qwen/Qwen3-9B", "qwen3-8b"), ("deepseekv3", "deepseek-v3")],
)
def test_an_unknown_name_gives_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        hf_shape(name)
    assert repr(name) in caught.value.message
    assert nearest in (caught.value.fix or "")
    assert "config.json" in (caught.value.fix or "")


@pytest.mark.parametrize("name", ["zzzz", "", " ", "x" * 5000, "a\0b", "~nobody/config.json", "./nowhere/config.json", "/"])
def test_names_that_are_nothing_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        hf_shape(name, base=tmp_path)
    assert caught.value.fix
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("{'hidden_size': 64}", "is not JSON"),
        ("[1, 2]", "holds a list"),
        ('"llama"', "holds a string"),
        ("null", "holds a null"),
        ("[" * 100_000, "is not JSON"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_files_that_are_no_config(content: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(content, tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json"):
        hf_shape(str(tmp_path / "empty"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00weights")
    with pytest.raises(UserError, match="is not text"):
        hf_shape(str(tmp_path / "binary.json"))
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UserError, match="is no file"):
        hf_shape(str(tmp_path / "pipe.json"))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="1024 MiB, too much"):
        hf_shape(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("llama", {"hidden_size": 0}, "hidden_size is 0"),
        ("llama", {"hidden_size": "64"}, "hidden_size is 64"),
        ("llama", {"hidden_size": 64.5}, "hidden_size is 64.5"),
        ("llama", {"hidden_size": True}, "hidden_size is True"),
        ("llama", {"hidden_size": None}, "hidden_size is missing"),
        ("llama", {"vocab_size": -1}, "vocab_size is -1"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("llama", {"intermediate_size": None}, "intermediate_size is missing"),
        ("llama", {"num_attention_heads": 6}, "hidden_size is 64, which num_attention_heads 6 does not divide"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide num_attention_heads 8"),
        ("llama", {"head_dim": 7}, "head_dim is 7"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is yes"),
        ("llama", {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen3", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types has 1 elements"),
        ("olmo3", {"layer_types": ["linear_attention"] * 5}, "layer_types has 'linear_attention'"),
        ("olmo3", {"layer_types": "full_attention"}, "layer_types is string"),
        ("qwen3_moe", {"num_experts": 0, "decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("qwen3_moe", {"num_experts": -4}, "num_experts is -4"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7, but num_experts is 6"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ("mixtral", {"num_local_experts": 1}, "num_experts_per_tok is 2, but num_local_experts is 1"),
        ("deepseek_v3", {"n_group": 3}, "n_group is 3"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ("deepseek_v3", {"qk_rope_head_dim": 5}, "qk_rope_head_dim is 5"),
        ("deepseek_v3", {"num_key_value_heads": 4}, "num_key_value_heads is 4, which is not num_attention_heads 8"),
    ],
)
def test_impossible_keys_are_named(family: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refusal(small_config(family, **changes), tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba2"}, "model_type mamba2 has state-space blocks"),
        ({"model_type": "jamba"}, "state-space blocks"),
        ({"model_type": "qwen3_next"}, "linear-attention blocks"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is_encoder_decoder is true: the model has an encoder"),
        ({"model_type": "bert"}, "attention to both sides"),
        ({"model_type": "gpt2"}, "without a gated MLP"),
        ({"model_type": "cohere"}, "model_type cohere has attention and MLP beside one another"),
        ({"model_type": "glm4"}, "gate and up in one matrix beside queries, keys and values apart"),
        ({"model_type": "helium"}, "rotary positions that turn neighbouring channels"),
        ({"model_type": "stablelm"}, "norms with biases"),
        ({"model_type": "nemotron"}, "an MLP without a gate"),
        ({"model_type": "ernie4_5"}, "rotary positions that turn neighbouring channels"),
        ({"model_type": "arcee"}, "an MLP without a gate"),
        ({"model_type": "exaone4"}, "rotary positions in the layers with windows alone"),
        ({"model_type": "granitemoe"}, "which part of it differs is not known here"),
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, "vision_config describes a vision tower"),
        ({"model_type": "qwen2_audio", "audio_config": {}}, "audio_config describes an audio tower"),
        ({**small_config("gemma3_text"), "use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ({"hidden_size": 64}, "model_type is missing"),
        ({"model_type": 5}, "model_type 5 is not supported"),
        ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
    ],
)
def test_unsupported_architectures_say_which_part_and_what_is_supported(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    message = refusal(config, tmp_path)
    assert said in message
    assert "supported model types: deepseek_v2, " in message


def test_near_model_types_and_wrapped_text_models_are_pointed_out(tmp_path: Path) -> None:
    assert "nearest: qwen3" in refusal({"model_type": "qwen_3"}, tmp_path)
    wrapped = {"model_type": "gemma3", "vision_config": {"hidden_size": 8}, "text_config": small_config("gemma3_text")}
    assert "save the object under text_config (gemma3_text)" in refusal(wrapped, tmp_path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(VARIANTS)), st.data())
def test_any_value_under_any_key_gives_a_shape_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, family: str, data: st.DataObject
) -> None:
    config = small_config(family)
    optional = [
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "head_dim",
        "mlp_only_layers",
        "vision_config",
        "text_config",
    ]
    changed = data.draw(st.lists(st.sampled_from([*config, *optional]), min_size=1, max_size=3, unique=True))
    for key in changed:
        config[key] = data.draw(JSON_VALUES)
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(config))
    try:
        shape = hf_shape(str(file))
    except UserError as error:
        fix = error.fix
    else:
        assert isinstance(shape, HFShape)
        fix = f"{shape.parameters} parameters" if shape.parameters > 0 and shape.flops_per_token(16) > 0 else None
    assert fix


@pytest.mark.parametrize(
    "name", ["models/mine", "./models/mine", "ROOT/models/mine", "models/sub/mine", "mymodl", "~/nowhere/mine"]
)
def test_a_misspelt_folder_gives_the_nearest_before_anything_is_to_be_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks first: for the shape, or for the weights."""
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "fetched"))
    monkeypatch.chdir(tmp_path)
    for folder in ("models/mined", "models/sub/minee", "mymodel"):
        (tmp_path / folder).mkdir(parents=True)
    name = name.replace("ROOT", str(tmp_path))
    for ask in (hf_shape, require_weights):
        with pytest.raises(UserError) as caught:
            ask(name)
        fix = caught.value.fix or ""
        assert ("there is no folder" in caught.value.message) == (name != "mymodl")
        assert "nearest" in fix.partition("fetch")[0] or "check the path" in fix
        assert any(near in fix for near in ("models/mined", "models/sub/minee", "mymodel", "check the path"))


def test_an_id_of_the_hub_is_no_misspelt_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "fetched"))
    monkeypatch.chdir(tmp_path)
    for name in ("Somebody/Their-Model-1B", "Qwen/Qwen2.5-7B", "qwen2.5-7b"):
        with pytest.raises(UserError, match="not on this machine") as caught:
            require_weights(name)
        assert f"windtunnel fetch {name}" in (caught.value.fix or "")
