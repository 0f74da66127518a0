"""The arithmetic: fp8 and fp4 codes times their scales, as bf16, and back to fp8.

The formula is `(codes.float() * scale).to(bfloat16)`: one product in fp32, rounded to the nearest even bf16. PyTorch turns
fp8 into fp32 code by code, some fifty million a second. `Decoder` gets the same bits from whole-array integer operations:

    e4m3  s eeee mmm   the byte sign-extended, times 128, is  ss eeee mmm 0000000;  without bit 14 that is the fp16
                       number of the same value times 2^-8, subnormals included
    e2m1  s ee m       two nibbles become two fp16 numbers, of their values times 2^-14, in one int32

fp16 to fp32 is exact and vectorised everywhere, and the power of two goes into the scale, so that one product and one
rounding remain. The one pair of codes that fp16 does not know, NaN of e4m3, is looked for and written by hand. The same
operations run on a GPU. NaN has many bits, and devices differ in theirs: `canonical_nan` makes them 0x7FC0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3, E4M3_MAX = torch.float8_e4m3fn, 448.0
NAN_BITS = 0x7FC0
TILE = 1 << 20
"""Weights that a CPU takes through all operations at a time: large enough that many threads seldom wait for each other."""
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Coding:
    """How weights are coded. per_byte: how many are in a byte. shift: fp16 holds their values times 2^-shift."""

    name: str
    per_byte: int
    shift: int


CODINGS = {"e4m3": Coding("e4m3", 1, 8), "e5m2": Coding("e5m2", 1, 0), "e2m1": Coding("e2m1", 2, 14)}


def scale_values(stored: Tensor) -> Tensor:
    """Return scales as fp32: of floating-point types their values, of bytes (E8M0) two to the power of byte - 127."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()


