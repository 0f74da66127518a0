"""Exported folders: Hugging Face's layout, streamed, atomic, with checksums that loading verifies."""

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from windtunnel.checkpoint import (
    CheckpointStore,
    DamagedCheckpoint,
    Facts,
    Saver,
    export_run,
    is_export,
    verify_export,
    write_export,
    write_shards,
)
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with a tokenizer and one checkpoint."""
    made = RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={})
    made.close()
    made.tokenizer_path.write_text('{"version": "1.0"}')
    tensors = {f"layer{i}": torch.randn(100, 10) for i in range(5)} | {"counts": torch.arange(7)}
    saver = Saver(
        CheckpointStore(made.checkpoints_dir), {"model": tensors}, config={"config.json": {"model_type": "llama"}},
        beside=[made.tokenizer_path],
    )  # fmt: skip
    saver.save(Facts(9, {}, 1.5))
    saver.wait()
    return made


def test_shards_and_index_are_as_transformers_writes_them(run: RunFolder, tmp_path: Path) -> None:
    made = export_run(run.path, tmp_path / "out", dtype="bf16", shard_bytes=4500)
    weights = CheckpointStore(run.checkpoints_dir).at(9).weights()
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert made.files == tuple(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
    assert set(index["weight_map"]) == set(weights)
    assert index["metadata"]["total_size"] == made.bytes == 5 * 2000 + 7 * 8
    for name, file in index["weight_map"].items():
        wanted = weights[name] if name == "counts" else weights[name].bfloat16()
        assert torch.equal(load_file(tmp_path / "out" / file)[name], wanted)
    facts = verify_export(tmp_path / "out")
    assert (facts["step"], facts["validation_loss"], facts["dtype"]) == (9, 1.5, "bf16")
    assert set(facts["files"]) == {path.name for path in (tmp_path / "out").iterdir()} - {"checksums.json"}
    assert (tmp_path / "out/tokenizer.json").read_text() == run.tokenizer_path.read_text()
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1, "a server under another account reads all"


def test_one_file_has_no_index_and_an_export_is_replaced(run: RunFolder, tmp_path: Path) -> None:
    for dtype, size in (("fp32", 20_056), ("fp16", 10_056)):
        made = export_run(run.path, tmp_path / "out/model.safetensors", dtype=dtype)
        assert (made.files, made.bytes, made.folder) == (("model.safetensors",), size, tmp_path / "out")
    assert is_export(tmp_path / "out")
    assert not is_export(run.path)
    assert [path.name for path in tmp_path.iterdir() if ".tmp-" in path.name] == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_byte_is_refused_and_its_file_named(run: RunFolder, tmp_path: Path, name: str) -> None:
    export_run(run.path, tmp_path / "out")
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=f"out/{name}: checksum differs"):
        verify_export(tmp_path / "out")
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=f"out/{name}: No such file"):
        verify_export(tmp_path / "out")


def test_what_is_no_export_is_not_replaced(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for target, words in (
        (tmp_path / "mine", "is no exported model"),
        (tmp_path / "a.safetensors", "always called model.safetensors"),
    ):
        with pytest.raises(UserError, match=words):
            export_run(run.path, target)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    def tensors(good: bool):  # type: ignore[no-untyped-def]
        yield "a", torch.ones(3)
        if not good:
            raise OSError(28, "No space left on device")

    write_export(tmp_path / "out", tensors(True), config={})
    with pytest.raises(UserError, match="No space left"):
        write_export(tmp_path / "out", tensors(False), config={})
    assert verify_export(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_takes_no_more_is_told_and_nothing_stays(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"the weights cannot be written into .*to: File too large"):
            write_export(tmp_path / "to", [("w", torch.ones(300_000))], config={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_at_most_one_shard_is_held(tmp_path: Path) -> None:
    import weakref

    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def tensors():  # type: ignore[no-untyped-def]
        nonlocal most
        for i in range(12):
            tensor = torch.ones(1000)
            alive.append(weakref.ref(tensor))
            yield f"t{i}", tensor
            del tensor
            most = max(most, sum(ref() is not None for ref in alive))

    write_shards(tmp_path, tensors(), shard_bytes=8000)
    assert most <= 3, "two of a shard, and the one that begins the next"


def test_a_folder_of_the_hub_has_no_checksums(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert verify_export(tmp_path) == {}
