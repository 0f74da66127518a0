"""Candidates through the whole funnel on a CPU: sandbox, reference, interpreter, comparison; and through the command."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from warm import compiler_box, kernel_box

from windtunnel.recipe import UserError
from windtunnel.verify.kernel import KernelVerifier, Task
from windtunnel.verify.kernel.replay import ENTRY
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.sandbox import Outcome, Sandbox, SandboxJob

pytest.importorskip("triton")

REFERENCE = """\
import torch
import torch.nn as nn

ROWS = 512
COLS = 1024


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return torch.relu(x + self.bias)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
"""
KERNEL = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_relu(x_ptr, bias_ptr, y_ptr, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    b = tl.load(bias_ptr + at % cols, mask=mask, other=0.0)
    tl.store(y_ptr + at, tl.maximum(x + b, 0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        assert x.is_cuda
        y = torch.empty_like(x)
        n = x.numel()
        bias_relu[(triton.cdiv(n, 64),)](x, self.bias, y, n, x.shape[1], BLOCK=64)
        return y
"""
STORE, OUTPUT = "tl.store(y_ptr + at", "        y = torch.empty_like(x)"
BIAS = "self.bias = nn.Parameter(torch.zeros(cols))"
# What is changed in the honest candidate → the reason that it is refused for.
CHANGES = {
    "nothing": ("", "", "accepted"),
    "no bias": ("x + b, 0.0", "x, 0.0", "wrong-values"),  # zeros, as the reference made it, would do
    "no relu": ("tl.maximum(x + b, 0.0)", "x + b", "wrong-values"),  # inputs of rand are never negative
    "half precision": ("x + b, 0.0)", "x.to(tl.float16) + b.to(tl.float16), 0.0)", "wrong-values"),
    "store unmasked": ("0.0), mask=mask)", "0.0))", "out-of-bounds"),
    "load unmasked": ("tl.load(x_ptr + at, mask=mask, other=0.0)", "tl.load(x_ptr + at)", "out-of-bounds"),
    "far away": ("tl.store(y_ptr + at,", "tl.store(y_ptr + at + (1 << 40),", "out-of-bounds"),
    "masked by a number too": ("mask = at < n", "mask = (n > 0) & (at < n)", "accepted"),
    "masks joined by and": ("mask = at < n", "mask = (at < n) and (at >= 0)", "accepted"),
    "masks joined by or": ("mask = at < n", "mask = (at < 0) or (at < n)", "accepted"),
    "a tuple of numbers": ("mask = at < n", "mask, low = at < n, 0.0\n    low = low.to(tl.float32)", "accepted"),
    "masked by a number alone": ("mask = at < n", "mask = (n > 0) & (at >= 0)", "out-of-bounds"),
    "race behind a number": ("y_ptr + at, tl.maximum(x + b, 0.0), mask=mask", "y_ptr + at // 2, x, mask=(n > 0) & mask", "race"),
    "partly written": ("triton.cdiv(n, 64)", "n // 64", "non-finite"),
    "input overwritten": (STORE, f"tl.store(x_ptr + at, x + 1, mask=mask)\n    {STORE}", "input-changed"),
    "input returned": ("y = torch.empty_like(x)", "y = x.view(x.shape)", "output-aliases"),
    "race": ("y_ptr + at, tl.max", "y_ptr + at // 2, tl.max", "race"),
    "wrong dtype": ("torch.empty_like(x)", "torch.empty_like(x, dtype=torch.float64)", "wrong-dtype"),
    "wrong shape": ("return y", "return y.view(1, *x.shape)", "wrong-shape"),
    "transposed": ("return y", "return y.view(x.shape[1], x.shape[0]).t()", "wrong-stride"),
    "tuple": ("return y", "return (y,)", "wrong-structure"),
    "no bias kept": (BIAS, "self.b = nn.Parameter(torch.zeros(1))", "parameters-differ"),
    "bias renamed": ("self.bias", "self.offset", "accepted"),
    "batches counted": (BIAS, f'{BIAS}\n        self.register_buffer("num_batches_tracked", torch.tensor(0))', "accepted"),
    "a buffer of its own": (BIAS, f'{BIAS}\n        self.register_buffer("kept", torch.zeros(()))', "accepted"),
    "endless": ("    mask = at < n\n", "    mask = at < n\n    while n > 0:\n        n = n + 0\n", "timeout memory"),
    "counts in a list": (OUTPUT, f"        calls = self.calls\n        calls.append(1)\n{OUTPUT}", "accepted"),
    "counts in a tensor": ("self.bias, y, n", "self.bias, count(self.total, y), n", "keeps-state"),
    "lasts in an iterator": (OUTPUT, f"        for _ in self.ticks:\n            break\n{OUTPUT}", "accepted"),
    "raises": ("assert x.is_cuda", "assert x.shape[0] == 3", "raised"),
    "copied": ("return y", "z = x.expand_as(y)\n        return z.contiguous().new_zeros(x.shape)", "wrong-values"),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with kernel_box() as box:
        yield box


@pytest.fixture(scope="module")
def task() -> Task:
    return replace(task_from_source(REFERENCE, name="bias_relu"), operations="none", dtypes=("float32", "float16"))


@pytest.fixture(scope="module")
def verifier(task: Task, sandbox: Sandbox) -> KernelVerifier:
    return KernelVerifier(task, Impatient(sandbox))


class Impatient:
    """The sandbox with less patience, so that the endless candidate does not hold up the tests."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    def run(self, job: SandboxJob) -> Outcome:
        from dataclasses import replace

        tiny = job.entry == ENTRY
        return self.box.run(replace(job, limits=replace(job.limits, cpu_seconds=3)) if tiny else job)


def with_counters(source: str) -> str:
    """What the counting changes need: a list, a tensor and an iterator that live as long as the module."""
    made = {"self.calls": "[]", "count(self.total": "torch.zeros(1, device='cuda')", "self.ticks": "iter_of(range(100))"}
    for word, value in made.items():
        if word in source:
            kept = word.split(".")[-1]
            made_there = f"self.{kept} = {value.replace('iter_of', 'enumerate')}"
            source = source.replace("super().__init__()", f"super().__init__()\n        {made_there}")
    return source.replace("class ModelNew", COUNT + "class ModelNew") if "count(" in source else source


COUNT = """
@triton.jit
def tick(c_ptr):
    tl.store(c_ptr, tl.load(c_ptr) + 1)


def count(calls, y):
    tick[(1,)](calls)
    return y


"""


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_judged_with_its_reason(change: str, verifier: KernelVerifier) -> None:
    old, new, reason = CHANGES[change]
    assert old in KERNEL
    verdict = verifier.verify(with_counters(KERNEL.replace(old, new)))
    assert verdict.reason in reason.split(), verdict.message
    assert verdict.accepted == (reason == "accepted")
    assert verdict.reward == float(verdict.accepted)
    json.dumps(verdict.as_json())


def test_torch_hidden_from_the_text_is_seen_when_it_runs(sandbox: Sandbox, task: Task) -> None:
    """An operator looks like arithmetic on numbers until it meets tensors."""
    verdict = KernelVerifier(task, sandbox).verify(KERNEL.replace("return y", "return y.view(x.shape) * 1"))
    assert not verdict.accepted
    assert verdict.reason in ("host-compute", "output-not-from-kernel")
    verdict = KernelVerifier(task, sandbox).verify(
        KERNEL.replace("y = torch.empty_like(x)", "x = x + self.bias\n        y = torch.empty_like(x)")
    )
    assert verdict.reason == "host-compute"


def test_a_constant_task_is_refused(sandbox: Sandbox) -> None:
    zero = task_from_source(REFERENCE.replace("torch.relu(x + self.bias)", "(x + self.bias) * 0"), name="zero")
    with pytest.raises(UserError, match="constant"):
        KernelVerifier(zero, sandbox).verify(KERNEL)


def test_a_reference_that_does_not_run_is_a_user_error(sandbox: Sandbox) -> None:
    broken = task_from_source(REFERENCE.replace("torch.relu(", "torch.relo("), name="broken")
    with pytest.raises(UserError, match="relo"):
        KernelVerifier(broken, sandbox).verify(KERNEL)


def test_failing_machinery_is_no_judgement(task: Task, sandbox: Sandbox) -> None:
    class Broken(Impatient):
        def run(self, job: SandboxJob) -> Outcome:
            return self.box.run(job) if "reference" in job.entry else Outcome("infrastructure", "no worker")

    verdict = KernelVerifier(task, Broken(sandbox)).verify(KERNEL)
    assert verdict.infrastructure
    assert verdict.reward is None


def test_kernels_are_compiled_for_a_gpu_that_is_not_there(task: Task, sandbox: Sandbox) -> None:
    with compiler_box() as compiler:
        verifier = KernelVerifier(task, sandbox, compiler=compiler)
        assert verifier.verify(KERNEL).accepted
        odd = verifier.verify(KERNEL.replace("tl.arange(0, BLOCK)", "tl.arange(0, 60)").replace("* BLOCK +", "* 60 +"))
        assert (odd.stage, odd.reason) == ("compile", "compile-error")
        assert "power of 2" in odd.message
        assert "`at = " in odd.message, odd.message


@pytest.mark.end_to_end
def test_the_command_says_it_in_json_and_by_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from windtunnel.cli import main

    (tmp_path / "task.py").write_text(f"{REFERENCE}\nTASK = {{'operations': 'none'}}\n")
    (tmp_path / "answer.py").write_text(KERNEL.replace("return y", "return torch.relu(x)"))

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["verify", "kernel", *arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, out, _ = command("--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / "answer.py"), "--json")
    assert code == 1
    assert json.loads(out)["reason"] == "host-compute"
    code, out, _ = command("--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / "answer.py"))
    assert code == 1
    assert "record" in out
    candidate = tmp_path / "right.py"
    candidate.write_text(KERNEL)
    recording = str(tmp_path / "plan.json")
    code, out, _ = command("--task", str(tmp_path / "task.py"), "--candidate", str(candidate), "--plan-out", recording)
    assert (code, "bias_relu" in out) == (0, True)
    code, out, _ = command("--task", str(tmp_path / "task.py"), "--plan", recording, "--json")
    assert (code, json.loads(out)["reason"]) == (0, "accepted")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"offset":0', '"offset":1'))
    code, out, _ = command("--task", str(tmp_path / "task.py"), "--plan", recording, "--json")
    assert (code, json.loads(out)["reason"]) == (1, "bad-plan")
    for arguments in (["--task", "no_such_task"], ["--candidate", "x.py"], ["--task", str(tmp_path / "task.py")]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "fix:" in err
    code, _, err = command("--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / "none.py"))
    assert code == 2
