"""The batch script and what follows an attempt, without Slurm."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from windtunnel.cluster import (
    Attempt,
    Prepared,
    SlurmJob,
    Unreachable,
    Wish,
    is_over,
    list_jobs,
    next_move,
    prepare_job,
    read_batch_script,
    stop_job,
    submit_job,
    try_job,
)
from windtunnel.plan import plan_stages, plan_whole
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rig import parse_rig

ENVIRONMENT = {
    "PATH": "/usr/bin", "HOME": "/home/me", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "secret",
    "WANDB_API_KEY": "secret", "EDITOR": "vi", "WINDTUNNEL_PRICE": "2", "DISPLAY": ":0", "HF_HOME": "/data/hf home",
}  # fmt: skip


def prepared(recipe: Path, on: str = "8xH100", *options: str, **values: object) -> Prepared:
    rig = parse_rig(on)
    wish = Wish(rig=rig, hours=10.0, save_seconds=20.0, disk_gib=5.0, options=options, root=recipe.parent / "runs", **values)  # type: ignore[arg-type]
    return prepare_job(load_recipe(recipe), wish, ENVIRONMENT)


def test_the_script_says_all_that_the_job_needs(recipe: Path, tmp_path: Path) -> None:
    made = prepared(recipe, "8xH100", "partition=gpu", "exclude=n[3-4]", "account=project", "mem=0")
    file = tmp_path / "job.sbatch"
    file.write_text(made.script)
    read = read_batch_script(file)
    assert not read.problems
    assert not read.warnings
    assert (read.nodes, read.gpus_per_node, read.options["signal"]) == (1, 8, "B:USR1@120")
    assert read.options["partition"] == "gpu"
    assert read.options["exclude"] == "n[3-4]"
    assert "requeue" in read.options
    assert read.seconds is not None
    assert read.seconds > 10 * 3600 + 120
    assert "secret" not in made.script
    assert "EDITOR" not in made.script
    assert "export HF_HOME='/data/hf home'" in made.script


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="not installed: shellcheck (apt install shellcheck)")
def test_shellcheck_has_nothing_to_say(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(prepared(recipe, "8xH100", "comment=two words").script)
    done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("on", "options", "values", "words"),
    [
        ("8xH100", ["partion=gpu"], {}, "did you mean partition"),
        ("8xH100", ["time=soon"], {}, "'soon' is not what --time takes"),
        ("8xH100", ["time=5"], {"notice": 200}, "told to save 200 s before its end"),
        ("8xH100", [], {"notice": 5}, "too short to save"),
        ("8xH100", ["signal=TERM@30"], {}, "--notice SECONDS"),
        ("8xH100", ["nodes=2"], {}, "the plan is for 8xH100"),
        ("8xH100", ["gpus-per-node=h100:4"], {}, "gpus-per-node=h100:8"),
        ("2x(8xH100)", [], {}, "no stage of kind rl"),
        ("8xH100", [], {"container": "gone.sif"}, "no such image"),
        ("8xH100", ["mem=0", "mem=8G"], {}, "--mem is given twice, before as 0"),
        ("8xH100", ["exclude=n1 n2"], {}, "'n1 n2' is not what --exclude takes"),
        ("8xH100", [], {"temporary": "scratch"}, "--node-temp scratch: a folder of each node's own disk begins with /"),
    ],
)
def test_what_does_not_fit_is_refused(on: str, options: list[str], values: dict[str, object], words: str, recipe: Path) -> None:
    with pytest.raises(UserError) as refused:
        prepared(recipe, on, *options, **values)
    assert words in f"{refused.value.message}\n{refused.value.fix}"


def test_nodes_that_are_excluded_one_by_one_all_are(recipe: Path) -> None:
    assert "#SBATCH --exclude=n1,n[3-4]\n" in prepared(recipe, "8xH100", "exclude=n1", "exclude=n[3-4]", "mem=0", "mem=0").script


def test_all_stages_of_a_recipe_are_what_a_machine_is_asked_for() -> None:
    rig = parse_rig("8xH100")
    recipe = load_recipe("grpo", ["stages.rl.budget.steps=2000"])
    staged, whole = plan_stages(recipe, rig), plan_whole(recipe, rig)
    first, second = (stage.plan for stage in staged.stages)
    assert whole.hours == pytest.approx(first.hours + second.hours)
    assert whole.dollars == pytest.approx((first.dollars or 0) + (second.dollars or 0))
    assert whole.disk_gib > max(first.disk_gib, second.disk_gib)
    large = load_recipe("grpo", ["model.config=qwen2.5-32b", "model.adapter.rank=16", "stages.rl.micro_batch=64"])
    assert plan_stages(large, rig).stages[0].plan.fits
    with pytest.raises(UserError, match="grpo, stage rl, does not fit rig 8xH100"):
        plan_whole(large, rig)


def test_a_container_runs_the_steps_and_not_slurms_commands(recipe: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.touch()
    made = prepared(recipe, container=str(image))
    assert made.spec.python[:3] == ("apptainer", "exec", "--nv")
    assert made.spec.python[-2:] == (str(image), "python3")
    assert "apptainer" not in made.script.splitlines()[-1]


def test_nodes_of_another_processor_are_named(recipe: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16))
    assert prepared(recipe, "8xH100", container=str(image)).notes == []
    with pytest.raises(UserError, match="it is for x86_64, and the nodes of 4xGH200 are aarch64"):
        prepared(recipe, "4xGH200", container=str(image))
    image.write_bytes(image.read_bytes().replace(b"02\0", b"04\0"))
    assert prepared(recipe, "4xGH200", container=str(image)).notes == []
    told = prepared(recipe, "4xGH200").notes
    assert (platform.machine() == "aarch64") == (told == [])


def test_without_slurm_the_script_is_still_made(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(recipe)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="sbatch is not installed here"):
        try_job(made)
    with pytest.raises(UserError, match="sbatch is not installed here"):
        submit_job(made)
    assert not made.path.exists()


def test_a_job_is_stopped_through_its_folder_where_no_slurm_answers(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared(recipe)
    job = SlurmJob.create(made.path, made.spec, script=made.script, recipe=made.recipe)
    job.submitted("12")
    monkeypatch.setenv("PATH", str(tmp_path))
    told: list[str] = []
    by = stop_job(job, told.append)
    assert job.stop == by
    assert "asked through its folder" in told[0]
    assert not is_over(job)
    line = list_jobs(recipe.parent / "runs")[0]
    assert (line.id, line.state, line.reason) == ("12", "unknown", "no Slurm answers here")
    state = job.state
    state.end = ("stopped", by)
    job.save(state)
    assert is_over(job)
    assert list_jobs(recipe.parent / "runs")[0].state == "stopped"


def attempt(code: int | None = 3, *, step: int = 20, before: int = 0, **values: object) -> Attempt:
    found = Attempt("7", ["n1"], 0.0, before=(1, before), after=(1, step), ended=1.0, code=code)
    for name, value in values.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("attempts", "stop", "kind"),
    [
        ([attempt(0, status="done")], None, "done"),
        ([attempt(3, signal="SIGUSR1", reason="SIGUSR1")], None, "again"),
        ([attempt(3, reason="SIGTERM")], None, "again"),
        ([attempt(3, reason="spot notice: soon")], None, "again"),
        ([attempt(3, reason="budget.hours: 2 h are spent")], None, "stopped"),
        ([attempt(3, signal="SIGUSR1")], "windtunnel stop, by me", "stopped"),
        ([attempt(2, reason="bad input")], None, "failed"),
        ([attempt(1, status="done", reason="gate loss did not hold")], None, "failed"),
        ([attempt(1, status="failed", reason="rank 0 raised")], None, "again"),
        ([attempt(1, status="failed", step=20, before=20)], None, "again"),
        ([attempt(1, status="failed"), attempt(1, status="failed", step=20, before=20)], None, "again"),
        ([attempt(1, step=20, before=20), attempt(-9, step=20, before=20)], None, "failed"),
        ([attempt(None, step=20, before=20), attempt(None, step=20, before=20)], None, "failed"),
        ([attempt(3, signal="SIGUSR1", step=0, before=0), attempt(3, signal="SIGUSR1", step=0, before=0)], None, "failed"),
        ([attempt(None, step=0, before=0, bad={"n2": "GPU 3 is lost"})] * 4, None, "again"),
        ([attempt(None, step=0, before=0, bad={"n2": "GPU 3 is lost"})] * 5, None, "failed"),
    ],
)
def test_what_follows_an_attempt(attempts: list[Attempt], stop: str | None, kind: str) -> None:
    move = next_move(attempts, stop)
    assert move.kind == kind
    assert move.why
