"""The template of kernels with one lane an output element."""

from __future__ import annotations

import textwrap

from honest.render import Kernel, Launch, Solution

FLAT = """
at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
mask = at < total
"""
STORE = "\ntl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=mask)"
NORM_INIT = (
    "self.gain = nn.Parameter(torch.ones(out))\nself.shift = nn.Parameter(torch.zeros(out))\n"
    'self.register_buffer("running_mean", torch.zeros(out))\nself.register_buffer("running_var", torch.ones(out))'
)
NORM_LOADS = """
gain = tl.load(gain_ptr + channel, mask=mask, other=1.0).to(tl.float32)
shift = tl.load(shift_ptr + channel, mask=mask, other=0.0).to(tl.float32)
mean = tl.load(mean_ptr + channel, mask=mask, other=0.0).to(tl.float32)
var = tl.load(var_ptr + channel, mask=mask, other=1.0).to(tl.float32)
value = (value - mean) * tl.rsqrt(var + 1e-5) * gain + shift
"""
NORM_VALUES = {
    "gain_ptr": "self.gain",
    "shift_ptr": "self.shift",
    "mean_ptr": "self.running_mean",
    "var_ptr": "self.running_var",
}


def flat(
    task: str,
    forward: tuple[str, ...],
    tensors: dict[str, str],
    numbers: tuple[str, ...],
    body: str,
    host: tuple[str, ...],
    block: int,
    init: str = "",
    init_arguments: tuple[str, ...] = (),
    constants: dict[str, str] | None = None,
) -> Solution:
    """A kernel with one lane an output element. `numbers` are host names of the same name in the kernel."""
    kernel = Kernel(
        f"{task}_kernel", (*tensors, "out_ptr", "total", *numbers), ("BLOCK", *(constants or {})), FLAT + body + STORE
    )
    values = {**tensors, "out_ptr": "out", "total": "total", **{name: name for name in numbers}}
    launch = Launch(kernel, ("triton.cdiv(total, @BLOCK@)",), values, {"BLOCK": str(block), **(constants or {})})
    return Solution(task, forward, (*host, "total = out.numel()", launch, "return out"), init, init_arguments)


def dedent(text: str) -> str:
    """A kernel's statements without the indentation they have here."""
    return textwrap.dedent(text)
