"""Rigs by name, their prices, and the user's own catalog."""

from pathlib import Path

import pytest

from windtunnel.recipe import UserError
from windtunnel.rig import instance_names, load_catalog, parse_rig


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WINDTUNNEL_RIGS", raising=False)
    monkeypatch.delenv("WINDTUNNEL_PRICE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def user_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    monkeypatch.setenv("WINDTUNNEL_RIGS", str(path))
    return path


PEAKS = {
    "A10G": 70, "A100-40": 312, "A100-80": 312, "L40S": 362, "RTX3090": 71, "RTX4090": 165,
    "H100-PCIe": 756, "H100-NVL": 835, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250,
    "T4": 65, "L4": 121, "RTX5090": 209.5, "GB200": 2500,
}  # fmt: skip


def test_peaks_are_dense() -> None:
    assert {name: load_catalog().gpu(name).bf16_tflops for name in load_catalog().gpus} == PEAKS


def test_instances_are_there() -> None:
    wanted = {"g5.xlarge", "g5.12xlarge", "g5.48xlarge", "p4d.24xlarge", "p4de.24xlarge"}
    assert wanted | {"p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"} <= set(instance_names())


@pytest.mark.parametrize(
    ("text", "name", "gpus", "nodes", "rung"),
    [
        ("H100", "H100", 1, 1, "gpu"),
        ("8xH100", "8xH100", 8, 1, "node"),
        ("8 x h100-SXM", "8xH100", 8, 1, "node"),
        ("2x(8xH100)", "2x(8xH100)", 16, 2, "cluster"),
        ("4x(4xgh200)", "4x(4xGH200)", 16, 4, "cluster"),
        ("a100", "A100-80", 1, 1, "gpu"),
        ("2x(H200)", "2x(1xH200)", 2, 2, "cluster"),
        ("G5.12xlarge", "g5.12xlarge", 4, 1, "node"),
        ("2xp5.48xlarge", "2xp5.48xlarge", 16, 2, "cluster"),
        ("RTX 3090", "RTX3090", 1, 1, "gpu"),
        ("rtx3090", "RTX3090", 1, 1, "gpu"),
        ("2x NVIDIA GeForce RTX 4090", "2xRTX4090", 2, 1, "node"),
        ("8x H100 SXM", "8xH100", 8, 1, "node"),
        ("8 H100", "8xH100", 8, 1, "node"),
        ("H100:8", "8xH100", 8, 1, "node"),
        ("h100 x 8", "8xH100", 8, 1, "node"),
        ("NVIDIA H100 80GB HBM3", "H100", 1, 1, "gpu"),
        ("A100 40GB", "A100-40", 1, 1, "gpu"),
        ("NVIDIA A100-SXM4-80GB", "A100-80", 1, 1, "gpu"),
        ("2x8xH100", "2x(8xH100)", 16, 2, "cluster"),
        ("2 nodes of 8x H100 SXM", "2x(8xH100)", 16, 2, "cluster"),
        ("two nodes of 8x H100", "2x(8xH100)", 16, 2, "cluster"),
        ("four 3090 GPUs", "4xRTX3090", 4, 1, "node"),
        ("dual RTX 3090", "2xRTX3090", 2, 1, "node"),
        ("two 4090 graphics cards", "2xRTX4090", 2, 1, "node"),
        ("8x H100s", "8xH100", 8, 1, "node"),
        ("4x L40s", "4xL40S", 4, 1, "node"),
        ("H100 80GB SXM", "H100", 1, 1, "gpu"),
        ("A100-40G", "A100-40", 1, 1, "gpu"),
        ("A100 (80Gb)", "A100-80", 1, 1, "gpu"),
        ("A100\uff0840GB\uff09", "A100-40", 1, 1, "gpu"),
        ("8x A100 node", "8xA100-80", 8, 1, "node"),
        ("DGX H100", "8xH100", 8, 1, "node"),
        ("colab T4", "T4", 1, 1, "gpu"),
        ("T4 (Google Colab)", "T4", 1, 1, "gpu"),
        ("colab pro A100", "A100-40", 1, 1, "gpu"),
        ("Kaggle T4 x2", "2xT4", 2, 1, "node"),
        ("4090x2", "2xRTX4090", 2, 1, "node"),
        ("rtx 3090 * 4", "4xRTX3090", 4, 1, "node"),
        ("RTX4090x2", "2xRTX4090", 2, 1, "node"),
        ("my 3090", "RTX3090", 1, 1, "gpu"),
        ("2x DGX A100", "2x(8xA100-80)", 16, 2, "cluster"),
        ("a2-highgpu-4g", "4xA100-40", 4, 1, "node"),
        ("2x a3-megagpu-8g", "2x(8xH100)", 16, 2, "cluster"),
        ("HGX H100", "8xH100", 8, 1, "node"),
        ("HGX-H200 8-GPU", "8xH200", 8, 1, "node"),
        ("HGX A100 80GB", "8xA100-80", 8, 1, "node"),
        ("HGX H100 4-GPU", "4xH100", 4, 1, "node"),
        ("2x HGX B200", "2x(8xB200)", 16, 2, "cluster"),
        ("8xH100 HGX", "8xH100", 8, 1, "node"),
        ("4 nodes of HGX H100", "4x(8xH100)", 32, 4, "cluster"),
        ("GB200 NVL72", "18x(4xGB200)", 72, 18, "cluster"),
        ("8H100", "8xH100", 8, 1, "node"),
        ("8-GPU H100", "8xH100", 8, 1, "node"),
        ("8-way H100", "8xH100", 8, 1, "node"),
        ("H100-8", "8xH100", 8, 1, "node"),
        ("A100-80", "A100-80", 1, 1, "gpu"),
        ("A100-80-8", "8xA100-80", 8, 1, "node"),
        ("H100, 8", "8xH100", 8, 1, "node"),
        ("H100 (8x)", "8xH100", 8, 1, "node"),
        ("(8xH100)", "8xH100", 8, 1, "node"),
        ("8xA100/40GB", "8xA100-40", 8, 1, "node"),
        ("2 nodes, 8 H100 each", "2x(8xH100)", 16, 2, "cluster"),
        ("2 nodes with 8 H100 each", "2x(8xH100)", 16, 2, "cluster"),
        ("8xH100 x 2 nodes", "2x(8xH100)", 16, 2, "cluster"),
        ("gpu:h100:8", "8xH100", 8, 1, "node"),
        ("--gres=gpu:h100:8", "8xH100", 8, 1, "node"),
        ("aws p5.48xlarge", "p5.48xlarge", 8, 1, "node"),
        ("gcp a3-highgpu-8g", "8xH100", 8, 1, "node"),
        ("8xH100 with NVLink", "8xH100", 8, 1, "node"),
        ("g2-standard-12", "L4", 1, 1, "gpu"),
        ("Standard_ND96asr_v4", "8xA100-40", 8, 1, "node"),
        ("Standard_ND96isr_H100_v5", "8xH100", 8, 1, "node"),
        ("Standard_NC48ads_A100_v4", "2xA100-80", 2, 1, "node"),
        ("g6e.12xlarge", "4xL40S", 4, 1, "node"),
        ("gpu_8x_h100_sxm5", "8xH100", 8, 1, "node"),
        ("8x NVIDIA H100 PCIe (80GB each)", "8xH100-PCIe", 8, 1, "node"),
        ("8x A100 (40 GB SXM4)", "8xA100-40", 8, 1, "node"),
        ("RTX 4090 (24 GB VRAM)", "RTX4090", 1, 1, "gpu"),
        ("8x NVIDIA H100 SXM5 Tensor Core GPUs", "8xH100", 8, 1, "node"),
        ("8xH100 (SXM, NVLink)", "8xH100", 8, 1, "node"),
        ("8xH100 SXM5 w/ InfiniBand", "8xH100", 8, 1, "node"),
        ("8xH200 SXM5", "8xH200", 8, 1, "node"),
        ("H100 SXM5 80GB x8", "8xH100", 8, 1, "node"),
        ("A100-80GB-SXM4", "A100-80", 1, 1, "gpu"),
        ("nvidia_h100_80gb_hbm3", "H100", 1, 1, "gpu"),
        ("an H100", "H100", 1, 1, "gpu"),
        ("my local 3090", "RTX3090", 1, 1, "gpu"),
        ("16x H100 (2 nodes)", "2x(8xH100)", 16, 2, "cluster"),
        ("64 H100s across 8 nodes", "8x(8xH100)", 64, 8, "cluster"),
        ("p5.48xlarge x 2", "2xp5.48xlarge", 16, 2, "cluster"),
        ("AWS p5.48xlarge: 8x H100", "p5.48xlarge", 8, 1, "node"),
        ("g5.12xlarge (4\u00d7 A10G)", "g5.12xlarge", 4, 1, "node"),
        ("2x p4d.24xlarge (8x A100)", "2xp4d.24xlarge", 16, 2, "cluster"),
        ("ml.g5.12xlarge", "g5.12xlarge", 4, 1, "node"),
        ("g4dn.12xlarge", "4xT4", 4, 1, "node"),
        ("g5.24xlarge", "4xA10G", 4, 1, "node"),
        ("p5.4xlarge", "H100", 1, 1, "gpu"),
        ("ND H100 v5", "8xH100", 8, 1, "node"),
        ("8xH100 (80GB, SXM5)", "8xH100", 8, 1, "node"),
        ("GCP a3-highgpu-8g (8x H100)", "8xH100", 8, 1, "node"),
        ("AWS EC2 p5.48xlarge", "p5.48xlarge", 8, 1, "node"),
        ("g5.12xlarge (A10G)", "g5.12xlarge", 4, 1, "node"),
        ("g5.xlarge - 1x A10G", "g5.xlarge", 1, 1, "gpu"),
        ("8-GPU H100 node", "8xH100", 8, 1, "node"),
        ("a node with 8 H100s", "8xH100", 8, 1, "node"),
        ("two 8xH100 nodes", "2x(8xH100)", 16, 2, "cluster"),
        ("4x 8-GPU H100 nodes", "4x(8xH100)", 32, 4, "cluster"),
        ("gpu_1x_h100_pcie", "H100-PCIe", 1, 1, "gpu"),
    ],
)
def test_grammar(text: str, name: str, gpus: int, nodes: int, rung: str) -> None:
    rig = parse_rig(text)
    assert (rig.name, rig.gpus, rig.nodes, rig.rung) == (name, gpus, nodes, rung)
    assert parse_rig(rig.name) == rig, "a rig's name names it again"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("8xH10", "'H10'", "H100"),
        ("rtx-409", "rtx-409", "RTX4090"),
        ("p5.48", "p5.48", "p5.48xlarge"),
        ("16xH100", "at most 8", "2x(8xH100)"),
        ("0xH100", "at least 1", "8xH100"),
        ("(((", "not understood", "here"),
        ("", "empty", "here"),
        ("H100@cheap", "not a price", "@spot"),
        ("RTX3090@spot", "no spot price", "RTX3090@$"),
    ],
)
def test_refusals_name_the_fix(text: str, message: str, fix: str) -> None:
    with pytest.raises(UserError) as error:
        parse_rig(text)
    assert message in error.value.message
    assert fix in (error.value.fix or "")


