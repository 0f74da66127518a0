"""Which names and attributes a candidate may reach: none leads to a module, and each is what Python takes it for."""

import builtins
import importlib
import inspect
import itertools
from types import ModuleType

import pytest
from test_kernel_static import HEAD, KERNEL, LAUNCH, candidate

from windtunnel.verify.kernel import check_source
from windtunnel.verify.kernel.text import members, rules


def reason(source: str) -> str:
    found = check_source(source)
    return "" if found is None else found.reason


def forward(line: str) -> str:
    return f"y = torch.empty_like(x)\n{line}\n{LAUNCH}\nreturn y"


def reachable(value: object) -> dict[str, object]:
    """What the rules let a candidate read on a value."""
    found = {}
    for name in members.READABLE | members.NAMED_TUPLE | members.LIMITS:
        try:
            found[name] = inspect.getattr_static(value, name)
            found[name] = getattr(value, name)
        except Exception:
            continue
    return found


def test_no_listed_name_is_a_module_or_leads_to_one() -> None:
    looked_at = 0
    for module, names in rules.MODULES.items():
        real = importlib.import_module(module)
        for name in names:
            value = real
            for part in name.split("."):
                value = getattr(value, part, None)
            if f"{module}.{name}" in rules.MODULES or (module == "collections" and name == "abc"):
                continue
            assert not isinstance(value, ModuleType), f"{module}.{name}"
            for attribute, inner in reachable(value).items():
                assert not isinstance(inner, ModuleType), f"{module}.{name}.{attribute}"
                for further, last in reachable(inner).items():
                    assert not isinstance(last, ModuleType), f"{module}.{name}.{attribute}.{further}"
            looked_at += value is not None
    assert looked_at > 400


def test_every_public_attribute_of_tensors_is_sorted() -> None:
    import torch

    sorted_out = members.READABLE | members.COMPUTES | rules.TENSOR_METHODS | rules.CONTAINER_METHODS | rules.MODULE_METHODS
    for name in dir(torch.Tensor):
        if not name.startswith("_"):
            assert name in sorted_out | set(rules.BANNED_ATTRIBUTES) or name.rstrip("_") in sorted_out, name
    assert not (members.READABLE & members.COMPUTES)
    for name in members.READABLE - {"type", "stride", "is_floating_point", "is_complex", "is_signed", "index"}:
        assert not callable(getattr(torch.Tensor, name, None)), name


def test_what_is_private_of_tensors_modules_and_kernels_is_known() -> None:
    import torch

    for value in (torch.zeros(1), torch.nn.Linear(1, 1)):
        for name in dir(value):
            if name.startswith("_") and not name.startswith("__"):
                assert name in members.INTERNALS or name.rstrip("_") in members.INTERNALS, name


SHADOWS = {
    "a lambda's argument": ("", "h = lambda {0}: 0"),
    "a comprehension's target": ("", "H = [0 for {0} in ()]"),
    "an annotation alone": ("", "{0}: int"),
    "below the main guard": ("", "if __name__ == '__main__':\n    {0} = 1"),
    "an import that never runs": ("", "def unused():\n    from math import sqrt as {0}\n    return {0}"),
    "an import in an unused helper": ("", "def get_inputs():\n    from math import sqrt as {0}\n    return {0}"),
    "bound after its use": ("", "T = {0}(3)\n{0} = 1"),
    "a lambda beside it": ("h = lambda {0}: 0", ""),
    "a comprehension beside it": ("h = [{0} for {0} in ()]", ""),
    "a comprehension's own iterable": ("h = [0 for {0} in ({0}(x),)]", ""),
}


@pytest.mark.parametrize("how", SHADOWS)
@pytest.mark.parametrize("name", ["type", "getattr", "vars", "hash", "__import__"])
def test_a_builtin_is_never_read_in_a_names_stead(how: str, name: str) -> None:
    line, extra = (text.format(name) for text in SHADOWS[how])
    assert reason(candidate(forward(f"{line}\nf = {name}(x)"), extra=extra + "\n")) in (
        "patches",
        "overrides",
        "unknown-name",
        "dynamic-code",
    )
    assert hasattr(builtins, name)


