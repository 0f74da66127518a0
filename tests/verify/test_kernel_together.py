"""Programs that the interpreter runs together do what they do one by one, to the last bit, and are seen to do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

pytest.importorskip("triton")

PROGRAM = """
import json, random, sys
import torch, triton
import triton.language as tl
from triton.runtime import interpreter
from windtunnel.verify.kernel.child import pauses, triton as own


@triton.jit
def grows(a, b):
    if a > b:
        return a
    return b


@triton.jit
def either(a, b):
    return a or b


@triton.jit
def pairs(a, i, b, j):
    return tl.where(a > b, a, b), tl.where(a > b, i, j)


@triton.jit
def loops(x, y, n, B: tl.constexpr):
    at, total = tl.arange(0, B), tl.zeros([B], tl.float32)
    for turn in range(tl.program_id(0) % 3):
        total += tl.load(x + turn * B + at)
    if tl.program_id(1) == 0:
        total = tl.exp(total)
    tl.store(y + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * B + at, total)


@triton.jit
def blocks(x, y, n, B: tl.constexpr):
    first = tl.program_id(0) * B
    p = tl.make_block_ptr(x, (n, n), (n, 1), (first, 0), (B, B), (1, 0))
    q = tl.make_block_ptr(x, (n, n), (n, 1), (0, first), (B, B), (1, 0))
    total = tl.zeros([B, B], tl.float32)
    for _ in range(0, tl.cdiv(n, B)):
        a, b = tl.load(p, boundary_check=(0, 1), padding_option="zero"), tl.load(q, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(a, b, total)
        p, q = tl.advance(p, (0, B)), tl.advance(q, (B, 0))
    tl.store(tl.make_block_ptr(y, (n, n), (n, 1), (first, first), (B, B), (1, 0)), total.T, boundary_check=(0, 1))


@triton.jit
def described(x, y, n, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n, n], [n, 1], [B, B])
    target = tl.make_tensor_descriptor(y, [n, n], [n, 1], [B, B])
    target.store([tl.program_id(0) * B, tl.program_id(1) * B], source.load([tl.program_id(0) * B, tl.program_id(1) * B]) * 2)


@triton.jit
def shapes(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at)
    halves = tl.reshape(v, [2, B // 2])
    left, right = tl.split(tl.trans(halves))
    v = tl.reshape(tl.join(right, left), [B]) + tl.cat(left, right, can_reorder=True)
    v = tl.gather(v, B - 1 - tl.arange(0, B), 0) + tl.sum(tl.sum(halves, 1), 0) + tl.max(halves, axis=-1, keep_dims=True).sum()
    v += tl.cumsum(v, 0, reverse=True) + tl.associative_scan(v, 0, grows) + tl.reduce(v, 0, grows) + tl.argmin(v, 0)
    v += tl.reduce(v > 0, 0, either).to(tl.float32)
    best, where = tl.reduce((v, tl.arange(0, B)), 0, pairs)
    tl.store(y + at, tl.sort(v) + best + where)


@triton.jit
def adds(x, y, n, B: tl.constexpr):
    tl.atomic_add(y, tl.sum(tl.load(x + tl.program_id(0) * B + tl.arange(0, B)).to(tl.int32).to(tl.float32)))


@triton.jit
def races(x, y, n, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), tl.load(x + tl.program_id(0) * B + tl.arange(0, B)))


@triton.jit
def peeks(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(y + at + B, mask=at + B < n, other=0.0))


@triton.jit
def same(x, y, n, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


@triton.jit
def strays(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at % 64))


@triton.jit
def large(x, y, n, B: tl.constexpr):
    row = tl.program_id(0) * B + tl.arange(0, B)
    square = row[:, None] + tl.zeros([B, 64 * B], tl.int32)
    tl.store(y + row, tl.sum(square, 1).to(tl.float32))


GRIDS = {"loops": (4, 2, 1), "blocks": (2, 1, 1), "described": (2, 2, 1), "shapes": (8, 1, 1), "adds": (8, 1, 1),
    "races": (4, 1, 1), "peeks": (4, 1, 1), "same": (4, 1, 1), "strays": (300, 1, 1), "large": (64, 1, 1)}
eyes, found = own.Eyes(random.Random(5)), {}
run = pauses.Grid._together
for most in (256, 1):
    for name, grid in GRIDS.items():
        eyes.holder.together.clear(), eyes.races.clear(), eyes.strays.clear()
        pauses.MOST_TOGETHER, counts = most, []
        def counted(self, places, arguments):
            left = run(self, places, arguments)
            counts.append(0 if left else len(places))
            return left
        pauses.Grid._together = counted
        torch.manual_seed(0)
        x, y, wrong = torch.randn(4096), torch.zeros(4096), ""
        try:
            eyes.start(globals()[name], grid, {"x": x, "y": y, "n": 32 if name in ("blocks", "described") else 64, "B": 16}, {})
        except Exception as error:
            wrong = type(error.__cause__ or error).__name__
        found.setdefault(name, []).append([y.tolist(), dict(eyes.races), dict(eyes.strays), wrong, sum(counts)])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[object]]]:
    """By kernel: what came of it together and one by one."""
    path: Path = tmp_path_factory.mktemp("together") / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 0, said.stderr
    made: dict[str, list[list[object]]] = json.loads(said.stdout)
    return made


@pytest.mark.parametrize(
    ("name", "number"),
    [("loops", 4), ("blocks", 2), ("described", 4), ("shapes", 8), ("same", 4), ("large", 64), ("adds", 0)],
)
def test_together_they_compute_what_they_do_one_by_one(found: dict[str, list[list[object]]], name: str, number: int) -> None:
    (values, *seen, wrong, together), (others, *also, _, by_itself) = found[name]
    assert not wrong
    assert values == others, "to the last bit"
    assert seen == also == [{}, {}]
    assert (together, by_itself) == (number, 0)


@pytest.mark.parametrize("name", ["races", "peeks", "strays"])
def test_together_they_are_seen_to_do_wrong(found: dict[str, list[list[object]]], name: str) -> None:
    (_, *seen, wrong, _), (_, *also, other, _) = found[name]
    assert seen == also != [{}, {}]
    assert wrong == other == ("Stray" if name == "strays" else "")
