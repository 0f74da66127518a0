"""An object counts as one of the candidate's own classes only where the text shows that it can be nothing else."""

from __future__ import annotations

import pytest
from test_kernel_static import LAUNCH, candidate

from windtunnel.verify import check_source

OWN = (
    "class Tile:\n    def __init__(self, rows=4):\n        self.rows = rows\n\n    def softmax(self, x):\n        return x\n\n"
    "class Other:\n    def __init__(self):\n        self.tile = Tile()\n"
)
USE = f"y = torch.empty_like(x)\n{LAUNCH}\n"

GIVEN = {
    "one call": ("def use(tile: Tile, x):\n    return tile.softmax(x)\n", "use(Tile(), x)"),
    "by its name": ("def use(x, tile: Tile):\n    return tile.softmax(x)\n", "use(tile=Tile(2), x=x)"),
    "by default": ("DEFAULT = Tile()\n\ndef use(x, tile: Tile = DEFAULT):\n    return tile.softmax(x)\n", "use(x)"),
    "none": ("def use(x, tile: Tile = None):\n    return x if tile is None else tile.softmax(x)\n", "use(x)"),
    "handed on": (
        "def use(x, tile: Tile):\n    return tile.softmax(x)\n\ndef first(x, tile: Tile):\n    return use(x, tile)\n",
        "first(x, Tile())",
    ),
    "by itself": ("def use(x, tile: Tile, n=3):\n    return use(x, tile, n - 1) if n else tile.softmax(x)\n", "use(x, Tile())"),
    "what a function makes": (
        "def make(n):\n    return Tile(n)\n\ndef use(x, tile: Tile):\n    return tile.softmax(x)\n",
        "use(x, make(3))",
    ),
    "a method": ("class Tool:\n    def use(self, x, tile: Tile):\n        return tile.softmax(x)\n", "Tool().use(x, Tile())"),
}
NOT_GIVEN = {
    "a tensor": ("def use(tile: Tile, x):\n    return tile.softmax(x)\n", "use(x, x)"),
    "one call of two": ("def use(tile: Tile, x):\n    return tile.softmax(x)\n", "use(x, 0) if x.dim() else use(Tile(), x)"),
    "by its name": ("def use(x, tile: Tile):\n    return tile.softmax(x)\n", "use(tile=x, x=0)"),
    "by default": ("DEFAULT = torch.empty(3)\n\ndef use(tile: Tile = DEFAULT):\n    return tile.softmax(0)\n", "use()"),
    "handed on": (
        "def use(tile: Tile):\n    return tile.softmax(0)\n\ndef first(tile: Tile):\n    return use(tile)\n",
        "first(x)",
    ),
    "behind a star": ("def use(tile: Tile):\n    return tile.softmax(0)\n", "use(*[x])"),
    "behind two": ("def use(tile: Tile):\n    return tile.softmax(0)\n", "use(**{'tile': x})"),
    "as a value": ("def use(tile: Tile):\n    return tile.softmax(0)\n", "[f(x) for f in [use]]"),
    "a method as a value": (
        "class Tool:\n    def use(self, tile: Tile):\n        return tile.softmax(0)\n",
        "[f(x) for f in [Tool().use]]",
    ),
    "a method by another name": (
        "class Tool:\n    def use(self, tile: Tile):\n        return tile.softmax(0)\n    again = use\n",
        "Tool().again(x)",
    ),
    "called": ("class Tool(nn.Module):\n    def forward(self, tile: Tile):\n        return tile.softmax(0)\n", "Tool()(x)"),
    "registered": (
        "class Tool(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('tile', torch.empty(3))\n    def use(self):\n        return self.tile.softmax(0)\n",
        "Tool().use()",
    ),
    "a property": (
        "class Tool:\n    @property\n    def tile(self):\n        return torch.empty(3)\n"
        "    def use(self):\n        return self.tile.softmax(0)\n",
        "Tool().use()",
    ),
    "a field": (
        "class Tool(NamedTuple):\n    tile: torch.Tensor\n    def use(self):\n        return self.tile.softmax(0)\n",
        "Tool(x).use()",
    ),
    "another name for self": (
        "class Tool:\n    def __init__(this):\n        this.tile = torch.empty(3)\n"
        "    def use(self):\n        return self.tile.softmax(0)\n",
        "Tool().use()",
    ),
    "no self at all": ("def use(self):\n    return self.tile.softmax(0)\n", "use(x)"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_annotation_that_every_call_keeps_is_believed(name: str) -> None:
    extra, call = GIVEN[name]
    found = check_source(candidate(f"{USE}{call}\nreturn y", extra=OWN + extra))
    assert found is None, found.message


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_what_may_be_a_tensor_computes(name: str) -> None:
    extra, call = NOT_GIVEN[name]
    found = check_source(candidate(f"{USE}{call}\nreturn y", extra="from typing import NamedTuple\n" + OWN + extra))
    assert found is not None
    assert found.reason == "host-compute", found.message
    assert "softmax" in found.message


def test_a_long_chain_of_claims_is_not_believed_and_takes_no_time() -> None:
    chain = "".join(f"def f{n}(tile: Tile):\n    return f{n + 1}(tile)\n" for n in range(400))
    last = "def f400(tile: Tile):\n    return tile.softmax(0)\n"
    found = check_source(candidate(f"{USE}f0(x)\nreturn y", extra=OWN + chain + last))
    assert found is not None
    assert found.reason == "host-compute"