def test_prices_are_middles_with_date() -> None:
    assert parse_rig("H200").dollars_per_hour == pytest.approx(4.75)
    assert parse_rig("8xA100").dollars_per_hour == pytest.approx(8 * 1.9)
    rig = parse_rig("p5.48xlarge")
    assert rig.dollars_per_hour == 55.04
    assert "2026" in rig.price_note
    assert "on demand" in rig.price_note
    assert parse_rig("p5.48xlarge@spot").dollars_per_hour == pytest.approx(34.8)
    assert parse_rig("2xp5.48xlarge@spot").dollars_per_hour == pytest.approx(69.6)


def test_given_prices() -> None:
    assert parse_rig("8xH100@$2.50").dollars_per_hour == pytest.approx(20)
    assert parse_rig("8xH100@2.5").dollars_per_hour == pytest.approx(20)
    assert parse_rig("p5.48xlarge@$34.8/h").dollars_per_hour == pytest.approx(34.8)
    assert parse_rig("cpu@$0.10").dollars_per_hour == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("8xH100@$2.50", 20.0),
        ("8xH100@$2.50/h", 2.5),
        ("8xH100 $20/h", 20.0),
        ("8xH100 at 20$/hour", 20.0),
        ("8xH100@$2.50/GPU/h", 20.0),
        ("H100:8 at $2.50 per GPU-hour", 20.0),
        ("2x8xH100 @ $2.50/gpu-hr", 40.0),
    ],
)
def test_prices_as_people_write_them(text: str, dollars: float) -> None:
    rig = parse_rig(text)
    assert rig.dollars_per_hour == pytest.approx(dollars)
    assert f"${dollars:,.2f}/h" in rig.price_note


