"""The conversion of a folder: many tensors at a time, shard by shard, so that a killed one goes on and no folder is ever half.

FOLDER.partial/            while it runs
    job.json               what is converted, and how: another conversion does not go on with it
    done.jsonl             a line for each finished shard, with its tensors' checksums
    model-00007...part     shards that are being written; renamed when they are whole and on the disk
FOLDER/                    at the end, by one rename
    model-*.safetensors, model.safetensors.index.json, config.json, tokenizer and other small files
    conversion.json        what was made of each tensor: extrema, what is not finite, checksums before and after
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from windtunnel.check import one_thread
from windtunnel.files import fsync_folder, write_json
from windtunnel.model import FETCH_AGAIN, INDEX, StoredModel, read_stored
from windtunnel.recipe import UserError, parse_json

from .entries import Choice, make_config, make_entries
from .quantization import MODELOPT
from .shards import NOTES, Progress, Shard, ShardWriter, digest_of, plan_shards, weight_bytes

REPORT = "conversion.json"
SMALL = 100_000_000
"""Larger files that are no weights, such as another format's, are not copied."""
SPARE = 64 << 20
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".part", ".incomplete")
OWN = (INDEX, "config.json", REPORT, "checksums.json", MODELOPT)


@dataclass(frozen=True)
class Converted:
    """A folder that was written, or was there.

    Attributes:
        bytes: of its tensors.
        kept: shards that an earlier, interrupted conversion had finished.
        report: the content of conversion.json.
        reused: everything was there before.
    """

    folder: Path
    bytes: int
    shards: int
    kept: int
    seconds: float
    report: dict[str, Any]
    reused: bool = False


def convert_folder(
    source: Path | str, to: Path | str, choice: Choice | None = None, *, workers: int | None = None, device: str = "cpu",
    progress: Progress = lambda done, total: None, stop: threading.Event | None = None,
) -> Converted:  # fmt: skip
    """Convert a model's folder into another; it has its name when this returns, and what was done is kept if it raises.

    Args:
        source: safetensors files, their index, config.json.
        to: new, empty, or what an interrupted conversion left.
        choice: what is converted, and to what; None for everything to bf16.
        workers: threads; None for one for each core, at most 16.
        device: cpu, cuda (all of them), or cuda:0.
        progress: told how far it is.
        stop: set from elsewhere, it ends the conversion as an interrupt would.

    Raises:
        UserError: the source is not whole or not known, the place is taken, or the disk is full or failing.
        KeyboardInterrupt: stopped.
    """
    begun, choice = time.monotonic(), choice or Choice()
    source, to = Path(source), Path(to).absolute()
    read = read_stored(source)
    if not (source / "config.json").is_file():
        raise UserError(f"{source} has no config.json, without which nothing loads the weights", FETCH_AGAIN)
    entries, left_out = make_entries(read, choice)
    config = make_config(read.config, choice, entries)
    shards = plan_shards(entries)
    job = {"to": asdict(choice), "config": config, "shards": {shard.name: digest_of(shard) for shard in shards}}
    # As it will be read back: tuples become lists, and would differ.
    job = json.loads(json.dumps(job))
    devices = _devices(device, workers)
    _check_place(source, to)
    if (to / REPORT).is_file():
        return _there(to, read, job, shards, begun)
    partial = to.with_name(f"{to.name}.partial")
    # Before the folder is made; what an earlier attempt has written is counted below.
    if not partial.exists():
        _check_room(to, sum(shard.size for shard in shards))
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _alone(partial, to), one_thread():  # each worker is one: a tile that fits a cache gains nothing from more
            writer = ShardWriter(read, partial, shards, devices, progress, stop or threading.Event())
            # Each finished shard is hashed again: after a power cut the disk need not have what was noted.
            kept = writer.keep(_take_up(partial, job))
            _check_room(to, sum(shard.size for shard in shards if not shard.made))
            writer.run()
            _finish(read, partial, config, shards)
            report = _report(read, job, shards, left_out)
            write_json(partial / REPORT, report)
            for name in ("job.json", NOTES):
                (partial / name).unlink(missing_ok=True)
            (partial / ".lock").unlink(missing_ok=True)
            # Last of all: who sees the folder sees all of it.
            partial.rename(to)
            fsync_folder(to.parent)
    except OSError as error:
        # The same error for reading and writing: told apart by whose folder it is in.
        if error.filename and error.filename2 is None and Path(error.filename).parent == source:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}", "look at its permissions") from None
        free = shutil.disk_usage(to.parent).free / 1e9 if to.parent.is_dir() else 0.0
        raise UserError(
            f"{error.filename2 or error.filename or to} cannot be written: {error.strerror or error} ({free:,.1f} GB are free)",
            "make room, or name another folder; the same command goes on with the shards that are finished",
        ) from None
    return Converted(to, weight_bytes(shards), len(shards), kept, time.monotonic() - begun, report)


# Before


def _check_place(source: Path, to: Path) -> None:
    real = to.resolve()
    if real == source.resolve() or source.resolve() in real.parents:
        raise UserError(f"{to} is the model that is converted, or in it", "name a folder elsewhere")
    if to.exists() and not (to.is_dir() and ((to / REPORT).is_file() or not any(to.iterdir()))):
        raise UserError(f"{to} is there and is no conversion", "name another folder, or remove that one")
    if to.is_dir() and not any(to.iterdir()):
        to.rmdir()


