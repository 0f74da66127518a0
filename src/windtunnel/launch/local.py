"""Training on this machine: in a process a rank where ranks were made ready or are several, else in this process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.mirror import Following
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import (
    LAST_LINES,
    LOG,
    STARTED,
    Channel,
    RunFolder,
    log_only,
    notifying,
    record_end,
    require_trackers,
    tracking,
)

from .measuring import observe_run
from .placed import on_cluster, run_on_cluster
from .prepare import plan_again, prepare_run
from .processes import ALLOCATOR, Crashed, described
from .ranks import run_ranks
from .trainable import Options

if TYPE_CHECKING:
    from windtunnel.train import View


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
    """Plan, make or reopen the run's folder and train there, on this machine or on the cluster that the recipe asks for.

    Args:
        recipe: of one stage that trains.
        options: how the command was called.
        view: shows the run; it is closed when this returns.
        as_json: processes of their own, where there are any, tell as JSON.
        isolated: in a process of its own also where there is one rank, so that nothing of it is left: another run can
            follow in a process that has compiled nothing and whose GPU is empty.
        output: a file in place of the standard output of such processes.
        from_now: hours and dollars count from here, not from the beginning of the command.

    Returns:
        The exit code, and the run's folder.

    Raises:
        UserError: see `prepare_run`; budget already spent.
    """
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_clock(from_now))
        stack.callback(view.close)
        require_trackers(list(recipe.notify.track))  # before there is a run that could only fail
        nodes = stack.enter_context(on_cluster(recipe, view.say))
        options = options if nodes is None else replace(options, nodes=nodes)
        run = prepare_run(recipe, options, view.say)
        channel = Channel.inherited()
        if channel is not None:
            channel.tell(run=run.path)
        told = run.recipe.notify
        with mirrored(run, view.say), notifying(run.path, told, view.say), tracking(run.path, told, view.say):
            try:
                with run:
                    code = _train(run, view, options, as_json=as_json, isolated=isolated, output=output)
            except BaseException as error:
                if isinstance(error, Exception) and run.take_back():
                    view.say(f"taken back, since nothing was saved with it: {'; '.join(run.changes)}")
                # Recorded before it is raised: the run's folder has to say how it ended, whoever reads it.
                raise _ended(run.path, error, view) from None
            _learn(run.path)
            if not isolated:  # whoever asked for that has more to say about the run first
                write_page(run.path, view.say)
        return code, run.path


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


@contextlib.contextmanager
def mirrored(run: RunFolder, say: Callable[[str], None]) -> Iterator[None]:
    """Keep a run's mirror up to date, where its recipe names one, and wait in the end until it has everything.

    Args:
        run: opened for writing; it is closed where the mirror is refused.
        say: told what the user should know of it.

    Raises:
        UserError: at once, before there is anything to lose: the store cannot be used, or another machine has the run. Later
            nothing that happens to the store is raised.
    """
    url = run.recipe.checkpoints.mirror
    if url is None:
        yield
        return
    try:
        following = Following(run.path, url, say)
    except UserError as error:
        run.leave(error.message)
        run.close()
        raise
    try:
        yield
    finally:
        following.finish()


def mirror_again(folder: Path, say: Callable[[str], None]) -> None:
    """Bring over what came after a run's training, its evaluation and report, where it has a mirror; a failure is told."""
    url = RunFolder.open(folder).recipe.checkpoints.mirror
    if url is None:
        return
    try:
        Following(folder, url, lambda text: say(text) if text.startswith("warn") else None).finish()
    except UserError as error:
        say(f"warn: {error.message}")


def trainer_of(recipe: Recipe) -> Callable[..., int]:
    """Return what trains a run of a recipe of one stage; see `windtunnel.train.train`. Imports torch."""
    if recipe.rl is not None:
        from windtunnel.rl import train_policy

        return train_policy
    from windtunnel.train import train

    return train


def _train(run: RunFolder, view: View, options: Options, *, as_json: bool, isolated: bool, output: Any) -> int:
    """Train here, or in processes of their own; return the exit code."""
    # This process does for one rank, and starts at once; ranks that were made ready have imported all it would import.
    ranks = run.manifest["plan"]["layout"]["ranks"]
    placed = run.recipe.rl is not None and run.recipe.rl.placement == "ray"
    if ranks == 1 and not isolated and not placed and not options.ready:
        return trainer_of(run.recipe)(run.path, view=view, run=run)
    view.close()  # rank 0 shows its own
    run.close()  # and takes the lock
    if placed:
        Channel.tell_begun()  # rank 0 may be on another machine, where nobody hears it

        def again(nodes: tuple[int, int]) -> int:
            return plan_again(run.path, options, nodes, view.say)

        run_on_cluster(run.path, ranks, view.say, again, as_json=as_json, output=output)
    else:
        run_ranks(run.path, ranks, as_json=as_json, output=output, ready=options.ready)
    return int(RunFolder.open(run.path).manifest.get("exit_code", 1))


def _ended(folder: Path, error: BaseException, view: View) -> BaseException:
    """Record that training ended with an exception; return what to raise: a UserError, or an interrupt as it is."""
    if isinstance(error, KeyboardInterrupt):  # StoppedEarly too: before there was anything to save
        record_end(folder, f"{str(error) or 'Ctrl-C twice'}: ended without saving", status="stopped")
        return error
    # SystemExit and its like: somebody asked for it, and nothing is recorded.
    if not isinstance(error, Exception):
        return error
    told = error if isinstance(error, UserError) else _crashed(folder, error)
    # Unless the rank itself has recorded more.
    if record_end(folder, told.message, lines=_last_lines(folder)):
        write_page(folder, view.say)
    return told


def _crashed(folder: Path, error: Exception) -> UserError:
    log_only(folder, "".join(traceback.format_exception(error)))
    again = f"the traceback is in {folder / LOG}; go on with: windtunnel train --resume --run {folder}"
    return Crashed(f"training failed: {described(error)}", again)


def _last_lines(folder: Path) -> list[str]:
    """Return the last lines of a run's log, where there is one."""
    with contextlib.suppress(OSError):
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return [line.partition("  ")[2] for line in lines]
    return []


def write_page(folder: Path, say: Callable[[str], None]) -> None:
    """Write the page of a run that has ended and say where it is; that it cannot be written is no failure of the run."""
    from windtunnel.watch import write_run_page

    try:
        say(f"report: {write_run_page(folder)}")
    except UserError as error:
        say(f"warn: the report was not written: {error.message}")


def _learn(folder: Path) -> None:
    """Keep what the run measured, by which later plans are corrected; that this failed is no failure of the run."""
    try:
        observe_run(folder)
    except UserError as error:
        print(f"warn: this run's measurements were not kept for later plans: {error.message}", file=sys.stderr)
