"""A whole folder: what is written, refused, killed and taken up again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from coded_models import CONFIG, codes, deepseek, formula, grid, same_bits, scales, tensors_of, write
from safetensors.torch import load_file, save_file
from waiting import HANG, until
from zygote import windtunnel

from windtunnel.convert import REPORT, Choice, convert_folder, decoded_weights, parse_layers, verify_folder
from windtunnel.convert import job as job_module
from windtunnel.recipe import GateFailed, UserError

INDEX = "model.safetensors.index.json"
FP8 = "model.layers.1.self_attn.o_proj.weight"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_folder_is_whole_and_right(tmp_path: Path) -> None:
    source, to = deepseek(tmp_path / "in"), tmp_path / "out"
    made = convert_folder(source, to)
    before, after = tensors_of(source), tensors_of(to)
    assert after.keys() == {name for name in before if not name.endswith("_scale_inv")}
    for name, tensor in after.items():
        scale = before.get(f"{name}_scale_inv")
        assert same_bits(tensor, before[name] if scale is None else formula(before[name], scale)), name
    assert after["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    index = json.loads((to / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in after.values()) == made.bytes
    assert all(name in load_file(to / file) for name, file in index["weight_map"].items())
    config = json.loads((to / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["torch_dtype"], config["num_nextn_predict_layers"]) == ("bfloat16", 1)
    assert (to / "tokenizer.json").read_text() == (source / "tokenizer.json").read_text()
    assert b'"format":"pt"' in next(to.glob("*.safetensors")).read_bytes()[:200]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    report = json.loads((to / REPORT).read_text())
    facts = report["tensors"][FP8]
    assert (facts["min"], facts["max"], facts["nan"], facts["inf"]) == (float(after[FP8].min()), float(after[FP8].max()), 0, 0)
    assert facts["checksum"] != facts["before"]["checksum"] != facts["scale"]["checksum"]


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_any_number_of_workers_writes_the_same_files(tmp_path: Path, workers: int) -> None:
    source = deepseek(tmp_path / "in")
    convert_folder(source, tmp_path / "a", workers=2)
    convert_folder(source, tmp_path / "b", workers=workers)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_the_same_command_again_keeps_what_is_there(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    convert_folder(source, tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert convert_folder(source, tmp_path / "out").reused
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UserError, match="other options"):
        convert_folder(source, tmp_path / "out", Choice(mtp="drop"))


def test_further_blocks_are_dropped_by_choice(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    convert_folder(source, tmp_path / "out", Choice(mtp="drop"))
    assert not [name for name in tensors_of(tmp_path / "out") if ".layers.3." in name]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_further_blocks_that_are_not_there_are_not_claimed(tmp_path: Path) -> None:
    tensors = {"model.layers.0.a.weight": codes(128, 128), "model.layers.0.a.weight_scale_inv": scales(1, 1)}
    convert_folder(write(tmp_path / "in", [tensors]), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_only_some_layers_make_a_smaller_model(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    convert_folder(source, tmp_path / "out", Choice(layers=parse_layers("0,2")))
    before, after = tensors_of(source), tensors_of(tmp_path / "out")
    moved = "model.layers.2.self_attn.o_proj.weight"
    assert same_bits(after[FP8], formula(before[moved], before[f"{moved}_scale_inv"]))
    assert {name.split(".")[2] for name in after if ".layers." in name} == {"0", "1"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["first_k_dense_replace"], config["num_nextn_predict_layers"]) == (2, 1, 0)
    with pytest.raises(UserError, match="layers 0-2, not 7"):
        convert_folder(source, tmp_path / "other", Choice(layers=(0, 7)))


def test_bf16_to_fp8_states_its_error_and_comes_back_near(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    weight = torch.randn(576, 300).bfloat16()
    tensors = {name: weight, "model.norm.weight": torch.ones(300).bfloat16(), "lm_head.weight": torch.randn(50, 300).bfloat16()}
    source = write(tmp_path / "in", [tensors], {key: value for key, value in CONFIG.items() if key != "quantization_config"})
    made = convert_folder(source, tmp_path / "fp8", Choice(to="fp8"))
    held = tensors_of(tmp_path / "fp8")
    assert held[name].dtype == torch.float8_e4m3fn
    assert held[f"{name}_scale_inv"].shape == (5, 3)
    assert held["lm_head.weight"].dtype == torch.bfloat16
    convert_folder(tmp_path / "fp8", tmp_path / "back")
    back = tensors_of(tmp_path / "back")[name].float()
    off = (back - weight.float()).abs()
    assert made.report["error"]["mean"] == pytest.approx(float(off.sum() / weight.float().abs().sum()), rel=1e-4)
    # Half a step of three bits of mantissa, plus bf16's own rounding.
    assert float((off / weight.float().abs().clamp(min=0.05)).max()) < 0.066
    assert 0.01 < made.report["error"]["max_of_block"] < 0.04


def spoil_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def without(folder: Path, name: str) -> None:
    """Take a tensor out of its file and the index."""
    index = json.loads((folder / INDEX).read_text())
    path = folder / index["weight_map"].pop(name)
    save_file({key: value for key, value in load_file(path).items() if key != name}, path)
    (folder / INDEX).write_text(json.dumps(index))


def reshaped(folder: Path, name: str, tensor: torch.Tensor) -> None:
    path = folder / json.loads((folder / INDEX).read_text())["weight_map"][name]
    save_file({**load_file(path), name: tensor}, path)


def renamed_in_index(folder: Path, to: str) -> None:
    """Let the index name the third file otherwise."""
    (folder / INDEX).write_text((folder / INDEX).read_text().replace("model-00003", to))


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.safetensors"))[number]


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "orphan weight": (lambda f: without(f, f"{FP8}_scale_inv"), rf"{FP8} is F8_E4M3 and has no scale"),
    "orphan scale": (lambda f: without(f, FP8), rf"{FP8}_scale_inv is a scale of no quantised weight"),
    "scale of a bf16 weight": (lambda f: reshaped(f, FP8, torch.zeros(256, 192).bfloat16()), "scale of no quantised weight"),
    "grid by 96": (lambda f: reshaped(f, f"{FP8}_scale_inv", torch.ones(3, 2)), r"\[3, 2\].*expected \[2, 2\], one for 128"),
    "scale of a strange type": (lambda f: reshaped(f, f"{FP8}_scale_inv", torch.ones(2, 2).double()), "is F64"),
    "truncated": (lambda f: os.truncate(shard(f, 1), shard(f, 1).stat().st_size - 1), r"00002.* is truncated"),
    "too long": (lambda f: shard(f, 1).open("ab").write(b"x"), "longer than its header says"),
    "cut in the header": (lambda f: os.truncate(shard(f, 0), 100), "truncated or no safetensors"),
    "empty": (lambda f: os.truncate(shard(f, 0), 0), "truncated or no safetensors"),
    "nonsense": (lambda f: shard(f, 0).write_bytes(b"<!DOCTYPE html>" * 99), "truncated or no safetensors"),
    "git-lfs": (lambda f: shard(f, 0).write_text("version https://git-lfs.github.com/spec/v1\n"), "pointer of git-lfs"),
    "missing file": (lambda f: shard(f, 2).unlink(), "half a download: 1 of 3 files are missing, such as model-00003"),
    "index leads out": (lambda f: renamed_in_index(f, "../model-00003"), "is not in the folder itself"),
    "index leads below": (lambda f: renamed_in_index(f, "sub/model-00003"), "is not in the folder itself"),
    "index leads to a root": (lambda f: renamed_in_index(f, "/model-00003"), "is not in the folder itself"),
    "half a file": (lambda f: shard(f, 2).rename(f / "model-00003.safetensors.incomplete"), "half a download.*is not whole"),
    "no index": (lambda f: (f / INDEX).unlink(), "3 files of weights but no model.safetensors.index.json"),
    "nested header": (lambda f: shard(f, 0).write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000), "header is damaged"),
    "nested config": (lambda f: (f / "config.json").write_text("[" * 100_000), "nested more than 200 deep"),
    "nested index": (lambda f: (f / INDEX).write_text("[" * 100_000), "nested more than 200 deep"),
    "config of no keys": (lambda f: (f / "config.json").write_text("[]"), "config.json holds a list, expected an object"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "blocks of nothing": (lambda f: blocks(f, [0, 128]), r"weight_block_size is \[0, 128\], expected two numbers above zero"),
    "blocks in words": (lambda f: blocks(f, "128"), "weight_block_size is '128'"),
    "blocks of one side": (lambda f: blocks(f, [128]), r"weight_block_size is \[128\]"),
    "broken index": (lambda f: (f / INDEX).write_text("{"), "cannot be read as JSON"),
    "index of something else": (lambda f: (f / INDEX).write_text('{"weight_map": {"a": 3}}'), "weight_map is no table"),
    "a file too many": (lambda f: save_file({"x": torch.ones(1)}, f / "consolidated.safetensors"), "does not name consolidated"),
    "tensor the index lacks": (lambda f: reshaped_index(f, lambda m: m.pop(FP8)), rf"holds {FP8}, which the index lacks"),
    "tensor the files lack": (lambda f: reshaped_index(f, lambda m: m.update({"x": shard(f, 0).name})), "lacks x, which"),
    "overlap": (lambda f: spoil_header(shard(f, 0), lambda h: h[max(h)].update(data_offsets=[8, 16])), "cannot have"),
    "unknown type": (lambda f: spoil_header(shard(f, 0), lambda h: h[max(h)].update(dtype="F7")), "type F7, which"),
    "gptq": (lambda f: (f / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}'), "is gptq"),
    "nothing coded": (lambda f: [shutil.rmtree(f), write(f, [{"a": torch.ones(3)}], {})], "none of its weights is quantised"),
    "no folder": (shutil.rmtree, "is no folder"),
    "empty folder": (lambda f: [shutil.rmtree(f), f.mkdir()], "no safetensors files"),
}  # fmt: skip


def blocks(folder: Path, said: object) -> None:
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": said}}))


def reshaped_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_whole_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    source = deepseek(tmp_path / "in")
    spoil, words = BAD[case]
    spoil(source)
    with pytest.raises(UserError, match=words) as refused:
        convert_folder(source, tmp_path / "out")
    assert refused.value.fix
    assert [path.name for path in tmp_path.iterdir() if path.name != "in"] == []


def test_the_place_must_be_free(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    for place, words in (
        (source, "the model that is converted"),
        (source / "bf16", "or in it"),
        (tmp_path / "full", "is no conversion"),
    ):
        if place == tmp_path / "full":
            place.mkdir()
            (place / "thesis.txt").write_text("years of work")
        with pytest.raises(UserError, match=words):
            convert_folder(source, place)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "years of work"


def test_a_device_that_is_not_here_leaves_nothing_behind(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    with pytest.raises(UserError, match="--device tpu"):
        convert_folder(source, tmp_path / "out", device="tpu")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_what_is_damaged_of_a_conversion_is_named_and_left(tmp_path: Path, content: str) -> None:
    source = deepseek(tmp_path / "in")
    for folder, name in (("out", "conversion.json"), ("out.partial", "job.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match=rf"{name} is damaged") as refused:
            convert_folder(source, tmp_path / "out")
        assert refused.value.fix
        assert (tmp_path / folder / name).read_text(encoding="latin-1") == content
        shutil.rmtree(tmp_path / folder)


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = deepseek(tmp_path / "in")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(job_module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"0\.00 GB free, the converted weights need") as refused:
        convert_folder(source, tmp_path / "out")
    assert "larger disk" in str(refused.value.fix)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


FULL = """
import resource, sys
from windtunnel.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
main(["convert", sys.argv[1], sys.argv[2]])
"""


@pytest.mark.parametrize("large", ["weights", "tokenizer"])
def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, large: str) -> None:
    source, to = many_shards(tmp_path / "in", width=256 if large == "weights" else 128), tmp_path / "out"
    if large == "tokenizer":
        (source / "tokenizer.json").write_text(" " * 150_000)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(source), str(to)], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 2, done.stderr
    full = to if large == "weights" else tmp_path / "out.partial/tokenizer.json"
    assert f"{full} cannot be written: File too large" in done.stderr
    assert "goes on with the shards that are finished" in done.stderr
    assert not to.exists()
    convert_folder(source, to)
    assert len(tensors_of(to)) == 16


SLOW = """
import sys, time
from windtunnel.convert import convert_folder
convert_folder(sys.argv[1], sys.argv[2], workers=2, progress=lambda done, total: time.sleep(0.05))
"""


def many_shards(folder: Path, count: int = 8, width: int = 256) -> Path:
    tensors = [
        {
            f"model.layers.{n}.up_proj.weight": codes(width, width, seed=n),
            f"model.layers.{n}.up_proj.weight_scale_inv": scales(*grid(width, width), seed=n),
            f"model.layers.{n}.norm.weight": torch.ones(64),
        }
        for n in range(count)
    ]
    return write(folder, tensors, {**CONFIG, "num_hidden_layers": count})


def test_a_killed_conversion_goes_on_with_what_is_whole(tmp_path: Path) -> None:
    source, to = many_shards(tmp_path / "in"), tmp_path / "out"
    partial = tmp_path / "out.partial"
    command = [sys.executable, "-c", SLOW, str(source), str(to)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    until(
        lambda: (partial / "done.jsonl").is_file() and (partial / "done.jsonl").read_bytes().count(b"\n") >= 3,
        "no shard was finished",
    )
    os.kill(process.pid, signal.SIGKILL)
    process.wait(HANG)
    assert not to.exists()
    finished = sorted(path.name for path in partial.glob("*.safetensors"))
    assert len(finished) >= 3
    stamps = {name: (partial / name).stat().st_mtime_ns for name in finished}
    # One of the finished shards is damaged afterwards: it is made again, the others are kept.
    spoiled = partial / finished[0]
    data = bytearray(spoiled.read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(bytes(data))
    made = convert_folder(source, to)
    noted = len(finished) - 1
    assert noted - 1 <= made.kept <= noted  # a shard may have had its name and not yet its line
    kept = [name for name, stamp in stamps.items() if (to / name).stat().st_mtime_ns == stamp]
    assert len(kept) == made.kept
    assert finished[0] not in kept
    convert_folder(source, tmp_path / "straight")
    assert files_of(to) == files_of(tmp_path / "straight")


class Soon(threading.Event):
    """Is set when it is asked for the third time."""

    asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return super().is_set() or self.asked > 2


def test_a_stopped_conversion_goes_on_and_a_changed_source_is_read_again(tmp_path: Path) -> None:
    source, to = many_shards(tmp_path / "in"), tmp_path / "out"
    stop = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        convert_folder(source, to, workers=1, stop=stop, progress=lambda done, total: stop.set() if done > total // 2 else None)
    finished = len(list((tmp_path / "out.partial").glob("*.safetensors")))
    with pytest.raises(KeyboardInterrupt):  # stopped again, amid the first look at what is finished
        convert_folder(source, to, workers=1, stop=Soon())
    assert len(list((tmp_path / "out.partial").glob("*.safetensors"))) == finished
    with pytest.raises(UserError, match="what is left of another conversion"):
        convert_folder(source, to, Choice(mtp="drop", layers=(1,)))
    first = sorted(source.glob("*.safetensors"))[0]
    os.utime(first, ns=(1, 1))  # fetched anew: perhaps with other bytes
    made = convert_folder(source, to)
    assert (made.kept, made.shards) == (finished - 1, 8)
    convert_folder(source, tmp_path / "straight")
    assert {k: v for k, v in files_of(to).items() if k != REPORT} == {
        k: v for k, v in files_of(tmp_path / "straight").items() if k != REPORT
    }


def test_two_conversions_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    source, to = many_shards(tmp_path / "in"), tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(source), str(to)], stderr=subprocess.PIPE)
    until(lambda: list((tmp_path / "out.partial").glob("*.part")), "it never began")
    with pytest.raises(UserError, match="another process converts"):
        convert_folder(source, to)
    assert process.wait(HANG) == 0
    assert len(tensors_of(to)) == 16


MEMORY = """
import resource, sys
from windtunnel.convert import convert_folder
convert_folder(sys.argv[1], sys.argv[2], workers=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert_folder(sys.argv[3], sys.argv[4], workers=4)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_stays_below_a_multiple_of_the_largest_shard(tmp_path: Path) -> None:
    shards = [
        {
            f"model.layers.{n}.up_proj.weight": codes(8192, 8192, seed=n),
            f"model.layers.{n}.up_proj.weight_scale_inv": scales(64, 64),
        }
        for n in range(3)
    ]
    large = write(tmp_path / "large", shards, CONFIG)
    small = many_shards(tmp_path / "small")
    command = [sys.executable, "-c", MEMORY, str(small), str(tmp_path / "a"), str(large), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
    assert int(done.stdout) < 3 * 8192 * 8192
    assert len(tensors_of(tmp_path / "b")) == 3


def test_the_verb_converts_reports_and_refuses(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    done = windtunnel("convert", str(source), str(tmp_path / "out"), "--only-layers", "0-1", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["tensors_by_kind"] == {"decode": 6, "encode": 0, "copy": 8}
    assert Path(said["report"]).is_file()
    assert said["verified"]["tensors"] == 14
    again = windtunnel("convert", str(source), str(tmp_path / "out"), "--only-layers", "0-1")
    assert again.stdout.startswith("kept ")
    shard(source, 1).unlink()
    for extra in ([], ["--only-layers", "1-0"], ["--device", "tpu"], ["--to", "fp8", "--verify"]):
        refused = windtunnel("convert", str(source), str(tmp_path / "x"), *extra)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: ")
        assert "  fix: " in refused.stderr
        assert "Traceback" not in refused.stderr


def test_weights_that_are_not_finite_warn_and_fail_only_a_verification(tmp_path: Path) -> None:
    weight = codes(128, 128)
    weight.view(torch.uint8)[0, 0] = 0x7F
    names = {"a.weight": weight, "a.weight_scale_inv": scales(1, 1), "b.weight": torch.full((4,), torch.inf).bfloat16()}
    arguments = ["convert", str(write(tmp_path / "in", [names])), str(tmp_path / "out")]
    done = windtunnel(*arguments)
    assert (done.returncode, done.stderr.count("warn: ")) == (0, 2)
    for extra in ([], ["--json"]):
        failed = windtunnel(*arguments, "--verify", *extra)
        assert failed.returncode == 1
        assert "2 tensors have NaN or infinite values, such as a.weight" in failed.stderr
    assert json.loads(failed.stdout)["not_finite"] == ["a.weight", "b.weight"]


def test_samples_are_verified_and_a_changed_bit_is_found(tmp_path: Path) -> None:
    source, to = deepseek(tmp_path / "in"), tmp_path / "out"
    convert_folder(source, to)
    seen = verify_folder(source, to)
    assert seen.tensors == 27
    assert seen.weights > 12 * 128 * 96
    path = to / json.loads((to / INDEX).read_text())["weight_map"][FP8]
    held = load_file(path)
    held[FP8].view(torch.int16)[255, 191] ^= 1  # the last bit of the last weight
    save_file(held, path)
    with pytest.raises(GateFailed, match=f"{FP8} differs from .* in rows 128-255"):
        verify_folder(source, to)
    del held[FP8]
    save_file(held, path)
    with pytest.raises(UserError):
        verify_folder(source, to)


def test_transposed_experts_are_verified_too(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        f"{name}_blocks": torch.randint(0, 256, (3, 300, 2, 16), dtype=torch.uint8),
        f"{name}_scales": torch.randint(100, 140, (3, 300, 2), dtype=torch.uint8),
    }
    source = write(tmp_path / "in", [tensors], {"quantization_config": {"quant_method": "mxfp4"}})
    convert_folder(source, tmp_path / "out")
    assert verify_folder(source, tmp_path / "out").tensors == 1
    path = next((tmp_path / "out").glob("*.safetensors"))
    held = load_file(path)
    held[name].view(torch.int16)[:, 63, 299] ^= 1
    save_file(held, path)
    with pytest.raises(GateFailed, match="differs"):
        verify_folder(source, tmp_path / "out")


def test_quantised_weights_read_as_a_converted_folder_holds_them(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "in")
    convert_folder(source, tmp_path / "out")
    wanted, readers = tensors_of(tmp_path / "out"), decoded_weights(source)
    assert readers.keys() == wanted.keys()
    assert all(same_bits(read(), wanted[name]) for name, read in readers.items())
