"""What ends attempts under a real Slurm: the time limit, a more urgent job, a lost node; and Ray over two nodes. Minutes each."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from slurm_here import SlurmHere
from waiting import HANG, until

from windtunnel.cluster import SlurmJob
from windtunnel.run import MetricsReader

pytestmark = pytest.mark.slow

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
SUMS = """
name: sums
model: {kind: huggingface, config: model.json, sequence: 32}
data: {corpus: {kind: prompts, arithmetic: {documents: 300, digits: 1, terms: 2}}, validation: 0.1}
stages:
  rl:
    {prompts: 4, samples: 4, prompt_tokens: 8, answer_tokens: 6, learning_rate: 1e-2, compile: false, micro_batch: 2,
     mask_truncated: false, reward: 'reward.py:score', answers: {every: 3 steps, prompts: 8}, placement: ray}
budget: {steps: 4}
checkpoints: {every: 2 steps}
"""
Launch = Callable[..., SlurmJob]


@pytest.fixture
def launch(slurm: SlurmHere, tmp_path: Path, recipe: Path) -> Launch:
    """Submits the recipe."""

    def submit(*arguments: str, name: str = recipe.name, on: str = "cpu") -> SlurmJob:
        command = [sys.executable, "-m", "windtunnel", "launch", name, "--on", on, "--to", "slurm", "--json", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=slurm.environment, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert done.returncode == 0, done.stderr
        return SlurmJob.open(Path(json.loads(done.stdout)["folder"]))

    return submit


def output(job: SlurmJob) -> str:
    return (job.path / "output.log").read_text() if (job.path / "output.log").exists() else "nothing was printed"


def ended_well(job: SlurmJob) -> None:
    """One run, whose steps go on where they were."""
    until(lambda: job.state.end is not None, f"it did not end\n{output(job)}")
    first, second = job.state.attempts[:2]
    assert second.before[1] >= 20
    assert tuple(second.before) == tuple(first.after or ())
    assert job.progress()[0] == 1
    with MetricsReader(job.runs()[0].path / "metrics.sqlite") as reader:
        steps = [point.step for point in reader.series("loss")]
    assert steps == sorted(steps)


def end(slurm: SlurmHere, job: SlurmJob) -> None:
    """Stop a job that goes on once it has shown that it does."""
    came_back = job.state.attempts[-1]
    until(lambda: job.progress() > tuple(came_back.before), f"it did not go on\n{output(job)}")
    job.ask_to_stop("the test")
    ended_well(job)
    assert job.state.end == ("stopped", "the test")
    until(lambda: slurm.state(job.id or "") not in ("RUNNING", "COMPLETING"))


def test_the_time_limit_ends_attempts_and_not_the_run(slurm: SlurmHere, launch: Launch) -> None:
    job = launch("--slurm", "time=3", "--notice", "60")
    until(lambda: len(job.state.attempts) > 1, f"the time limit did not bring it back\n{output(job)}")
    assert job.state.attempts[0].signal == "SIGUSR1"
    end(slurm, job)


def test_a_more_urgent_job_takes_the_nodes_and_the_run_goes_on_after_it(slurm: SlurmHere, launch: Launch) -> None:
    job = launch()
    until(lambda: job.progress()[1] >= 20, f"no checkpoint\n{output(job)}")
    urgent = slurm.ask(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 5"
    )
    until(lambda: slurm.state(urgent) == "COMPLETED", "the urgent job did not run")
    until(lambda: len(job.state.attempts) > 1, f"it did not come back\n{output(job)}")
    assert job.state.attempts[0].signal in ("SIGTERM", None)  # None: it was killed before it could say
    end(slurm, job)


def test_a_lost_node_costs_the_steps_since_the_last_checkpoint(slurm: SlurmHere, launch: Launch) -> None:
    job = launch("--slurm", "nodelist=n2")
    until(lambda: job.progress()[1] >= 20, f"no checkpoint\n{output(job)}")
    slurm.kill_node("n2")
    until(
        lambda: slurm.state(job.id or "") in ("PENDING", "RUNNING") and "down" in slurm.ask("sinfo", "-h", "-n", "n2", "-o", "%t")
    )
    slurm.start_node("n2")
    until(lambda: len(job.state.attempts) > 1, f"it did not come back\n{output(job)}")
    assert job.state.attempts[0].code is None
    end(slurm, job)


def launch_sums(launch: Launch, folder: Path, slurm: SlurmHere, *sets: str) -> SlurmJob:
    """Submit reinforcement learning on two nodes."""
    pytest.importorskip("ray")
    (folder / "sums.yaml").write_text(SUMS)
    (folder / "model.json").write_text(json.dumps(CONFIG))
    (folder / "reward.py").write_text("def score(prompt, answer, truth):\n    return sum(c.isdigit() for c in answer) / 6\n")
    arguments = ["--slurm", "nodes=2", "--node-temp", str(slurm.own), *(part for one in sets for part in ("--set", one))]
    return launch(*arguments, name="sums.yaml", on="here")


def clean(slurm: SlurmHere, job: SlurmJob) -> None:
    """Neither node has anything of a job that has ended."""
    place = slurm.own / f"wt-{job.id}"
    until(lambda: not any(slurm.on_node(node, place).exists() for node in ("n1", "n2")), f"{place} is left\n{output(job)}")
    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(place) in word for word in p.info["cmdline"] or ())]
    assert not psutil.wait_procs(left, 20)[1]


def test_two_nodes_are_checked_together_and_ray_spans_them(slurm: SlurmHere, launch: Launch, tmp_path: Path) -> None:
    job = launch_sums(launch, tmp_path, slurm)
    until(lambda: job.state.end is not None, f"it did not end\n{output(job)}")
    assert job.state.end is not None
    assert job.state.end[0] == "done", output(job)
    assert "Ray: 2 of 2 nodes" in output(job)
    assert output(job).count("GB/s gloo x 2") == 2
    clean(slurm, job)


def test_a_job_that_is_cancelled_leaves_nothing_on_any_of_its_nodes(slurm: SlurmHere, launch: Launch, tmp_path: Path) -> None:
    job = launch_sums(launch, tmp_path, slurm, "budget.steps=1000000")
    until(lambda: job.progress()[1] >= 2, f"no checkpoint\n{output(job)}")
    assert all(slurm.on_node(node, slurm.own / f"wt-{job.id}").exists() for node in ("n1", "n2"))
    slurm.run("scancel", job.id or "")
    until(lambda: slurm.state(job.id or "") == "CANCELLED", "it was not cancelled")
    clean(slurm, job)
