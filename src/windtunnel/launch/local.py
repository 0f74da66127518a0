"""Training on this machine: one GPU or CPU in this process, several GPUs through torchrun."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
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
    os.environ.setdefault(STARTED, repr(time.time()))
    # Read when CUDA starts. Without it freed blocks of other sizes stay reserved: 61.5 GiB instead of 45 at depth 24.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        run = prepare_run(recipe, options, view.say)
        ranks = run.manifest["plan"]["layout"]["ranks"]
        if ranks > 1:
            view.close()  # rank 0 shows its own
            run.close()  # and takes the lock
            code = _torchrun(run.path, ranks, as_json)
        else:
            from windtunnel.train import train

            with run:
                code = train(run.path, view=view, run=run)
        _learn(run.path)
        return code
    finally:
        view.close()


def _learn(folder: Path) -> None:
    """What the run measured corrects later plans; that this failed is no failure of the run."""
    try:
        observe_run(folder)
    except UserError as error:
        print(f"warn: this run's measurements were not kept for later plans: {error.message}", file=sys.stderr)


def _torchrun(folder: Path, ranks: int, as_json: bool) -> int:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*torchrun, "-m", "windtunnel.launch.worker", str(folder)]
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        **os.environ,
    }
    # A session of its own: Ctrl-C must reach rank 0 alone, which saves and tells the others.
    command += ["--json"] if as_json else []
    process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=stop_with_parent)

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
