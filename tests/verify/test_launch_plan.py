"""Launch plans: recorded from host code without a GPU, and checked as hostile input."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from test_kernel_funnel import KERNEL, REFERENCE
from warm import compiler_box

from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.kernel.plan import Operation, Plan
from windtunnel.verify.kernel.plan.check import Allowed, CheckedKernels, PlanRefused, apart, check_plan, read_plan, read_recording
from windtunnel.verify.kernel.plan.schema import Tensor
from windtunnel.verify.kernel.recording import record
from windtunnel.verify.kernel.task import Task, task_from_source
from windtunnel.verify.sandbox import Sandbox

pytest.importorskip("triton")

BODY = "    at = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)\n"


def view(buffer: int, **changed: Any) -> dict[str, Any]:
    return {"buffer": buffer, "dtype": "float32", "shape": [4, 8], "stride": [8, 1], "offset": 0, **changed}


def plan() -> dict[str, Any]:
    """One written by hand that copies its input."""
    kernel = {
        "name": "copy",
        "source": f"def copy(x, y, n, B):\n{BODY}",
        "constexprs": ["B"],
        "names": {"tl": {"language": "triton.language"}},
    }
    launch = {"launch": 0, "grid": [1, 1, 1], "options": {"num_warps": 4}}
    launch["arguments"] = {"x": {"tensor": view(0)}, "y": {"tensor": view(1)}, "n": 32, "B": 32}
    return {
        "kernels": [kernel],
        "buffers": [128, 128],
        "given": [{"tensor": view(0), "input": 0}],
        "steps": [launch],
        "outputs": [view(1)],
        "kind": "tensor",
    }


ALLOWED = Allowed({0: ("float32", (4, 8))}, {"w": ("float32", (8,))}, most_bytes=1 << 20, most_programs=1000)


def refusal(made: dict[str, Any], allowed: Allowed = ALLOWED) -> str:
    """The reason, '' where the plan passes."""
    try:
        check_plan(read_plan(json.dumps(made)), allowed)
    except PlanRefused as error:
        return error.reason
    return ""


def test_what_was_read_of_one_plan_lets_no_other_kernel_pass() -> None:
    checked = CheckedKernels()
    check_plan(read_plan(json.dumps(plan())), ALLOWED, checked)
    check_plan(read_plan(json.dumps(plan())), ALLOWED, checked)  # the same kernels once more
    other_text, other_name, more = plan(), plan(), plan()
    other_text["kernels"][0]["source"] = "def copy(x, y, n, B):\n    import os\n"
    other_name["kernels"][0]["names"]["tl"] = {"language": "os"}
    more["kernels"].append({"name": "second", "source": "def second(x):\n    exec(x)\n"})
    for made in (other_text, other_name, more):
        with pytest.raises(PlanRefused):
            check_plan(read_plan(json.dumps(made)), ALLOWED, checked)
    broken = plan()
    broken["steps"][0]["arguments"]["z"] = 1
    with pytest.raises(PlanRefused, match="argument"):  # what belongs to the plan itself is asked of each
        check_plan(read_plan(json.dumps(broken)), ALLOWED, checked)


CONVERSION = {"operation": "aten.copy_.default", "arguments": [{"tensor": view(1)}, {"tensor": view(0, dtype="int32")}]}
# Place in the plan → what stands there instead → the reason.
FORGED: list[tuple[str, str, Any, str]] = [
    ("offset beyond the buffer", "outputs.0.offset", 1, "bad-plan"),
    ("offset that overflows 64 bits", "outputs.0.offset", 1 << 63, "bad-plan"),
    ("negative offset", "outputs.0.offset", -1, "bad-plan"),
    ("negative stride", "steps.0.arguments.x.tensor.stride", [8, -1], "bad-plan"),
    ("strides too long", "steps.0.arguments.x.tensor.stride", [9, 1], "bad-plan"),
    ("shape that overflows", "steps.0.arguments.x.tensor.shape", [1 << 40, 1 << 40], "bad-plan"),
    ("as many extents as strides", "steps.0.arguments.x.tensor.shape", [4], "bad-plan"),
    ("wider dtype", "steps.0.arguments.y.tensor.dtype", "float64", "bad-plan"),
    ("unknown dtype", "steps.0.arguments.y.tensor.dtype", "object", "bad-plan"),
    ("no such buffer", "outputs.0.buffer", 2, "bad-plan"),
    ("too much memory", "buffers.1", 1 << 40, "memory"),
    ("memory beyond 64 bits", "buffers.1", 1 << 70, "bad-plan"),
    ("a number as text", "buffers.1", "128", "bad-plan"),
    ("a fraction of a byte", "buffers.1", 128.5, "bad-plan"),
    ("huge grid", "steps.0.grid", [1 << 31, 1, 1], "grid"),
    ("grid for hours", "steps.0.grid", [1000, 1000, 1], "grid"),
    ("negative grid", "steps.0.grid", [-1, 1, 1], "bad-plan"),
    ("four dimensions", "steps.0.grid", [1, 1, 1, 1], "bad-plan"),
    ("no such kernel", "steps.0.launch", 1, "bad-plan"),
    ("nothing launched", "steps", [], "never-launched"),
    ("input returned", "outputs.0.buffer", 0, "output-aliases"),
    ("outputs that share", "outputs", [view(1), view(1)], "wrong-structure"),
    ("no outputs", "outputs", [], "wrong-structure"),
    ("argument left out", "steps.0.arguments.n", None, ""),
    ("a text for a number", "steps.0.arguments.n", "32", "bad-plan"),
    ("a tensor as a constant", "steps.0.arguments.B", {"tensor": view(0)}, "host-compute"),
    ("unknown option", "steps.0.options", {"ir_override": 1}, "bad-plan"),
    ("a path as an option", "steps.0.options.num_warps", "/etc/passwd", "bad-plan"),
    ("unknown key", "debug", True, "bad-plan"),
    ("given twice", "given", [{"tensor": view(0), "input": 0}] * 2, "bad-plan"),
    ("two sources", "given.0.parameter", "w", "bad-plan"),
    ("no source", "given.0.input", None, "bad-plan"),
    ("other input", "given.0.input", 1, "other-form"),
    ("input of another shape", "given.0.tensor", view(0, shape=[32], stride=[1]), "other-form"),
    ("parameter of another shape", "given.0", {"tensor": view(0), "parameter": "w"}, "parameters-differ"),
    ("input onto itself", "given.0.tensor.stride", [0, 1], "bad-plan"),
    ("constant too short", "given.0", {"tensor": view(0), "constant": "AAAA"}, "bad-plan"),
    ("constant that is no base64", "given.0", {"tensor": view(0), "constant": "%%%"}, "bad-plan"),
    ("operation that computes", "steps.0", {"operation": "aten.mm.default"}, "host-compute"),
    ("operation of another library", "steps.0", {"operation": "prims.add.default"}, "host-compute"),
    ("operation that loads a file", "steps.0", {"operation": "aten.from_file.default"}, "host-compute"),
    ("operation by a path", "steps.0", {"operation": "aten.mm.default.__globals__"}, "host-compute"),
    ("conversion", "steps.0", CONVERSION, "host-compute"),
    ("result onto itself", "steps.0", {"operation": "aten.fill_.Scalar", "results": [view(1, stride=[0, 1])]}, "bad-plan"),
    ("kernel by a bad name", "kernels.0.name", "copy\n", "bad-plan"),
    ("text of another function", "kernels.0.name", "other", "kernel-call"),
    ("two functions", "kernels.0.source", "def copy(x, y, n, B):\n    pass\nimport os", "kernel-call"),
    ("unknown parameter as constant", "kernels.0.constexprs", ["C"], "kernel-call"),
    ("a name of Python's library", "kernels.0.names.os", {"language": "os.system"}, "kernel-call"),
    ("Triton's internals", "kernels.0.names.core", {"language": "triton.language.core"}, "kernel-call"),
    ("assembly", "kernels.0.names.asm", {"language": "triton.language.inline_asm_elementwise"}, "kernel-call"),
    ("the interpreter's own names", "kernels.0.names.interpreter_semantic", {"constant": 1, "constexpr": False}, "kernel-call"),
    ("type that is no type", "kernels.0.types", {"n": "__import__"}, "bad-plan"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "reason"), [entry[1:] for entry in FORGED], ids=[entry[0] for entry in FORGED])
def test_a_forged_plan_is_refused(place: str, value: Any, reason: str) -> None:
    made = plan()
    *way, last = place.split(".")
    inner: Any = made
    for key in way:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[int(last) if isinstance(inner, list) else last] = value
    assert refusal(made) == reason


def test_an_honest_plan_passes_and_round_trips() -> None:
    assert refusal(plan()) == ""
    read = read_plan(json.dumps(plan()))
    assert Plan.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"kernels": 1}', "[" * 100_000, '{"plans": []}'],
    ids=["empty", "list", "null", "cut", "number", "deep", "other"],
)
def test_what_is_no_plan_is_refused_in_words(text: str) -> None:
    with pytest.raises(PlanRefused, match=r"(?i)plan"):
        read_plan(text)
    if text != '{"plans": []}':
        with pytest.raises(PlanRefused):
            read_recording(text)


# A kernel's body → whether the grammar takes it.
BODIES = {
    "tl.store(y, (lambda: 1)())": False,
    "import os": False,
    "y.__class__": False,
    "x.data.tofile('f')": False,
    "tl.load.__globals__": False,
    "tl.core.builtin": False,
    "tl.inline_asm_elementwise('', '', [], tl.int32, True, 1)": False,
    "open('f')": False,
    "getattr(x, 'handle')": False,
    "inspect.getsource(x)": False,
    "np.load('f')": False,
    "a = [np for np in (1,)]; np.load('f')": False,
    "a = [b for b in np.load('f') for np in (1,)]": False,
    "a = [np for np in np.load('f')]": False,
    "range = exec": False,
    "with x: pass": False,
    "try:\n        pass\n    except: pass": False,
    "def g(): pass": False,
    "class C: pass": False,
    "global n": False,
    "del n": False,
    "yield n": False,
    "n = (m := 3)": False,
    "x[0] = 1": False,
    "x.dtype = 1": False,
    "tl.load(*x, **n)": False,
    "{0: 1}[0]": False,
    "n = {1, 2}": False,
    "n is B": False,
    "n = 3 if x.dtype.element_ty is tl.bfloat16 else 4": True,
    "raise n": False,
    "x.handle.data": False,
    "a = b = n": False,
    "n = b'bytes'": False,
    "(tl if n else tl).load(x)": False,
    "tl": False,
    "for i in range(0, n):\n        tl.store(y, tl.load(x).to(tl.float32))": True,
    "tl.store(y, x.dtype.element_ty == tl.float32 if B > 3 else 0)": True,
    "shape = [B + i for i in (1, 2)]": True,
    "n = n if n is not None else 3": True,
    "tl.static_assert(B > 0, f'{B}')": True,
    "a, b = tl.associative_scan(x, 0, tl.sum)": True,
}


@pytest.mark.parametrize("body", BODIES)
def test_a_kernel_holds_nothing_that_is_not_named(body: str) -> None:
    made = plan()
    made["kernels"][0]["source"] = f"def copy(x, y, n, B):\n    {body}\n"
    assert refusal(made) == ("" if BODIES[body] else "kernel-call"), body


def test_an_operation_computes_where_the_task_allows_it() -> None:
    made = plan()
    product = {"operation": "aten.mm.default", "arguments": [{"tensor": view(0)}] * 2, "results": [view(1)]}
    made["steps"].append(product)
    assert refusal(made) == "host-compute"
    for allowed in ("any", ("aten.mm",), ("mm",)):
        assert refusal(made, Allowed(ALLOWED.inputs, {}, operations=allowed)) == ""
    assert refusal(made, Allowed(ALLOWED.inputs, {}, operations=("aten.bmm",))) == "host-compute"
    made["steps"][1] = {"operation": "aten.clone.default", "arguments": [{"tensor": view(0)}], "results": [view(1)]}
    assert refusal(made) == ""
    assert refusal(made, Allowed(ALLOWED.inputs, {}, copies=False)) == "host-compute"


@pytest.mark.parametrize(
    ("shape", "stride", "free"), [((2, 3), (3, 1), True), ((2, 3), (1, 2), True), ((2, 3), (2, 1), False), ((2,), (0,), False)]
)
def test_overlap(shape, stride, free) -> None:
    assert apart(Tensor(buffer=0, dtype="float32", shape=shape, stride=stride)) == free


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with compiler_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def task() -> Task:
    sizes = '\nTASK = {"sizes": {"tiny": {"ROWS": 4, "COLS": 16}}, "dtypes": ["float32"]}\n'
    return task_from_source(REFERENCE + sizes, name="bias_relu")


LAUNCH = "        bias_relu[(triton.cdiv(n, 64),)]"
TRIES = "        try:\n            n = x.numel()\n        except RuntimeError:\n            return x"
ASKS = "assert x.is_cuda and x.device.type == 'cuda' and x.get_device() == 0"
# What is changed in the honest candidate → the reason, '' where it is recorded.
HOST_CODE = {
    "nothing": ("", "", ""),
    "asks for the device": ("assert x.is_cuda", ASKS, ""),
    "tries": ("        n = x.numel()", TRIES, ""),
    "imports": ("import torch\n", "import logging\nimport torch\n", ""),
    "numbers devices": ("import torch\n", "import torch\nSTREAMS = [None] * (torch.cuda.device(0).idx + 1)\n", ""),
    "prints": ("assert x.is_cuda", "print(x, flush=True)", ""),
    "alignment": ("assert x.is_cuda", "assert x.data_ptr() % 16 == 0", ""),
    "on the GPU": ("torch.empty_like(x)", "torch.empty(x.shape, device='cuda', dtype=x.dtype)", ""),
    "reads a value": ("assert x.is_cuda", "assert x[0, 0].item() < 5", "reads-values"),
    "decides by a value": ("assert x.is_cuda", "assert x.max() < 5", "reads-values"),
    "takes it to the host": ("assert x.is_cuda", "x.cpu().numpy()", "reads-values"),
    "computes": ("y = torch.empty_like(x)", "y = torch.relu(x)", "host-compute"),
    "falls back": ("return y", "return torch.relu(x + self.bias)", "host-compute"),
    "no launch": (LAUNCH, "        (lambda *a, **k: 0)", "never-launched"),
    "on the host": ("torch.empty_like(x)", "torch.empty(x.shape)", "raised"),
    "ends": ("import torch\n", "import os; os._exit(0)\nimport torch\n", "crash"),
}


@pytest.mark.parametrize("change", HOST_CODE)
def test_host_code_is_recorded_or_refused_in_words(change: str, box: Sandbox, task: Task) -> None:
    old, new, reason = HOST_CODE[change]
    assert old in KERNEL
    found, wrong = record(KERNEL.replace(old, new, 1), task, box, box)
    assert ("" if wrong is None else wrong.reason) == reason, wrong
    assert (found is None) == bool(reason)
    if found is not None:
        sizes = [(one.form.size, one.form.training) for one in found.plans]
        assert sizes[:3] == [("tiny", False), ("full", False), ("tiny", True)]
        assert {size.rpartition("_")[0] for size, _ in sizes[3:]} == {"tiny_long_ROWS", "tiny_long_COLS"}
        full = found.plans[1].plan
        assert full.buffers == (1024 * 4, 512 * 1024 * 4, 512 * 1024 * 4)
        assert full.launches()[0].grid == (512 * 1024 // 64, 1, 1)
        assert read_recording(found.model_dump_json()) == found


def test_every_configuration_of_a_tuner_is_in_the_plan(box: Sandbox, task: Task) -> None:
    configs = "[triton.Config({'BLOCK': b}, num_warps=w) for b in (32, 64) for w in (2, 4)]"
    source = KERNEL.replace("@triton.jit", f"@triton.autotune({configs}, key=['n'])\n@triton.jit").replace(", BLOCK=64)", ")")
    source = source.replace("(triton.cdiv(n, 64),)", "lambda meta: (triton.cdiv(n, meta['BLOCK']),)")
    found, wrong = record(source, task, box, box)
    assert found is not None, wrong
    launches = found.plans[0].plan.launches()
    assert [(launch.arguments["BLOCK"], launch.options["num_warps"], launch.grid[0]) for launch in launches] == [
        (32, 2, 2), (32, 4, 2), (64, 2, 1), (64, 4, 1),
    ]  # fmt: skip


HELPERS = """\
from triton.language.math import exp as e

