"""A job over several machines: one is told to go, one is taken away, and the run goes on from its mirror by itself."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import environment, make_bucket, s3_server
from ssh_hosts import MISSING, Machine, machine
from tiny_recipes import write_tiny
from waiting import HANG, until

from windtunnel.mirror import STATE
from windtunnel.recipe import UserError
from windtunnel.run import MetricsReader, RunFolder, load_spent


def run_on(host: Machine) -> Path:
    return next(path.parent for path in host.home.glob(".windtunnel/runs/*/manifest.json"))


def mirrored(host: Machine) -> int:
    """The step that the mirror of a machine's run has come to."""
    for file in host.home.glob(f".windtunnel/runs/*/{STATE}"):
        return int(json.loads(file.read_text()).get("step") or 0)
    return 0


def losses(run: Path) -> dict[int, float]:
    with MetricsReader(run / "metrics.sqlite") as reader:
        return {point.step: point.value for point in reader.series("loss")}


def trained_on(host: Machine) -> int:
    """The step that a machine's run has come to; 0 also while it is moved out of the way and brought again."""
    with contextlib.suppress(StopIteration, UserError):
        return max(losses(run_on(host)), default=0)
    return 0


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)} (apt install openssh-server rsync)")
def test_a_job_goes_on_elsewhere_after_a_notice_and_after_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    notice = tmp_path / "notice"
    with s3_server() as port:
        store = environment(f"http://127.0.0.1:{port}")
        make_bucket(store["AWS_ENDPOINT_URL"], "runs")
        told = store | {"WINDTUNNEL_SPOT_NOTICE": f"file:{notice}"}
        with machine(tmp_path / "first", told) as first, machine(tmp_path / "second", store) as second:
            # One ssh command that reaches both: each has its own key.
            (tmp_path / "ssh_config").write_text(
                "".join(f"IdentityFile {tmp_path}/{name}/user\n" for name in ("first", "second"))
                + (tmp_path / "first" / "ssh_config").read_text()
            )
            monkeypatch.setenv("WINDTUNNEL_SSH", f"ssh -F {tmp_path}/ssh_config")
            keeper = subprocess.Popen(
                [sys.executable, "-m", "windtunnel", "launch", "tiny.yaml", "--to", f"{first.address},{second.address}",
                 "--python", sys.executable, "--price", "2", "--every", "1", "--json",
                 "--set", "checkpoints.mirror=s3://runs/mine"],
                cwd=tmp_path, stdout=subprocess.PIPE, stderr=open(tmp_path / "said", "w"), text=True,  # noqa: SIM115
            )  # fmt: skip
            said = tmp_path / "said"

            def comes_to(host: Machine, step: int) -> None:
                """Wait until a machine has the package, has checked, trains, and has mirrored a step."""
                for sign in (f"installing windtunnel 0.1.0 on {host.address}", f"checking on {host.address}"):
                    until(lambda sign=sign: sign in said.read_text() or keeper.poll() is not None, sign)
                until(lambda: list(host.home.glob(".windtunnel/runs/*/manifest.json")) or keeper.poll() is not None, "no run")
                until(lambda: mirrored(host) >= step or keeper.poll() is not None, "nothing is mirrored")
                assert keeper.poll() is None, said.read_text()

            comes_to(first, 20)
            notice.touch()  # two minutes, or thirty seconds, and the machine is gone
            until(lambda: "goes on elsewhere" in said.read_text() or keeper.poll() is not None, "the notice is not seen")
            comes_to(second, trained_on(first) + 1)  # it trains: that it has what was mirrored is not enough
            assert RunFolder.open(run_on(first)).manifest["reason"].startswith("spot notice")
            before = load_spent(run_on(first) / "spent.json")
            notice.unlink()
            second.take_away()
            lost = losses(run_on(second))
            until(lambda: said.read_text().count(f"checking on {first.address}") == 2, "the first machine does not check again")
            until(lambda: trained_on(first) > max(lost) + 20, "the first machine does not take over again")
            ended = subprocess.run(
                [sys.executable, "-m", "windtunnel", "stop", first.address], cwd=tmp_path, capture_output=True, text=True,
                timeout=HANG, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stderr
            out, _ = keeper.communicate(timeout=HANG)
            kept = json.loads(out)
            assert (kept["status"], kept["moves"], keeper.returncode) == ("stopped", 2, 3), said.read_text()
            run = run_on(first)
    # One run, its steps the same bits on all machines, and all that was spent on any of them.
    assert kept["run"].endswith(run.name)
    whole = losses(run)
    assert sorted(whole) == list(range(1, max(whole) + 1))
    assert {step: whole[step] for step in lost} == lost
    spent = load_spent(run / "spent.json")
    assert spent.seconds > load_spent(run_on(second) / "spent.json").seconds > before.seconds
    assert spent.dollars == pytest.approx(2 * spent.seconds / 3600, rel=0.01)
    assert os.listdir(run.parent / ".left") != []  # what was left behind is kept, out of the way
