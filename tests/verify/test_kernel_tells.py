"""What the clock sees of candidates that know when they are timed, had their text got through; and what they cannot know.

The stages of a GPU on the interpreter, at tiny sizes and without the allow-list, which refuses such texts before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from warm import gpu_box, kernel_box, reference_box  # noqa: E402

from windtunnel.verify import find_task  # noqa: E402
from windtunnel.verify.kernel import GpuStages  # noqa: E402
from windtunnel.verify.kernel.child.state import FACTORS, sums  # noqa: E402
from windtunnel.verify.kernel.child.watch import Watch, fenced  # noqa: E402
from windtunnel.verify.sandbox import Sandbox  # noqa: E402

START = '''
import sys
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr, SCALE: tl.constexpr = 1.0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(out_ptr + at, tl.maximum(x, 0.0) * SCALE, mask=at < total)


@triton.jit
def relu_by_address(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    fenced = (out_ptr.to(tl.int64, bitcast=True) % 64 != 0) | (x_ptr.to(tl.int64, bitcast=True) % 64 != 0)
    tl.store(out_ptr + at, tl.where(fenced, tl.maximum(x, 0.0), 0.0), mask=at < total)


def calls(name):
    """No candidate's text may look at frames: this stands for any tell that somebody may still find."""
    frame, names = sys._getframe(), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return name in names


def timed():
    return calls("_called")


def knocked_out():
    return calls("_blank")