ZERO = tl.constexpr(0.0)


@triton.jit
def top(a):
    return tl.maximum(a, ZERO) + 0 * e(ZERO)


class Own:
    helper = top
    MOST = 3


@triton.jit
def bias_relu"""


def test_names_of_a_kernel_are_resolved(box: Sandbox, task: Task) -> None:
    """A helper in a class, a constant, and a function by another name come with what they mean."""
    source = KERNEL.replace("@triton.jit\ndef bias_relu", HELPERS).replace(
        "tl.maximum(x + b, 0.0)", "Own.helper(x + b) * Own.MOST"
    )
    found, wrong = record(source, task, box, box)
    assert found is not None, wrong
    kernels = {kernel.name: kernel for kernel in found.plans[0].plan.kernels}
    assert set(kernels) == {"bias_relu", "top"}
    assert "Own_helper(x + b) * Own_MOST" in kernels["bias_relu"].source
    made = json.loads(kernels["top"].model_dump_json())
    assert made["names"]["ZERO"] == {"constant": 0.0, "constexpr": True}
    assert made["names"]["e"] == {"language": "triton.language.exp"}


RECURRENT = """\
import torch
import torch.nn as nn

TIMES, BATCH, WIDTH = 50, 8, 48


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.{kind}(width, width + 1, num_layers=2, bidirectional={both}, batch_first={first})

    def forward(self, x):
        return torch.relu(self.cell(x)[0])