def test_a_price_of_the_whole_rig_says_what_a_gpu_costs() -> None:
    assert "for all 8 GPUs ($0.31 a GPU-hour)" in parse_rig("8xH100@$2.50/h").price_note


@pytest.mark.parametrize(
    ("text", "maker"),
    [
        ("8xMI300X", "AMD"),
        ("TPU v5e", "Google"),
        ("TPUv4", "Google"),
        ("2xTPUv5e", "Google"),
        ("Gaudi2", "Intel"),
        ("M3 Max", "Apple"),
        ("v5litepod-8", "Google"),
        ("Intel Arc A770", "Intel"),
    ],
)
def test_what_no_plan_is_made_for_is_named_as_such(text: str, maker: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_rig(text)
    assert maker in caught.value.message
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("text", ["V100", "8xA6000", "3090 Ti", "B300", "5060 Ti", "RTX4090 Laptop", "4080", "2x RTX 2080 Ti"])
def test_gpus_that_are_not_listed_are_not_taken_for_others(text: str) -> None:
    with pytest.raises(UserError, match=r"describe it in ~/.config/windtunnel/rigs.yaml") as caught:
        parse_rig(text)
    assert "did you mean" not in str(caught.value)


def test_unknown_price_is_none_and_says_how_to_give_one() -> None:
    rig = parse_rig("GH200")
    assert rig.dollars_per_hour is None
    assert "GH200@$" in rig.price_note


def test_user_file_adds_and_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_catalog(
        monkeypatch,
        tmp_path,
        """
gpus:
  H100: {price: {on_demand: [2, 2], date: 2026-07-01, source: our contract}}
  L4: {memory_gib: 22, bf16_tflops: 121, fp32_tflops: 30, bandwidth_gbs: 300, capability: [8, 9]}
instances:
  my.box: {gpu: L4, gpus: 2, cpu_cores: 8, ram_gib: 64, price: {on_demand: [1.5, 1.5]}}
here: {dollars_per_hour: 0.25}
""",
    )
    rig = parse_rig("8xh100")
    assert rig.dollars_per_hour == pytest.approx(16)
    assert "our contract" in rig.price_note
    assert rig.gpu is not None
    assert rig.gpu.bf16_tflops == 989, "keys that the user does not give stay"
    assert parse_rig("my.box").gpus == 2
    assert parse_rig("cpu").dollars_per_hour == 0.25


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu: {}", ["gpu", "gpus"]),
        ("gpus: {H100: {memory: 80}}", ["gpus.H100.memory", "memory_gib"]),
        ("gpus: {H100: {memory_gib: lots}}", ["gpus.H100.memory_gib", "number", "lots"]),
        ("gpus: {H100: {memory_gib: -1}}", ["gpus.H100.memory_gib", "greater than 0"]),
        ("gpus: {NEW: {memory_gib: 1}}", ["gpus.NEW.bf16_tflops", "missing"]),
        ("gpus: {H100: {price: {on_demand: [3, 2]}}}", ["gpus.H100.price", "[low, high]"]),
        ("instances: {x: {gpu: H1000, gpus: 1, cpu_cores: 1, ram_gib: 1}}", ["instances.x.gpu", "H1000"]),
        ("gpus: {H100: {nvml: ['(']}}", ["gpus.H100.nvml", "regular expression"]),
        ("gpus: [", ["not valid YAML"]),
        ("- 1", ["mapping"]),
    ],
)
def test_user_file_errors_name_file_and_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = user_catalog(monkeypatch, tmp_path, text)
    with pytest.raises(UserError) as error:
        parse_rig("H100")
    assert str(path) in str(error.value)
    for part in expected:
        assert part in str(error.value)


