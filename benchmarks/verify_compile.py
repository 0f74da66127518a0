"""CPU seconds of compiling kernels that nobody here wrote, each to the binary that a GPU runs. Needs no GPU.

    python benchmarks/verify_compile.py --foreign foreign.jsonl.gz --out benchmarks/results/verify-compile-cpu.json

FILE is what foreign_gather.py wrote. Host code is recorded at full and ragged sizes; of a tuner's configurations four are
compiled for each. It says how long one kernel may be given: `compile_seconds` of `windtunnel.verify.Task`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from foreign_gather import Foreign, read
from verify_foreign import spread

from windtunnel.recipe import UserError
from windtunnel.verify import ReferenceBroken, Sandboxes, compiler_sandbox, kernel_sandbox
from windtunnel.verify.kernel.compiling import compile_job
from windtunnel.verify.kernel.funnel import candidate_of
from windtunnel.verify.kernel.gpu import MOST_BYTES
from windtunnel.verify.kernel.plan import Choice, Launch, Plan
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import task_from_source

HOPPER, CONFIGURATIONS = 90, 4


def main() -> None:
    """Compile what the file holds, and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreign", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="every n-th alone")
    given = parser.parse_args()
    answers = spread([answer for answer in read(given.foreign) if answer.right is not False][:: given.every])
    workers = os.cpu_count() or 1
    with Sandboxes(workers, kernel_sandbox) as box, Sandboxes(workers, lambda: compiler_sandbox(binary=True)) as compiler:
        with ThreadPoolExecutor(workers) as pool:
            rows = list(pool.map(lambda answer: compiled(answer, box, compiler), answers))
    ended = sorted(row["cpu"] for row in rows if row.get("status") == "finished")
    found = {
        "what": "CPU seconds of compiling others' kernels for an H100, to the binary",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": workers,
        "answers": len(rows),
        "compiled": len(ended),
        "not_in_time": [row["name"] for row in rows if row.get("status") in ("timeout", "killed", "exited")],
        "seconds": {name: ended[int(share * len(ended))] for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))},
        "most_a_kernel": max(row["cpu"] / row["n"] for row in rows if row.get("status") == "finished" and row["n"]),
        "rows": rows,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in found.items() if name != "rows"})


def compiled(answer: Foreign, box: Sandboxes, compiler: Sandboxes) -> dict[str, Any]:
    """Return what compiling an answer took: `n` kernels and configurations, seconds of the CPU, how it ended."""
    row: dict[str, Any] = {"source": answer.source, "name": answer.name}
    try:
        task = replace(task_from_source(answer.task, name=answer.name), dtypes=(answer.dtype,))
        forms = file_forms(task, box, [size for size in ("full", "full_ragged") if size in task.sizes or size == "full"])
        job = record_job(candidate_of(answer.answer), forms)
        plans, wrong = read_recorded(box.run(job), forms, task, lambda form: {"most_bytes": MOST_BYTES})
    except (UserError, ReferenceBroken) as error:
        return row | {"error": str(error)[:200]}
    if wrong is not None:
        return row | {"record": wrong.reason}
    outcome = compiler.run(compile_job(plans, forms, HOPPER, binary=True, wanted=[CONFIGURATIONS] * len(plans)))
    return row | {"n": sum(map(kernels, plans)), "cpu": round(outcome.cpu_seconds, 2), "status": outcome.status}


def kernels(plan: Plan) -> int:
    """Return how many are compiled for a plan."""
    return sum(
        1 if isinstance(step, Launch) else min(CONFIGURATIONS, len(step.choice)) if isinstance(step, Choice) else 0
        for step in plan.steps
    )


if __name__ == "__main__":
    main()
