"""Write shards: many tensors at a time, each shard noted when it is whole and on the disk, so that a killed run goes on.

done.jsonl             a line for each finished shard, with its tensors' checksums
model-00007...part     shards that are being written; renamed when they are whole
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from windtunnel.model import StoredModel

from .entries import Entry
from .work import Files, Stopped, Worker, Write, header_of

NOTES = "done.jsonl"
Progress = Callable[[int, int], None]
"""Told the bytes of weights written and those to be written, from any thread."""


@dataclass
class Shard:
    """A file that is written: its tensors in order, and where each begins."""

    name: str
    entries: list[Entry]
    header: bytes
    places: list[list[int]]
    size: int
    waiting: int = 0
    file: int = -1
    made: dict[str, Any] = field(default_factory=dict)


def weight_bytes(shards: list[Shard]) -> int:
    """Return the bytes of all tensors that are written."""
    return sum(output.bytes for shard in shards for entry in shard.entries for output in entry.outputs)


def plan_shards(entries: list[Entry]) -> list[Shard]:
    """Put what is made of each file into a file of the same name."""
    files: dict[str, list[Entry]] = {}
    for entry in entries:
        files.setdefault(entry.weight.file, []).append(entry)
    shards = []
    for name, held in files.items():
        # Known beforehand, so that every tensor has its place and any worker can write it.
        header = header_of([output for entry in held for output in entry.outputs])
        offset, places = len(header), []
        for entry in held:
            places.append([offset])
            offset += entry.outputs[0].bytes
            for output in entry.outputs[1:]:
                places[-1].append(offset)
                offset += output.bytes
        shards.append(Shard(name, held, header, places, offset))
    return shards


def digest_of(shard: Shard) -> str:
    """Return what distinguishes one way to make a shard from another."""
    # All that decides its bytes: with other layers or another config the same name is another shard.
    text = repr([(e.kind, e.weight, e.scale, e.block, e.outputs) for e in shard.entries])
    return xxhash.xxh3_128(text.encode()).hexdigest()


def _stamps(source: StoredModel, shard: Shard) -> dict[str, list[int]]:
    """Return the stamps of the files that a shard is made of."""
    files = {entry.weight.file for entry in shard.entries} | {e.scale.file for e in shard.entries if e.scale is not None}
    return {name: source.stamps[name] for name in sorted(files)}


class ShardWriter:
    """Gives tensors to workers, and closes each shard when its last one is written."""

    def __init__(
        self,
        source: StoredModel,
        folder: Path,
        shards: list[Shard],
        devices: list[torch.device],
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._source, self._folder, self._shards, self._devices = source, folder, shards, devices
        self._progress, self._total, self._done = progress, weight_bytes(shards), 0
        self._lock, self._stop = threading.Lock(), stop
        self._failure: BaseException | None = None

    def keep(self, noted: dict[str, dict[str, Any]]) -> int:
        """Take over shards that were finished before, from the same files, and are as they were then. Returns how many."""

        def look(shard: Shard) -> None:
            line = noted.get(shard.name)
            path = self._folder / shard.name
            same = line is not None and line["from"] == _stamps(self._source, shard)
            # Of other source files it would be another model's shard under the same name.
            if line is None or not same or not _is_whole(path, shard, line["tensors"], self._stop):
                path.unlink(missing_ok=True)
                return
            shard.made = line["tensors"]
            self._count(sum(output.bytes for entry in shard.entries for output in entry.outputs))

        self._each(list(self._shards), lambda device: look)
        return sum(bool(shard.made) for shard in self._shards)

    def run(self) -> None:
        """Write all that is not there."""
        todo = [shard for shard in self._shards if not shard.made]
        for shard in todo:
            shard.waiting = len(shard.entries)
        with Files(self._source.folder, sorted(self._source.stamps)) as files:
            self._each(_order(todo, len(self._devices)), lambda device: self._converter(files, device))

    def _converter(self, files: Files, device: torch.device) -> Callable[[tuple[Shard, int]], None]:
        worker = Worker(files, device, self._stop.is_set, self._count)

        def convert(task: tuple[Shard, int]) -> None:
            shard, number = task
            entry = shard.entries[number]
            with self._lock:
                if shard.file < 0:
                    shard.file = os.open(self._folder / f"{shard.name}.part", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
                    # Its whole size at once, so that workers may write in any order.
                    os.ftruncate(shard.file, shard.size)
            made = worker.convert(entry, [_writer(shard.file, place) for place in shard.places[number]])
            with self._lock:
                shard.made[entry.outputs[0].name] = made
                shard.waiting -= 1
                last = shard.waiting == 0
            if last:
                self._close(shard)

        return convert

    def _close(self, shard: Shard) -> None:
        """Bring a shard to the disk, give it its name, then note it."""
        # The header last: a file without it is never taken for a whole one.
        _writer(shard.file, 0)(0, np.frombuffer(shard.header, np.uint8))
        os.fsync(shard.file)
        os.close(shard.file)
        shard.file = -1
        (self._folder / f"{shard.name}.part").rename(self._folder / shard.name)
        line = json.dumps({"shard": shard.name, "from": _stamps(self._source, shard), "tensors": shard.made})
        with self._lock, open(self._folder / NOTES, "a", encoding="utf-8") as notes:
            notes.write(line + "\n")
            notes.flush()
            # The note after the shard it speaks of: a line promises that the file is on the disk.
            os.fsync(notes.fileno())

    def _count(self, count: int) -> None:
        with self._lock:
            self._done += count
            done = self._done
        self._progress(done, self._total)

    def _each(self, tasks: list[Any], make: Callable[[torch.device], Callable[[Any], None]]) -> None:
        """Do the tasks in order on as many threads as there are devices; the first failure ends all of them."""
        waiting = iter(tasks)

        def work(device: torch.device) -> None:
            try:
                do = make(device)
                while not self._stop.is_set():
                    with self._lock:
                        task = next(waiting, None)
                    if task is None:
                        return
                    do(task)
            except Stopped:
                pass
            except BaseException as error:
                self._failure = self._failure or error
                self._stop.set()

        # Threads: NumPy, PyTorch and file calls let go of Python's lock.
        threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in self._devices[: max(1, len(tasks))]]
        for thread in threads:
            thread.start()
        self._wait(threads)
        if self._failure is not None:
            raise self._failure
        if self._stop.is_set():
            raise KeyboardInterrupt("the conversion was stopped")

    def _wait(self, threads: list[threading.Thread]) -> None:
        """Wait for all, and end them soon if the wait is interrupted."""
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except BaseException:
            self._stop.set()
            for thread in threads:
                thread.join()
            raise


def _order(shards: list[Shard], workers: int) -> list[tuple[Shard, int]]:
    """Return (shard, number of its tensor): as many shards at a time as there are workers, the largest tensors first.

    Files are written side by side because a kernel lets one writer at a time into a file.
    """
    order: list[tuple[Shard, int]] = []
    for start in range(0, len(shards), workers):
        group = shards[start : start + workers]
        sizes = [[entry.outputs[0].bytes for entry in shard.entries] for shard in group]
        ranked = [sorted(range(len(held)), key=held.__getitem__, reverse=True) for held in sizes]
        for step in range(max(len(numbers) for numbers in ranked)):
            order += [(shard, numbers[step]) for shard, numbers in zip(group, ranked, strict=True) if step < len(numbers)]
    return order


def _writer(file: int, place: int) -> Write:
    def write(offset: int, data: np.ndarray) -> None:
        view, done = data.data, 0
        while done < len(view):
            done += os.pwrite(file, view[done:], place + offset + done)

    return write


def _is_whole(path: Path, shard: Shard, made: dict[str, Any], stop: threading.Event) -> bool:
    """Return whether a finished shard is still what was noted of it, byte for byte."""
    if not path.is_file() or path.stat().st_size != shard.size:
        return False
    with open(path, "rb", buffering=0) as file:
        if file.read(len(shard.header)) != shard.header:
            return False
        for entry in shard.entries:
            facts = made.get(entry.outputs[0].name, {})
            for output, said in zip(entry.outputs, (facts, facts.get("scale_inv", {})), strict=False):
                hashed, left = xxhash.xxh3_128(), output.bytes
                while left:
                    if stop.is_set():
                        raise Stopped  # it may well be whole
                    data = file.read(min(left, 1 << 24))
                    hashed.update(data)
                    left -= len(data)
                    if not data:
                        return False
                if said.get("checksum") != f"xxh3_128:{hashed.hexdigest()}":
                    return False
    return True
