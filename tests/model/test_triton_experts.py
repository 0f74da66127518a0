"""Experts in fp8 by Triton's kernels: the weights of the conversion bit for bit, and their products."""

import pytest
import torch
from interpreter import passes_interpreted

CASES = """
import torch
from windtunnel.model import triton_experts
from windtunnel.model.triton_experts import INPUTS, OUTPUTS, decode_blocks, multiplies_few, multiply_few

triton_experts.decodes_here = lambda codes: True

def compare(device, counts, parts, rows, columns, block):
    made = torch.Generator().manual_seed(rows + sum(counts))
    drawn = torch.randn(len(counts), parts, rows, columns, generator=made) * 80
    codes = drawn.clamp(-448, 448).to(torch.float8_e4m3fn).to(device)
    grid = -(-rows // block[0]), -(-columns // block[1])
    scale = torch.rand(len(counts), parts, *grid, generator=made).to(device) / 50
    whole = scale.repeat_interleave(block[0], 2)[:, :, :rows].repeat_interleave(block[1], 3)[..., :columns]
    weights = (codes.float() * whole).bfloat16()
    decoded = decode_blocks(codes, scale, block)
    if device == "cpu":  # Triton's interpreter cuts numbers off where a GPU rounds them
        torch.testing.assert_close(decoded, weights, atol=0, rtol=2**-7)
    else:
        assert torch.equal(decoded, weights)
    if not multiplies_few(codes, block, counts):
        return False
    dtype = torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter has no products of bf16
    given = torch.randn(sum(counts), columns, generator=made).to(device, dtype)
    out = torch.full((sum(counts), parts * rows), float("nan"), dtype=dtype, device=device)
    multiply_few(given, codes, scale, block, counts, out)
    places = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)
    right = torch.einsum("si,soi->so", given.float(), weights.flatten(1, 2).float()[places])
    torch.testing.assert_close(out.float(), right, atol=2e-2 * float(right.std()), rtol=2e-2)
    # A row alone is what it is among others.
    if max(counts) <= 16:
        expert = next(i for i, count in enumerate(counts) if count)
        alone = torch.empty_like(out[:1])
        multiply_few(given[:1].contiguous(), codes, scale, block, [int(i == expert) for i in range(len(counts))], alone)
        assert torch.equal(alone, out[:1])
    return True
"""
FEW = [([3, 0, 1], 2, 64, 256, (128, 128)), ([0, 17], 1, 128, 128, (64, 128)), ([1, 64, 5], 2, 128, 128, (128, 256))]
OTHER = [([2], 1, 96, 128, (128, 128)), ([2], 1, 128, 130, (128, 128)), ([65], 1, 128, 128, (128, 128))]


def test_few_rows_are_multiplied_by_the_weights_of_the_conversion() -> None:
    calls = [f"assert compare('cpu', {', '.join(map(str, case))})" for case in FEW]
    calls += [f"assert not compare('cpu', {', '.join(map(str, case))})" for case in OTHER]
    passes_interpreted("\n".join([CASES, *calls, "print('all equal')"]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", [*FEW, ([1] * 20 + [0] * 8 + [4] * 4, 2, 2048, 7168, (128, 128))], ids=str)
def test_on_a_gpu_too(case: tuple[object, ...]) -> None:
    found: dict[str, object] = {}
    exec(CASES, found)
    assert found["compare"]("cuda", *case)  # type: ignore[operator]
