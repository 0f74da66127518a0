"""Learners, engines and judges on a Ray cluster of two nodes: the run of one machine, whoever is killed; faults are named."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import CONFIG, RECIPE, require_same, series
from waiting import HANG

from windtunnel.actors import SHARED_GPU, Joined, Wanted, connect, engine_options, join, nodes_of, place, wait_for_nodes
from windtunnel.actors.placement import Node, lacking
from windtunnel.launch.placed import wanted_of
from windtunnel.launch.placed_checks import facts_of, judge_node
from windtunnel.launch.trainable import require_trainable
from windtunnel.model import hf_shape
from windtunnel.plan import make_plan
from windtunnel.recipe import GRPO, UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig
from windtunnel.rl import EngineShare, engines_of, has_vllm
from windtunnel.run import MetricsReader, RunFolder

STEPS = 5
SETS = (
    "stages.rl.engine=transformers", "stages.rl.learners=2", "stages.rl.engines=2", f"budget.steps={STEPS}",
    "checkpoints.every=1 steps", "stages.rl.keep_rollouts=20",
)  # fmt: skip
LIMIT = 1200.0
WIDER = {"hidden_size": 128, "intermediate_size": 256}
"""Heads of 32, the narrowest that vLLM has kernels for."""
PRINTED = "printed.txt"
FREE = 8 + 2 * 16 + 4
"""Answers that are judged before the judges stand still: those of step 0, of two rounds, and some of the third."""
HELD = f"""
import os, time
def score(prompt, answer, truth):
    with open("FOLDER/calls", "ab") as file:
        file.write(b".")
    while os.path.getsize("FOLDER/calls") > {FREE} and os.path.exists("FOLDER/hold"):
        time.sleep(0.02)
    return sum(c.isdigit() for c in answer) / 6
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes of two cores, so that learners and engines need both; its address."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:  # a node that does not join in time must not leave the other one's processes behind
        for _ in range(2):
            made.add_node(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False)
        yield made.address
    finally:
        made.shutdown()


