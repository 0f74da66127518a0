"""The task file that SkyPilot starts: by its own schema where it is installed, and what is refused before anything is rented."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from windtunnel.cli import main
from windtunnel.recipe import UserError, load_recipe
from windtunnel.remote import PROVIDERS, Rented, compare_with_schema, require_credentials, taken, write_job
from windtunnel.remote.sky import task
from windtunnel.rig import parse_rig
from windtunnel.run import RunFolder

OWN = Path(__file__).parents[2] / "build" / "sky" / "bin" / "python"
"""Where tools/ci_packages.sh puts it."""
_FOUND = [sys.executable] if importlib.util.find_spec("sky") else [str(OWN)] if (OWN.parent / "sky").exists() else []
SKY = os.environ.get("SKY_PYTHON") or next(iter(_FOUND), None)
"""An interpreter that has SkyPilot; it is large, and so in no environment of ours: SKY_PYTHON=/tmp/sky/bin/python."""


def rented(name: str) -> Rented:
    return Rented(parse_rig(name), hours=1.0, disk_gib=40.0)


def task_text(provider: str, rig: str) -> str:
    recipe = load_recipe("charlm", ["checkpoints.mirror=s3://bucket/runs"])
    made = task(recipe, rented(rig), provider, {"~/windtunnel/recipe.yaml": "/here/recipe.yaml"}, wheel="w.whl", spot=True)
    return json.dumps(made)


def test_the_task_names_the_rig_its_price_and_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    text = [f"data.corpus={{kind: text, files: [{tmp_path}/text.txt]}}", "data.tokenizer={kind: character}"]
    recipe = load_recipe("charlm", [*text, "checkpoints.mirror=s3://bucket/runs"])
    made = yaml.safe_load(write_job(recipe, rented("8xH100"), "gcp", tmp_path / "job", spot=True).read_text())
    resources = made["resources"]
    assert (resources["infra"], resources["accelerators"], resources["use_spot"]) == ("gcp", "H100:8", True)
    assert made["envs"] == {
        "WINDTUNNEL_SPOT_NOTICE": "gcp",
        "WINDTUNNEL_PROVIDER": "gcp",
    }  # or nobody would listen for the notice
    assert resources["autostop"]["down"] is True
    assert resources["max_hourly_cost"] > rented("8xH100").rig.dollars_per_hour  # type: ignore[operator]
    assert all(Path(source).exists() for source in made["file_mounts"].values())
    own = yaml.safe_load((tmp_path / "job" / "recipe.yaml").read_text())["data"]["corpus"]["files"]
    assert [f"~/windtunnel/{name}" in made["file_mounts"] for name in own] == [True]
    for script in (made["setup"], made["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "whl[s3]" in made["setup"]
    # What a job finds in its mirror is its own, on whatever machine SkyPilot starts it.
    assert load_recipe(tmp_path / "job" / "recipe.yaml").checkpoints.mirror == "s3://bucket/runs/job"
    assert "train recipe.yaml --restartable --gpus 8 " in made["run"]
    assert made["setup"].index("nvidia-smi") < made["setup"].index("-m venv")  # an image without a driver is refused


@pytest.mark.parametrize(
    ("reason", "code"),
    [("spot notice: terminate", 0), ("SIGTERM", 0), ("budget.dollars: spent", 1), ("windtunnel stop, by me", 1)],
)
def test_only_a_machine_that_is_taken_away_is_replaced(
    reason: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with RunFolder.create(tmp_path, load_recipe("charlm"), rig={"name": "here"}) as run:
        run.finish("stopped", reason)
    monkeypatch.setattr(sys, "argv", ["taken", str(tmp_path)])
    assert taken.main() == code


@pytest.mark.skipif(SKY is None, reason="no interpreter here has SkyPilot: pip install skypilot, or name one by SKY_PYTHON")
def test_every_provider_s_task_is_valid_by_skypilot_s_own_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(SKY or '').parent}:{os.environ['PATH']}")
    file = tmp_path / "task.yaml"
    for provider in PROVIDERS:
        file.write_text(task_text(provider, "g5.xlarge" if provider == "aws" else "8xH100"))
        assert compare_with_schema(file).startswith("valid by the schema of SkyPilot")
    file.write_text(file.read_text().replace("accelerators", "acelerators"))
    with pytest.raises(UserError, match="acelerators"):  # a schema that takes anything would prove nothing
        compare_with_schema(file)


def test_without_skypilot_nothing_is_said_to_be_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compare_with_schema(tmp_path / "task.yaml").startswith("not compared")


@pytest.mark.parametrize("name", PROVIDERS)
def test_missing_credentials_are_named_before_anything_is_rented(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for variable in PROVIDERS[name].variables:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UserError, match=f"no credentials for {name} here") as caught:
        require_credentials(name, home=tmp_path)
    assert caught.value.fix
    file = tmp_path / PROVIDERS[name].files[0]
    file.parent.mkdir(parents=True)
    file.write_text("something")
    require_credentials(name, home=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "8xH100", "--to", "asw"], "unknown provider"),
        (["--on", "8xH100", "--to", "vast"], "expected aws, gcp, runpod, lambda, kubernetes, slurm, ssh:HOST, or a folder"),
        (["--on", "8xH100", "--to", "modal"], "unknown provider"),
        (["--to", "local"], "unknown provider"),
        (["--on", "8xH100", "--to", "somewhere"], "unknown provider"),
        (["--on", "8xH100", "--to", "amazon"], "--set checkpoints.mirror"),
        (["--on", "8xH100", "--to", "EC2"], "--set checkpoints.mirror"),
        (["--to", "k8s"], "--to kubernetes"),
        (["--to", "google"], "--to gcp"),
        (["--on", "8xH100", "--to", "aws", "--dry-run"], "without a mirror nothing would come home"),
        (["--to", "aws", "--dry-run"], "for a recipe and a rig"),
        (["--on", "g5.xlarge", "--to", "gcp", "--dry-run", "--set", "checkpoints.mirror=gs://b/r"], "an instance of AWS"),
        (["--on", "8xH100", "--to", "lambda", "--spot", "--dry-run", "--set", "checkpoints.mirror=s3://b/r"], "no spot machines"),
        (["--on", "2x(8xH100)", "--to", "ssh:nobody"], "ssh trains on one machine"),
        (["--to", "ssh:a,ssh:a", "--set", "checkpoints.mirror=s3://b/r"], "names a machine twice"),
        (["--to", "ssh:a,ssh:b"], "without a mirror no other one could go on"),
        (["--on", "2x(8xH100)", "--to", "aws", "--dry-run", "--set", "checkpoints.mirror=s3://b/r"], "trains on one machine"),
    ],
)
def test_what_cannot_be_rented_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["launch", "charlm", *arguments])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("code", "spot"), [(0, False), (0, True), (1, False)])
def test_what_was_rented_is_named_and_a_refusal_told(
    code: int, spot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SkyPilot's command stands in for itself: it notes how it was called, and ends with a code."""
    (tmp_path / "sky").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit {code}\n')
    (tmp_path / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RUNPOD_API_KEY", "a key")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("windtunnel.remote.sky.build_wheel", lambda folder: folder / "windtunnel.whl")  # others build it
    more = ["--spot"] if spot else []
    with pytest.raises(SystemExit) as ended:
        main(["launch", "charlm", "--on", "8xH100", "--to", "runpod", "--set", "checkpoints.mirror=s3://b/r", *more])
    said = capsys.readouterr()
    called = (tmp_path / "called").read_text()
    assert called.startswith("jobs launch --name wt-charlm-runpod" if spot else "launch --cluster wt-charlm-runpod")
    if code:
        assert ended.value.code == 2
        assert "quota" in said.err
        return
    assert ended.value.code == 0
    job = next(tmp_path.glob("charlm-runpod-*")).name
    assert f"windtunnel stop s3://b/r/{job}\n" in said.out
    assert ("ssh:wt-charlm-runpod" in said.out) is not spot


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Quota 'NVIDIA_H100_GPUS' exceeded.  Limit: 0.0 in region us-central1.", "quota of this machine is exceeded"),
        ("VcpuLimitExceeded: You have requested more vCPU capacity than your current limit", "higher quota of this GPU"),
        (
            "sky.exceptions.ResourcesUnavailableError: Failed to provision all possible launchable resources.",
            "no machine of this",
        ),
        ("InsufficientInstanceCapacity: no capacity for p5.48xlarge", "another --to, another GPU"),
        ("There are no instances currently available", "no machine of this kind is free"),
        ("something else", "SkyPilot ended with exit code 1"),
    ],
)
def test_what_a_cloud_refuses_is_named_with_a_fix(
    said: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said").write_text(said)
    (tmp_path / "sky").write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n")
    (tmp_path / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RUNPOD_API_KEY", "a key")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("windtunnel.remote.sky.build_wheel", lambda folder: folder / "windtunnel.whl")  # others build it
    with pytest.raises(SystemExit) as ended:
        main(["launch", "charlm", "--on", "8xH100", "--to", "runpod", "--set", "checkpoints.mirror=s3://b/r"])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert told in shown
    assert "to try again: sky launch" in shown


def test_kubernetes_has_spot_machines_only_where_nodes_are_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "charlm", "--on", "8xH100", "--to", "k8s", "--spot", "--dry-run", "--set", "checkpoints.mirror=s3://b/r"])
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert "warn: a cluster has spot machines only where its nodes are labelled" in said
    assert "nobody publishes what they cost or how often they are taken away" in said
    assert "no interruption is counted: --interruptions 0.1 (an hour)" in said
