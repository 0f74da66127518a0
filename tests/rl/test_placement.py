"""Before a run on a Ray cluster: what is to be placed and has room, who answers at an address, nodes that are unlike."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG

from windtunnel.actors import SHARED_GPU, Joined, Wanted, connect, engine_options, join, nodes_of, place
from windtunnel.actors.placement import Node, lacking
from windtunnel.launch.placed import wanted_of
from windtunnel.launch.placed_checks import facts_of, judge_node
from windtunnel.launch.trainable import require_trainable
from windtunnel.model import hf_shape
from windtunnel.plan import make_plan
from windtunnel.recipe import GRPO, UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig
from windtunnel.rl import EngineShare, engines_of

LIMIT = 1200.0


@pytest.mark.parametrize(
    ("wanted", "nodes", "words"),
    [
        (Wanted(2, 2, 2), [(3, 8), (3, 8)], ""),
        (Wanted(0, 3, 2), [(3, 8), (3, 8)], "3 engines of 2 GPUs need them on one node each, and the nodes have room for 2"),
        (Wanted(4, 1, 4), [(4, 8)], "8 GPUs are needed and there are 4: 4 are missing"),
        (Wanted(4, 4, 1), [(8, 2)], r"8 CPU cores are needed and there are 2: 6 are missing \(ray start --num-cpus\)"),
        (Wanted(1, 1, 0), [], "2 CPU cores are needed and there are 0"),
        (Wanted(2, 2, 1, shared=True), [(1, 2), (1, 2)], ""),
        (Wanted(2, 2, 1, shared=True), [(1, 8)], "2 GPUs are needed and there are 1: 1 are missing"),
        (Wanted(1, 1, 1, shared=True), [(1, 1)], "2 CPU cores are needed and there are 1: 1 are missing"),
    ],
)
def test_what_no_wait_would_bring_is_told_from_what_is_only_in_use(
    wanted: Wanted, nodes: list[tuple[int, int]], words: str
) -> None:
    found = lacking(wanted, [Node(str(i), f"n{i}", "", cpus, gpus) for i, (gpus, cpus) in enumerate(nodes)])
    assert re.match(words + ("" if words else "$"), found)


def test_a_learner_and_its_engine_get_the_same_gpu_where_they_share_one() -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    made = Cluster()
    try:
        for _ in range(2):
            made.add_node(num_cpus=2, num_gpus=1, object_store_memory=80_000_000, include_dashboard=False)
        ray.init(address=made.address, namespace="shared", log_to_driver=False)
        wanted, told = Wanted(2, 2, 1, shared=True), list[str]()
        placed = place("both", wanted, told.append)
        assert placed.left == 0
        assert placed.lines(wanted)[0].endswith(": 2 learner(s), each with an engine on its GPU")  # both nodes are this host

        def where() -> tuple[str, list[int]]:
            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids()["GPU"]

        class Actor:
            def where(self) -> tuple[str, list[int]]:
                return where()

        host: Any = ray.remote(Actor)
        joined = Joined("", "shared", "both", 2, 2, 1, shared=True)
        on = [PlacementGroupSchedulingStrategy(placed.group, placement_group_bundle_index=number) for number in range(2)]
        learners = [host.options(num_cpus=1, num_gpus=SHARED_GPU, scheduling_strategy=one).remote() for one in on]
        engines = [host.options(**engine_options(joined, number)).remote() for number in range(2)]
        found = ray.get([actor.where.remote() for actor in (*learners, *engines)], timeout=LIMIT)
        assert found[:2] == found[2:]
        assert found[0][0] != found[1][0]
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_node_whose_raylet_is_gone_counts_as_lost_although_ray_takes_it_for_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = [one.getsockname()[1] for one in (there, gone)]
        nodes = [
            {"NodeID": str(i), "NodeName": f"n{i}", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port,
             "Resources": {"CPU": 2.0}, "Alive": True}
            for i, port in enumerate(ports)
        ]  # fmt: skip
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        assert [node.name for node in nodes_of()] == ["n0", "n1"]
        gone.close()
        assert [node.name for node in nodes_of()] == ["n0"]
        nodes[0]["Alive"] = False
        assert nodes_of() == []


def test_an_address_where_nothing_answers_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"RAY_ADDRESS=127\.0\.0\.1:1: nothing answers there"), join("nobody"):
        pass
    monkeypatch.setenv("RAY_ADDRESS", "head-node")
    with pytest.raises(UserError, match="is no address"), join("nobody"):
        pass
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UserError, match="is an address of Ray Client") as caught, join("nobody"):
        pass
    assert caught.value.fix == "the head node's own address, such as RAY_ADDRESS=10.0.0.1:6379"


@pytest.mark.parametrize(
    ("says", "words"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "has this port is no Ray"), (b"", "nothing answers there")]
)
def test_a_port_that_another_program_has_is_named_at_once(says: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "REACH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            there, _ = server.accept()
            with there:
                there.sendall(says)
                there.recv(1 << 16)
                over.wait(HANG)

        over = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(UserError, match=words), join("nobody"):
            pass
        over.set()
        thread.join()


def test_what_ray_says_of_its_nodes_is_one_line_and_never_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    worker = pytest.importorskip("ray._private.worker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
        connect._shorten()
        for _ in range(2):
            lines = ["Raylet is terminated. Possible reasons include: (1) SIGKILL\n    [state-dump] \n    [state-dump] more"]
            worker.print_to_stdstream({"lines": lines, "pid": "raylet", "is_err": False}, ignore_prefix=False)
    out, err = capfd.readouterr()
    assert not out
    assert err == "Ray: Raylet is terminated. Possible reasons include: (1) SIGKILL\n"


def test_who_joins_a_cluster_still_hears_that_it_is_to_save_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    heard: list[int] = []
    monkeypatch.setattr(ray, "init", lambda **keywords: signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number)))
    monkeypatch.setattr(connect, "_shorten", lambda: None)
    old = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        connect._connect("10.0.0.1:6379", "job")
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert heard == [signal.SIGTERM]


def test_another_version_of_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.13.0")
    with pytest.raises(UserError, match=r"Ray 1\.13\.0 is installed, and this package works with ray>="), join("nobody"):
        pass


def test_ray_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UserError, match="Ray is not installed here") as caught, join("nobody"):
        pass
    assert "windtunnel[ray]" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("sets", "ranks", "found"),
    [
        ({"engine": "in-turn"}, 4, Wanted(4, 0, 1)),
        ({}, 4, Wanted(4, 12, 1)),
        ({"engine_tensor": 2}, 2, Wanted(2, 6, 2)),
        ({"engine_tensor": 4}, 2, Wanted(2, 2, 4)),  # three would fit: the third's GPUs are left over, and told
        ({"engine_tensor": 2, "engines": 8}, 2, Wanted(2, 4, 2)),  # GPUs, and not engines
    ],
)
def test_engines_are_those_of_the_plan_as_many_for_each_learner(sets: dict[str, Any], ranks: int, found: Wanted) -> None:
    stage = GRPO(name="rl", **{"engine": "vllm", **sets})
    plan = {"layout": {"device": "cuda"}, "roles": {"engine": {"gpus": 12, "layout": {"tensor": 1}}}}
    assert wanted_of(stage, plan, ranks) == found


def test_on_a_cluster_of_one_gpu_vllm_is_placed_on_the_learners() -> None:
    sets = ["stages.rl.engine=vllm", "stages.rl.placement=ray"]
    recipe = stage_recipe(load_recipe("grpo", sets), "rl")
    stage, rig = recipe.rl, parse_rig("H200")
    assert stage is not None
    plan = make_plan(recipe, rig).to_json()
    wanted = wanted_of(stage, plan, plan["layout"]["ranks"])
    assert (wanted, wanted.gpus) == (Wanted(1, 1, 1, shared=True), 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folder": False}, "node n2 does not see the run's folder"),
        ({"model": {}}, "node n2 does not have the model: model.safetensors"),
        ({"packages": {"torch": "2.11.0"}}, "node n2 has torch 2.11.0, this machine"),
        ({"packages": {"ray": None}}, "node n2 has ray not at all"),
        ({"python": "3.9.1"}, "node n2 has Python 3.9.1"),
        ({"vllm": None}, "node n2 has no vLLM"),
        ({"vllm": "0.9.2"}, "node n2 has vLLM 0.9.2"),
        ({"gpu_faults": ["GPU 3: is lost, as nvidia-smi says"]}, "node n2: GPU 3: is lost"),
        ({"time": 940.0}, "its clock is 60 s behind"),
        ({"time": 1062.0}, "its clock is 60 s ahead of"),
    ],
)
def test_a_node_that_is_unlike_this_machine_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    here = facts_of(str(tmp_path), str(tmp_path), False, None) | {"gpu_faults": []}
    there = here | {"time": 1001.0}
    judge_node("n2", here, there, tmp_path, None, sent=1000.0, received=1002.0)
    if "packages" in change:
        change = {"packages": here["packages"] | change["packages"]}
    with pytest.raises(UserError, match=words):
        judge_node("n2", here, there | change, tmp_path, tmp_path, sent=1000.0, received=1002.0)


def test_a_gpu_that_nvidia_smi_has_lost_is_found_by_asking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error'\nexit 255\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (fault,) = facts_of(str(tmp_path), None, False, None)["gpu_faults"]
    assert "Unable to determine the device handle for GPU0000:3B:00.0" in fault


@pytest.mark.parametrize(
    ("model", "tensor", "words", "fix"),
    [
        ("qwen2.5-7b", 8, "8 GPUs cannot share the 28 heads", 4),
        ("qwen2.5-7b", 7, "7 GPUs cannot share the 4 heads of keys and values", 4),
        ("qwen3-8b", 16, "", None),  # two GPUs for each of its 8 heads of keys and values
    ],
)
def test_engines_whose_gpus_cannot_share_the_model_are_named(model: str, tensor: int, words: str, fix: int | None) -> None:
    assert hf_shape(model).unshared(tensor) in words
    if not words:
        return
    sets = [f"model.config={model}", "stages.rl.engine=vllm", f"stages.rl.engine_tensor={tensor}", "stages.sft=null"]
    recipe = stage_recipe(load_recipe("grpo", sets), "rl")
    for ask in (lambda: require_trainable(recipe), lambda: make_plan(recipe, parse_rig("8xH100"))):
        with pytest.raises(UserError, match=words) as caught:
            ask()
        assert caught.value.fix == f"--set stages.rl.engine_tensor={fix}"


def test_engines_that_learners_cannot_share_are_named() -> None:
    plan = {"layout": {"device": "cpu"}, "roles": {}}
    with pytest.raises(UserError, match="of 1 for each engine cannot be shared by 2 learner") as caught:
        wanted_of(GRPO(name="rl", engine="transformers", engines=3), plan, 2)
    assert caught.value.fix == "--set stages.rl.engines=2, or --set stages.rl.learners=2"
    with pytest.raises(UserError, match="3 GPU\\(s\\) or processes of 2 for each engine"):
        wanted_of(GRPO(name="rl", engine="vllm", engines=3, engine_tensor=2), plan, 1)
    assert engines_of(GRPO(name="rl", engine="vllm", engines=4, engine_tensor=2), plan, 1) == EngineShare(2, 2)
    assert engines_of(GRPO(name="rl", engine="vllm", engine_tensor=2), plan, 2) == EngineShare(2, 2)