def grid_of(rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    """Return how many blocks a matrix has below and beside each other."""
    return -(-rows // block[0]), -(-columns // block[1])


class Decoder:
    """Decodes rows of matrices, with buffers that are used again and again; one for each thread.

    Args:
        device: where it computes.
        tile: weights that it takes through all operations at a time; 0 for all, which is what fills a GPU.
    """

    def __init__(self, device: torch.device, tile: int | None = None) -> None:
        self.device = device
        self._tile = (TILE if device.type == "cpu" else 0) if tile is None else tile
        self._wide = torch.empty(0, dtype=torch.int16, device=device)
        self._float = torch.empty(0, device=device)

    def decode(self, codes: Tensor, coding: Coding, scale: Tensor, block: tuple[int, int], first: int, out: Tensor) -> None:
        """Decode rows of one matrix.

        Args:
            codes: (R, bytes of a row) uint8, contiguous.
            coding: what they mean.
            scale: (all block rows, block columns) fp32, on the device; infinite, NaN and zero ones are taken as they are.
            block: rows and columns that share a scale; the last ones may be cut off by the matrix's edge.
            first: the number of the first row in its matrix.
            out: (R, C) bf16.
        """
        rows, columns = out.shape
        lift = 2.0**coding.shift
        # The power of two goes into the scales, of which there are few, and not into the weights.
        lifted = scale * lift
        if torch.equal(lifted.isinf(), scale.isinf()):
            scale, lift = lifted, 1.0
        # else the largest scales leave no room for the power of two: two products, of which the first is exact
        step = max(1, self._tile // max(1, columns))
        if not self._tile:  # all rows at once, each with scales of its own
            height, above = block[0], first // block[0]
            scale = scale[above : -(-(first + rows) // height)].repeat_interleave(height, 0)[first - above * height :][:rows]
            first, step, block = 0, rows, (1, block[1])
        row, band, spread = 0, -1, scale
        while row < rows:
            # A tile never crosses a block's edge, so that one row of scales serves all of it.
            upto = min(rows, row + step)
            if block[0] > 1:
                upto = min(upto, ((first + row) // block[0] + 1) * block[0] - first)
                if band != (first + row) // block[0]:
                    band = (first + row) // block[0]
                    # Kept for all tiles of the band: spreading costs as much as multiplying.
                    spread = scale[band : band + 1].repeat_interleave(block[1], 1)[:, :columns]
            part, some = out[row:upto], codes[row:upto]
            values = self._values(some, coding, part.shape)
            if lift != 1.0:
                values.mul_(lift)
            if block[0] > 1:
                values.mul_(spread)
            else:
                self._multiply(values, scale[first + row : first + upto], block[1])
            part.copy_(values)
            if coding.name == "e4m3":
                self._write_nan(part, some)
            row = upto

    def _values(self, codes: Tensor, coding: Coding, shape: torch.Size) -> Tensor:
        """Return the codes' values times 2^-shift, (R, C) fp32, in the buffer."""
        count = shape.numel()
        if self._float.numel() < count:
            # Grown, never shrunk: allocating takes longer than decoding a small matrix.
            self._wide = torch.empty(count, dtype=torch.int16, device=self.device)
            self._float = torch.empty(count, device=self.device)
        wide, values = self._wide[:count], self._float[:count].view(shape)
        if coding.name == "e2m1":
            pairs = wide.view(torch.int32)
            other = self._float[: count // 2].view(torch.int32)  # free until the values are written
            pairs.copy_(codes.reshape(-1))
            # Each byte at two places that do not overlap: there its three low bits and three high ones are fp16's.
            torch.mul(pairs, (1 << 12) | (1 << 24), out=other)
            pairs.mul_((1 << 9) | (1 << 21)).bitwise_and_(0x0E000E00)
            pairs.bitwise_or_(other.bitwise_and_(-0x7FFF8000))
        elif coding.name == "e4m3":
            wide.copy_(codes.view(torch.int8).reshape(-1))
            wide.mul_(128).bitwise_and_(~0x4000)
        else:
            wide.copy_(codes.view(torch.int8).reshape(-1)).mul_(256)
        return values.copy_(wide.view(torch.float16).view(shape))

    @staticmethod
    def _multiply(values: Tensor, scale: Tensor, width: int) -> None:
        """Multiply (R, C) values in place by (R, block columns) scales of so many columns each."""
        columns = values.shape[1]
        whole = columns // width * width
        if whole:
            values[:, :whole].unflatten(1, (-1, width)).mul_(scale[:, : columns // width, None])
        if whole < columns:
            values[:, whole:].mul_(scale[:, -1:])

    def _write_nan(self, out: Tensor, codes: Tensor) -> None:
        """Put NaN where e4m3's code says so."""
        doubled = self._wide.view(torch.uint8)[: codes.numel()]  # drops the sign; the buffer is free again
        torch.mul(codes.reshape(-1), 2, out=doubled)
        if not self._tile or int(doubled.amax()) == 0xFE:  # a GPU would wait for the answer longer than it fills
            out.view(torch.int16).masked_fill_((doubled == 0xFE).view(out.shape), NAN_BITS)


def canonical_nan(values: Tensor) -> Tensor:
    """Give every NaN of bf16 values the same bits, in place."""
    values.view(torch.int16).masked_fill_(values.isnan(), NAN_BITS)
    return values


def reference(codes: Tensor, coding: Coding, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """Return the same by the plain formula, slowly: what everything here is compared with.

    Args:
        codes: (R, bytes of a row) uint8.
        coding: what they mean.
        scale: (block rows, block columns) fp32.
        block: rows and columns that share a scale.
    """
    if coding.name == "e2m1":
        # By look-up, sharing nothing with the integer operations above.
        table = torch.tensor([*FP4_VALUES, *(-value for value in FP4_VALUES)])
        values = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).flatten(-2)
    else:
        values = codes.view(E4M3 if coding.name == "e4m3" else torch.float8_e5m2).float()
    rows, columns = values.shape
    spread = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return canonical_nan((values * spread).to(torch.bfloat16))


def encode_blocks(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return e4m3 codes (R, C) uint8 and the fp32 scale (block rows, block columns) of rows that begin a block.

    A block's scale is its largest magnitude / 448, so that nothing saturates; a block of zeros gets 1. This is how the weights of
    DeepSeek-V3 were made (arXiv:2412.19437, section 3.3).

    Args:
        weight: (R, C), finite.
        block: rows and columns that share a scale.
    """
    rows, columns = weight.shape
    grid = grid_of(rows, columns, block)
    padded = torch.zeros(grid[0] * block[0], grid[1] * block[1], device=weight.device)
    padded[:rows, :columns] = weight
    tiles = padded.view(grid[0], block[0], grid[1], block[1])
    scale = tiles.abs().amax((1, 3)).div_(E4M3_MAX)
    # Zeros over zero would be NaN.
    scale[scale == 0] = 1.0
    # Divided, not multiplied by a reciprocal, which would round once more.
    tiles.div_(scale[:, None, :, None])
    return padded[:rows, :columns].to(E4M3).view(torch.uint8), scale
