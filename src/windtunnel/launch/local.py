"""Training on this machine: one GPU or CPU in this process, several GPUs through torchrun."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from windtunnel.recipe import Recipe, UserError
from windtunnel.run import STARTED, RunFolder

from .measuring import observe_run
from .orphans import stop_with_parent
from .prepare import Options, prepare_run


class View(Protocol):
    """Shows a run; see `windtunnel.watch`."""

    def update(self, snapshot: Any) -> None:
        """Fields of a snapshot."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def close(self) -> None:
        """Give the terminal back."""


def run_training(recipe: Recipe, options: Options, view: View, *, as_json: bool = False) -> int:
    """Plan, make or reopen the run folder and train there; returns the exit code.

    Raises:
        UserError: see `prepare_run`; budget already spent.
    """
    return train_run(recipe, options, view, as_json=as_json)[0]


def train_run(
    recipe: Recipe,
    options: Options,
    view: View,
    *,
    as_json: bool = False,
    isolated: bool = False,
    output: Any = None,
    from_now: bool = False,
) -> tuple[int, Path]:
    """As `run_training`; returns the run's folder too.

    Args:
        isolated: in a process of its own also where there is one rank, so that nothing of it is left: another run can
            follow in a process that has compiled nothing and whose GPU is empty.
        output: a file in place of the standard output of such processes.
        from_now: hours and dollars count from here, not from the beginning of the command.
    """
    with _clock(from_now):
        return _train_run(recipe, options, view, as_json=as_json, isolated=isolated, output=output)


@contextlib.contextmanager
def _clock(from_now: bool) -> Iterator[None]:
    """Tell the processes of a run since when it costs money; afterwards the variable is what it was."""
    before = os.environ.get(STARTED)
    if from_now or before is None:
        os.environ[STARTED] = repr(time.time())
    try:
        yield
    finally:
        if before is None:
            del os.environ[STARTED]
        else:
            os.environ[STARTED] = before


def _train_run(recipe: Recipe, options: Options, view: View, *, as_json: bool, isolated: bool, output: Any) -> tuple[int, Path]:
    # Read when CUDA starts. Without it freed blocks of other sizes stay reserved: 61.5 GiB instead of 45 at depth 24.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        run = prepare_run(recipe, options, view.say)
        ranks = run.manifest["plan"]["layout"]["ranks"]
        if ranks > 1 or isolated:
            view.close()  # rank 0 shows its own
            run.close()  # and takes the lock
            code = _start(run.path, ranks, as_json, output)
        else:
            from windtunnel.train import train

            with run:
                code = train(run.path, view=view, run=run)
        _learn(run.path)
        if not isolated:  # whoever asked for that has more to say about the run first
            write_page(run.path, view.say)
        return code, run.path
    finally:
        view.close()


def write_page(folder: Path, say: Callable[[str], None]) -> None:
    """The page of a run that has ended, and where it is; that it cannot be written is no failure of the run."""
    from windtunnel.watch import write_run_page

    try:
        say(f"report: {write_run_page(folder)}")
    except UserError as error:
        say(f"warn: the report was not written: {error.message}")


def _learn(folder: Path) -> None:
    """What the run measured corrects later plans; that this failed is no failure of the run."""
    try:
        observe_run(folder)
    except UserError as error:
        print(f"warn: this run's measurements were not kept for later plans: {error.message}", file=sys.stderr)


def _start(folder: Path, ranks: int, as_json: bool, output: Any) -> int:
    """Train in processes of their own, one a rank; the exit code is the run's."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *torchrun, "-m", "windtunnel.launch.worker", str(folder)]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} if ranks > 1 else {}
    environment = {**threads, **os.environ}
    # A session of its own: Ctrl-C must reach rank 0 alone, which saves and tells the others.
    command += ["--json"] if as_json else []
    process = subprocess.Popen(command, env=environment, stdout=output, start_new_session=True, preexec_fn=stop_with_parent)

    def forward(number: int, frame: FrameType | None) -> None:
        holder = re.search(r"process (\d+)", (folder / "lock").read_text())
        with contextlib.suppress(ProcessLookupError):
            if holder and int(holder[1]) != os.getpid():
                os.kill(int(holder[1]), signal.SIGTERM)
            else:
                process.send_signal(number)  # not training yet

    old = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if code != 0:
        return code
    return int(RunFolder.open(folder).manifest.get("exit_code", 1))
