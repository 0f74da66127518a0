"""One rank of a training job, started by torchrun: python -m windtunnel.launch.worker RUN [--json]."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from windtunnel.recipe import UserError
from windtunnel.train import train
from windtunnel.watch import JsonLines, TerminalView

from .orphans import stop_with_parent


def main() -> int:
    """Train the run named on the command line. How it ended stands in its manifest; torchrun takes any code but 0 for a crash."""
    stop_with_parent()
    folder = Path(sys.argv[1])
    view = None
    if os.environ.get("RANK", "0") == "0":
        view = JsonLines() if "--json" in sys.argv else TerminalView()
    try:
        train(folder, view=view)
        return 0
    except UserError as error:
        _tell(error, as_json="--json" in sys.argv)
        return error.exit_code
    finally:
        if view is not None:
            view.close()


def _tell(error: UserError, *, as_json: bool) -> None:
    """As the command tells its own errors, for those who read its standard error."""
    if as_json:
        print(json.dumps({"error": error.message, "fix": error.fix, "exit_code": error.exit_code}), file=sys.stderr)
        return
    print(f"error: {error.message}" + (f"\n  fix: {error.fix}" if error.fix else ""), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