OWN = "class Tile:\n    {0} = 0\n    def peek(self):\n        return self.{0}\n"
LEAKS = {
    "unknown-name": [
        candidate(forward("kind = type(x)")),
        candidate(forward("kind = type(x)(3)")),
        candidate(forward("raise type('Kind', (), {})")),
    ],
    "host-compute": [
        candidate(forward("warps = 16 if torch.version.cuda else 32")),
        candidate("return self.pad(x)", init="self.pad = nn.ZeroPad2d(1)"),
        candidate(forward("f = x.relu"), extra=OWN.format("relu")),
        candidate(forward("f = x.numpy"), extra=OWN.format("numpy_")),
        candidate(forward("f = x.relu or 3"), extra=OWN.format("relu")),
        candidate(forward("f = (lambda self: self.relu)(x)"), extra=OWN.format("relu")),
        candidate(forward("f = [self.relu for self in [x]]"), extra=OWN.format("relu")),
        candidate(forward("out = x.softmax(-1)"), extra="class Tile:\n    def softmax(self, n):\n        return n\n"),
        candidate(forward("f = x.relu"), init="self.register_buffer('relu', torch.zeros(1))"),
        candidate(forward("Tile = lambda: x\nt = Tile()\nf = t.relu"), extra=OWN.format("relu")),
        candidate(
            forward("t = make(x)\nf = t.relu"),
            extra=OWN.format("relu") + "def make(y):\n    if y:\n        return y\n    return Tile()\n",
        ),
        candidate(
            forward("t = make(x)\nf = t.relu"),
            extra=OWN.format("relu") + "def make(y):\n    def inner():\n        return Tile()\n    return inner() or y\n",
        ),
        candidate(forward("f = list(map(torch.Tensor.tolist, [x]))")),
        candidate(forward("f = torch.nn.Parameter.numpy")),
        candidate(forward("f = nn.Module.register_forward_hook")),
        candidate(forward("s = f'{x:{x.numpy()}}'")),
    ],
    "unknown-call": [
        candidate(forward("f = Tile.peek(double_kernel)"), extra=OWN.format("fn")),
        candidate(forward("f = triton.runtime")),
    ],
    "unknown-attribute": [
        candidate(forward("f = SEEN.append"), extra="SEEN = []\n"),
        candidate(forward("f = double_kernel.params")),
        candidate(forward("f = '{0.shape}'.format")),
    ],
    "type-as-value": [
        candidate(forward("f = T"), extra="T = torch.Tensor\n"),
        candidate(forward("a = isinstance(x, (T := torch.Tensor))")),
    ],
    "reaches-into-python": [
        candidate(forward("raise TypeError(x.__name__)")),
        candidate(forward("raise TypeError(type(x).__dict__)")),
        candidate(forward("s = '{0.shape}'.format(x)")),
        candidate(forward("s = '{:{0[a]}}'.format(x)")),
        candidate(forward("s = str.format('{0.shape}', x)")),
        candidate(forward("f = self._modules")),
        candidate(forward("f = self.__init__\nf()")),
        candidate(forward("f = (i for i in ()).gi_frame")),
        candidate(extra="def helper(x: torch.sys.modules):\n    return x\n"),
        candidate().replace("BLOCK: tl.constexpr)", "BLOCK: torch.sys.modules)"),
        candidate().replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr = torch.sys)"),
    ],
    "statement": [
        candidate(extra="N: (f := torch.relu) = 1\n"),
        candidate(extra="def helper(x) -> (f := torch.relu):\n    return x\n"),
    ],
    "patches": [
        candidate(forward("with torch.cuda.device(0) as torch.empty:\n    pass")),
        candidate(forward("self = x")),
        candidate(forward("math = x\nf = math.exp"), extra="import math\n"),
        candidate(extra="def unused():\n    import math as torch\n    return torch.exp(1)\n"),
    ],
    "keeps-state": [
        candidate(forward("a = [0 for self.kept in [x]]")),
        candidate(forward("a = [0 for KEPT[0] in [x]]"), extra="KEPT = [0]\n"),
        candidate(forward("for self.kept in [x]:\n    pass")),
    ],
    "overrides": [
        candidate(init="nn.Module.__init__(self, 3)"),
        candidate(init="nn.Linear.__init__(self)"),
        candidate(extra="class Tile:\n    (__call__, b) = (1, 2)\n"),
        candidate(extra="class Tile:\n    a = (__call__ := 3)\n"),
        candidate(extra="class Tile:\n    def m(self, a=(__getattr__ := 3)):\n        return a\n"),
        candidate(init="self._forward_hooks = {}"),
        candidate(extra="def __getattr__(name):\n    return name\n"),
    ],
    "dynamic-code": [candidate(forward("f = nn")), candidate(forward("f = [tl.math]"))],
    "kernel-call": [
        candidate().replace("* 2,", "* tl.core.builtins.len((1, 2)),"),
        candidate().replace("* 2,", "* torch,"),
    ],
}


