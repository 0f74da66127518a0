"""Puts kernels and their launches into a candidate file, in one of several legal styles of writing host code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """A jit function: runtime arguments, constexpr arguments, the statements of its body."""

    name: str
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    body: str
    helper: str = ""  # text of jit functions that the body calls


@dataclass(frozen=True)
class Launch:
    """One launch. `grid` may name constants as @NAME@; `values` and `constants` are host expressions by argument."""

    kernel: Kernel
    grid: tuple[str, ...]
    values: Mapping[str, str]
    constants: Mapping[str, str]


@dataclass(frozen=True)
class Style:
    """How the host code is written. Every combination is legal and means the same."""

    name: str = "plain"
    launch: str = "positional"  # positional | keyword | lambda | meta | closure
    alias: str = "usual"  # usual | short | from
    warps: int | None = None
    stages: int | None = None
    autotune: str | None = None  # the constant to tune over, or "" to tune warps only
    documented: bool = False  # docstrings, type hints, asserts with f-strings
    config: str | None = None  # None | dataclass | attribute | named-tuple: where the constants are kept
    wrapped: bool = False  # the launch lives in a module-level function that forward calls
    method: bool = False  # ... or in a method of the class
    prelude: str = ""  # extra module-level text


@dataclass(frozen=True)
class Solution:
    """One honest solution before it is written down in a style."""

    task: str
    forward: tuple[str, ...]  # argument names
    host: tuple[str | Launch, ...]  # statements of forward; the last is the return
    init: str = ""
    init_arguments: tuple[str, ...] = ()
    module: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


def render(solution: Solution, style: Style) -> str:
    """The candidate's text."""
    launches = {part.kernel.name: part for part in solution.host if isinstance(part, Launch)}
    parts = ["import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"]
    if style.config == "dataclass":
        parts.insert(0, "from dataclasses import dataclass\n")
    if style.documented:
        parts.insert(0, f'"""A Triton version of {solution.task}: every element is written exactly once."""\n')
    parts += [style.prelude, solution.module]
    parts += [_kernel(launch, style) for launch in launches.values()]
    parts += [_config(solution, style), _class(solution, style)]
    return _aliased("\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n", style)


def _kernel(launch: Launch, style: Style) -> str:
    kernel = launch.kernel
    signature = ", ".join([*kernel.arguments, *(f"{name}: tl.constexpr" for name in kernel.constants)])
    body = textwrap.indent(textwrap.dedent(kernel.body).strip("\n"), "    ")
    if style.documented:
        body = f'    """{kernel.name}: one program handles one tile; masked at the edges."""\n' + body
    head = "@triton.jit\n"
    if style.autotune is not None:
        head = _tuning(launch, style) + head
    return (
        textwrap.dedent(kernel.helper).strip("\n") + "\n\n\n" if kernel.helper else ""
    ) + f"{head}def {kernel.name}({signature}):\n{body}"


def _tuning(launch: Launch, style: Style) -> str:
    keys = [name for name in launch.kernel.arguments if not name.endswith("_ptr")][:2]
    tuned = _tuned(launch, style)
    configs = [f"triton.Config({{}}, num_warps={warps})" for warps in (1, 2, 4)]
    if tuned:
        (constant,) = tuned
        configs = [f'triton.Config({{"{constant}": {size}}}, num_warps={warps})' for size, warps in ((32, 1), (64, 2), (128, 4))]
    return (
        "@triton.autotune(\n    configs=[\n        "
        + ",\n        ".join(configs)
        + f",\n    ],\n    key={keys!r},\n)\n".replace("'", '"')
    )


def _tuned(launch: Launch, style: Style) -> set[str]:
    """The constant that autotune chooses: one whose value is a free number, not one that the shape dictates."""
    return {style.autotune} if style.autotune and launch.constants.get(style.autotune, "").isdigit() else set()


def _config(solution: Solution, style: Style) -> str:
    if style.config != "dataclass":
        return ""
    constants = _literals(solution)
    if not constants:
        return ""
    lines = "\n".join(f"    {key.lower()}: int = {value}" for key, value in constants.items())
    return f"@dataclass(frozen=True)\nclass Tiles:\n{lines}\n\n\nTILES = Tiles()"


def _literals(solution: Solution) -> dict[str, str]:
    """Constants whose host expression is a plain number."""
    found: dict[str, str] = {}
    for part in solution.host:
        if isinstance(part, Launch):
            found.update({key: value for key, value in part.constants.items() if value.isdigit()})
    return found


