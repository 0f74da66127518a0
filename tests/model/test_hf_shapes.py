"""Built-in Hugging Face shapes against published figures, and the arithmetic on any shape."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from causal_configs import VARIANTS, small_config
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG

from windtunnel.model import HFShape, hf_shape, known_models

# Tensor elements of the published checkpoints (Hugging Face's count, a tied table once), or the authors' papers.
PUBLISHED = {
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-32b": 32_234_279_936,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-32b": 32_233_522_176,
    "olmo-3-7b": 7_298_011_136,
    "olmo-7b": 6_888_095_744,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-235b-a22b-2507": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-30b-a3b-2507": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
}
# Billions that take part in a token, as the authors give them; of some without the embedding.
ACTIVE = {
    "mixtral-8x7b": 12.9,
    "qwen3-30b-a3b": 3.3,
    "qwen3-235b-a22b": 22.0,
    "olmoe-1b-7b": 1.3,
    "qwen1.5-moe-a2.7b": 2.7,
    "deepseek-v3": 37.0,
    "deepseek-v2": 21.0,
}
ACTIVE_WITHOUT_EMBEDDING = {"gpt-oss-120b": 5.13, "gpt-oss-20b": 3.61, "deepseek-v2-lite": 2.4}


def small_shape(folder: Path, family: str, variant: int = 0, **changes: object) -> HFShape:
    file = folder / "config.json"
    file.write_text(json.dumps(small_config(family, variant, **changes)))
    return hf_shape(str(file))


def test_every_built_in_model_has_the_published_parameters() -> None:
    assert {name: hf_shape(name).parameters for name in known_models()} == PUBLISHED


def test_active_parameters_are_those_that_the_authors_give() -> None:
    for name, billions in ACTIVE.items():
        assert hf_shape(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.03), name
    for name, billions in ACTIVE_WITHOUT_EMBEDDING.items():
        shape = hf_shape(name)
        assert (shape.active_parameters - shape.embedding_parameters) / 1e9 == pytest.approx(billions, rel=0.03), name


def test_deepseek_v3_with_its_prediction_module() -> None:
    shape = hf_shape("deepseek-ai/DeepSeek-V3")
    assert shape.name == "deepseek-v3"
    assert shape.parameters + shape.mtp_parameters == 684_489_845_504
    assert shape.buffer_parameters == 58 * 256
    assert sum(block.experts is not None for block in shape.blocks) == 58
    assert len({id(block) for block in shape.blocks}) == 2
    # Rank 16 on the projections of attention, as published for this model: 97 million.
    rows_and_columns = (7168 + 1536) + (1536 + 24576) + (7168 + 576) + (512 + 32768) + (16384 + 7168)
    assert shape.lora_parameters(16, "attention") == 16 * 61 * rows_and_columns == pytest.approx(97e6, rel=0.001)


def test_ids_and_aliases_lead_to_the_model_of_the_same_shape() -> None:
    for spelling, name in {
        "Qwen/Qwen2.5-7B": "qwen2.5-7b",
        "qwen/qwen2.5-7b-instruct": "qwen2.5-7b",
        "qwen2.5-coder-7b": "qwen2.5-7b",
        "deepseek-r1": "deepseek-v3",
        "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
        "llama-3.3-70b": "llama-3.1-70b",
        "LLAMA-3.1-8B": "llama-3.1-8b",
    }.items():
        assert hf_shape(spelling) == hf_shape(name)


def test_a_folder_named_like_a_model_is_read_when_written_as_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "qwen2.5-7b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(small_config("llama")))
    assert hf_shape("./qwen2.5-7b", base=tmp_path).family == "llama"
    assert hf_shape("qwen2.5-7b/config.json", base=tmp_path).family == "llama"
    assert hf_shape("qwen2.5-7b", base=tmp_path).family == "qwen2"


def test_the_cache_of_a_token() -> None:
    """Published: 128 KiB for Llama-3.1-8B in bf16; DeepSeek-V3's latent cache takes 576 elements a layer."""
    assert hf_shape("llama-3.1-8b").kv_bytes_per_token(2) == 128 * 1024
    assert hf_shape("deepseek-v3").kv_bytes_per_token(2) == 61 * 576 * 2
    windowed = hf_shape("olmo-3-7b")
    each = 2 * 2 * 4096
    assert windowed.kv_bytes(65536) == each * (8 * 65536 + 24 * 4096)
    assert windowed.kv_bytes(1000) == 1000 * windowed.kv_bytes_per_token()


