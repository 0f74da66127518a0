"""One rank of a trial: python -m windtunnel.launch.trial_worker FOLDER. What came of it is written to FOLDER/rank-N.json."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import Recipe, UserError

from .processes import stop_with_parent


def main() -> int:
    """Measure; the process ends at once after a failure: other ranks may be waiting for this one in a collective."""
    stop_with_parent()
    folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))

    def say(stage: str) -> None:
        print(f"rank {rank}: {stage}", flush=True)
        write_atomic(folder / f"stage-{rank}", stage, durable=False)

    try:
        say("starting")
        outcome = _measure(json.loads((folder / "request.json").read_text()), folder, say)
    except Exception as error:
        traceback.print_exc()
        write_atomic(folder / f"rank-{rank}.json", json.dumps(_explained(error)), durable=False)
        sys.stderr.flush()
        os._exit(1)
    write_atomic(folder / f"rank-{rank}.json", json.dumps(outcome), durable=False)
    return 0


def _measure(request: dict[str, Any], folder: Path, say: Any) -> dict[str, Any]:
    from windtunnel.train import TrialRequest, run_trial

    request["recipe"] = Recipe.model_validate(request["recipe"])
    made = TrialRequest(**request)
    if made.recipe.rl is None:
        return run_trial(made, folder, say)
    from windtunnel.rl import run_learner_trial

    return run_learner_trial(made, folder, say)


def _explained(error: Exception) -> dict[str, Any]:
    if isinstance(error, UserError):
        return {"refused": [error.message, error.fix]}
    from windtunnel.model import out_of_memory

    found = {"failure": f"{type(error).__name__}: {error}", "out_of_memory": out_of_memory(error)}
    with contextlib.suppress(Exception):  # the device may be beyond answering
        import torch

        if torch.cuda.is_available():
            found["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
            found["allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


if __name__ == "__main__":
    sys.exit(main())
