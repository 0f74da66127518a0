"""The day on rented machines: one command trains on a machine with only ssh; it is taken away; another one finishes the run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import KEYS, environment, make_bucket, s3_server
from ssh_hosts import MISSING, machine
from waiting import HANG, until

from windtunnel.mirror import STATE
from windtunnel.recipe import dump_recipe, load_recipe, scale_model
from windtunnel.remote.afterwards import at_work
from windtunnel.run import MetricsReader, RunFolder

STEPS = 24


def windtunnel(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "windtunnel", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mirrored(home: Path) -> int:
    """The step that the mirror of a machine's run has come to."""
    for file in home.glob(f".windtunnel/runs/*/{STATE}"):
        return int(json.loads(file.read_text()).get("step") or 0)
    return 0


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)} (apt install openssh-server rsync)")
def test_a_machine_is_taken_away_and_another_finishes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(dump_to(tmp_path / "charlm.yaml", dump_recipe(scale_model(load_recipe("charlm")))), [
        f"budget.steps={STEPS}", "budget.tokens=null", "budget.hours=0.2", "checkpoints.every=8 steps",
        "checkpoints.mirror=s3://runs/mine",
    ])  # fmt: skip
    dump_to(tmp_path / "charlm.yaml", dump_recipe(recipe))
    with s3_server() as port:
        store = environment(f"http://127.0.0.1:{port}")
        make_bucket(store["AWS_ENDPOINT_URL"], "runs")
        with machine(tmp_path / "first", store) as first, machine(tmp_path / "second", store) as second:
            monkeypatch.setenv("WINDTUNNEL_SSH", first.ssh)
            launched = windtunnel(
                "launch", "charlm.yaml", "--to", first.address, "--python", sys.executable, "--price", "2", "--json", cwd=tmp_path
            )
            run = json.loads(launched)["run"].rpartition("/")[2]
            until(lambda: mirrored(first.home) >= 8, "nothing is mirrored")
            first.take_away()
            lost = first.home / ".windtunnel" / "runs" / run
            assert RunFolder.open(lost).manifest["status"] == "running"
            monkeypatch.setenv("WINDTUNNEL_SSH", second.ssh)
            stop = ("--then-stop", "touch ~/stopped", "--idle", "0.05")
            windtunnel("launch", f"s3://runs/mine/{run}", "--to", second.address, "--python", sys.executable, *stop, cwd=tmp_path)
            # Looked at as a file first: every look from here starts two programs, on the cores that train.
            log = second.home / ".windtunnel/runs" / run / "output.log"
            until(lambda: log.exists() and "all of this run is in" in log.read_text(), "it does not finish")
            looked = json.loads(windtunnel("launch", "--status", "--to", second.address, "--json", cwd=tmp_path))
            assert [item["status"] for item in looked] == ["done"]
            home = tmp_path / json.loads(windtunnel("fetch-run", second.address, "--root", "home", "--json", cwd=tmp_path))["run"]
            # The mirror has the very same, and the machine's account is in it.
            for name, value in store.items():
                monkeypatch.setenv(name, value)
            copy = tmp_path / json.loads(
                windtunnel("fetch-run", f"s3://runs/mine/{run}", "--root", "copy", "--json", cwd=tmp_path)
            )["run"]  # fmt: skip
            # It stops itself when all is done, and nothing of the job is left running there.
            until((second.home / "stopped").exists, "the machine is not stopped")
            until(lambda: not list(at_work(second.home / ".windtunnel")), "something still runs")
    manifest = RunFolder.open(home).manifest
    assert (manifest["status"], manifest["exit_code"], manifest["summary"]["step"]) == ("done", 0, STEPS)
    assert "budget.steps" in manifest["reason"]
    assert (home / "report.html").stat().st_size > 1000
    with MetricsReader(lost / "metrics.sqlite") as before, MetricsReader(home / "metrics.sqlite") as after:
        own, whole = ({point.step: point.value for point in reader.series("loss")} for reader in (before, after))
    assert {step: whole[step] for step in own} == own  # the same bits, also of the steps that were lost
    assert sorted(whole) == list(range(1, STEPS + 1))
    spent, used = (json.loads((folder / "spent.json").read_text()) for folder in (home, lost))
    assert spent["seconds"] > used["seconds"] > 0
    assert spent["dollars"] < 0.2 * 2
    newest = f"checkpoints/step-{STEPS:08d}/checkpoint.json"
    assert (copy / newest).read_bytes() == (home / newest).read_bytes()
    texts = (path.read_bytes() for path in tmp_path.glob("**/runs/**/*") if path.is_file())
    assert not any(value.encode() in text for text in texts for value in KEYS.values())


def dump_to(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
