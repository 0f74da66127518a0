# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Weights decoded on a GPU have the bits of those decoded on a CPU."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from windtunnel.convert import convert_folder
from windtunnel.convert.decode import CODINGS, Decoder, canonical_nan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def drawn(rows: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("coding", ["e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (129, 192), (576, 7168)])
def test_every_code_with_any_scale(coding: str, rows: int, columns: int) -> None:
    codes = drawn(rows, columns // CODINGS[coding].per_byte)
    block = (1, 32) if coding == "e2m1" else (128, 128)
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    scale = torch.randn(grid) * 10.0 ** torch.randint(-38, 38, grid)
    made = []
    for device in ("cpu", "cuda"):
        out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        Decoder(torch.device(device)).decode(codes.to(device), CODINGS[coding], scale.to(device), block, 0, out)
        made.append(canonical_nan(out.cpu()).view(torch.int16))
    assert torch.equal(made[0], made[1])


def test_a_folder_is_the_same_from_every_device(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tensors = {
        "a.weight": drawn(576, 7168).view(torch.float8_e4m3fn),
        "a.weight_scale_inv": torch.rand(5, 56),
        "b_blocks": drawn(3 * 96, 5 * 16).view(3, 96, 5, 16),
        "b_scales": torch.full((3, 96, 5), 120, dtype=torch.uint8),
        "norm.weight": torch.ones(7168),
    }
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    (tmp_path / "in" / "config.json").write_text("{}")
    convert_folder(tmp_path / "in", tmp_path / "a")
    convert_folder(tmp_path / "in", tmp_path / "b", device="cuda", workers=3)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="Triton reads e4m3 from 8.9 on"
)
@pytest.mark.parametrize("shape", [(128, 256), (2048, 7168), (300, 130), (7, 500)])
def test_experts_are_decoded_in_one_pass_to_the_bits_of_the_conversion(shape: tuple[int, int]) -> None:
    from windtunnel.model import BlockFP8

    codes = torch.randint(0, 256, (3, 2, *shape), dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0  # NaN, whose bits are nobody's
    scale = torch.rand(3, 2, -(-shape[0] // 128), -(-shape[1] // 128)) * 1e-3
    here = BlockFP8(codes.view(torch.float8_e4m3fn), scale, (128, 128))
    there = BlockFP8(here.codes.cuda(), scale.cuda(), (128, 128))
    wanted, found = here.decode(1, 3, torch.bfloat16), there.decode(1, 3, torch.bfloat16).cpu()
    assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))
