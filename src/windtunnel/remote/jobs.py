"""Jobs on another machine: checked there, started there, looked at, stopped, and brought home."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.recipe import GateFailed, Recipe, UserError
from windtunnel.rig import PROVIDER

from .afterwards import SETTINGS, Afterwards
from .bring import Brought, bring_package, bring_recipe, current
from .host import Address, Host
from .probes import require_gpus

Say = Callable[[str], None]
MARGIN_HOURS = 1.0
"""Over the budget, which counts training alone: for the evaluation, and for bringing over the end of the run."""
_STARTED = re.compile(r"run (\S+) trains on without this terminal")
_HINT = re.compile(r"  (look|lines|end): +windtunnel ")
# Of the process that trains there; a database is copied by itself.
_NOT_HOME = ("lock", "stop", "*.sqlite", "*.sqlite-*", "*.tmp-*")
_COPY = "import sys; from windtunnel.mirror import read_database; sys.stdout.buffer.write(read_database(sys.argv[1]))"


@dataclass(frozen=True)
class How:
    """How a job is started.

    Attributes:
        python: the interpreter there. price: dollars an hour. arguments: more of `train`'s.
        then_stop: a command of the shell there, which stops the machine when nothing of ours has run for `idle` minutes.
        gpus: how many the machine must show; None: any.
    """

    python: str | None = None
    price: float | None = None
    arguments: tuple[str, ...] = ()
    then_stop: str | None = None
    idle: float = 10.0
    gpus: int | None = None


def launch_recipe(address: Address, recipe: Recipe, how: How, say: Say) -> Address:
    """Install the package on a machine, bring the recipe and its data, check there, and train there without this terminal.

    Returns:
        the address of the run.

    Raises:
        GateFailed: a check did not hold there; nothing was started.
        UserError: the machine, its GPUs, its Python or the recipe cannot be used.
    """
    with Host(address) as host:
        _look_for_gpus(host, how)
        brought = bring_package(host, say, python=how.python, mirror=recipe.checkpoints.mirror)
        # With the time: the same recipe may be launched twice, and the first one's files may be in use.
        job = f"{host.root}/jobs/{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        file = bring_recipe(host, recipe, job, say)
        _check(host, brought, file, how, say)
        _stop_afterwards(host, brought, how, _longest(recipe, how.price), say)
        return _train(host, brought, [file], how, say)


def launch_from_mirror(address: Address, mirror: str, how: How, say: Say) -> Address:
    """Install the package on a machine and go on there with a run that is in a mirror; returns the run's address there.

    Raises:
        UserError: as `launch_recipe`; or another machine trains the run.
    """
    with Host(address) as host:
        _look_for_gpus(host, how)
        brought = bring_package(host, say, python=how.python, mirror=mirror)
        _stop_afterwards(host, brought, how, None, say)
        return _train(host, brought, ["--resume", "--run", mirror], how, say)


def status(address: Address) -> list[dict[str, Any]]:
    """Return the runs on a machine, the newest first, as `windtunnel runs --json` tells them there. Raises UserError."""
    with Host(address) as host:
        # Asked of the package there: it knows its own run folders, whatever version this side has.
        told = json.loads(host.run(_windtunnel(host, current(host), "runs", "--json")))
    return [item for item in told if address.run in (None, Path(item["path"]).name)]


def attach(address: Address, verb: str, *arguments: str) -> int:
    """Run one of windtunnel's verbs on a run there, with this terminal; returns its exit code. Raises UserError."""
    with Host(address) as host:
        brought = current(host)
        run = address.run or _newest(host, brought)
        return host.attach(_windtunnel(host, brought, verb, run, *arguments))


def fetch(address: Address, root: Path, say: Say) -> Path:
    """Bring a run home from the machine that trains it, also while it does; returns its folder here.

    Raises:
        UserError: no such run there, the folder here is in use, or the connection was lost; the next call goes on then.
    """
    with Host(address) as host:
        brought = current(host)
        run = address.run or _newest(host, brought)
        there, folder = f"{host.runs}/{run}", root / run
        if not host.has("-f", f"{there}/recipe.yaml"):
            raise UserError(f"{address}: no run {run} there", f"windtunnel launch --status --to {address.of(None)}")
        say(f"bringing {run} from {address}")
        host.pull(there, folder, without=_NOT_HOME)
        # A database that is written to is copied as its own library sees it.
        if host.has("-f", f"{there}/metrics.sqlite"):
            copy, own = f"{there}/metrics.copy.tmp-{os.getpid()}", folder / "metrics.sqlite"
            host.run(f"{brought.python} -c {shlex.quote(_COPY)} {shlex.quote(there)}/metrics.sqlite > {shlex.quote(copy)}")
            # A transfer that is cut off must not leave half a database in the place of the last whole one.
            temporary = folder / "metrics.part"
            host.pull_file(copy, temporary)
            host.run(f"rm -f {shlex.quote(copy)}")
            shutil.move(temporary, own)
        return folder


