"""Every format, against the formula, bit for bit: shapes of any size, scales of any value, codes of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from coded_models import CONFIG, codes, formula, grid, same_bits, scales, tensors_of, unpacked, write
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.convert import Choice, convert_folder
from windtunnel.convert.decode import CODINGS, Decoder, canonical_nan, reference, scale_values
from windtunnel.recipe import UserError

CPU = torch.device("cpu")
SPECIAL = [0.0, -1.5, 1.0, 2.0**-149, 2.0**-126, 2.0**-133, 3.4e38, 1e36, float("inf"), float("nan"), -1e-40]
sizes = st.integers(1, 40) | st.sampled_from([127, 128, 129, 192, 256, 300, 576])


@settings(max_examples=60, deadline=None)
@given(
    rows=sizes,
    columns=sizes,
    block=st.sampled_from([(128, 128), (1, 128), (32, 32), (1, 1), (1, 700), (700, 700), (3, 5)]),
    seed=st.integers(0, 9999),
    coding=st.sampled_from(["e4m3", "e5m2"]),
    special=st.booleans(),
    first=st.integers(0, 200),
    tile=st.sampled_from([0, 1, 500, 1 << 18]),
)
def test_every_code_and_scale_decodes_as_the_formula_says(
    rows: int, columns: int, block: tuple[int, int], seed: int, coding: str, special: bool, first: int, tile: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    code = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    scale = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-38, 38, shape, generator=generator)
    if special:
        scale.view(-1)[:: max(1, scale.numel() // 4)] = torch.tensor(SPECIAL)[seed % len(SPECIAL)]
    wanted = reference(code, CODINGS[coding], scale, block)
    first = min(first, rows - 1)
    made = torch.empty(rows - first, columns, dtype=torch.bfloat16)
    Decoder(CPU, tile).decode(code[first:], CODINGS[coding], scale, block, first, made)
    assert same_bits(canonical_nan(made), wanted[first:])


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 70), groups=st.integers(1, 9), seed=st.integers(0, 9999), extreme=st.booleans())
def test_fp4_decodes_as_the_formula_says(rows: int, groups: int, seed: int, extreme: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, 16 * groups), dtype=torch.uint8, generator=generator)
    span = (0, 256) if extreme else (100, 130)
    scale = scale_values(torch.randint(*span, (rows, groups), dtype=torch.uint8, generator=generator))
    made = torch.empty(rows, 32 * groups, dtype=torch.bfloat16)
    Decoder(CPU).decode(packed, CODINGS["e2m1"], scale, (1, 32), 0, made)
    assert same_bits(canonical_nan(made), formula(unpacked(packed), scale, (1, 32)))


@pytest.mark.parametrize(("rows", "columns"), [(576, 192), (192, 576), (1, 1), (129, 7168)])
@pytest.mark.parametrize("kind", ["F32", "E8M0", "U8", "BF16", "scale"])
def test_block_scales_of_every_type_and_name(tmp_path: Path, rows: int, columns: int, kind: str) -> None:
    weight, scale = codes(rows, columns), scales(*grid(rows, columns))
    if kind in ("E8M0", "U8", "scale"):
        scale = torch.randint(90, 130, grid(rows, columns), dtype=torch.uint8)
        scale = scale if kind == "U8" else scale.view(torch.float8_e8m0fnu)
    elif kind == "BF16":
        scale = scale.bfloat16()
    name = "model.layers.0.mlp.up_proj"
    beside = f"{name}.scale" if kind == "scale" else f"{name}.weight_scale_inv"
    source = write(tmp_path / "in", [{f"{name}.weight": weight}, {beside: scale}])
    convert_folder(source, tmp_path / "out")
    made = tensors_of(tmp_path / "out")
    assert list(made) == [f"{name}.weight"]
    assert same_bits(made[f"{name}.weight"], formula(weight, scale_values(scale)))


def test_a_block_size_other_than_128_comes_from_the_config(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 64]}}
    weight, scale = codes(100, 130), scales(4, 3)
    source = write(
        tmp_path / "in", [{"model.layers.0.q_proj.weight": weight, "model.layers.0.q_proj.weight_scale_inv": scale}], config
    )
    convert_folder(source, tmp_path / "out")
    assert same_bits(tensors_of(tmp_path / "out")["model.layers.0.q_proj.weight"], formula(weight, scale, (32, 64)))
    # The same files without the config's word are blocks of 128, which they do not fit: nothing is guessed.
    bare = write(tmp_path / "bare", [{"w.weight": weight, "w.weight_scale_inv": scale}], {"model_type": "deepseek_v3"})
    with pytest.raises(UserError, match=r"w\.weight_scale_inv .*\[4, 3\].*expected \[1, 2\]"):
        convert_folder(bare, tmp_path / "other")


def test_a_scale_for_each_row_or_tensor_where_the_config_names_no_blocks(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors"}}
    weight, rows, whole = codes(100, 130), scales(100, 1), scales(1)
    tensors = {
        "a.weight": weight,
        "a.weight_scale": rows,
        "b.weight": weight.clone(),
        "b.weight_scale": whole,
        "b.input_scale": whole.clone(),
    }
    made = convert_folder(write(tmp_path / "in", [tensors], config), tmp_path / "out")
    assert made.report["left_out"] == ["b.input_scale"]
    held = tensors_of(tmp_path / "out")
    assert same_bits(held["a.weight"], (weight.float() * rows).bfloat16())
    assert same_bits(held["b.weight"], (weight.float() * whole).bfloat16())


def compressed(**weights: object) -> dict[str, object]:
    """The config of a checkpoint that compressed-tensors writes."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}}
    return {"model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


@pytest.mark.parametrize(
    ("weights", "block"),
    [
        ({"strategy": "block", "block_structure": [64, 32]}, (64, 32)),
        ({"strategy": "group", "group_size": 64}, (1, 64)),
        ({"strategy": "channel"}, (1, 320)),
        ({"strategy": "tensor"}, (192, 320)),
    ],
)
def test_compressed_tensors_says_which_weights_share_a_scale(
    tmp_path: Path, weights: dict[str, object], block: tuple[int, int]
) -> None:
    weight = codes(192, 320)
    scale = scales(-(-192 // block[0]), -(-320 // block[1])).bfloat16()
    source = write(tmp_path / "in", [{"a.weight": weight, "a.weight_scale": scale}], compressed(**weights))
    convert_folder(source, tmp_path / "out")
    assert same_bits(tensors_of(tmp_path / "out")["a.weight"], formula(weight, scale, block))


def test_packed_mxfp4_loses_its_suffix(tmp_path: Path) -> None:
    packed, scale = torch.randint(0, 256, (48, 64), dtype=torch.uint8), torch.randint(100, 130, (48, 4), dtype=torch.uint8)
    config = compressed(num_bits=4, strategy="group", group_size=32)
    config["quantization_config"]["format"] = "mxfp4-pack-quantized"  # type: ignore[index]
    source = write(tmp_path / "in", [{"a.weight_packed": packed, "a.weight_scale": scale}], config)
    convert_folder(source, tmp_path / "out")
    assert same_bits(tensors_of(tmp_path / "out")["a.weight"], formula(unpacked(packed), scale_values(scale), (1, 32)))
    bare = write(tmp_path / "bare", [{"a.weight_packed": packed}], config)
    with pytest.raises(UserError, match=r"a\.weight_packed is U8 and has no scale \(a\.weight_scale "):
        convert_folder(bare, tmp_path / "other")


def test_what_modelopt_says_beside_the_config_is_read_and_not_copied(tmp_path: Path) -> None:
    weight, scale = codes(192, 320), torch.tensor(0.0123)
    source = write(tmp_path / "in", [{"a.weight": weight, "a.weight_scale": scale}], {"model_type": "llama"})
    (source / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}')
    convert_folder(source, tmp_path / "out")
    assert same_bits(tensors_of(tmp_path / "out")["a.weight"], formula(weight, scale.reshape(1, 1), (192, 320)))
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()  # engines would take the bf16 for fp8


def test_stacked_experts_may_have_one_scale_each(tmp_path: Path) -> None:
    weight, scale = codes(3 * 100, 70).view(3, 100, 70), scales(3, 1, 1)
    config = {"model_type": "mixtral", "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    source = write(tmp_path / "in", [{"experts.up": weight, "experts.up_scale_inv": scale}], config)
    convert_folder(source, tmp_path / "out")
    assert same_bits(tensors_of(tmp_path / "out")["experts.up"], (weight.float() * scale).bfloat16())


@pytest.mark.parametrize("width", [128, 32])
@pytest.mark.parametrize("block", [128, None])
def test_stacked_scales_of_experts_that_are_not_stacked(tmp_path: Path, width: int, block: int | None) -> None:
    """As transformers 5 saves a model with experts that it quantised itself; with 32 rows, gate and up share a block."""
    both, down = codes(2 * 2 * width, 192).view(2, 2 * width, 192), codes(2 * 192, width, seed=1).view(2, 192, width)
    of_both, of_down = (scales(2, *(grid(*w.shape[1:]) if block else (1, 1)), seed=n) for n, w in enumerate((both, down)))
    tensors = {"a.experts.gate_up_proj_scale_inv": of_both, "a.experts.down_proj_scale_inv": of_down}
    wanted = {}
    for number in range(2):
        parts = {"gate": both[number, :width], "up": both[number, width:], "down": down[number]}
        tensors |= {f"a.experts.{number}.{name}_proj.weight": part.clone() for name, part in parts.items()}
        share = (128, 128) if block else (2 * width, 192)
        joined = formula(both[number], of_both[number], share)
        wanted |= {f"a.experts.{number}.gate_proj.weight": joined[:width], f"a.experts.{number}.up_proj.weight": joined[width:]}
        share = (128, 128) if block else (192, width)
        wanted[f"a.experts.{number}.down_proj.weight"] = formula(down[number], of_down[number], share)
    said = {"quant_method": "fp8", "weight_block_size": [block, block] if block else None}
    config = {"model_type": "qwen3_moe", "quantization_config": said}
    made = convert_folder(write(tmp_path / "in", [tensors], config), tmp_path / "out")
    held = tensors_of(tmp_path / "out")
    assert held.keys() == wanted.keys()
    assert all(same_bits(held[name], wanted[name].contiguous()) for name in wanted)
    assert made.report["left_out"] == []


def test_a_scale_across_gate_and_up_is_refused(tmp_path: Path) -> None:
    tensors = {f"a.experts.0.{name}_proj.weight": codes(192, 128, seed=seed) for seed, name in enumerate(("gate", "up"))}
    tensors["a.experts.gate_up_proj_scale_inv"] = scales(1, 3, 1)
    with pytest.raises(UserError, match="128 rows of gate and up together, and the gate of an expert has 192"):
        convert_folder(write(tmp_path / "in", [tensors]), tmp_path / "out")


@pytest.mark.parametrize(
    ("tensors", "said", "words"),
    [
        ({"a.weight": torch.ones(4, 32, dtype=torch.int8), "a.weight_scale": torch.ones(4, 1)}, {"type": "int"}, "are int8"),
        ({"a.weight_packed": torch.ones(4, 16, dtype=torch.uint8)}, {}, "is packed in a way that is not known"),
        ({"a.weight": codes(4, 32), "a.weight_zero_point": codes(4, 1)}, {"symmetric": False}, "moves the zero of its weights"),
        ({"a.weight": torch.ones(4, 16, dtype=torch.uint8), "a.weight_scale_2": torch.ones(1)}, {}, "a second scale of NVFP4"),
        ({"a.weight": codes(4, 32)}, {"strategy": "block"}, "block_structure is None, expected two numbers"),
        ({"a.weight": codes(4, 32), "a.weight_scale": scales(1, 32)}, {}, r"expected \[1, 1\], .*\[4, 1\], one for each row"),
    ],
)
def test_what_is_not_known_is_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor], said: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        convert_folder(write(tmp_path / "in", [tensors], compressed(**said)), tmp_path / "out")


def test_rotated_weights_are_refused(tmp_path: Path) -> None:
    config = compressed(strategy="channel")
    config["quantization_config"]["transform_config"] = {"config_groups": {"u": {"type": "hadamard"}}}  # type: ignore[index]
    source = write(tmp_path / "in", [{"a.weight": codes(4, 32), "a.weight_scale": scales(4, 1)}], config)
    with pytest.raises(UserError, match="its weights were rotated"):
        convert_folder(source, tmp_path / "out")


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8])
def test_packed_fp4_experts_with_scale_names(tmp_path: Path, stored: torch.dtype) -> None:
    """DeepSeek-V4: experts in fp4 in groups of 32 beside fp8 in blocks, and parameters that are only called scale."""
    packed = torch.randint(0, 256, (48, 64), dtype=torch.uint8)
    scale = torch.randint(100, 130, (48, 4), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    block = torch.randint(100, 130, (1, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    weight = codes(100, 200)
    tensors = {
        "layers.0.ffn.experts.0.w1.weight": packed.view(stored), "layers.0.ffn.experts.0.w1.scale": scale,
        "layers.0.attn.wq_a.weight": weight, "layers.0.attn.wq_a.scale": block, "layers.0.hc_attn_scale": torch.randn(3),
        "mtp.0.norm.weight": torch.ones(8),
    }  # fmt: skip
    source = write(tmp_path / "in", [tensors], {**CONFIG, "expert_dtype": "fp4"})
    convert_folder(source, tmp_path / "out", Choice(mtp="drop"))
    held = tensors_of(tmp_path / "out")
    assert same_bits(held["layers.0.ffn.experts.0.w1.weight"], formula(unpacked(packed), scale_values(scale), (1, 32)))
    assert same_bits(held["layers.0.attn.wq_a.weight"], formula(weight, scale_values(block)))
    assert same_bits(held["layers.0.hc_attn_scale"], tensors["layers.0.hc_attn_scale"])
    assert len(held) == 3


def test_gpt_oss_experts_equal_transformers_own(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (3, 96, 5, 16), dtype=torch.uint8)
    scale = torch.randint(100, 140, (3, 96, 5), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scale, f"{name}_bias": torch.randn(3, 96).bfloat16()}
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}, "num_hidden_layers": 1}
    convert_folder(write(tmp_path / "in", [tensors], config), tmp_path / "out")
    held = tensors_of(tmp_path / "out")
    assert sorted(held) == [name, f"{name}_bias"]
    assert same_bits(held[name], convert_moe_packed_tensors(blocks, scale))


def test_nan_and_infinity_are_counted_and_nan_has_one_pattern(tmp_path: Path) -> None:
    weight = codes(4, 256)
    weight.view(torch.uint8)[0, :3] = torch.tensor([0x7F, 0xFF, 0x7F], dtype=torch.uint8)
    weight.view(torch.uint8)[1, 200] = 0x7E
    scale = torch.tensor([[1e-3, 3e38]])
    source = write(tmp_path / "in", [{"a.weight": weight, "a.weight_scale_inv": scale}])
    made = convert_folder(source, tmp_path / "out")
    wanted = formula(weight, scale)
    assert same_bits(tensors_of(tmp_path / "out")["a.weight"], wanted)
    facts = made.report["tensors"]["a.weight"]
    finite = wanted[wanted.isfinite()]
    assert (facts["nan"], facts["inf"]) == (3, int(wanted.isinf().sum()))
    assert (facts["min"], facts["max"]) == (float(finite.min()), float(finite.max()))
    assert made.report["not_finite"] == ["a.weight"]