@contextlib.contextmanager
def start(folder: Path, *sets: str, wider: bool = False, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Begin `windtunnel train` on sums; what it prints is in a file, for nobody reads a pipe. Who fails meanwhile ends it."""
    path, model, judge = folder / "tiny-rl.yaml", folder / "model.json", folder / "reward.py"
    model.write_text(json.dumps(CONFIG | (WIDER if wider else {})))
    judge.write_text(HELD.replace("FOLDER", str(folder)))
    path.write_text(RECIPE.replace("CONFIG", str(model)).replace("REWARD", str(judge)))
    command = [sys.executable, "-m", "windtunnel", "train", str(path), "--yes", "--root", str(folder / "runs")]
    command += [part for one in (*SETS, *sets) for part in ("--set", one)]
    with (
        open(folder / PRINTED, "w") as printed,
        subprocess.Popen(
            command, env={**os.environ, **environment}, text=True, stdout=printed, stderr=subprocess.STDOUT, cwd=folder
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()  # one that has ended is not there any more


def printed_in(folder: Path) -> str:
    """Return what the run printed so far."""
    return (folder / PRINTED).read_text()


def the_run(folder: Path) -> Path | None:
    """Return the run there is."""
    return next(iter(sorted((folder / "runs").glob("tiny-rl-*/manifest.json"))), Path()).parent if folder.exists() else None


def held(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the judges stand still in the third round: they do until `hold` is gone."""
    until, calls = time.monotonic() + LIMIT, folder / "calls"
    while time.monotonic() < until and process.poll() is None:
        if calls.exists() and calls.stat().st_size > FREE:
            return
        time.sleep(0.02)
    raise AssertionError(f"the third round was not reached: {printed_in(folder)}")


def killed(found: Callable[[list[str]], bool]) -> int:
    """Kill one process by its command line."""
    for process in psutil.process_iter():
        try:
            if found(process.cmdline()):
                process.kill()
                return process.pid
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    raise AssertionError("there is no such process")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_learners_and_two_engines_on_two_nodes_give_the_run_of_one_machine_although_an_engine_is_killed(
    tmp_path: Path, cluster: str
) -> None:
    here, placed = tmp_path / "here", tmp_path / "placed"
    for folder in (here, placed):
        folder.mkdir()
    with start(here) as local:
        assert local.wait(LIMIT) == 0, printed_in(here)
    began = time.monotonic()
    (placed / "hold").touch()
    with start(placed, "stages.rl.placement=ray", RAY_ADDRESS=cluster) as process:
        held(placed, process)
        killed(lambda words: words[:1] != [] and words[0].startswith("ray::EngineHost"))
        (placed / "hold").unlink()
        assert process.wait(LIMIT) == 0, printed_in(placed)
    output = printed_in(placed)
    print(f"five steps on two nodes, an engine killed: {time.monotonic() - began:.0f} s")
    run, other = the_run(placed), the_run(here)
    assert run is not None
    assert other is not None
    require_same(other, run)
    assert sum(series(run, "engine_restarts").values()) >= 1, output
    assert "it is started again" in output
    assert "2 learner(s)" in output


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not has_vllm(), reason="vLLM is not here; WINDTUNNEL_VLLM_PYTHON can name an interpreter that has it")
@pytest.mark.parametrize(("part", "way"), [("ray::EngineHost", "disk"), ("windtunnel.rl.vllm_engine", "direct")])
def test_two_learners_and_two_engines_of_vllm_on_two_nodes_learn_although_one_is_killed(
    tmp_path: Path, cluster: str, part: str, way: str
) -> None:
    others = _of_vllm()
    (tmp_path / "hold").touch()
    sets = ("stages.rl.placement=ray", "stages.rl.engine=vllm", "stages.rl.temperature=0.8", f"stages.rl.sync={way}")
    began = time.monotonic()
    with start(tmp_path, *sets, wider=True, RAY_ADDRESS=cluster) as process:
        held(tmp_path, process)
        killed(lambda words: any(word.startswith(part) for word in words))
        (tmp_path / "hold").unlink()
        assert process.wait(LIMIT) == 0, printed_in(tmp_path)
    print(f"five steps on two nodes with vLLM by {way}, {part} killed: {time.monotonic() - began:.0f} s")
    output, run = printed_in(tmp_path), the_run(tmp_path)
    assert run is not None
    assert "2 learner(s)" in output
    assert "it is started again" in output
    assert list(series(run, "reward")) == list(range(1, STEPS + 1))
    assert sum(series(run, "engine_restarts").values()) == 1, output
    assert set(series(run, "staleness").values()) == {0.0}
    assert max(series(run, "mismatch_largest").values()) < 1e-3
    assert max(series(run, "canary").values()) < 1e-5
    assert len([log for log in run.glob("logs/engine-*.log") if log.stat().st_size]) == 2
    until = time.monotonic() + HANG
    while left := _of_vllm() - others:
        assert time.monotonic() < until, left
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_learner_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "hold").touch()
    with start(tmp_path, "stages.rl.placement=ray", "stages.rl.answers=null", RAY_ADDRESS=cluster) as process:
        held(tmp_path, process)
        killed(lambda words: "windtunnel.launch.worker" in words and str(tmp_path) in " ".join(words))
        (tmp_path / "hold").unlink()
        assert process.wait(LIMIT) == 0, printed_in(tmp_path)
    output = printed_in(tmp_path)
    run = the_run(tmp_path)
    assert run is not None
    assert "the learners are started again from step" in output
    assert list(series(run, "reward")) == list(range(1, STEPS + 1))
    assert any("resumed" in event.message for event in _events(run))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_judges_that_are_killed_are_started_again_and_asked_again(tmp_path: Path, cluster: str) -> None:
    here, placed = tmp_path / "here", tmp_path / "placed"
    for folder in (here, placed):
        folder.mkdir()
    with start(here) as local:
        assert local.wait(LIMIT) == 0, printed_in(here)
    (placed / "hold").touch()
    with start(placed, "stages.rl.placement=ray", RAY_ADDRESS=cluster) as process:
        held(placed, process)
        killed(lambda words: words[:1] != [] and words[0].startswith("ray::JudgeHost"))
        (placed / "hold").unlink()
        assert process.wait(LIMIT) == 0, printed_in(placed)
    run, other = the_run(placed), the_run(here)
    assert run is not None
    assert other is not None
    require_same(other, run)
    assert set(series(run, "unknown").values()) == {0.0}
    logs = list(run.glob("logs/judges-*.log"))
    assert sum(log.read_text().count("judges start on") for log in logs) == len(logs) + 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_lost_a_node_says_with_how_many_it_goes_on_and_then_does(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        # Ray takes a minute and a half to notice, longer than a lost node is waited for, as where the machine is busy enough.
        late = {"health_check_failure_threshold": 30}
        made.add_node(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, _system_config=late)
        lost = made.add_node(num_cpus=2, object_store_memory=80_000_000)
        (tmp_path / "hold").touch()
        with start(tmp_path, "stages.rl.placement=ray", "stages.rl.answers=null", RAY_ADDRESS=made.address) as process:
            held(tmp_path, process)
            made.remove_node(lost, allow_graceful=False)
            (tmp_path / "hold").unlink()
            assert process.wait(LIMIT) == 2, printed_in(tmp_path)
        output = printed_in(tmp_path)
        assert "1 of 2 nodes are left, where 2 learners and 2 engines of a CPU core each do not fit: 4 CPU cores" in output
        fewer = ("--set", "stages.rl.learners=1", "--set", "stages.rl.engines=1")
        assert " ".join(fewer) in output
        run = the_run(tmp_path)
        assert run is not None
        steps = list(series(run, "reward"))
        assert steps
        command = [sys.executable, "-m", "windtunnel", "train", "--resume", "--run", str(run), "--yes", *fewer]
        environment = {**os.environ, "RAY_ADDRESS": made.address}
        done = subprocess.run(command, env=environment, text=True, capture_output=True, cwd=tmp_path, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(series(run, "reward")) == list(range(1, STEPS + 1))
        assert any("resumed from step" in event.message for event in _events(run))
    finally:
        made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_rounds_that_were_answered_ahead_go_on_after_a_stop(tmp_path: Path, cluster: str, end: signal.Signals) -> None:
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    for folder in (whole, halted):
        folder.mkdir()
    with start(whole, "stages.rl.overlap=1") as process:
        assert process.wait(LIMIT) == 0, printed_in(whole)
    (halted / "hold").touch()
    with start(halted, "stages.rl.overlap=1", "stages.rl.placement=ray", RAY_ADDRESS=cluster) as process:
        held(halted, process)
        process.send_signal(end)
        (halted / "hold").unlink()
        assert process.wait(LIMIT) == (3 if end is signal.SIGTERM else -end), printed_in(halted)
    run, other = the_run(halted), the_run(whole)
    assert run is not None
    assert other is not None
    command = [sys.executable, "-m", "windtunnel", "train", "--resume", "--run", str(run), "--yes"]
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, cwd=halted, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    require_same(other, run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_adapter_apart_trains_the_same_on_either_placement(tmp_path: Path, cluster: str) -> None:
    apart = (
        "model.adapter={rank: 2}", "stages.rl.engine_adapter=apart", "stages.rl.sync=direct",
        "stages.rl.learners=1", "stages.rl.engines=2", "budget.steps=2",
    )  # fmt: skip
    runs = []
    for placement in ("local", "ray"):
        folder = tmp_path / placement
        folder.mkdir()
        with start(folder, *apart, f"stages.rl.placement={placement}", RAY_ADDRESS=cluster, OMP_NUM_THREADS="1") as process:
            assert process.wait(LIMIT) == 0, printed_in(folder)
        run = the_run(folder)
        assert run is not None
        runs.append(run)
    require_same(*runs)


LEFT_OVER = """
from windtunnel.actors import join
with join("left-over"):
    import ray
    print(ray.get(ray.remote(lambda: "an answer").remote()))
    class Host:
        def ready(self):
            return "an actor"
    print(ray.get(ray.remote(Host).options(name="host").remote().ready.remote()))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_token_that_another_cluster_left_is_not_offered_where_none_is_asked_for(tmp_path: Path, cluster: str) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_ADDRESS": cluster}
    done = subprocess.run([sys.executable, "-c", LEFT_OVER], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.split("\n")[:2] == ["an answer", "an actor"], done.stderr


def _of_vllm() -> set[int]:
    """Return the processes of vLLM that there are."""
    found = ((process.pid, process.info["cmdline"] or [""]) for process in psutil.process_iter(["cmdline"]))
    return {pid for pid, words in found if "windtunnel.rl.vllm_engine" in words or words[0].startswith("VLLM::")}


def _events(run: Path) -> list[Any]:
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        return list(reader.events())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_a_cluster_has_not_is_named_without_waiting_for_it(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    told: list[str] = []
    with join("asked-too-much"):
        with pytest.raises(UserError, match="an engine of 4 GPUs needs them on one node"):
            place("too-wide", Wanted(1, 1, 4), told.append)
        with pytest.raises(UserError, match=r"18 CPU cores are needed and there are 4: 14 are missing; the cluster has 2 node"):
            place("too-many", Wanted(9, 9, 0), told.append, expected=2)
        with pytest.raises(UserError, match=r"2 of 3 nodes have joined the Ray cluster within .*: 14 are missing"):
            place("not-yet", Wanted(9, 9, 0), told.append, seconds=2.0, expected=3)
        assert told[-1].startswith("waiting for 9 learners and 9 engines of a CPU core each: 2 of 3 nodes have joined; ")
        with pytest.raises(UserError, match=r"2 of 3 nodes \(WINDTUNNEL_RAY_NODES\) have joined"):
            wait_for_nodes(3, told.append, seconds=1.0)
        assert len(wait_for_nodes(2, told.append)) == 2
        held = place("held", Wanted(3, 0, 0), told.append)
        with pytest.raises(UserError, match="other jobs hold what is needed"):
            place("too-late", Wanted(2, 0, 0), told.append, seconds=2.0)
        assert len(held.nodes) == 3


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
