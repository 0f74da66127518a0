"""What host code may change and call on its own objects: what is certainly its own, under whatever name, and nothing else."""

from pathlib import Path

import pytest
from warm import kernel_box

from windtunnel.verify.kernel import KernelVerifier, check_source
from windtunnel.verify.tasks import catalogue

FILES = Path(__file__).parent / "attacks" / "files"

HEAD = """\
import math
from dataclasses import asdict
import torch
import torch.nn as nn
import triton
import triton.language as tl

KEPT = [0]


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, tl.maximum(x, 0.0).to(y_ptr.type.element_ty), mask=at < n)


def relu(x):
    y = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y


class Relu(nn.Module):
    def forward(self, x):
        return relu(x)
"""


def candidate(forward: str = "", init: str = "pass", extra: str = "", ends: str = "return relu(x)", methods: str = "") -> str:
    lines = "\n".join("        " + line for line in [*forward.splitlines(), ends])
    made = "\n".join("        " + line for line in init.splitlines())
    more = "\n".join("    " + line for line in methods.splitlines())
    return (
        f"{HEAD}\n{extra}\n\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n\n"
        f"{more}\n\n    def forward(self, x):\n{lines}\n"
    )


OPTIONS = "def options(n):\n    if n > 9:\n        return {'a': 1}\n    made = dict(b=2)\n    return made\n"
WARPS = "def warps(n):\n    return 4 if n > 9 else 8\n"
LEGAL = {
    "a copy": candidate("mine = KEPT.copy()\nmine.append(1)"),
    "what a helper made": candidate("mine = options(x.numel())\nmine['c'] = mine.pop('b', 0)", extra=OPTIONS),
    "a number by a second name": candidate("n = x.numel()\nleft = n\nwhile left > 0:\n    left -= 64"),
    "a helper's number": candidate("n = warps(x.numel())\nn *= 2", extra=WARPS),
    "an attribute's number": candidate("at = self.at\nif at < 0:\n    at += x.dim()", init="self.at = -1\nself.dim = 3"),
    "one more": candidate("at = self.at\nat += 1\nat -= x.ndim", init="self.at = -1"),
    "the next power of two": candidate("n = self.n\nn -= 1\nn |= n >> 1\nn |= n >> 2", init="self.n = 9"),
    "settings of a tensor": candidate("made = {'device': x.device, 'dtype': x.dtype}\ny = torch.empty(3, **made)"),
    "settings of a parameter": candidate(init="made = {'device': None}\nself.weight = nn.Parameter(torch.empty(3, **made))"),
    "modules of a type": candidate(
        "held = [m for m in self.net if isinstance(m, (nn.Linear, nn.Conv2d))]", init="self.net = nn.Sequential()"
    ),
    "the rest of a shape": candidate("*lead, last = x.shape\nlead.append(last)"),
    "a module of its own": candidate(init="self.relu = Relu()", ends="return self.relu(x)"),
    "its forward": candidate(init="self.relu = Relu()", ends="y = self.relu.forward(x)\n        return y"),
    "a lambda": candidate("g = self.grid(3)", init="self.grid = lambda n: (n,)"),
    "a function": candidate(init="self.act = relu", ends="return self.act(x)"),
    "a method of what it holds": candidate(
        init="self.held = Held()",
        extra="class Held:\n    def run_it(self, x):\n        return relu(x)\n",
        ends="return self.held.run_it(x)",
    ),
    "apply of a class that derives from nothing": candidate(
        extra="class Held:\n    @staticmethod\n    def apply(x):\n        return relu(x)\n", ends="return Held.apply(x)"
    ),
    "a method that constructs": candidate(init="self.set_up()", methods="def set_up(self):\n    self.block = 64\n"),
    "one that it calls": candidate(
        init="self.set_up()",
        methods="def set_up(self):\n    self.draw()\n\ndef draw(self):\n    self.t = torch.randn(3).normal_()\n",
    ),
    "fans": candidate(init="fan, _ = nn.init._calculate_fan_in_and_fan_out(torch.empty(3, 4))\nself.fan = fan"),
    "remarks": "__all__ = ['ModelNew']\n__version__ = '1'\n" + candidate(extra="class Held:\n    __constants__ = ['a']\n"),
}
HELD = "class Held:\n    def __init__(self, f):\n        self.copy = f\n        self.dim = f\n        self.shape = [[1]]\n"
OTHER = "class Other(nn.Module):\n    def __init__({own}):\n        super().__init__()\n        {own}.act = {value}\n"
REFUSED = {
    "keeps-state": {
        "a second name": "mine = KEPT\nmine += [1]",
        "a list by a second name": "first = KEPT\nmine = first\nmine *= 2",
        "a copy of its own making": ("mine = Held(lambda: KEPT).copy()\nmine.append(1)", HELD),
        "a helper that hands it out": ("mine = options(1)\nmine.append(1)", "def options(n):\n    return KEPT\n"),
        "a helper that may": ("mine = options(1)\nmine.append(1)", "def options(n):\n    return KEPT if n else []\n"),
        "a helper's argument": ("mine = same(KEPT)\nmine.append(1)", "def same(a):\n    b = a\n    a = []\n    return b\n"),
        "a helper bound anew": ("mine = options(1)\nmine.append(1)", OPTIONS + "options = lambda n: KEPT\n"),
        "a helper's name": ("options = lambda n: KEPT\nmine = options(1)\nmine.append(1)", OPTIONS),
        "a builtin's name": "list = lambda: KEPT\nmine = list()\nmine.append(1)",
        "a factory": "mine = asdict(self.options, dict_factory=lambda pairs: KEPT)\nmine.append(1)",
        "a slice of a shape": "mine = self.kept\nmine += x.shape[0:1]",
        "a shape by no number": "mine = self.kept\nmine += x.size(*())",
        "shifted by what it names": "mine = self.kept\nmine += KEPT[0] << KEPT",
        "two numbers": "mine = self.kept\nmine += math.frexp(1.0)",
        "its own shape": ("mine = self.kept\nmine += Held(0).shape[0]", HELD),
        "its own question": ("mine = self.kept\nmine += Held(lambda: [1]).dim()", HELD),
        "tested, then bound": "n = self.n\nif n < 0:\n    n = KEPT\n    n += [1]",
        "tested otherwise": "n = self.kept\nif n or n < 0:\n    n += [1]",
        "in the else": "n = self.kept\nif n == 0:\n    pass\nelse:\n    n += [1]",
    },
    "host-compute": {
        "a module of torch": candidate(init="self.act = nn.ReLU()", ends="return self.act(relu(x))"),
        "of another class": candidate(
            init="self.act = nn.ReLU()", extra=OTHER.format(own="self", value="Relu()"), ends="return self.act(relu(x))"
        ),
        "under another name of self": candidate(
            init="self.act = Relu()", extra=OTHER.format(own="this", value="nn.ReLU()"), ends="return self.act(relu(x))"
        ),
        "drawn in what forward calls too": candidate(
            "self.set_up()", init="self.set_up()", methods="def set_up(self):\n    self.t.normal_()\n"
        ),
    },
    "unknown-call": {
        "of one's own at a class": candidate(
            init="self.act = Relu()", extra="class Other:\n    act = nn.Identity\n", ends="return self.act(relu(x))"
        ),
        "anything": candidate("self.pick(x)", init="self.pick = PICKS['a']", extra="PICKS = {'a': relu}\n"),
        "added by name": candidate(
            init="self.act = Relu()\nself.add_module('act', nn.ReLU())", ends="return self.act(relu(x))"
        ),
    },
    "dynamic-code": {"remarks that are read": "__all__ = [0]\n" + candidate("kept = __all__")},
    "reaches-into-python": {
        "fans in forward": candidate("nn.init._calculate_fan_in_and_fan_out(x)"),
    },
}  # fmt: skip


