"""An engine's own parameters against the learner's, tensor by tensor: the canary alone could miss a small one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .types import CheckFailed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from windtunnel.rl import EngineProcess
    from windtunnel.train import CausalJob

BASE, ADAPTER = ".base_layer", ".lora_"


def compare_tensors(job: CausalJob, engine: EngineProcess, file: Path, version: int, dtype: torch.dtype) -> int:
    """How many parameters the engine has, all the learner's: names, shapes, dtype and values. Raises CheckFailed.

    Args:
        file: gets the engine's parameters, by transformers' names.
    """
    from safetensors.torch import load_file

    saved = engine.save(file)
    if saved != version:
        raise CheckFailed(f"the engine saved version {saved} of its weights, it loaded version {version}")
    there, here = load_file(file), _learners(job)
    if there.keys() != here.keys():
        name = min(there.keys() ^ here.keys())
        who = "the learner trains with" if name in here else "the engine computes with"
        raise CheckFailed(f"only {who} {name}")
    for name, (shape, value) in here.items():
        found = there[name]
        if found.dtype != dtype:
            raise CheckFailed(f"{name} is {found.dtype} in the engine, {dtype} was published")
        if found.shape != shape:
            raise CheckFailed(f"{name} is {tuple(found.shape)} in the engine, {tuple(shape)} in the learner")
        if value is not None and not _alike(found, value):
            far = float((found.double() - value.double()).abs().max())
            raise CheckFailed(f"{name} is not the learner's: the engine's differs by up to {far:.2g}")
    return len(here)


def unmoved(job: CausalJob, first: Path, second: Path) -> tuple[int, list[str]]:
    """How many of the engine's tensors the learner trains, and which of them are the same in both files."""
    import torch
    from safetensors.torch import load_file

    before, after = load_file(first), load_file(second)
    trained = set()
    for name, parameter in job.network.model.named_parameters():
        if parameter.requires_grad:
            trained.add(f"{name.split(ADAPTER)[0]}.weight" if ADAPTER in name else name)
    return len(trained), sorted(name for name in trained if torch.equal(before[name], after[name]))


def _learners(job: CausalJob) -> dict[str, tuple[torch.Size, Tensor | None]]:
    """Shape and value of each parameter as it should be in an engine, in fp32; None for the value of what is packed in fp8.

    Not by the code that publishes: adapters are merged by peft.
    """
    from windtunnel.train import whole_tensor

    model = job.network.model
    found: dict[str, tuple[torch.Size, Tensor | None]] = {}
    for name, parameter in model.named_parameters():
        if ADAPTER in name or name.endswith("_scale"):
            continue
        if name.endswith("_fp8"):
            rows, half = parameter.shape[:-1], parameter.shape[-1]
            name = name.removesuffix("_fp8").replace(BASE, "")
            found[name] = type(parameter.shape)((*rows, 2 * half)), None
            continue
        value = whole_tensor(parameter).float()
        if BASE in name and name.endswith(".weight"):
            adapter: Any = model.get_submodule(name.split(BASE)[0])
            value = value + whole_tensor(adapter.get_delta_weight("default")).float()
        found[name.replace(BASE, "")] = parameter.shape, value
    return found


def _alike(engine: Tensor, learner: Tensor) -> bool:
    """The same in the engine's dtype, or the number next to it where a merged sum was rounded in another order."""
    import torch

    rounded = learner.to(engine.dtype)
    step = torch.finfo(engine.dtype).eps * rounded.double().abs().clamp(min=1e-3)
    return bool(((engine.double() - rounded.double()).abs() <= step).all())