def _there(to: Path, source: StoredModel, job: dict[str, Any], shards: list[Shard], begun: float) -> Converted:
    """Return a finished conversion, if it is this one."""
    report = _own(to / REPORT, "name another folder, or remove that one")
    # The same source, options and result: then the command was only given once more.
    same = report.get("job") == job and report.get("source_files") == {k: v for k, v in sorted(source.stamps.items())}
    whole = all((to / shard.name).is_file() and (to / shard.name).stat().st_size == shard.size for shard in shards)
    if not same or not whole:
        what = "of another model or with other options" if not same else "that is no longer whole"
        raise UserError(f"{to} holds a conversion {what}", "name another folder, or remove that one")
    return Converted(to, weight_bytes(shards), len(shards), len(shards), time.monotonic() - begun, report, reused=True)


def _own(path: Path, fix: str) -> dict[str, Any]:
    """Return the JSON of a file that a conversion wrote. Raises UserError where something else has happened to it."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}", fix) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no object of keys", fix)
    return content


def _alone(partial: Path, to: Path) -> contextlib.AbstractContextManager[Any]:
    """Return a lock that is held, by this process alone. Raises UserError where another one holds it."""
    try:
        return FileLock(partial / ".lock").acquire(timeout=0)
    except Timeout:
        raise UserError(f"another process converts into {to}", "wait for it, or name another folder") from None


def _devices(device: str, workers: int | None) -> list[torch.device]:
    """Return the device of each worker."""
    count = workers or min(16, len(os.sched_getaffinity(0)))
    if device == "cpu":
        return [torch.device("cpu")] * count
    if not torch.cuda.is_available():
        raise UserError(f"--device {device}: PyTorch finds no NVIDIA GPU here", "use --device cpu: the bits are the same")
    gpus = range(torch.cuda.device_count())
    if device != "cuda" and device not in [f"cuda:{number}" for number in gpus]:
        raise UserError(f"--device {device} is not here", f"use cpu, cuda or one of cuda:0-{gpus[-1]}")
    # Several workers for each GPU: one reads and writes while another computes.
    return [torch.device("cuda", number % len(gpus)) if device == "cuda" else torch.device(device) for number in range(count)]


def _take_up(partial: Path, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what an interrupted conversion noted of its finished shards, and begin the notes where there are none."""
    noted: dict[str, dict[str, Any]] = {}
    if (partial / "job.json").is_file():
        if _own(partial / "job.json", f"remove {partial}, or name another folder") != job:
            raise UserError(f"{partial} is what is left of another conversion", f"remove {partial}, or name another folder")
        for line in _lines(partial / NOTES):
            noted[line["shard"]] = line
    elif any(path.name != ".lock" for path in partial.iterdir()):
        raise UserError(f"{partial} is there and is no conversion", "name another folder, or remove that one")
    else:
        write_json(partial / "job.json", job)
    # Half of a shard is not gone on with: which of its tensors are whole is not known.
    for path in partial.glob("*.part"):
        path.unlink()
    return noted


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines: a kill may have cut the last one off."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _check_room(to: Path, needed: int) -> None:
    place = next(parent for parent in to.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if free < needed + SPARE:
        raise UserError(
            f"{place} has {free / 1e9:,.2f} GB free, the converted weights need {(needed + SPARE) / 1e9:,.2f} GB",
            "make room, or name a folder on a larger disk",
        )


# After


def _finish(source: StoredModel, folder: Path, config: dict[str, Any], shards: list[Shard]) -> None:
    """Write what belongs to the weights: index, config, tokenizer and other small files."""
    placed = {output.name: shard.name for shard in shards for entry in shard.entries for output in entry.outputs}
    if source.indexed or len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": weight_bytes(shards)}, "weight_map": dict(sorted(placed.items()))})
    if config:
        write_json(folder / "config.json", config)
    for path in sorted(source.folder.iterdir()):
        # Tokenizer, template, licence: what is small and no weight belongs to the model.
        plain = path.is_file() and not path.name.startswith(".") and path.name not in OWN
        if plain and not path.name.endswith(NOT_COPIED) and path.stat().st_size <= SMALL:
            shutil.copyfile(path, folder / path.name)
            # On the disk before the folder gets its name, like the weights.
            with open(folder / path.name, "rb") as copied:
                os.fsync(copied.fileno())


def _report(source: StoredModel, job: dict[str, Any], shards: list[Shard], left_out: list[str]) -> dict[str, Any]:
    """Return the content of conversion.json."""
    made = {name: facts | {"file": shard.name} for shard in shards for name, facts in shard.made.items()}
    odd = sorted(name for name, facts in made.items() if facts.get("nan") or facts.get("inf"))
    kinds = {kind: sum(e.kind == kind for s in shards for e in s.entries) for kind in ("decode", "encode", "copy")}
    report = {
        "job": job, "source_files": dict(sorted(source.stamps.items())), "tensors_by_kind": kinds, "bytes": weight_bytes(shards),
        "not_finite": odd, "left_out": left_out,
    }  # fmt: skip
    errors = [facts["error"] for facts in made.values() if "error" in facts]
    if errors:
        report["error"] = {
            "mean": sum(error["mean"] for error in errors) / len(errors), "max_of_block": max(e["max_of_block"] for e in errors)
        }  # fmt: skip
    return report | {"tensors": dict(sorted(made.items()))}