def text_of(given: str | tuple[str, str]) -> str:
    if isinstance(given, tuple):
        return candidate(given[0], extra=given[1])
    return given if "class ModelNew" in given else candidate(given)


@pytest.mark.parametrize("name", LEGAL)
def test_its_own_passes(name: str) -> None:
    found = check_source(LEGAL[name])
    assert found is None, found.message


@pytest.mark.parametrize(("slug", "name"), [(slug, name) for slug, some in REFUSED.items() for name in some])
def test_what_may_last_or_be_anything_is_refused(slug: str, name: str) -> None:
    found = check_source(text_of(REFUSED[slug][name]))
    assert found is not None
    assert found.reason == slug, found.message


def test_setting_up_again_in_forward_is_refused() -> None:
    for methods in ("def again(self):\n    self.set_up()\n", "again = property(lambda self: self.set_up())\n"):
        source = candidate(init="self.set_up()", methods="def set_up(self):\n    self.n = 1\n" + methods)
        found = check_source(source)
        assert found is not None
        assert found.reason == "keeps-state", found.message


@pytest.mark.parametrize(
    "forward",
    [
        "made = {'out': self.kept}\ny = torch.empty(3, **made)",
        "made = {'dtype': x.dtype}\nmade['out'] = self.kept\ny = torch.empty(3, **made)",
        "made = {'dtype': x.dtype}\nother = made\nother.update(out=self.kept)\ny = torch.empty(3, **made)",
        "made = {'dtype': x.dtype, **self.kept}\ny = torch.empty(3, **made)",
        "made = {'dtype': x.dtype}\nmade |= self.kept\ny = torch.empty(3, **made)",
        "made = {'dtype': x.dtype}\nfor made in self.kept:\n    y = torch.empty(3, **made)",
        "y = (lambda made: torch.empty(3, **made))(self.kept)\nmade = {'dtype': x.dtype}",
        "y = torch.empty(3, **self.kept)",
        "y = torch.empty(3, **{'out': self.kept})",
    ],
)
def test_settings_that_may_write_into_a_tensor_are_refused(forward: str) -> None:
    found = check_source(candidate(forward, init="self.kept = {}"))
    assert found is not None
    assert found.reason in ("host-compute", "keeps-state"), found.message


