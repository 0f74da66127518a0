"""Nodes that report: whose fault it is, in one table; and what a node sees of itself."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from windtunnel.cluster.job import JobSpec
from windtunnel.cluster.nodes import everywhere, judge, serve_clock, table
from windtunnel.cluster.probe import clock, gpus, model_state

SPEC = JobSpec("tiny", "/runs", "/", ("python",), "2x(2xH100)", 2, 2, "H100", 120, models=("/models/m",), disk_gib=10.0)
GPU = {
    "index": "0", "name": "NVIDIA H100", "memory.used": "4", "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.pending": "No", "remapped_rows.pending": "No", "remapped_rows.failure": "No",
}  # fmt: skip


def report(**changes: Any) -> dict[str, Any]:
    healthy = {
        "host": "h", "arch": "x86_64", "versions": {"python": "3.12.1", "torch": "2.13.0"}, "phase": "done",
        "temporary": {"path": "/tmp/wt-1", "free_gib": 500.0, "problem": None},
        "root": {"path": "/runs", "free_gib": 500.0, "problem": None},
        "models": {"/models/m": {"problem": None, "files": "abc"}},
        "gpus": {"gpus": [GPU, GPU | {"index": "1"}], "problem": None, "xid": []},
        "clock": {"offset": 0.01, "uncertain": 0.005},
        "links": {"ranks": 4, "backend": "nccl", "all_gbs": 40.0, "node_gbs": 300.0},
    }  # fmt: skip
    return healthy | changes


FAILED = {"problem": "no all-reduce within 100 s (GPU 0)"}
SHORT = {"path": "/tmp/wt-1", "free_gib": 0.2, "problem": None}
GONE = {"/models/m": {"problem": "is not there", "files": ""}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": {"gpus": [GPU], "problem": None, "xid": []}}, "1 GPUs, 2 are asked for"),
        ({"gpus": {"gpus": [], "problem": "nvidia-smi is not installed", "xid": None}}, "not installed"),
        ({"gpus": {"gpus": [GPU, GPU | {"ecc.errors.uncorrected.volatile.total": "7"}], "problem": None, "xid": []}}, "7 memory"),
        ({"gpus": {"gpus": [GPU, GPU | {"remapped_rows.pending": "Yes"}], "problem": None, "xid": []}}, "rows to remap"),
        ({"gpus": {"gpus": [GPU, GPU | {"memory.used": "70000"}], "problem": None, "xid": []}}, "in use by somebody else"),
        ({"gpus": {"gpus": [GPU, GPU | {"name": "[GPU is lost]"}], "problem": None, "xid": []}}, "is lost"),
        ({"gpus": {"gpus": [GPU, GPU], "problem": None, "xid": ["Xid 79 of PCI:0000:3b:00"]}}, "Xid 79"),
        ({"temporary": SHORT}, "0.2 GiB free at /tmp/wt-1"),
        ({"clock": {"offset": -40.0, "uncertain": 0.1}}, "40.0 s behind"),
        ({"clock": {"problem": "the node of the batch step cannot be reached"}}, "cannot be reached"),
        ({"models": GONE}, "model /models/m is not there"),
        ({"models": {"/models/m": {"problem": None, "files": "other"}}}, "other files or sizes"),
        ({"versions": {"python": "3.12.1", "torch": "2.11.0"}}, "torch 2.11.0, the others have 2.13.0"),
        ({"versions": {"python": "3.12.1"}}, "torch is missing"),
        ({"arch": "aarch64"}, "its processor is aarch64"),
        ({"links": FAILED | {}}, "no all-reduce"),
        ({"links": {"ranks": 4, "backend": "nccl", "all_gbs": 9.0, "node_gbs": 20.0}}, "20.0 GB/s between its GPUs"),
        (None, "gave no answer"),
    ],
)
def test_a_bad_node_is_named_and_the_others_are_not(changes: dict[str, Any] | None, words: str) -> None:
    reports = {"n1": report(), "n2": report(), "n4": report()}
    if changes is not None:
        reports["n3"] = report(**changes)
    verdicts = judge(SPEC, ["n1", "n2", "n3", "n4"], reports)
    assert [verdict.node for verdict in verdicts if verdict.problems] == ["n3"]
    assert words in verdicts[2].why
    assert everywhere(verdicts) is None
    lines = table(verdicts)
    assert len(lines) == 5
    assert words in lines[3]


def test_a_node_that_hangs_is_to_blame_for_links_that_fail_on_all() -> None:
    hangs = {name: value for name, value in report().items() if name != "links"} | {
        "phase": "measuring links",
        "clock": {"problem": "x"},
    }
    verdicts = judge(SPEC, ["n1", "n2"], {"n1": report(links=FAILED), "n2": hangs})
    assert [verdict.node for verdict in verdicts if verdict.problems] == ["n2"]
    assert "beside n2" in verdicts[0].warnings[0]


def test_what_all_nodes_lack_for_the_same_reason_is_no_nodes_fault() -> None:
    for changes, words in (({"models": GONE}, "is not there"), ({"links": FAILED}, "cannot reduce together")):
        verdicts = judge(SPEC, ["n1", "n2"], {"n1": report(**changes), "n2": report(**changes)})
        assert words in (everywhere(verdicts) or "")


def test_nvidia_smi_is_read_as_it_writes() -> None:
    lines = "0, NVIDIA H100 80GB HBM3, 4, 0, No, No, No\n1, NVIDIA H100 80GB HBM3, 4, [N/A], [N/A], [N/A], [N/A]\n"
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    kernel = f"[    1.0] NVRM: Xid (PCI:0000:3b:00): 31, old\n[{uptime:.1f}] NVRM: Xid (PCI:0000:af:00): 79, pid=1, GPU is lost\n"
    old = uptime < 3600  # this machine was started within the hour
    told = gpus(lambda program, *arguments: lines if program == "nvidia-smi" else kernel)
    assert [gpu["index"] for gpu in told["gpus"]] == ["0", "1"]
    assert told["xid"] == (["Xid 31 of PCI:0000:3b:00"] if old else []) + ["Xid 79 of PCI:0000:af:00"]
    lost = gpus(lambda program, *arguments: "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n")
    assert "GPU is lost" in lost["problem"]
    assert gpus()["problem"] is not None or gpus()["gpus"]  # the real one, or that there is none


def test_a_model_with_a_missing_shard_is_not_whole(tmp_path: Path) -> None:
    assert model_state(tmp_path / "gone")["problem"] == "is not there"
    assert model_state(tmp_path)["problem"] == "has no config.json"
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"x")
    assert model_state(tmp_path)["problem"] == "lacks 1 of 2 files, model-2.safetensors first"
    (tmp_path / "model-2.safetensors").write_bytes(b"x")
    whole = model_state(tmp_path)
    assert whole["problem"] is None
    (tmp_path / "model-2.safetensors").write_bytes(b"xx")
    assert model_state(tmp_path)["files"] != whole["files"]


def test_a_clock_that_differs_is_measured(tmp_path: Path) -> None:
    import time

    with serve_clock(tmp_path, lambda: time.time() - 90.0):
        told = clock(tmp_path)
    assert 80.0 < float(told["offset"]) < 100.0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "clock.json").write_text(json.dumps({"addresses": ["127.0.0.1"], "port": port}))
    assert "cannot be reached" in str(clock(tmp_path)["problem"])
