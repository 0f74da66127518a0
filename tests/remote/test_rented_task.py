"""The task that SkyPilot starts, run as it would: its files brought, its scripts run; taken away; run again on a fresh disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from s3_server import environment, make_bucket, s3_server
from ssh_hosts import MISSING, Machine, machine
from tiny_recipes import write_tiny
from waiting import HANG, until

from windtunnel.mirror import STATE
from windtunnel.recipe import load_recipe
from windtunnel.remote import Rented, write_job
from windtunnel.remote.probes import require_gpus
from windtunnel.rig import parse_rig
from windtunnel.run import MetricsReader, RunFolder, load_spent


def place_files(host: Machine, task: dict[str, Any]) -> None:
    for there, here in task["file_mounts"].items():
        target = host.home / there.removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here, target)


def on(host: Machine, script: str) -> subprocess.Popen[bytes]:
    """Run a script there as SkyPilot does, by bash through ssh; what it says is in the home folder's `said`."""
    (host.home / "script.sh").write_text(script)
    name, _, port = host.address.removeprefix("ssh:").partition(":")
    with open(host.home / "said", "ab") as said:
        command = [*host.ssh.split(), "-p", port, name, "bash", '"$HOME/script.sh"']
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def run_on(host: Machine) -> Path:
    return next(path.parent for path in host.home.glob(".windtunnel/runs/*/manifest.json"))


def mirrored(host: Machine) -> int:
    for file in host.home.glob(f".windtunnel/runs/*/{STATE}"):
        return int(json.loads(file.read_text()).get("step") or 0)
    return 0


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)} (apt install openssh-server rsync)")
def test_a_rented_task_goes_on_by_itself_on_a_fresh_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    recipe = load_recipe(str(tmp_path / "tiny.yaml"), ["checkpoints.mirror=s3://runs/mine"])
    file = write_job(recipe, Rented(parse_rig("1xH100@$2"), 1.0, 1.0), "aws", tmp_path / "job", spot=True)
    task = yaml.safe_load(file.read_text())
    train = task["run"].replace(" --gpus 1", "")  # there is none here
    with s3_server() as port:
        store = environment(f"http://127.0.0.1:{port}")
        make_bucket(store["AWS_ENDPOINT_URL"], "runs")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (
            machine(tmp_path / "first", store | {"PATH": path}) as first,
            machine(tmp_path / "second", store | {"PATH": path}) as second,
        ):
            bare = task["setup"].removeprefix(require_gpus(1).lstrip())
            assert bare != task["setup"]
            unchecked = bare.replace("/bin/windtunnel check recipe.yaml --on here", "/bin/windtunnel --version")
            assert unchecked != bare
            for host in (first, second):  # what checks say is for other tests
                place_files(host, task)
                assert on(host, unchecked).wait(HANG) == 0, (host.home / "said").read_text()
            begun = on(first, train)
            until(lambda: mirrored(first) >= 20 or begun.poll() is not None, "nothing is mirrored")
            first.take_away()
            lost = run_on(first)
            again = on(second, train)
            until(
                lambda: again.poll() is not None or (list(second.home.glob(".windtunnel/runs/*")) and mirrored(second) > 40),
                "no end",
            )
            # Looked at and stopped by the cluster's name, as any machine.
            monkeypatch.setenv("WINDTUNNEL_SSH", second.ssh)
            verb = [sys.executable, "-m", "windtunnel"]
            told = subprocess.run(
                [*verb, "launch", "--status", "--to", second.address, "--json"], capture_output=True, text=True, check=True
            )
            assert [item["status"] for item in json.loads(told.stdout)] == ["running"]
            subprocess.run([*verb, "stop", second.address], check=True, timeout=HANG)
            assert again.wait(HANG) == 3  # asked for by somebody: it is not to be brought again
            run = run_on(second)
    assert run.name == lost.name
    with MetricsReader(lost / "metrics.sqlite") as before, MetricsReader(run / "metrics.sqlite") as after:
        own, whole = ({point.step: point.value for point in reader.series("loss")} for reader in (before, after))
    assert {step: whole[step] for step in own} == own
    assert RunFolder.open(run).manifest["status"] == "stopped"
    assert load_spent(run / "spent.json").dollars > load_spent(lost / "spent.json").dollars > 0
