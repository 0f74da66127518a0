"""Rigs in people's words: what stands beside a machine, prices with commas, nodes of no number, texts that are too long."""

from pathlib import Path

import pytest

from windtunnel.recipe import UserError
from windtunnel.rig import parse_rig


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WINDTUNNEL_RIGS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p5.48xlarge (eight H100s)", "p5.48xlarge"),
        ("p5.48xlarge: H100 x8", "p5.48xlarge"),
        ("p5.48xlarge (H100 SXM 80GB)", "p5.48xlarge"),
        ("p4d.24xlarge (8x A100-40)", "p4d.24xlarge"),
        ("p4d.24xlarge (8x A100 SXM4)", "p4d.24xlarge"),
        ("p4de.24xlarge (8x A100 80GB)", "p4de.24xlarge"),
        ("2x p5.48xlarge (16x H100)", "2xp5.48xlarge"),
        ("2x p5.48xlarge (2x8 H100)", "2xp5.48xlarge"),
        ("2x a3-megagpu-8g (16x H100)", "2x(8xH100)"),
        ("Standard_NC40ads_H100_v5 (1x H100)", "H100-NVL"),
        ("g4dn.metal (8x T4)", "8xT4"),
        ("g4dn.16xlarge", "T4"),
        ("20x H100 on 10 nodes", "10x(2xH100)"),
        ("a node with eight H100s", "8xH100"),
        ("a node with H100 x8", "8xH100"),
        ("box with 2 4090s", "2xRTX4090"),
        ("2 nodes of p5.48xlarge", "2xp5.48xlarge"),
        ("8x H100, SXM5", "8xH100"),
        ("8x H100, PCIe", "8xH100-PCIe"),
        ("H100, x8", "8xH100"),
        ("H100 (x8)", "8xH100"),
        ("8x" + " " * 1200 + "H100", "8xH100"),
    ],
)
def test_words_that_agree_are_understood(text: str, name: str) -> None:
    assert parse_rig(text).name == name


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        ("p5.48xlarge (four H100s)", "has 8 x H100, not 'four H100s'", "write p5.48xlarge, or 4xH100"),
        ("p5.48xlarge: H100 x4", "has 8 x H100", "or 4xH100"),
        ("p5.48xlarge (H100 PCIe 80GB)", "has 8 x H100", "or 8xH100-PCIe"),
        ("p5.48xlarge (8x V100)", "has 8 x H100", "write p5.48xlarge"),
        ("p5.48xlarge (2 nodes of 8x H100)", "has 8 x H100", "or 2x(8xH100)"),
        ("p4d.24xlarge (8x A100-80)", "has 8 x A100-40", "or 8xA100-80"),
        ("p4d.24xlarge (A100 80GB)", "has 8 x A100-40", "or 8xA100-80"),
        ("2x p5.48xlarge (12x H100)", "rig '2x p5.48xlarge (12x H100)': p5.48xlarge has 8 x H100", "write 2x p5.48xlarge"),
        ("p5.48xlarge (8x H100)@cheap", "not a price", "@spot"),
        ("12x H100 on 00 nodes", "no GPU or instance named 'H100 on 00 nodes'", "GPUs: "),
        ("16x p5.48xlarge on 2 nodes", "each p5.48xlarge is a node", "2xp5.48xlarge for 2 nodes, 16xp5.48xlarge for 16"),
        ("g4dn.7xlarge", "no GPU or instance", "instances: "),
        ("g6.7xlarge", "no GPU or instance", "instances: "),
        ("a node with H100s", "how many GPUs a node has", "of eight: 8xH100"),
        ("box of H100", "how many GPUs a node has", "8xH100"),
        ("server with A100-80", "how many GPUs a node has", "8xA100-80"),
        ("box with 4090", "how many GPUs a node has", "8x4090"),
        ("2 nodes of H100", "how many GPUs a node has", "2x(8xH100)"),
        ("2 V100 nodes", "how many GPUs a node has", "2x(8xV100)"),
        ("H100, gen5", "no GPU or instance named 'H100, gen5'", "H100"),
        ("H100 + RTX 4090", "one kind of GPU", "--on of its own"),
        ("A100 x4 and H100 x4", "one kind of GPU", "--on of its own"),
        ("laptop with RTX 4090", "a laptop's GPU is another", "here, on that machine"),
        ("16x foo on 2 nodes", "no GPU or instance named 'foo'", "GPUs: "),
        ("~$98/h on AWS", "names no GPU", "8xH100@$98/h"),
        ("H100 at 1,50 $/h", "'1,50 $/h' is not a price", "@$98/h"),
        ("H100 " + "with" * 2000, "8005 characters; at most 300", "8xH100"),
        ("8x" * 600 + "H100", "at most 300", "8xH100"),
        ("64 GPUs", "does not say which GPUs", "8x(8xH100)"),
        ("a GPU", "does not say which GPUs", "H100, or A100-80"),
        ("80GB:8", "how much memory, 80 GB", "8xH100 or 8xA100-80"),
        ("8 x 24 GB", "how much memory, 24 GB", "8xRTX4090 or 8xL4"),
        ("8x HGX H100", "8 boards of 8 each", "8xH100 for the GPUs, 8x(8xH100)"),
        ("8xHopper", "what several GPUs are built as", "H100, H200 or GH200"),
        ("colab", "does not say which GPU", "T4, L4 or A100-40"),
        ("gtx 1080", "no GPU or instance named", "not in the catalog"),
        ("NVL72", "does not say which", "18x(4xGB200)"),
        ("half H100", "parts of a GPU", "rig file"),
        ("lambda 8xH100", "who rents it out", "8xH100@$2.50"),
        ("p5", "no GPU or instance", "which size? p5.48xlarge"),
        ("H200 NVL", "no GPU or instance", "not in the catalog"),
        ("one H100 node", "how many GPUs a node has", "8xH100"),
        ("2 H100 nodes", "how many GPUs a node has", "2x(8xH100)"),
        ("p5.48xlarge (4x H100)", "has 8 x H100", "write p5.48xlarge, or 4xH100"),
        ("RTX 4090 (RunPod)", "who rents it out", "RTX 4090@$2.50"),
        ("8xH100 on AWS", "who rents it out", "8xH100@$2.50"),
        ("H100,A100", "one kind of GPU", "--on of its own"),
        ("4xA100+4xH100", "one kind of GPU", "--on of its own"),
        ("cuda", "names no GPU", "here (this machine with its GPUs), or cpu"),
        ("laptop", "names no GPU", "or cpu"),
        ("--gpus=8", "does not say which GPUs", "8xH100"),
        ("A100 PCIe", "no GPU or instance", "not in the catalog"),
        ("RTX 6000", "no GPU or instance", "not in the catalog"),
    ],
)
def test_words_that_contradict_or_leave_out_or_mean_several_rigs_are_refused(text: str, why: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_rig(text)
    assert why in refused.value.message
    assert fix in (refused.value.fix or "")


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("H100, 1,200 $/h", 1200),
        ("H100 (1,200 usd/h)", 1200),
        ("8xH100 at $1,000/h", 1000),
        ("8xH100,$1,200.50/h", 1200.5),
        ("$1,000/h 8xH100", 1000),
        ("8xH100 for 1,000 dollars per hour", 1000),
        ("H100: $2/h", 2),
        ("p5.48xlarge (8x H100) at $98/h", 98),
        ("p5.48xlarge (8x H100)@$98/h", 98),
        ("p5.48xlarge: 8x H100, $98/h", 98),
        ("p5.48xlarge (8x H100) spot", 34.8),
        ("p5.48xlarge (8x H100, spot)", 34.8),
    ],
)
def test_prices_with_commas_and_behind_remarks(text: str, dollars: float) -> None:
    assert parse_rig(text).dollars_per_hour == pytest.approx(dollars)