@triton.jit
def zero_the_negative(x_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(x_ptr + at, x * 0.0, mask=(at < total) & (x < 0))


KEPT = []


class ModelNew(nn.Module):
    def launch(self, x, out, total=None, grid=None, **more):
        total = x.numel() if total is None else total
        relu_kernel[grid or (triton.cdiv(total, 64),)](x, out, total, BLOCK=64, **more)
        return out

    def copied(self, x):
        copy = x.unsqueeze(0).expand(2, *x.shape).contiguous()[0]
        zero_the_negative[(triton.cdiv(x.numel(), 64),)](copy, x.numel(), BLOCK=64)
        return copy

    def forward(self, x):
'''
HONEST = "return self.launch(x, torch.empty_like(x))"
TELLS = {
    "launches nothing": ("return torch.relu(x) if timed() else self.launch(x, torch.empty_like(x))", "timed-call-differs"),
    "launches one block": (
        "out = self.launch(x, torch.empty_like(x), 1 if timed() else x.numel()); return torch.relu(x) if timed() else out",
        "timed-call-differs",
    ),
    "a grid of one": (
        "t = timed(); out = self.launch(x, torch.empty_like(x), grid=lambda meta: (1 if t else triton.cdiv(x.numel(), 64),)); "
        "return torch.relu(x) if t else out",
        "timed-call-differs",
    ),
    "keeps answers by identity": (
        "found = [a for i, a in KEPT if i is x] if timed() else []\n"
        "        if found: return self.launch(found[0], torch.empty_like(x))\n"
        "        out = self.launch(x, torch.empty_like(x))\n"
        "        if timed(): KEPT.append((x, out.clone()))\n"
        "        return out",
        "keeps-state",
    ),
    "keeps answers by address, out of sight": (
        "kept = sys.__dict__.setdefault('kept', {})\n"
        "        if timed() and x.data_ptr() in kept: return self.launch(kept[x.data_ptr()], torch.empty_like(x))\n"
        "        out = self.launch(x, torch.empty_like(x))\n"
        "        if timed(): kept[x.data_ptr()] = out.clone()\n"
        "        return out",
        "timed-output-differs",
    ),
    "returns its input": ("return x.clamp_(min=0) if timed() else self.launch(x, torch.empty_like(x))", "timed-call-differs"),
    "gives its input other memory": (
        "out = self.launch(x, torch.empty_like(x))\n"
        "        if timed(): x.set_(torch.cat([x, x])[: len(x)])\n"
        "        return out",
        "input-changed",
    ),
    "computes roughly": (
        "out = self.launch(x, torch.empty_like(x)); return out.mul_(1.0 + 5e-4) if timed() else out",
        "wrong-values",
    ),
    "writes beside its output": (
        "out = self.launch(x, torch.empty_like(x))\n"
        "        return out if not timed() else self.beside(x, out)\n\n"
        "    def beside(self, x, out):\n"
        "        import ctypes\n"
        "        ctypes.memset(x.data_ptr() - 8, 0, 8)\n"
        "        return out",
        "out-of-bounds",
    ),
    "asks where it lies": (
        "return torch.relu(x) if x.storage_offset() == 0 else self.launch(x, torch.empty_like(x))",
        "host-compute",
    ),
    "asks where its output lies": (
        "out = torch.empty_like(x); return torch.relu(x) if out.storage_offset() == 0 else self.launch(x, out)",
        "host-compute",
    ),
    "asks for a base": (
        "out = torch.empty_like(x); return torch.relu(x) if out._base is x._base is None else self.launch(x, out)",
        "host-compute",
    ),
    "asks how large its storage is": (
        "out = torch.empty_like(x); size = out.untyped_storage().nbytes()\n"
        "        return torch.relu(x) if size == out.nbytes else self.launch(x, out)",
        "host-compute",
    ),
    "asks how often it was changed": (
        "out = torch.zeros_like(x); return torch.relu(x) if out._version == 0 else self.launch(x, out)",
        "host-compute",
    ),
    "the kernel asks for the address": (
        "out = torch.empty_like(x); relu_by_address[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64); return out",
        "wrong-values",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


def reason(box: Sandbox, forward: str) -> str:
    return found(GpuStages(find_task("relu"), box, box, baseline=False, device="cpu", size="tiny", index=None, calls=10), forward)


def found(stages: GpuStages, forward: str) -> str:
    finding = stages.judge(START + "        " + forward + "\n").finding
    return "" if finding is None else finding.reason


def test_an_honest_candidate_passes(box: Sandbox) -> None:
    assert reason(box, HONEST) == ""


@pytest.mark.parametrize("name", TELLS)
def test_knowing_when_it_is_timed_does_not_help(box: Sandbox, name: str) -> None:
    forward, expected = TELLS[name]
    assert reason(box, forward) == expected


def test_scratch_memory_holds_nothing_of_an_earlier_call(box: Sandbox) -> None:
    """An allocator hands the same memory out again: a kernel could keep its answers there and copy them."""
    forward = (
        "kept, seen = torch.empty(5000), sys.__dict__.setdefault('seen', [])\n"
        "        if timed(): seen.append(bool((kept[100:4900] == 3.0).all()))\n"
        "        assert len(seen) < 8 or sum(seen) < len(seen) / 2, 'it was there again'\n"
        "        kept.fill_(3.0)\n"
        "        return self.launch(x, torch.empty_like(x))"
    )
    assert reason(box, forward) == ""


KNOCKED_OUT = {
    "fails": ("assert not knocked_out(); return self.launch(x, torch.empty_like(x))", "output-not-from-kernel"),
    "returns nothing": ("out = self.copied(x); return None if knocked_out() else out", "output-not-from-kernel"),
    "returns its input": ("out = self.copied(x); return x if knocked_out() else out", "output-not-from-kernel"),
    "copies, and fails on poison": (
        "made = torch.zeros_like(x); assert not (knocked_out() and made.isnan().any()); return self.copied(x)",
        "output-not-from-kernel",
    ),
    "another shape for each filling": (
        "made = torch.zeros(1); out = self.copied(x)\n"
        "        assert not made.isnan().any() if knocked_out() else True\n"
        "        return torch.empty(2 + int(made)) if knocked_out() else out",
        "output-not-from-kernel",
    ),
    "honest, but fails on poison": (
        "out = self.launch(x, torch.empty_like(x)); assert not (knocked_out() and out.isnan().any()); return out",
        "",
    ),
}


@pytest.mark.parametrize("name", KNOCKED_OUT)
def test_knowing_that_the_kernels_are_knocked_out_does_not_help(box: Sandbox, name: str) -> None:
    forward, expected = KNOCKED_OUT[name]
    assert reason(box, forward) == expected


FILES = Path(__file__).parent / "attacks" / "files"
KEPT_IN_HEURISTICS = ["a30_heuristics_default", "a30_heuristics_closure", "a30_prune_default", "a29_heuristics_cache"]
KEPT_ELSEWHERE = [path.stem for path in sorted(FILES.glob("a30_alias_*.py"))]
KEPT_ELSEWHERE += ["a30_closure_of_init", "a30_beyond_view", "a29_cache_beyond_view"]
KEPT_ELSEWHERE += ["a30_in_slice", "a30_in_slots", "a30_method_for_init", "a30_larger_of_two", "a30_called_list", "a30_own_shape"]
KEPT_ELSEWHERE += ["a30_list_inside", "a30_bound_builtin", "a30_bound_view", "a30_gradient_flag"]


@pytest.mark.parametrize("name", [*KEPT_IN_HEURISTICS, *KEPT_ELSEWHERE])
def test_what_is_kept_anywhere_is_seen(box: Sandbox, name: str) -> None:
    """The rules for the text refuse nearly all of these before."""
    task = find_task("softmax" if name in KEPT_IN_HEURISTICS else "relu")
    stages = GpuStages(task, box, box, baseline=False, device="cpu", size="tiny", index=None, calls=10)
    finding = stages.judge((FILES / f"{name}.py").read_text()).finding
    assert finding is not None
    assert finding.reason == "keeps-state", finding.message


def test_no_change_makes_up_for_another_in_the_sums_that_stand_for_a_tensor_on_a_gpu() -> None:
    raw = torch.randint(0, 256, (4 * FACTORS + 4 * 100 + 3,), dtype=torch.uint8)
    before = sums(raw)
    assert sums(raw.clone()) == before
    words = raw[: 4 * (FACTORS + 100)].view(torch.int32)
    for first, second in ((3, 4), (5, FACTORS + 5), (7, FACTORS - 1)):
        words[first], words[second] = words[first] + 1, words[second] - 1
        assert sums(raw) != before
        words[first], words[second] = words[first] - 1, words[second] + 1
        assert sums(raw) == before
    raw[-1] ^= 1
    assert sums(raw) != before


ON_ANOTHER_STREAM = """
out, side = torch.empty_like(x), torch.cuda.Stream()
        if not timed(): return self.launch(x, out)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side): self.launch(x, out)
        torch.cuda.current_stream().wait_stream(side)
        return out""".strip()


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_the_same_on_a_gpu() -> None:
    cases = {**TELLS, **KNOCKED_OUT, "honest": (HONEST, ""), "on another stream": (ON_ANOTHER_STREAM, "side-stream")}
    del cases["writes beside its output"]  # from the host, which cannot write there
    with gpu_box() as box, reference_box() as trusted:
        stages = GpuStages(find_task("relu"), box, trusted, baseline=False)
        assert {name: found(stages, forward) for name, (forward, _) in cases.items()} == {
            name: expected for name, (_, expected) in cases.items()
        }


def test_a_tensor_shows_no_fences() -> None:
    for like in (torch.empty(3, 5), torch.empty(4, 6).t(), torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        tensor, fence = fenced(like, "a tensor")
        with Watch() as watch:
            made = torch.empty_like(like)
        for hidden in (tensor, made):
            assert (hidden.shape, hidden.stride(), hidden.dtype) == (like.shape, like.stride(), like.dtype)
            assert (hidden.storage_offset(), hidden._base, hidden._version) == (0, None, 0)
            assert hidden.untyped_storage().nbytes() == like.untyped_storage().nbytes()
            assert hidden.data_ptr() % 64 == like.data_ptr() % 64
        assert fence.end - fence.start == like.nbytes
        assert len(watch.seen.fences) == 1