def get_inputs():
    return [torch.randn(*({shape}))]


def get_init_inputs():
    return [WIDTH]
"""
RELU = """
import triton
import triton.language as tl


@triton.jit
def relu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.maximum(tl.load(x_ptr + at, mask=at < n), 0.0), mask=at < n)


class ModelNew(Model):
    def forward(self, x):
        x = self.cell(x)[0].contiguous()
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
"""
# On a machine with CUDA PyTorch takes the tensors for ones that cuDNN can lay out anew, and asks it to.
AS_WITH_CUDA = """\
import torch
torch.backends.cudnn.m.is_available = torch.backends.cudnn.m._init = torch._use_cudnn_rnn_flatten_weight = lambda: True
"""


@pytest.mark.parametrize(("kind", "both", "first"), [("LSTM", False, True), ("GRU", True, False), ("RNN", False, False)])
def test_a_recurrent_layer_is_one_operation(kind: str, both: bool, first: bool, box: Sandbox) -> None:
    shape = "BATCH, TIMES, WIDTH" if first else "TIMES, BATCH, WIDTH"
    reference = RECURRENT.format(kind=kind, both=both, first=first, shape=shape)
    task = task_from_source(reference, name="recurrent")
    for before in ("", AS_WITH_CUDA):
        found, wrong = record(before + reference + RELU, task, box, box)
        assert found is not None, wrong
        full = next(one.plan for one in found.plans if one.form.size == "full")
        names = [step.operation for step in full.steps if isinstance(step, Operation)]
        assert f"aten.{'rnn_tanh' if kind == 'RNN' else kind.lower()}.input" in names
        assert len(full.steps) <= 5
    verdict = KernelVerifier(task, box).verify(reference + RELU)
    assert verdict.accepted, verdict
    assert 0 < verdict.evidence["share"] < 0.1
    strict = replace(task, operations="none")
    assert KernelVerifier(strict, box).verify(reference + RELU).reason == "host-compute"
    _, wrong = record(reference.replace("num_layers=2", "num_layers=2, dropout=0.1") + RELU, task, box, box)
    assert wrong is not None
    assert (wrong.reason, "random" in wrong.message) == ("host-compute", True)
