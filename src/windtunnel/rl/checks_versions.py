"""Versions of the weights that an engine must refuse, and its parameters compared with the learner's one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import CheckFailed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from windtunnel.rl import EngineProcess, Publisher
    from windtunnel.train import HFJob

    from .snapshot import WeightSnapshot


# Half-written, damaged and stale versions.

SHARD_BYTES = 1 << 16
"""Of a scale model's files, so that it has several."""


def watched_publisher(folder: Path, copy: Path) -> Publisher:
    """Return a publisher that copies what is on the disk while it writes, which is what a kill would leave, to `copy`."""
    from windtunnel.rl import Publisher

    # Copied from within `publish`: no kill could be timed to the moment in which all but the manifest is there.
    class Watched(Publisher):
        def publish(
            self, version: int, weights: Iterable[tuple[str, Tensor]], config: dict[str, Any], canary: Any
        ) -> WeightSnapshot:
            return super().publish(version, _then(weights, partial(_photograph, folder, copy)), config, canary)

    return Watched(folder, shard_bytes=SHARD_BYTES)


def half_written_is_passed_over(engine: EngineProcess, copy: Path, complete: int) -> None:
    """Prove it: in the copy of a folder in which a version was being written, the one before is the newest."""
    from windtunnel.rl import BrokenSnapshot, newest_snapshot, open_snapshot

    path = newest_snapshot(copy)
    found = None
    if path is not None:
        try:
            found = open_snapshot(path).version
        except BrokenSnapshot as error:
            raise CheckFailed(f"a half-written version stands among the complete ones: {error}") from None
    if found != complete:
        raise CheckFailed(f"of a half-written version and complete version {complete}, version {found} is taken for the newest")
    for torn in (path for path in copy.iterdir() if ".tmp-" in path.name):
        _refused(f"a half-written version ({torn.name})", partial(engine.load, torn, complete + 1))


def damaged_are_refused(engine: EngineProcess, whole: Path, folder: Path, version: int) -> None:
    """Spoil a file each way: cut short, with another byte, gone."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, damage in (("cut", _cut), ("changed", _change), ("gone", Path.unlink)):
        copy = folder / name / whole.name
        shutil.copytree(whole, copy)
        damage(max(copy.glob("*.safetensors"), key=lambda file: file.stat().st_size))
        _refused(f"a version with a file {name}", partial(engine.load, copy, version))


def stale_is_noticed(engine: EngineProcess, old: Path, answered: int, wanted: int) -> None:
    """Put an old version in the place of the new one, and ask for answers by old weights."""
    from windtunnel.rl import require_fresh

    _refused("an old version in the place of the new one", partial(engine.load, old, wanted))
    _refused("answers by an old version", partial(require_fresh, answered, wanted))


def _refused(what: str, action: Callable[[], Any]) -> None:
    from windtunnel.rl import BrokenSnapshot, StaleWeights

    try:
        action()
    except (BrokenSnapshot, StaleWeights):
        return
    raise CheckFailed(f"{what} is taken for good")


def _then(weights: Iterable[tuple[str, Tensor]], action: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    yield from weights
    action()  # all but the last file are written


def _photograph(folder: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)


def _cut(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(file.stat().st_size - 1)


def _change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    # The highest bit of the last number's fraction, which no parser and no size gives away.
    content[-2] ^= 0x40
    file.write_bytes(bytes(content))


# Tensor by tensor: log-probabilities alone could miss a small one.

BASE, ADAPTER = ".base_layer", ".lora_"


def compare_tensors(job: HFJob, engine: EngineProcess, file: Path, version: int, dtype: torch.dtype) -> int:
    """Return how many parameters the engine has, all the learner's: names, shapes, dtype and values. Raises CheckFailed.

    Args:
        job: the learner.
        engine: that holds the learner's weights.
        file: gets the engine's parameters, by transformers' names.
        version: of the weights that the engine holds.
        dtype: of the engine's parameters.
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


def unmoved(job: HFJob, first: Path, second: Path) -> tuple[int, list[str]]:
    """Return how many of the engine's tensors the learner trains, and which of them are the same in both files."""
    import torch
    from safetensors.torch import load_file

    before, after = load_file(first), load_file(second)
    trained = set()
    for name, parameter in job.network.model.named_parameters():
        if parameter.requires_grad:
            # Engines have the base merged with its adapter: where only the adapter is trained that tensor changes.
            trained.add(f"{name.split(ADAPTER)[0]}.weight" if ADAPTER in name else name)
    return len(trained), sorted(name for name in trained if torch.equal(before[name], after[name]))


def _learners(job: HFJob) -> dict[str, tuple[torch.Size, Tensor | None]]:
    """Return shape and fp32 value of each parameter as it should be in an engine; no value of what is packed in fp8.

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
            # peft's own arithmetic is the second opinion on how adapters are merged here.
            value = value + whole_tensor(adapter.get_delta_weight("default")).float()
        found[name.replace(BASE, "")] = parameter.shape, value
    return found


def _alike(engine: Tensor, learner: Tensor) -> bool:
    """Return whether both are the same in the engine's dtype, or next to it where a sum was rounded in another order."""
    import torch

    rounded = learner.to(engine.dtype)
    step = torch.finfo(engine.dtype).eps * rounded.double().abs().clamp(min=1e-3)
    return bool(((engine.double() - rounded.double()).abs() <= step).all())