def test_flops_of_a_known_model_by_hand() -> None:
    """Qwen2.5-7B at 4,096 tokens: 6 * 7.07 B multiplied parameters + 12 * 28 layers * 3,584 channels * 4,096 positions."""
    shape = hf_shape("qwen2.5-7b")
    block = 3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944
    assert shape.flops_per_token(4096) == 6 * (28 * block + 152064 * 3584) + 12 * 28 * 3584 * 4096


@pytest.mark.parametrize("family", VARIANTS)
def test_parts_add_up_and_half_the_layers_are_half_the_work(family: str, tmp_path: Path) -> None:
    # Periods of every pattern, so that half of the layers has half of each kind.
    repeated = {"first_k_dense_replace": 0} if family.startswith("deepseek") else {}
    shape = small_shape(tmp_path, family, num_hidden_layers=24, **repeated)
    half = small_shape(tmp_path, family, num_hidden_layers=12, **repeated)
    fixed = shape.embedding_parameters + shape.head_parameters + shape.final_norm_parameters
    assert shape.parameters - fixed == 2 * (half.parameters - fixed) == shape.block_parameters
    assert shape.active_parameters - fixed == 2 * (half.active_parameters - fixed)
    head = 6 * shape.head_matrix_parameters
    assert shape.flops_per_token(64) - head == 2 * (half.flops_per_token(64) - head)
    assert shape.kv_bytes(64) == 2 * half.kv_bytes(64)
    assert shape.lora_parameters(8) == 2 * half.lora_parameters(8)
    assert len({id(block) for block in shape.blocks}) == len(set(shape.blocks)) <= 2


@pytest.mark.parametrize("family", VARIANTS)
def test_only_a_mixture_of_experts_leaves_parameters_out_of_a_token(family: str, tmp_path: Path) -> None:
    shape = small_shape(tmp_path, family)
    sparse = shape.experts is not None
    assert (shape.active_parameters < shape.parameters) == sparse
    assert (shape.active_matrix_parameters < shape.matrix_parameters) == sparse
    assert (shape.expert_parameters > 0) == sparse
    if shape.experts:
        left_out = 1 - shape.experts.per_token / shape.experts.count
        assert shape.parameters - shape.active_parameters == pytest.approx(shape.expert_parameters * left_out)
    assert shape.lora_parameters(8, "attention") <= shape.lora_parameters(8, "all")


@given(
    st.sampled_from(sorted(PUBLISHED)), st.integers(1, 300_000), st.integers(1, 300_000), st.sampled_from(["attention", "all"])
)
def test_work_grows_with_the_sequence_and_the_rank(name: str, a: int, b: int, targets: str) -> None:
    shape = hf_shape(name)
    short, long = sorted((a, b))
    assert shape.flops_per_token(short) <= shape.flops_per_token(long)
    assert shape.kv_bytes(short) <= shape.kv_bytes(long) <= long * shape.kv_bytes_per_token()
    # A forward pass is 2 FLOPs a parameter, training three times as much: attention adds to it, never takes away.
    assert shape.flops_per_token(short) > 6 * shape.active_matrix_parameters
    assert shape.lora_parameters(3 * short, targets) == 3 * shape.lora_parameters(short, targets)  # type: ignore[arg-type]


def test_shapes_can_be_compared_and_are_keys_of_dictionaries() -> None:
    shape = hf_shape("qwen3-30b-a3b")
    assert {shape: 1}[hf_shape("qwen3-30b-a3b")] == 1
    assert dataclasses.replace(shape, tied=True) != shape


def test_arithmetic_needs_no_torch() -> None:
    code = (
        "import sys\nfrom windtunnel.model import hf_shape, known_models\n"
        "[hf_shape(name).flops_per_token(4096) for name in known_models()]\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG).returncode == 0