def _class(solution: Solution, style: Style) -> str:
    lines = ["class ModelNew(nn.Module):"]
    if style.documented:
        lines.append('    """Same parameters as the reference; the arithmetic is in the kernels above."""')
    if style.config == "attribute":
        lines += [f"    {key} = {value}" for key, value in _literals(solution).items()]
    arguments = "".join(f", {name}" for name in solution.init_arguments)
    lines += [f"    def __init__(self{arguments}):", "        super().__init__()"]
    lines += [textwrap.indent(solution.init, " " * 8)] if solution.init else []
    tensors = ", ".join(f"{name}: torch.Tensor" if style.documented else name for name in solution.forward)
    lines.append(f"\n    def forward(self, {tensors}){' -> torch.Tensor' if style.documented else ''}:")
    if style.documented:
        first = solution.forward[0]
        lines.append(f'        assert {first}.numel() > 0, f"empty input of shape {{tuple({first}.shape)}}"')
    after: list[str] = []
    for part in solution.host:
        text = _launch(part, style, after) if isinstance(part, Launch) else part
        lines.append(textwrap.indent(text, " " * 8))
    if not style.wrapped:
        return "\n".join(lines + after)
    return "\n\n\n".join([*after, "\n".join(lines)])


def _constants(launch: Launch, style: Style) -> dict[str, str]:
    tuned = _tuned(launch, style)
    values = {key: value for key, value in launch.constants.items() if key not in tuned}
    if style.config == "dataclass":
        return {key: f"TILES.{key.lower()}" if value.isdigit() else value for key, value in values.items()}
    if style.config == "attribute":
        return {key: f"self.{key}" if value.isdigit() else value for key, value in values.items()}
    return values


def _launch(launch: Launch, style: Style, after: list[str]) -> str:
    constants = _constants(launch, style)
    meta = dict(constants)
    if style.autotune is None:
        meta |= {"num_warps": str(style.warps)} if style.warps else {}
        meta |= {"num_stages": str(style.stages)} if style.stages else {}
    positional = ", ".join(launch.values[name] for name in launch.kernel.arguments)
    keyed = ", ".join(f"{name}={launch.values[name]}" for name in launch.kernel.arguments)
    keywords = "".join(f", {key}={value}" for key, value in meta.items())
    name = launch.kernel.name
    form = "lambda" if _tuned(launch, style) and style.launch not in ("lambda", "closure") else style.launch
    plain = (
        "(" + ", ".join(_filled(part, launch.constants if _tuned(launch, style) else constants) for part in launch.grid) + ",)"
    )
    within = "(" + ", ".join(re.sub(r"@(\w+)@", r'META["\1"]', part) for part in launch.grid) + ",)"
    if form == "keyword":
        return f"{name}[{plain}]({keyed}{keywords})"
    if form == "lambda":
        return f"grid = lambda META: {within}\n{name}[grid]({positional}{keywords})"
    if form == "meta":
        entries = ", ".join(f'"{key}": {value}' for key, value in meta.items())
        return f"grid = {plain}\nmeta = {{{entries}}}\n{name}[grid]({positional}, **meta)"
    if form == "closure":
        return f"def grid(META):\n    return {within}\n\n{name}[grid]({keyed}{keywords})"
    if style.wrapped or style.method:
        return _outlined(launch, style, plain, meta, after)
    return f"{name}[{plain}]({positional}{keywords})"


def _outlined(launch: Launch, style: Style, plain: str, meta: Mapping[str, str], after: list[str]) -> str:
    """The launch in a function or a method of its own, with what it needs as arguments."""
    words = " ".join([plain, *(launch.values[name] for name in launch.kernel.arguments), *meta.values()])
    names = sorted(set(re.findall(r"(?<![\w.\"])([A-Za-z_]\w*)", words)) - {"triton", "torch", "self", "min", "TILES"})
    outer = f"run_{launch.kernel.name}"
    call = f"{launch.kernel.name}[{plain}]({', '.join(launch.values[n] for n in launch.kernel.arguments)}"
    call += "".join(f", {key}={value}" for key, value in meta.items()) + ")"
    if style.method:
        after.append(f"\n    def {outer}(self, {', '.join(names)}):\n        {call}")
        return f"self.{outer}({', '.join(names)})"
    takes = [*(["module"] if "self." in words else []), *names]
    after.append(f"def {outer}({', '.join(takes)}):\n    {call.replace('self.', 'module.')}")
    return f"{outer}({', '.join([*(['self'] if 'self.' in words else []), *names])})"


def _filled(part: str, constants: Mapping[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda found: constants[found.group(1)], part)


def _aliased(text: str, style: Style) -> str:
    if style.alias == "short":
        text = text.replace(
            "import triton\nimport triton.language as tl\n", "import triton as tr\nfrom triton import language as L\n"
        )
        return re.sub(r"(?<![\w.])triton\.", "tr.", re.sub(r"(?<![\w.])tl\.", "L.", text))
    if style.alias == "from":
        text = text.replace(
            "import triton\nimport triton.language as tl\n",
            "import triton\nimport triton.language as tl\nfrom triton import cdiv, jit, next_power_of_2\n",
        )
        text = text.replace("@triton.jit", "@jit").replace("triton.cdiv", "cdiv")
        return text.replace("triton.next_power_of_2", "next_power_of_2")
    return text


def names(styles: Sequence[Style]) -> list[str]:
    """The styles' names."""
    return [style.name for style in styles]
