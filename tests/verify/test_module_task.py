"""Tasks from users' own files: what is missing of KernelBench's form is written below them, and runs as they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from windtunnel.recipe import UserError
from windtunnel.verify import tasks_of_module

HEAD = "import torch\nfrom torch import nn\n\n\n"
SCALED = (
    HEAD
    + """\
class Scaled(nn.Module):
    def __init__(self, width, by=2.0, *, shift=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.by, self.shift = by, shift

    def forward(self, x):
        return x * self.weight * self.by + self.shift


"""
)


def run(source: str) -> tuple[Any, list[Any], list[Any]]:
    """Return (model, inputs, arguments of the constructor) of a task's source."""
    space: dict[str, Any] = {"__name__": "task"}
    exec(compile(source, "task", "exec"), space)
    arguments = space["get_init_inputs"]()
    return space["Model"](*arguments), space["get_inputs"](), arguments


@pytest.mark.parametrize(
    ("below", "options", "arguments", "shape"),
    [
        ("model = Scaled(32)\nexample_inputs = (torch.randn(8, 32),)\n", {}, [32], (8, 32)),
        ("x = torch.randn(8, 32)\nmodel = Scaled(32, by=3.0).eval()\ninputs = [x]\n", {}, [32, 3.0], (8, 32)),
        ("model = Scaled(by=3.0, width=32, shift=1.0)\nexample_inputs = torch.randn(8, 32)\n", {}, [32, 3.0], (8, 32)),
        ("", {"inputs": "torch.randn(8, 32)", "init": "32, shift=1.0"}, [32], (8, 32)),
        ("def example_inputs():\n    return torch.rand(8, 32)\n", {"init": "32"}, [32], (8, 32)),
        ("def get_inputs():\n    return [torch.rand(8, 32)]\ndef get_init_inputs():\n    return [32]\n", {}, [32], (8, 32)),
    ],
)
def test_a_module_with_example_inputs_is_a_task(below: str, options: dict[str, str], arguments: list[Any], shape: Any) -> None:
    first, *_ = tasks_of_module(SCALED + below, "scaled", "scaled.py", **options)
    model, inputs, given = run(first.source)
    assert given == arguments
    assert [tuple(x.shape) for x in inputs] == [shape]
    shift = 1.0 if "shift" in below + str(options) else 0.0
    by = given[1] if len(given) > 1 else 2.0
    assert torch.equal(model(*inputs), inputs[0] * by + shift)
    _, again, _ = run(first.source)
    assert not torch.equal(again[0], inputs[0]), "drawn anew by each call"


def test_sizes_that_are_written_out_get_names_so_that_others_can_be_tried() -> None:
    below = "model = Scaled(32)\nexample_inputs = (torch.randn(8, 32),)\n"
    first, plain = tasks_of_module(SCALED + below, "scaled", "scaled.py")
    assert first.guessed
    smaller = first.source.replace("SIZE_32 = 32", "SIZE_32 = 7")
    model, inputs, _ = run(smaller)
    assert model(*inputs).shape == (8, 7)
    assert (plain.guessed, dict(plain.sizes)) == (False, {"tiny": {}})


@pytest.mark.parametrize(
    "below",
    [
        'model = Scaled(1 << 40).cuda()\nexample_inputs = (torch.randn(8, 1 << 40, device="cuda"),)\n',
        "x = torch.randn(8, 1 << 40)\nmodel = Scaled(1 << 40).eval()\nexample_inputs = [\n    x,\n]\n",
        "inputs = torch.randn(8, 1 << 40); model = Scaled(1 << 40)  # on one line\n",
    ],
)
def test_the_files_own_instance_and_inputs_are_read_and_not_made(below: str) -> None:
    for task in tasks_of_module(SCALED + below, "scaled", "scaled.py"):
        space: dict[str, Any] = {"__name__": "task"}
        exec(compile(task.source, "task", "exec"), space)
        assert space["get_init_inputs"]() == [1 << 40]


def test_what_else_is_done_with_an_instance_stays() -> None:
    below = "WIDTH = 32\nx = torch.zeros(8, WIDTH)\nmodel = Scaled(x.shape[1])\nexample_inputs = (x,)\nmodel.eval()\n"
    first, _ = tasks_of_module(SCALED + below, "scaled", "scaled.py")
    model, inputs, given = run(first.source)
    assert "model.eval()" in first.source
    assert "example_inputs" not in first.source
    assert (given, model(*inputs).shape) == ([32], (8, 32))


def test_files_in_kernelbenchs_form_are_taken_as_they_are() -> None:
    source = SCALED.replace("Scaled", "Model") + "N = 32\n\n\ndef get_inputs():\n    return [torch.randn(N)]\n\n\n"
    source += "def get_init_inputs():\n    return [N]\n"
    (task,) = tasks_of_module(source, "mine", "mine.py")
    assert task.source == source


def test_a_module_called_model_needs_its_inputs_alone() -> None:
    source = SCALED.replace("Scaled", "Model") + "model = Model(32, shift=1.0)\nexample_inputs = (torch.zeros(8, 32),)\n"
    first, _ = tasks_of_module(source, "mine", "mine.py")
    model, inputs, _ = run(first.source)
    assert torch.equal(model(*inputs), torch.ones(8, 32))


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("def f(:", {}, "not Python"),
        (SCALED + "return\n", {}, "'return' outside function"),
        (HEAD, {}, "no class that derives from torch.nn.Module"),
        (SCALED + "class Other(nn.Module):\n    pass\n", {}, "several modules: Scaled, Other"),
        (SCALED, {"module": "Scled"}, "there is no class Scled"),
        (SCALED, {"init": "32"}, "says no example inputs"),
        (SCALED, {"inputs": "torch.randn(3)"}, "takes 1 argument that the file does not give"),
        (SCALED, {"inputs": "x=torch.randn(3)", "init": "32"}, "by place"),
        (SCALED, {"inputs": "torch.randn(", "init": "32"}, "--inputs 'torch.randn(': not Python"),
    ],
)
def test_what_is_missing_is_named(source: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        tasks_of_module(source, "mine", "mine.py", **options)
    assert words in refused.value.message
    assert refused.value.fix
