"""Launching on another machine that has nothing but ssh and rsync: against a real sshd with a home folder of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_hosts import MISSING, Machine, machine
from tiny_recipes import write_tiny
from waiting import HANG, until

from windtunnel.recipe import UserError, dump_recipe, load_recipe
from windtunnel.remote import Address, Host
from windtunnel.run import MetricsReader

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed here: {', '.join(MISSING)} (apt install openssh-server rsync)"
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machine(tmp_path / "machine") as found:
        monkeypatch.setenv("WINDTUNNEL_SSH", found.ssh)
        yield found


def windtunnel(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", *arguments], cwd=cwd, capture_output=True, text=True, timeout=HANG, check=False
    )  # fmt: skip


@pytest.mark.parametrize("text", ["ssh:", "ssh:host/run/more", "host", "ssh:a b", "ssh:host;reboot"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no address of a machine"):
        Address.parse(text)


def test_an_address_reads_as_it_is_written() -> None:
    for text in ("ssh:host", "ssh:me@host:2222", "ssh:me@host:2222/charlm-20260101-000000"):
        assert str(Address.parse(text)) == text


def test_a_machine_that_cannot_be_used_is_named_with_what_to_do(host: Machine, tmp_path: Path) -> None:
    address = Address.parse(host.address)
    with Host(address) as connected:
        assert connected.home == str(host.home)
        with pytest.raises(UserError, match="no such thing"):
            connected.run("echo no such thing >&2; exit 3")
    done = windtunnel("launch", "charlm", "--to", host.address, "--python", "/no/python", cwd=tmp_path)
    assert (done.returncode, "with venv there: /no/python is not there" in done.stderr) == (2, True)
    done = windtunnel("launch", "charlm", "--to", host.address, "--on", "8xH100", cwd=tmp_path)
    assert (done.returncode, "GPUs there: 0; --on asked for 8" in done.stderr, "fix: take a machine" in done.stderr) == (
        2,
        True,
        True,
    )
    assert not (host.home / ".windtunnel").exists()  # nothing was installed
    done = windtunnel("logs", host.address, cwd=tmp_path)
    assert (done.returncode, "nothing was launched on" in done.stderr) == (2, True)
    (tmp_path / "machine" / "user.pub").write_text("")
    with pytest.raises(UserError, match="does not accept your key"), Host(address):
        pass
    host.take_away()
    with pytest.raises(UserError, match="cannot be reached"), Host(address):
        pass


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_a_recipe_trains_there_and_is_looked_at_stopped_and_brought_home_from_here(host: Machine, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    done = windtunnel("launch", "tiny.yaml", "--to", host.address, "--python", sys.executable, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    assert "checking on" in done.stderr
    # The very files and recipe are there, under that machine's own names.
    there = host.home / ".windtunnel" / "runs" / run.rpartition("/")[2]
    (file,) = (host.home / ".windtunnel" / "jobs").glob("*/files/*/text.txt")
    assert file.read_bytes() == (tmp_path / "text.txt").read_bytes()
    assert str(file) in (there / "recipe.yaml").read_text()
    shown = windtunnel("launch", "--status", "--to", host.address, "--json", cwd=tmp_path)
    assert [item["status"] for item in json.loads(shown.stdout)] == ["running"], shown.stderr
    # It trains until it is told to stop; lines are followed meanwhile, until the end.
    lines = tmp_path / "lines"
    following = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", "logs", run, "-f"],
        stdout=open(lines, "w"),  # noqa: SIM115
    )
    until(lambda: "training: step" in lines.read_text(), "no lines come")
    ended = windtunnel("stop", run, "--json", cwd=tmp_path)
    assert json.loads(ended.stdout)["status"] == "stopped", ended.stderr
    following.wait(HANG)
    home = windtunnel("fetch-run", host.address, "--root", "home", "--json", cwd=tmp_path)
    folder = Path(json.loads(home.stdout)["run"])
    here = tmp_path / folder
    with MetricsReader(here / "metrics.sqlite") as reader, MetricsReader(there / "metrics.sqlite") as other:
        assert reader.series("loss") == other.series("loss") != []
    assert (here / "report.html").read_bytes() == (there / "report.html").read_bytes()
    assert (here / "checkpoints").is_dir()


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_a_recipe_whose_check_fails_there_is_not_started(host: Machine, tmp_path: Path) -> None:
    recipe = load_recipe("charlm", ["model.depth=64", "budget.hours=1"])
    (tmp_path / "large.yaml").write_text(dump_recipe(recipe))
    done = windtunnel("launch", "large.yaml", "--to", host.address, "--python", sys.executable, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "nothing was started" in done.stderr
    assert not list((host.home / ".windtunnel").glob("runs/*/manifest.json"))