def test_missing_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WINDTUNNEL_RIGS", str(tmp_path / "none.yaml"))
    with pytest.raises(UserError, match="WINDTUNNEL_RIGS"):
        load_catalog()


def test_price_of_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_rig("cpu").dollars_per_hour is None
    monkeypatch.setenv("WINDTUNNEL_PRICE", "$1.20")
    assert parse_rig("cpu").dollars_per_hour == pytest.approx(1.2)
    monkeypatch.setenv("WINDTUNNEL_PRICE", "cheap")
    with pytest.raises(UserError, match="WINDTUNNEL_PRICE"):
        parse_rig("here")


@pytest.mark.parametrize("text", ["Tesla V100 SXM2-32GB", "8x H800", "3090ti 24g", "eight A6000", "gpu_1x_a10"])
def test_what_the_catalog_lacks_is_not_taken_for_what_is_spelt_alike(text: str) -> None:
    with pytest.raises(UserError, match="not in the catalog") as caught:
        parse_rig(text)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("8xH100 spot", "8xH100@spot"),
        ("8xH100 (spot)", "8xH100@spot"),
        ("spot 8xH100", "8xH100@spot"),
        ("8xH100 on-demand", "8xH100@on-demand"),
        ("8xH100 at 20 dollars an hour", "8xH100@$20/h"),
        ("8xH100 for 2.5 USD per GPU-hour", "8xH100@$2.50"),
        ("8 H100s at $2/hr each", "8xH100@$2"),
        ("8xH100 ($2.99/GPU/hr)", "8xH100@$2.99"),
        ("8 x H100 = $32/h", "8xH100@$32/h"),
        ("8xH100@$1,000/h", "8xH100@$1000/h"),
        ("~$98/hour on AWS p5.48xlarge", "p5.48xlarge@$98/h"),
        ("$4/GPU/hour 8x H100", "8xH100@$4"),
    ],
)
def test_prices_in_words_are_those_of_the_grammar(text: str, same: str) -> None:
    assert parse_rig(text).dollars_per_hour == parse_rig(same).dollars_per_hour