def test_a_module_of_torch_is_no_value_for_a_function_named_isinstance() -> None:
    for forward in ("ask = lambda isinstance: isinstance(x, nn.Linear)", "y = nn.Linear(3, 3)(x)", "kind = nn.Linear"):
        found = check_source(candidate(forward))
        assert found is not None
        assert found.reason == "host-compute", found.message


def test_words_say_what_to_write() -> None:
    said = {
        "y = x.to(torch.float32)": "Convert in the kernel",
        "y = x.float()": "Convert in the kernel",
        "return relu(x).sum()": "in a second launch",
        "torch.cuda.synchronize()": "Leave it out",
        "n = x.max().item()": "Give the kernel the tensor",
        "y = torch.cat([x, x])": "masks and strides",
        "y = x.cuda()": "Inputs and parameters are on the GPU",
        "if not x.is_cuda:\n    return torch.relu(x)": "ask it in an assert",
        "n = self.n\nn *= 2": "write n = n * ...",
        "mine = self.kept\nmine['a'] = 1": "change a copy: dict(mine), list(mine)",
        "self.n = 1": "outside of __init__",
    }
    for forward, words in said.items():
        found = check_source(candidate(forward))
        assert found is not None
        assert words in found.message


def test_a_pointers_type_in_a_kernel_and_modules_of_its_own_run() -> None:
    with kernel_box() as box:
        for name in ("a copy", "a module of its own", "a lambda", "an attribute's number"):
            verdict = KernelVerifier(catalogue()["relu"], box).verify(LEGAL[name])
            assert verdict.accepted, verdict.message


BY_TEXT = (
    "a30_self_after_slash",
    "a30_static_constructor",
    "a30_list_put_in_later",
    "a30_slice_put_in_later",
    "a30_copy_in_module_dictionary",
    "a30_copy_by_walrus",
    "a30_numel_of_named_tuple",
    "a30_plus_tensor",
    "a30_parameter_of_tensor",
    "a30_own_method_of_anything",
    "a32_seed_in_constructor",
)


@pytest.mark.parametrize("name", BY_TEXT)
def test_the_text_alone_tells(name: str) -> None:
    found = check_source((FILES / f"{name}.py").read_text(encoding="utf-8"))
    assert found is not None
    assert found.stage == "allow-list"


STILL = {
    "a tally": "left = [3, 4]\nleft[0] = x.numel()\nleft[0] += 2\nleft[1] = left[0] * 2\nleft.append(1)",
    "buffers by number and a copy": "mine = KEPT.copy()\nmine.append(1)\nn = self.n\nn += x.dim()",
}


@pytest.mark.parametrize("name", STILL)
def test_what_is_harmless_stays_allowed(name: str) -> None:
    init = "self.n = 3\nfor i in range(2):\n    self.register_buffer(f'table_{i}', None)"
    assert check_source(candidate(STILL[name], init=init)) is None


BLOCK = """\
class Block(nn.Module):
    scale = 2

    def __init__(self, n):
        super(Block, self).__init__()
        self.w = torch.randn(n).mul_(2)
        nn.init.zeros_(self.w)

    def forward(self, x):
        return relu(x)


class Holder:
    def __init__(self, n):
        self.block = Block(Block.scale)
"""
IN_CONSTRUCTORS = {
    "directly": ("self.block = Block(3)", ""),
    "in a list": ("self.blocks = nn.ModuleList([Block(n) for n in range(2)])", ""),
    "by another class": ("self.holder = Holder(3)", ""),
    "its type is asked": ("self.block = Block(3)", "assert isinstance(self.block, Block)\nn = Block.scale"),
}
IN_FORWARD = {
    "directly": ("pass", "block = Block(3)"),
    "by another class": ("pass", "holder = Holder(3)"),
    "through a value": ("self.kind = Block", "block = self.kind(3)"),
    "through a lambda": ("self.make = lambda: Block(3)", "block = self.make()"),
}


@pytest.mark.parametrize("name", IN_CONSTRUCTORS)
def test_what_is_made_with_the_model_may_draw_numbers(name: str) -> None:
    init, forward = IN_CONSTRUCTORS[name]
    assert check_source(candidate(forward, init=init, extra=BLOCK)) is None


@pytest.mark.parametrize("name", IN_FORWARD)
def test_what_forward_makes_draws_none(name: str) -> None:
    init, forward = IN_FORWARD[name]
    found = check_source(candidate(forward, init=init, extra=BLOCK))
    assert found is not None
    assert found.reason == "host-compute"
