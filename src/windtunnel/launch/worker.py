"""One rank of a training job: python -m windtunnel.launch.worker RUN [--json]. Started by `ranks`, or by torchrun."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from windtunnel.recipe import UserError
from windtunnel.run import HEARTBEATS, RunFolder, log_only
from windtunnel.train import Abandoned, PeerLost
from windtunnel.watch import training_view

from .local import trainer_of
from .processes import CRASHED, described, stop_with_parent
from .ranks import ABANDON
from .stacks import answer_with_stacks


def main() -> int:
    """Train the run named on the command line; how it ended stands in its manifest.

    Returns:
        0 however training ended, `CRASHED` after an unexpected exception, a UserError's code after a refusal.
    """
    stop_with_parent()
    # A crash in C++ leaves no exception: its stack goes into the run's log with the rest of standard error.
    faulthandler.enable()
    if HEARTBEATS in os.environ:
        answer_with_stacks(Path(os.environ[HEARTBEATS]), int(os.environ.get("RANK", "0")))
        # Raised where the rank is at work, so that a save of the last good state can follow.
        signal.signal(ABANDON, _abandon)
    folder = Path(sys.argv[1])
    view = None
    if os.environ.get("RANK", "0") == "0":
        view = training_view(as_json="--json" in sys.argv)
    try:
        trainer_of(RunFolder.open(folder).recipe)(folder, view=view)
        return 0
    except UserError as error:
        _report(error, error.message, error.fix, error.exit_code)
        return error.exit_code
    # The log gets the traceback; whoever watches gets one line, since several ranks may end at once.
    except (Exception, Abandoned) as error:
        log_only(folder, traceback.format_exc())
        _report(error, described(error), None, CRASHED)
        return CRASHED
    finally:
        if view is not None:
            view.close()


def _abandon(number: int, frame: FrameType | None) -> None:
    raise Abandoned("told to leave what it was doing: it gave no sign of life")


def _report(error: BaseException, message: str, fix: str | None, code: int) -> None:
    """Tell whoever started this rank why it ends; without such, those who read its standard error."""
    kept = "; ".join(getattr(error, "__notes__", ()))
    told = {"error": message, "fix": fix, "exit_code": code}
    # By a file: a rank's exit code says nothing of why, and its output may be lost with a pipe.
    folder = os.environ.get(HEARTBEATS)
    if folder:
        text = json.dumps(told | {"kept": kept, "lost": isinstance(error, PeerLost | Abandoned)})
        (Path(folder) / f"{os.environ.get('RANK', '0')}.json").write_text(text, encoding="utf-8")
    elif "--json" in sys.argv:
        print(json.dumps(told), file=sys.stderr)
    else:
        print(f"error: {message}" + (f"\n  fix: {fix}" if fix else ""), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
