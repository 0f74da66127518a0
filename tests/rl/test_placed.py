"""Learners, engines and judges on a Ray cluster of two nodes: the run of one machine, whoever is killed; faults are named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import CONFIG, RECIPE, require_same, series
from waiting import HANG

from windtunnel.actors import Wanted, join, place, wait_for_nodes
from windtunnel.recipe import UserError
from windtunnel.rl import has_vllm
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


REFUSING = """
from windtunnel.actors import ActorLost, answer_of, join
from windtunnel.recipe import UserError
class Host:
    def __init__(self):
        raise UserError("stages.rl.rewards.0: no such judge", "name another")
    def ready(self):
        return "an actor"
with join("refusing"):
    import ray
    try:
        answer_of(ray.remote(Host).remote().ready.remote(), "judges-0: starting", 60)
    except ActorLost as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_actor_that_refuses_to_start_says_why(cluster: str) -> None:
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    done = subprocess.run([sys.executable, "-c", REFUSING], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.splitlines()[0] == "judges-0: starting: it does not start: stages.rl.rewards.0: no such judge", done.stderr


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
