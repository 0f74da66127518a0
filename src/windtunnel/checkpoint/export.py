"""Weights in Hugging Face's layout: safetensors shards with an index, what describes the model, and checksums of all.

    model.safetensors                      or model-00001-of-00003.safetensors ... with
    model.safetensors.index.json           which tensor is in which file, and the bytes of all
    config.json or shape.json, tokenizer.json; of an adapter adapter_config.json, and the weights are called adapter_model
    checksums.json                         size and checksum of every other file, and where the weights are from

Tensors pass one after the other: at most one shard of them is held. The folder gets its name by one rename.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.files import fsync_folder, give_usual_permissions
from windtunnel.recipe import UserError

from .folder import DamagedCheckpoint, Written, checksum, differing_file
from .store import Which, choose_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

CHECKSUMS = "checksums.json"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 2 << 30
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Exported:
    """An exported folder.

    Attributes:
        step: of which its weights are.
        bytes: of all tensors.
        files: of the tensors, by name.
        dtype: of the tensors: fp32, bf16 or fp16.
        warnings: what to know, such as that a better checkpoint was damaged.
        rounding: of merged weights, how large the error of their rounding is beside the adapter's change (1: as large);
            None: no adapter was merged.
    """

    folder: Path
    step: int
    bytes: int
    files: tuple[str, ...]
    dtype: str
    warnings: tuple[str, ...] = ()
    rounding: float | None = None


@dataclass
class Shards:
    """Tensors that were written: their bytes, and which is in which file."""

    bytes: int = 0
    files: dict[str, str] = field(default_factory=dict)


def export_run(
    run: Path | str, to: Path | str, *, dtype: str = "bf16", which: Which = "best", shard_bytes: int = SHARD_BYTES
) -> Exported:
    """Write a checkpoint's weights, what describes the model and its tokenizer into a folder that `windtunnel serve` takes.

    Args:
        run: the run's folder.
        to: the folder, or model.safetensors in it; an earlier export there is replaced.
        dtype: fp32, bf16 or fp16; whole numbers keep theirs.
        which: the checkpoint: 'best', 'newest' or a step.
        shard_bytes: of a file at most, unless one tensor is larger.

    Raises:
        UserError: no run, no good checkpoint, `to` holds something else, or it cannot be written.
    """
    target = export_folder(Path(to))
    chosen = choose_checkpoint(Path(run), which, "to export")
    checkpoint = chosen.checkpoint
    beside = [chosen.run.path / name for name in checkpoint.beside]
    facts = {"run": chosen.run.path.name, "step": checkpoint.step, "validation_loss": checkpoint.validation_loss, "dtype": dtype}
    # The loss goes into the folder's facts: of two exports one can tell which is the better.
    written = write_export(
        target, cast_tensors(checkpoint.part().tensors(), dtype), config=checkpoint.config, beside=beside, facts=facts,
        shard_bytes=shard_bytes,
    )  # fmt: skip
    return Exported(target, checkpoint.step, written.bytes, tuple(sorted(set(written.files.values()))), dtype, chosen.warnings)


def export_folder(to: Path) -> Path:
    """Return the folder that `--to` names, by itself or by the weights in it. Raises UserError."""
    if to.suffix != ".safetensors":
        return to
    if to.name != "model.safetensors":
        raise UserError(
            f"--to {to}: the shape and the tokenizer go beside the weights, which are always called model.safetensors",
            f"use --to {to.with_suffix('')}",
        )
    return to.parent


def cast_tensors(tensors: Iterable[tuple[str, Tensor]], dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Yield floating-point tensors in another type."""
    import torch

    wanted = getattr(torch, DTYPES[dtype])
    for name, tensor in tensors:
        yield name, tensor.to(wanted) if tensor.is_floating_point() else tensor


