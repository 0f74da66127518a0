"""Publications appear whole or not at all; whatever happens to their files later is noticed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import CANARY, tensors
from torch import Tensor
from waiting import HANG

from windtunnel.rl import BrokenSnapshot, Canary, Publisher, newest_snapshot, open_snapshot
from windtunnel.train import child_context

CONFIG = {"model_type": "llama"}
SMALL = 500  # bytes of a file: every tensor gets one


def a_canary() -> Canary:
    return Canary(CANARY, torch.linspace(-9, -0.1, CANARY[:, 1:].numel()).view(CANARY.size(0), -1), 1e-5, 1e-3)


def test_what_is_read_is_what_was_published(tmp_path: Path) -> None:
    made = Publisher(tmp_path / "p", shard_bytes=SMALL).publish(3, tensors(), CONFIG, a_canary())
    path = newest_snapshot(tmp_path / "p")
    assert path == made.path
    read = open_snapshot(path)
    assert (read.version, read.tensors, read.files) == (3, made.tensors, made.files)
    assert read.canary is not None
    assert torch.equal(read.canary.log_probabilities, a_canary().log_probabilities), "exact to the last bit"
    assert read.problem() is None
    assert len([name for name in read.files if name.endswith(".safetensors")]) == 6
    assert json.loads((path / "config.json").read_text()) == CONFIG


def test_versions_grow_and_old_ones_go(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, keep=2)
    for version in (0, 4, 5):
        publisher.publish(version, tensors(), CONFIG, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-00000004", "version-00000005"]
    for version in (5, 4):
        with pytest.raises(ValueError, match="after version 5"):
            publisher.publish(version, tensors(), CONFIG, None)
    assert newest_snapshot(tmp_path) == tmp_path / "version-00000005"


@pytest.mark.parametrize("words", ["comes twice", "there are no weights", "no space"])
def test_what_fails_half_way_leaves_nothing(words: str, tmp_path: Path) -> None:
    def given() -> Iterator[tuple[str, Tensor]]:
        if words == "there are no weights":
            return
        yield from tensors(3)
        if words == "no space":
            raise OSError("no space")
        yield from tensors(1)

    publisher = Publisher(tmp_path, shard_bytes=SMALL)
    publisher.publish(1, tensors(), CONFIG, None)
    with pytest.raises((ValueError, OSError), match=words):
        publisher.publish(2, given(), CONFIG, None)
    assert [path.name for path in tmp_path.iterdir()] == ["version-00000001"]
    publisher.publish(2, tensors(), CONFIG, None)


def test_no_file_can_be_cut_changed_or_lost_unnoticed(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, shard_bytes=SMALL)
    made = publisher.publish(1, tensors(3), CONFIG, a_canary())
    assert {"config.json", "model.safetensors.index.json"} < made.files.keys()
    for name in made.files:
        file = made.path / name
        content = file.read_bytes()
        changes: dict[str, bytes | None] = {
            "bytes,": content[:-1],
            "content": content[:9] + b"#" + content[10:],
            "No such file": None,
        }
        for words, damaged in changes.items():
            file.unlink() if damaged is None else file.write_bytes(damaged)
            problem = open_snapshot(made.path).problem()
            assert problem is not None
            assert name in problem
            assert words in problem
            file.write_bytes(content)
    assert open_snapshot(made.path).problem() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"version": 1', '"version": null'),
        lambda text: text.replace('"checksum"', '"sum"'),
        lambda text: text.replace('"shape"', '"size"'),
        lambda text: text.replace('"tokens": [[', '"tokens": [[1], ['),
        lambda text: json.dumps(json.loads(text) | {"files": {}}),
    ],
)
def test_a_manifest_that_is_none_is_refused(change: Any, tmp_path: Path) -> None:
    made = Publisher(tmp_path).publish(1, tensors(), CONFIG, a_canary())
    manifest = made.path / "snapshot.json"
    changed = change(manifest.read_text())
    assert changed != manifest.read_text()
    manifest.write_text(changed)
    with pytest.raises(BrokenSnapshot, match="version-00000001 is not a whole snapshot"):
        open_snapshot(made.path)


def _publish_until_killed(folder: str) -> None:
    """Publishes version 1, then stops for ever in the middle of version 2."""

    def stuck() -> Iterator[tuple[str, Tensor]]:
        yield from tensors(4)
        (Path(folder) / "half").touch()
        time.sleep(600)

    publisher = Publisher(Path(folder), shard_bytes=SMALL)
    publisher.publish(1, tensors(), CONFIG, None)
    publisher.publish(2, stuck(), CONFIG, None)


def test_a_publisher_that_is_killed_leaves_the_version_before(tmp_path: Path) -> None:
    context = child_context("windtunnel.rl.engine")
    process = context.Process(target=_publish_until_killed, args=(str(tmp_path),))
    process.start()
    until = time.monotonic() + HANG
    while not (tmp_path / "half").exists():
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.join()
    torn = [path for path in tmp_path.iterdir() if ".tmp-" in path.name]
    assert len(list(torn[0].iterdir())) >= 3, "it was in the middle"
    found = newest_snapshot(tmp_path)
    assert found is not None
    assert open_snapshot(found).version == 1
    with pytest.raises(BrokenSnapshot):
        open_snapshot(torn[0])
    Publisher(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["half"], "a new publisher begins with an empty folder"
    assert newest_snapshot(tmp_path) is None
    assert os.path.exists(tmp_path)