@pytest.mark.parametrize(("slug", "source"), [(slug, source) for slug, some in LEAKS.items() for source in some])
def test_no_way_out(slug: str, source: str) -> None:
    found = check_source(source)
    assert found is not None
    assert found.reason == slug, found.message


LEGAL = {
    "the GPU's properties": forward("p = torch.cuda.get_device_properties(x.device)\nn = p.multi_processor_count"),
    "limits": forward("low = torch.finfo(x.dtype).min\ninfo = torch.finfo(x.dtype)\nhigh = info.max + info.eps"),
    "a dtype's size": forward("n = torch.float16.itemsize + x.dtype.itemsize"),
    "texts": forward("s = '{:>4} {} {name}'.format(1, x.shape, name='a')\nassert x.is_contiguous(), f'{x.shape}'"),
    "isinstance": forward("assert isinstance(x, torch.Tensor)\nassert isinstance(x.shape, (tuple, torch.Size))"),
    "arguments called like builtins": forward("f = lambda input, type: (input, type)\ng = [id for id in range(3)]"),
    "thrown away": forward("for _, __ in [(1, 2)]:\n    pass"),
    "chained": forward("n = list(itertools.chain.from_iterable([[1], [2]]))"),
    "a field named like an operation": forward("plan = Plan(True, 2)\nf = plan.relu\nn = plan._rows"),
    "a list of fields": forward("for plan in [Plan(True, 2)]:\n    if plan.relu:\n        n = 3"),
    "a named tuple": forward("tile = Tile(3, 4)._replace(rows=2)\nn = tile.rows * tile._fields.index('rows')"),
    "layers' weights": forward("for layer in self.layers:\n    n = layer.norm.weight.shape"),
    "a type in an error": forward("if x.dim() > 9:\n    raise TypeError(f'{type(x)!r}, {type(x).__name__}')"),
    "a type in an assert": forward("assert x.dim() < 9, f'{type(x)}'"),
    "another maker's GPU": forward("warps = 16 if torch.version.hip else 32"),
    "a recurrent layer's weights": forward("n = self.rnn.weight_ih_l0.shape"),
    "views as values": forward("size = x.size\nn = size(0)"),
}
MORE = """
import itertools
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional


@dataclass
class Plan:
    relu: bool
    _rows: int


class Tile(NamedTuple):
    rows: int
    columns: Optional[int] = None


Maker = Callable[[torch.Tensor], Optional["torch.Tensor"]]


def keep(configs, arguments, **more) -> list:
    return [config for config in configs if config.kwargs["BLOCK"] <= 64 and config.num_warps < 8]
"""


@pytest.mark.parametrize("name", LEGAL)
def test_honest_attributes_pass(name: str) -> None:
    found = check_source(candidate(LEGAL[name], extra=MORE, init="self.norm = nn.LayerNorm(3)"))
    assert found is None, found.message


def test_a_kernel_that_is_pruned_and_annotated_passes() -> None:
    tuned = (
        "@triton.autotune([triton.Config({'BLOCK': 64})], key=['n'], prune_configs_by={'early_config_prune': keep})\n@triton.jit"
    )
    source = candidate(extra="").replace(HEAD + KERNEL, HEAD + MORE + KERNEL.replace("@triton.jit", tuned))
    assert check_source(source.replace(", BLOCK=64)", ")")) is None


def test_allowed_and_banned_do_not_overlap() -> None:
    for left, right in itertools.combinations((members.READABLE, members.COMPUTES, members.LEADS_OUT, members.INTERNALS), 2):
        assert not left & right
    assert not members.LEADS_OUT & (rules.TENSOR_METHODS | rules.CONTAINER_METHODS | rules.CONSTRUCTION_METHODS)