def write_export(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], *, config: Mapping[str, Any], beside: Iterable[Path] = (),
    facts: Mapping[str, Any] | None = None, shard_bytes: int = SHARD_BYTES, stem: str = "model",
) -> Shards:  # fmt: skip
    """Write a folder of weights; it exists when this returns, and is as it was before if it raises.

    Args:
        folder: new, empty, or an earlier export, which is replaced.
        tensors: on the host, by the names that they get; taken one by one.
        config: files that describe the model, by name, as JSON.
        beside: files to copy: the tokenizer.
        facts: where the weights are from (JSON).
        shard_bytes: of a file at most, unless one tensor is larger.
        stem: what the weights' files are called.

    Raises:
        UserError: the folder holds something else, or cannot be written.
    """
    # Only what an export wrote is ever replaced: --to may name somebody's home by mistake.
    if folder.exists() and not (folder / CHECKSUMS).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and is no exported model", "name another folder with --to, or remove that one")
    # Beside the folder, on the same disk: a rename there is one step, and either all is new or nothing.
    temporary = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        shards = write_shards(temporary, tensors, shard_bytes, stem)
        for name, content in config.items():
            (temporary / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for path in beside:
            shutil.copyfile(path, temporary / path.name)
        files = {path.name: checksum(path).to_json() for path in sorted(temporary.iterdir())}
        (temporary / CHECKSUMS).write_text(json.dumps({**(facts or {}), "files": files}, indent=1) + "\n", encoding="utf-8")
        to_disk(temporary)
        _replace(temporary, folder)
    except OSError as error:
        words = f"the weights cannot be written into {folder}: {error.strerror or error}"
        raise UserError(words, "name another folder with --to") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return shards


def write_shards(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int = SHARD_BYTES, stem: str = "model"
) -> Shards:
    """Write tensors into safetensors files as transformers names them, and their index if there are several.

    Raises:
        ValueError: a name comes twice, or there are no tensors.
        OSError: the disk.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    made = Shards()
    numbers: dict[str, int] = {}
    for shard in _grouped(tensors, shard_bytes):
        # How many shards there will be is known only after the last one: until then files are called by number alone.
        number = max(numbers.values(), default=0) + 1
        twice = shard.keys() & numbers.keys()
        if twice:
            raise ValueError(f"{min(twice)} comes twice")
        path = folder / f"{stem}-{number:05d}.safetensors"
        try:
            save_file(shard, path, metadata={"format": "pt"})
        except SafetensorError as error:  # an OSError in safetensors' words
            if (number_in := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(number_in[1]), os.strerror(int(number_in[1])), str(path)) from None
        give_usual_permissions(path)
        numbers |= dict.fromkeys(shard, number)
        made.bytes += sum(tensor.nbytes for tensor in shard.values())
        del shard  # before the next one is gathered
    if not numbers:
        raise ValueError("there are no weights")
    count = max(numbers.values())
    names = {n: f"{stem}-{n:05d}-of-{count:05d}.safetensors" if count > 1 else f"{stem}.safetensors" for n in range(1, count + 1)}
    for number, name in names.items():
        (folder / f"{stem}-{number:05d}.safetensors").rename(folder / name)
    made.files = {tensor: names[number] for tensor, number in numbers.items()}
    if count > 1:
        index = {"metadata": {"total_size": made.bytes}, "weight_map": made.files}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return made


def _grouped(tensors: Iterable[tuple[str, Tensor]], most: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in order, as many together as a file takes."""
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in tensors:
        if shard and held + tensor.nbytes > most:
            yield shard
            shard, held = {}, 0
        if name in shard:
            raise ValueError(f"{name} comes twice")
        # safetensors writes memory as it lies; a view would bring all that it is a view of.
        shard[name] = tensor.contiguous()
        held += tensor.nbytes
        del tensor
    if shard:
        yield shard


def to_disk(folder: Path) -> None:
    """Flush a folder's files, so that after a power cut no name stands for less than it should."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    fsync_folder(folder)


def _replace(temporary: Path, folder: Path) -> None:
    """Give a folder its name; what has that name goes after it."""
    # Two renames, since one cannot replace a folder that is not empty; a kill between them leaves both folders whole.
    old = folder.with_name(f"{folder.name}.tmp-old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_export(folder: Path) -> bool:
    """Return whether a folder holds exported weights, rather than a run."""
    # A run's folder has a recipe, whatever else somebody put there.
    weights = (folder / "model.safetensors").is_file() or (folder / INDEX).is_file()
    return weights and not (folder / "recipe.yaml").is_file()


def verify_export(folder: Path) -> dict[str, Any]:
    """Check every file of an exported folder against its checksum; returns what it says of itself.

    Folders without checksums, such as the hub's, say nothing: {}.

    Raises:
        DamagedCheckpoint: a file is missing or was changed: the message names it.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return {}
    fix = "export it again: windtunnel export RUN --to FOLDER"
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {name: Written(item["bytes"], item["checksum"]) for name, item in facts["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}", fix) from None
    for name, written in files.items():
        problem = differing_file(folder, name, written)
        if problem:
            raise DamagedCheckpoint(f"damaged model: {problem}", fix)
    return facts