def _look_for_gpus(host: Host, how: How) -> None:
    """Refuse a machine that shows too few, such as one whose image has no driver. Raises UserError."""
    if how.gpus:
        host.run(require_gpus(how.gpus))


def _check(host: Host, brought: Brought, file: str, how: How, say: Say) -> None:
    """Prove there what can be proven before the paid hours begin. Raises GateFailed."""
    say(f"checking on {host.address}")
    lines: list[str] = []
    # By the environment: `check` has no --price.
    price = "" if how.price is None else f"export WINDTUNNEL_PRICE={how.price:g}; "
    code = host.follow(price + _windtunnel(host, brought, "check", file, "--on", "here"), lines.append)
    if code:
        for line in lines:
            say(line)
        raise GateFailed(f"{host.address}: a check did not hold there; nothing was started", "see the report above")
    # The verdict is the last line; the whole report is only of use where something failed.
    say(next((line for line in reversed(lines) if line.strip()), "checks hold"))


def _longest(recipe: Recipe, price: float | None) -> float | None:
    """Return how many hours the recipe's budget lets the machine train; None: it has no such limit."""
    budget = recipe.budget
    limits = [budget.hours, budget.dollars / price if budget.dollars is not None and price else None]
    return min((limit for limit in limits if limit is not None), default=None)


def _stop_afterwards(host: Host, brought: Brought, how: How, hours: float | None, say: Say) -> None:
    """Leave a process there that stops the machine when the work is done, and ends it past its limit."""
    if how.then_stop is None:
        return
    until = None if hours is None else time.time() + 3600 * (hours + MARGIN_HOURS)
    settings = Afterwards(how.then_stop, how.idle, until).dump()
    file = f"{host.root}/{SETTINGS}"
    host.run(
        f"mkdir -p {shlex.quote(host.root)} && cat > {shlex.quote(file)}.tmp && mv {shlex.quote(file)}.tmp {shlex.quote(file)}",
        inputs=settings,
    )
    words = shlex.join([brought.python, "-m", "windtunnel.remote.afterwards", host.root])
    # A session of its own, without this connection's pipes, or ssh would wait for its end.
    host.run(f"setsid nohup {words} >> {shlex.quote(host.root)}/afterwards.log 2>&1 < /dev/null &")
    limit = "" if hours is None else f", and in {hours + MARGIN_HOURS:.1f} h at the latest"
    say(f"{host.address} stops itself when nothing has run for {how.idle:g} min{limit}: {how.then_stop}")


def _train(host: Host, brought: Brought, what: list[str], how: How, say: Say) -> Address:
    price = [] if how.price is None else ["--price", f"{how.price:g}"]
    gpus = [] if how.gpus is None else ["--gpus", str(how.gpus)]
    # Whom the machine is rented from, for the ledger: what is set there, else its name.
    whom = f"export {PROVIDER}=${{{PROVIDER}:-{host.address.target.rpartition('@')[2]}}}; "
    # --detach: what ssh starts ends with its connection.
    script = whom + _windtunnel(host, brought, "train", *what, "--detach", "--yes", *price, *gpus, *how.arguments)
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        # Hints are of use on that machine alone; an error is raised below.
        if not (_STARTED.match(line) or _HINT.match(line) or line.startswith(("error: ", "  fix: "))):
            say(line)

    code = host.follow(script, take)
    started = next((found for line in lines if (found := _STARTED.match(line))), None)
    if started is None:
        error = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
        fix = next((line.strip().removeprefix("fix: ") for line in lines if line.startswith("  fix: ")), None)
        raise UserError(f"{host.address}: {error or f'training ended with exit code {code}'}", fix)
    return host.address.of(Path(started[1]).name)


def _newest(host: Host, brought: Brought) -> str:
    found = json.loads(host.run(_windtunnel(host, brought, "runs", "--json")))
    if not found:
        raise UserError(f"{host.address}: no run there", f"windtunnel launch charlm --to {host.address}")
    return Path(found[0]["path"]).name


def _windtunnel(host: Host, brought: Brought, verb: str, *arguments: str) -> str:
    """Return the line of the shell that runs a verb there: in its own folder, on the runs there."""
    where = [] if verb == "check" else ["--root", host.runs]
    words = shlex.join([brought.program, verb, *arguments, *where])
    return f"mkdir -p {shlex.quote(host.runs)} && cd {shlex.quote(host.root)} && {words}"
