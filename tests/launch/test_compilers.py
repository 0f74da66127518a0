"""What is compiled while data are prepared: by processes that nobody waits for in vain, and that change nothing of a run."""

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tiny_recipes import write_tiny
from waiting import until

from windtunnel.launch.compile_worker import small_layout
from windtunnel.launch.compilers import BACKWARD, FORWARD, STEP, Compilers, key_of, mark
from windtunnel.model import attention, without_attention
from windtunnel.plan import make_plan
from windtunnel.recipe import Layout, Recipe, load_recipe
from windtunnel.rig import parse_rig
from windtunnel.run import name_compilers, wait_for_compilers
from windtunnel.train import compile_step


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Forget afterwards who compiles; nothing is marked beside what this machine has compiled."""
    monkeypatch.setenv("WINDTUNNEL_COMPILERS", "[]")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(str(write_tiny(tmp_path)))


def test_what_changes_no_kernel_needs_nothing_compiled(recipe: Recipe, tmp_path: Path) -> None:
    def key(*sets: str) -> str:
        return key_of(load_recipe(str(tmp_path / "tiny.yaml"), sets), "NVIDIA H200")

    assert key() == key("budget.steps=7", "seed=3", "stages.pretrain.schedule.warmup_steps=7")
    others = {key("model.depth=3"), key("stages.pretrain.precision=fp32"), key("stages.pretrain.deterministic=false")}
    assert len(others | {key(), key_of(recipe, "NVIDIA B200")}) == 5


def test_what_was_compiled_is_marked_beside_it(tmp_path: Path) -> None:
    assert mark(STEP, "abc") == tmp_path / "triton" / "windtunnel-step-abc"


@pytest.mark.parametrize(("sequence", "micro_batch"), [(2048, 32), (81, 512), (81, 7), (36, 12), (40, 3), (40, 1), (2048, 1)])
def test_a_step_is_compiled_with_few_tokens_that_kernels_do_not_tell_from_many(sequence: int, micro_batch: int) -> None:
    layout = Layout(8, micro_batch, 4, sequence, "bf16", True, "cuda", "full", recorded=True)
    small = small_layout(layout)
    assert (small.ranks, small.accumulation, small.precision, small.recorded) == (1, 1, "bf16", False)
    assert (small.micro_tokens % 16 == 0) == (layout.micro_tokens % 16 == 0)
    assert (small.micro_batch == 1) == (micro_batch == 1)
    assert small.micro_batch <= min(micro_batch, 16)


def test_a_step_is_taken_and_nothing_of_it_stays(recipe: Recipe, tmp_path: Path) -> None:
    layout = make_plan(recipe, parse_rig("1xH200")).layout
    before = torch.random.get_rng_state()
    compile_step(recipe, replace(small_layout(layout), device="cpu", precision="fp32", compile=False), 40, tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_attention_outputs_and_gradients_are_zeros_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash_applies", lambda q: attention.flash_kernels() is not None)
    true = attention.flash_kernels
    q, k, v = (torch.ones(1, 4, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    with without_attention():
        out = attention.attend(q, k, v, None)
        out.sum().backward()
    assert attention.flash_kernels is true
    assert out.shape == q.shape
    for each in (out, q.grad, k.grad, v.grad):
        assert each is not None
        assert not each.any()


@pytest.mark.end_to_end
def test_one_that_fails_is_no_hindrance_and_is_not_tried_again(recipe: Recipe) -> None:
    """It does here: there is no GPU whose memory it could look at."""
    if torch.cuda.is_available():
        pytest.skip("it would not fail")
    with Compilers(recipe, [STEP], "key"):
        [told] = json.loads(os.environ["WINDTUNNEL_COMPILERS"])
        wait_for_compilers(lambda: False)
        pid = json.loads(told)["pid"]
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert mark(STEP, "key").exists()


def test_what_is_marked_is_not_compiled_again(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, begun = {"cores": 16, "shared": True}, list[str]()

    class Begun:
        def __init__(self, recipe: Recipe, parts: Sequence[str], key: str = "") -> None:
            begun[:] = parts
            self.key = key

    def of(*sets: str) -> str:
        begun.clear()
        return Compilers.of.__func__(Begun, load_recipe(str(tmp_path / "tiny.yaml"), sets)).key  # type: ignore[attr-defined]

    monkeypatch.setenv("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(tmp_path / "flash"))
    monkeypatch.setattr("windtunnel.rig.detect_rig", lambda **_: parse_rig("1xH200"))
    monkeypatch.setattr("windtunnel.rig.cpu_cores", lambda: here["cores"])
    monkeypatch.setattr("windtunnel.rig.are_shared", lambda: here["shared"])
    monkeypatch.setattr("windtunnel.launch.compilers.installed", lambda package: "4.0" if package == "flash-attn-4" else None)
    key = of()
    assert begun == [FORWARD, BACKWARD, STEP]
    for part in (FORWARD, STEP):
        mark(part, key).parent.mkdir(exist_ok=True)
        mark(part, key).touch()
    assert of() == key
    assert begun == [BACKWARD]
    for name, value in (("cores", 4), ("shared", False)):
        before, here[name] = here[name], value
        of()
        assert not begun
        here[name] = before
    of("model.depth=auto")
    assert not begun


@pytest.mark.end_to_end
def test_one_that_hangs_is_waited_for_so_long_and_ends_with_the_command(recipe: Recipe) -> None:
    with Compilers(recipe, [STEP, STEP], "key"):
        pids = [json.loads(told)["pid"] for told in json.loads(os.environ["WINDTUNNEL_COMPILERS"])]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        wait_for_compilers(lambda: False, 0.2)
        assert time.monotonic() - began >= 0.2
        wait_for_compilers(lambda: True)
    until(lambda: not any(map(psutil.pid_exists, pids)))
    wait_for_compilers(lambda: False)


def test_nobody_is_waited_for_whom_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINDTUNNEL_COMPILERS")
    wait_for_compilers(lambda: False)
    name_compilers([])
    wait_for_compilers(lambda: False)
