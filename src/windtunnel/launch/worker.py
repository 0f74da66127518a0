"""One rank of a training job: python -m windtunnel.launch.worker RUN [--json]. Started by `ranks`, or by torchrun."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from pathlib import Path

from windtunnel.recipe import UserError
from windtunnel.run import HEARTBEATS, log_only
from windtunnel.train import train
from windtunnel.watch import training_view

from .processes import CRASHED, STACK_SIGNAL, described, stop_with_parent


def main() -> int:
    """Train the run named on the command line; how it ended stands in its manifest.

    Returns:
        0 however training ended, `CRASHED` after an unexpected exception, a UserError's code after a refusal.
    """
    stop_with_parent()
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    folder = Path(sys.argv[1])
    view = None
    if os.environ.get("RANK", "0") == "0":
        view = training_view(as_json="--json" in sys.argv)
    try:
        train(folder, view=view)
        return 0
    except UserError as error:
        _report(error.message, error.fix, error.exit_code, as_json="--json" in sys.argv)
        return error.exit_code
    except Exception as error:
        log_only(folder, traceback.format_exc())
        _report(described(error), None, CRASHED, as_json="--json" in sys.argv)
        return CRASHED
    finally:
        if view is not None:
            view.close()


def _report(message: str, fix: str | None, code: int, *, as_json: bool) -> None:
    """Tell whoever started this rank why it ends; without such, those who read its standard error."""
    text = json.dumps({"error": message, "fix": fix, "exit_code": code})
    folder = os.environ.get(HEARTBEATS)
    if folder:
        (Path(folder) / f"{os.environ.get('RANK', '0')}.json").write_text(text, encoding="utf-8")
    elif as_json:
        print(text, file=sys.stderr)
    else:
        print(f"error: {message}" + (f"\n  fix: {fix}" if fix else ""), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
