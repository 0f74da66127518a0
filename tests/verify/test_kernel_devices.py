"""A device is handed on to what allocates, in many styles, and tells nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

from test_kernel_fresh import candidate

from windtunnel.verify.kernel import check_source

HELPER = "def alloc(shape, device, dtype):\n    return torch.empty(shape, device=device, dtype=dtype)\n"
PICK = "def pick(where):\n    return 64 if {} else 32\n"
LEGAL = {
    "a name": candidate("device, dtype = x.device, x.dtype\ny = torch.empty(3, dtype=dtype, device=device)"),
    "options": candidate("options = {'device': x.device, 'dtype': x.dtype}\ny = alloc(3, **options)", extra=HELPER),
    "dict": candidate("options = dict(device=x.device, dtype=x.dtype)\ny = alloc(3, **options)", extra=HELPER),
    "a helper": candidate("y = alloc(x.shape, x.device, dtype=x.dtype)", extra=HELPER),
    "an attribute": candidate(
        "y = self.alloc(x.device)", methods="def alloc(self, where):\n    return torch.zeros(1, device=where)"
    ),
    "properties": candidate("p = torch.cuda.get_device_properties(x.device)\nn = p.multi_processor_count"),
    "properties by number": candidate("n = torch.cuda.get_device_properties(x.device.index).multi_processor_count"),
    "context": candidate("with torch.cuda.device(x.device):\n    pass"),
    "asserts": candidate("assert x.device == KEPT, f'on {x.device}'\nassert x.device.type == 'cuda'"),
    "raises": candidate("if x.device != self.w.device:\n    raise ValueError(f'{x.device}')", init="self.w = torch.zeros(3)"),
    "property": candidate(
        "y = torch.empty(3, device=self.device)",
        init="self.w = torch.zeros(3)",
        methods="@property\ndef device(self):\n    return self.w.device",
    ),
    "of the module": candidate("y = torch.empty(3, device=WHERE)", extra="WHERE = torch.device('cuda')\n"),
    "a text": candidate("y = alloc(3, device='cuda', dtype=x.dtype)", extra=HELPER),
    "by default": candidate(
        "y = alloc(3)", extra="def alloc(n, device=torch.device('cuda')):\n    return torch.empty(n, device=device)\n"
    ),
    "a partial": candidate("make = partial(torch.empty, device=x.device)\ny = make(3)", extra="from functools import partial\n"),
    "a field": candidate(
        "s = Scratch(x.device)\ny = torch.empty(3, device=s.device)",
        extra="from dataclasses import dataclass\n@dataclass\nclass Scratch:\n    device: torch.device\n",
    ),
}
REFUSED = {
    "in a lambda": candidate(extra="PICK = lambda x: x.device == torch.device('cpu')\n"),
    "in a helper": candidate("n = pick(x.device)", extra=PICK.format("where == torch.device('cpu')")),
    "by name": candidate("n = pick(where=x.device)", extra=PICK.format("str(where)")),
    "in options": candidate("options = dict(device=x.device)\nn = 1 if options['device'] == KEPT else 2"),
    "in a list": candidate("n = [torch.device('cpu')].index(x.device)"),
    "as its number's truth": candidate("n = 1 if x.device.index else 2"),
    "by name of its number": candidate("n = x.device.index\nm = 1 if n is None else 2"),
    "in a field of another name": candidate(
        "n = 1 if Scratch(x.device).at == KEPT else 2",
        extra="from dataclasses import dataclass\n@dataclass\nclass Scratch:\n    at: torch.device\n",
    ),
    "by a helper's second definition": candidate("n = pick(x.device)", extra=PICK.format("where == KEPT") + PICK.format("1")),
    "through a lambda": candidate("f = lambda d: d == torch.device('cpu')\nn = f(x.device)"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_device_may_be_handed_on(name: str) -> None:
    assert check_source(LEGAL[name]) is None


@pytest.mark.parametrize("name", REFUSED)
def test_a_device_tells_nothing(name: str) -> None:
    found = check_source(REFUSED[name])
    assert found is not None
    assert found.reason == "reads-mode"
