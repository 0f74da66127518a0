"""Judges launch plans on a GPU: first light, the clock, the speed on kernels that nobody here wrote, and both suites.

    python benchmarks/verify_replay_gpu.py --foreign foreign.jsonl.gz --out FOLDER [--minutes 7.5]

FILE is what foreign_gather.py wrote. The parts come one after the other, each within its share of the time, and write what they
know into FOLDER/replay.json as they go along:
    first    one kernel through all stages, whose verdict is shown whole
    clock    twenty verdicts on one relu, and some kernels' times beside triton.testing.do_bench's
    foreign  candidates a second through correctness at full shapes, several under way (--foreign)
    own      whether those that were refused are right by KernelBench's own rule (foreign_own.py): only then they are honest
    timed    candidates a second with the clock, of those that were accepted
    leaks    up to 10,000 candidates of which 5 % crash, hang or are wrong, and what is there before and after
    suites   the attack and the honest suite (attacks.py, FOLDER/suites.json)
Nothing else should use the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attacks import gpu_name
from foreign_gather import Foreign, read
from foreign_own import asked
from verify_foreign import spread
from verify_leaks_gpu import leaks

from windtunnel.recipe import UserError
from windtunnel.verify import (
    GpuMemory,
    GpuStages,
    KernelVerifier,
    ReferenceBroken,
    Sandboxes,
    Task,
    Verdict,
    compiler_sandbox,
    find_task,
    gpu_sandbox,
    kernel_sandbox,
    reference_sandbox,
)

HERE = Path(__file__).parent
SUITES = HERE.parent / "tests" / "verify"
VERDICTS = 20
OF_FOREIGN = ("foreign", "own", "timed")
BESIDE = ("relu", "softmax", "layernorm", "matmul", "gemm_bias_gelu", "swiglu", "rmsnorm", "transpose")
SHARES = {"first": 0.02, "clock": 0.16, "foreign": 0.25, "own": 0.15, "timed": 0.1, "leaks": 0.12, "suites": 0.3}
GRACE = 20.0  # seconds in which what is under way may end
OWN_AT_ONCE = 6  # processes with a context each
DO_BENCH = """
import importlib.util, json, sys, torch, triton
from windtunnel.verify import find_task
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.hidden import Case
found = {}
for name, path in json.loads(sys.argv[1]).items():
    task = find_task(name)
    drawn = Drawn(task.at("full"), task.dtypes[0], 1, list(task.fixed), "cuda")
    inputs = drawn.inputs(Case("full", task.dtypes[0], "plain").as_json(), 2)
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    with torch.device("cuda"):
        model = module.ModelNew(*drawn.init).to(getattr(torch, task.dtypes[0])).cuda().eval()
    with torch.no_grad():
        found[name] = triton.testing.do_bench(lambda: model(*inputs), warmup=50, rep=300, return_mode="median") / 1e3
print(json.dumps(found))
"""


class Machine:
    """The warm workers: as many for host code, compiler and interpreter as there are cores, few with a context on the GPU."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace) -> None:
        self.pretend = options.pretend
        gpu, trusted = (kernel_sandbox, kernel_sandbox) if self.pretend else (gpu_sandbox, reference_sandbox)
        kinds = [(options.workers, kernel_sandbox), (options.workers, compiler_sandbox)]
        kinds += [(options.contexts, gpu), (options.contexts, trusted)]
        pools = [stack.enter_context(Sandboxes(number, make)) for number, make in kinds]
        for pool in pools:
            pool.begin()
        with ThreadPoolExecutor(len(pools)) as together:
            list(together.map(lambda pool: pool.start(), pools))
        self.tiny, self.compilers, *self.gpus = pools
        self.workers = options.workers
        self.memory = GpuMemory.of(None if self.pretend else 0)

    def restarts(self) -> int:
        """Workers that had to be replaced."""
        return sum(pool.restarts for pool in (self.tiny, self.compilers, *self.gpus))

    def verifier(self, task: Task, *, clock: bool, baseline: Collection[str] = (), **more: Any) -> KernelVerifier:
        """All stages for one task."""
        where: dict[str, Any] = more | ({"device": "cpu", "size": "tiny", "index": None} if self.pretend else {})
        stages = GpuStages(task, *self.gpus, clock=clock, baseline=baseline, memory=self.memory, **where)
        return KernelVerifier(task, self.tiny, compiler=self.compilers, gpu=stages)


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreign", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--contexts", type=int, default=4, help="processes with a CUDA context, of kernels and of references each"
    )
    parser.add_argument("--parts", nargs="+", default=list(SHARES))
    parser.add_argument("--every", type=int, default=1, help="of the foreign ones every n-th alone")
    parser.add_argument("--pretend", action="store_true", help=argparse.SUPPRESS)  # the motions on the interpreter
    options = parser.parse_args()
    if not options.pretend and gpu_name() == "unknown":
        print("no GPU here: nvidia-smi names none")
        return 2
    options.parts = [part for part in options.parts if part not in OF_FOREIGN or options.foreign is not None]
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "gpu": gpu_name(),
        "versions": {name: version(name) for name in ("torch", "triton")} | {"python": platform.python_version()},
        "workers": options.workers,
        "contexts": options.contexts,
    }

    def save() -> None:
        (options.out / "replay.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def noted(name: str, part: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            result[name] = part()
        except Exception as error:  # the other parts say something too
            result[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        result[name]["seconds"] = round(time.monotonic() - began, 1)
        print(f"== {name}: {json.dumps(result[name])[:1500]}", flush=True)
        save()

    sys.path.insert(0, str(SUITES))
    parts = sum(SHARES[part] for part in options.parts)
    seconds = {part: 60 * options.minutes * SHARES[part] / parts for part in options.parts}
    with ExitStack() as stack:
        machine = Machine(stack, options)
        steps: dict[str, Callable[[], Any]] = {
            "first": lambda: first(machine),
            "clock": lambda: clock(machine, seconds["clock"]),
            "foreign": lambda: foreign(machine, options, seconds["foreign"]),
            "timed": lambda: foreign(machine, options, seconds["timed"], result.get("foreign", {})),
            "leaks": lambda: leaks(machine, seconds["leaks"]),
        }
        for name in options.parts:
            if name in steps:
                noted(name, steps[name])
    if "own" in options.parts:  # these want the GPU's memory that our own processes keep
        noted("own", lambda: own(result, options, seconds["own"]))
    if "suites" in options.parts:
        return suites(options, seconds["suites"])
    return 0


def first(machine: Machine) -> dict[str, Any]:
    """One kernel through every stage, and what was said of it."""
    task = find_task("relu")
    began = time.monotonic()
    verdict = machine.verifier(task, clock=True, baseline=() if machine.pretend else ("eager", "compiled")).verify(honest("relu"))
    return {
        "took": round(time.monotonic() - began, 2),
        **shown(verdict),
        "times": verdict.times,
        "gpu": verdict.evidence.get("gpu"),
    }


def clock(machine: Machine, seconds: float) -> dict[str, Any]:
    """Twenty verdicts on one kernel; then kernels' times beside those that Triton's own function gives for the same files."""
    until = time.monotonic() + seconds
    verifier = machine.verifier(find_task("relu"), clock=True)
    medians = []
    while len(medians) < VERDICTS and time.monotonic() < until:
        verdict = verifier.verify(honest("relu"))
        if not verdict.accepted:
            return {"failed": shown(verdict), "medians": medians}
        medians.append(verdict.evidence["gpu"]["cold"]["median"])
    spread = (max(medians) - min(medians)) / sorted(medians)[len(medians) // 2]
    found: dict[str, Any] = {"relu_medians": medians, "relu_spread": round(spread, 4)}
    ours = {}
    for name in BESIDE:
        verdict = machine.verifier(find_task(name), clock=True).verify(honest(name))
        ours[name] = verdict.evidence["gpu"]["cold"]["median"] if verdict.accepted else shown(verdict)
    found["ours"] = ours
    if not machine.pretend:
        theirs = do_bench([name for name in ours if isinstance(ours[name], float)])
        found["do_bench"] = theirs
        found["ratios"] = {name: round(ours[name] / theirs[name], 4) for name in theirs}
    return found


def do_bench(names: list[str]) -> dict[str, float]:
    """Seconds of honest kernels by triton.testing.do_bench, in a process of its own without a sandbox."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name in names:
            paths[name] = str(Path(folder, f"{name}.py"))
            Path(paths[name]).write_text(honest(name), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", DO_BENCH, json.dumps(paths)], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def honest(task: str) -> str:
    """The first honest kernel of a task."""
    from honest.suite import suite

    return next(candidate.source for candidate in suite() if candidate.task == task)


def foreign(
    machine: Machine, options: argparse.Namespace, seconds: float, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Candidates a second, once each task's reference has run at tiny sizes: twice as many under way as there are workers.

    Args:
        machine: the workers.
        options: of the command line.
        seconds: nothing new is begun after so many.
        before: what this gave without the clock: now those accepted there, with it.
    """
    answers = spread([answer for answer in read(options.foreign) if answer.right is not False][:: options.every])
    if before is not None:
        right = {row["name"] for row in before.get("rows", ()) if row.get("accepted")}
        answers = [answer for answer in answers if answer.name in right]
    began = time.monotonic()
    verifiers = _prepared(machine, answers, options, timed=before is not None)
    prepared, own_time = time.monotonic() - began, time.process_time()
    rows = _judged(answers, verifiers, options, seconds - prepared, timed=before is not None)
    judged = [row for row in rows if row.get("accepted") is not None]
    spent = max((row["at"] for row in rows), default=0.0)
    found = {
        "answers": len(answers),
        "tasks": len(verifiers),
        "preparation_seconds": round(prepared, 1),
        "judged": len(judged),
        "judging_seconds": round(spent, 1),
        "per_second": round(len(judged) / max(spent, 1e-9), 2),
        "accepted": sum(row["accepted"] for row in judged),
        "by_source": _by_source(rows),
        "refused": dict(Counter(f"{row['stage']} {row['reason']}" for row in judged if not row["accepted"])),
        "nothing_known": sum("accepted" in row and row["accepted"] is None for row in rows),
        "task_errors": sum("task_error" in row for row in rows),
        "fragile": sum(bool(row.get("fragile")) for row in judged),
        # Of all threads of this process, which hands everything over and reads what comes back.
        "own_cpu_seconds": round(time.process_time() - own_time, 1),
        "stage_seconds": _sums(judged, "times"),
        "seconds_on_the_gpu": _sums(judged, "parts"),
    }
    print(f"   {found}", flush=True)
    return found | {"rows": rows}


def _by_source(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Per source how many were reached, judged and accepted."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        own_counts = counts.setdefault(row["source"], Counter())
        own_counts.update(reached=1, judged=int(row.get("accepted") is not None), accepted=int(bool(row.get("accepted"))))
    return {source: dict(counted) for source, counted in sorted(counts.items())}


def own(result: dict[str, Any], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """KernelBench's own rule on those that were not accepted; notes it in their rows."""
    until = time.monotonic() + seconds
    rows = [row for row in result.get("foreign", {}).get("rows", ()) if not row.get("accepted")]
    answers = {(answer.name, answer.sha256): answer for answer in read(options.foreign)}

    def one(row: dict[str, Any]) -> None:
        if time.monotonic() > until or options.pretend:
            return
        answer = answers[row["name"], row["sha256"]]
        row["own"] = asked(answer.task, answer.answer, answer.dtype)
        print(json.dumps({"name": row["name"], "own": row["own"]}), flush=True)
        with (options.out / "own.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": row["name"], "own": row["own"]}) + "\n")

    with ThreadPoolExecutor(OWN_AT_ONCE) as pool:
        list(pool.map(one, rows))
    for row in rows:  # who found no room beside others has the GPU alone
        if row.get("own", {}).get("why") and _no_room(row["own"]["why"]):
            one(row)
    return shares(rows, result.get("foreign", {}).get("accepted", 0))


def shares(rows: list[dict[str, Any]], accepted: int) -> dict[str, Any]:
    """What the own rule says of those that were not accepted, and between which shares of the honest ones were.

    Who was not asked, or found no memory to be, may be honest or not.
    """
    known = [row for row in rows if "own" in row and not _no_room(row["own"].get("why", ""))]
    right = sum(bool(row["own"]["right"]) for row in known)
    return {
        "not_accepted": len(rows),
        "known": len(known),
        "right_by_its_own_rule": right,
        "most_share_of_honest_accepted": round(accepted / max(accepted + right, 1), 4),
        "least_share_of_honest_accepted": round(accepted / max(accepted + right + len(rows) - len(known), 1), 4),
    }


def _no_room(why: str) -> bool:
    return "OutOfMemoryError" in why or "out of memory" in why


Made = dict[tuple[str, str], KernelVerifier | UserError]


def _prepared(machine: Machine, answers: list[Foreign], options: argparse.Namespace, *, timed: bool) -> Made:
    """A verifier of each task, whose reference has run, or what is wrong with the task; by its text and dtype."""

    def one(answer: Foreign) -> KernelVerifier | UserError:
        try:
            task = answer.judged_task()
            verifier = machine.verifier(task, clock=timed)
            with contextlib.suppress(ReferenceBroken):  # of this moment; its verdicts say so if it lasts
                verifier.prepare()
        except UserError as error:
            return error
        return verifier

    firsts = {(answer.task, answer.dtype): answer for answer in reversed(answers)}
    with ThreadPoolExecutor(2 * options.workers) as pool:
        return dict(zip(firsts, pool.map(one, firsts.values()), strict=True))


def _judged(
    answers: list[Foreign], verifiers: Made, options: argparse.Namespace, seconds: float, *, timed: bool
) -> list[dict[str, Any]]:
    """A row for each that was begun in time. at: seconds after which it was done. times: seconds by stage, and of the GPU's
    what was waited for. parts: what the GPU's stage did."""
    began = time.monotonic()

    def one(answer: Foreign) -> dict[str, Any] | None:
        if time.monotonic() - began > seconds:
            return None
        row: dict[str, Any] = {"source": answer.source, "name": answer.name, "sha256": answer.sha256}
        verifier = verifiers[answer.task, answer.dtype]
        try:
            if isinstance(verifier, UserError):
                raise verifier
            verdict = verifier.verify(answer.answer)
        except UserError as error:
            row["task_error"] = error.message[:300]
        else:
            row |= shown(verdict) | ({"accepted": None} if verdict.infrastructure else {})  # of which nothing is known
            row |= {"times": {stage: round(own, 2) for stage, own in verdict.times.items()}}
            row["parts"] = verdict.evidence.get("gpu", {}).get("seconds")
            row["cases"] = len(verdict.evidence.get("cases", ()))
            row |= {key: verdict.evidence[key] for key in ("fragile", "share", "tiny") if verdict.evidence.get(key)}
        row["at"] = round(time.monotonic() - began, 2)
        print(json.dumps(row)[:300], flush=True)
        with (options.out / "rows.jsonl").open("a", encoding="utf-8") as file:  # what is there when time is over
            file.write(json.dumps(row | {"timed": timed}) + "\n")
        return row

    pool = ThreadPoolExecutor(2 * options.workers)
    under_way = [pool.submit(one, answer) for answer in answers]
    done, _ = wait(under_way, timeout=max(seconds, 0.0) + GRACE)
    pool.shutdown(wait=False, cancel_futures=True)
    return [row for future in under_way if future in done and (row := future.result()) is not None]


def _sums(rows: list[dict[str, Any]], what: str) -> dict[str, float]:
    """Seconds of all candidates together, by stage: waiting for a worker is a part of them, and on the GPU also apart."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row[what] or {})
    return {stage: round(seconds, 1) for stage, seconds in total.items()}


def shown(verdict: Verdict) -> dict[str, Any]:
    """A verdict, short."""
    found = {"accepted": verdict.accepted, "stage": verdict.stage, "reason": verdict.reason, "reward": verdict.reward}
    return found if verdict.accepted else found | {"said": verdict.message[:400]}


def suites(options: argparse.Namespace, seconds: float) -> int:
    """Both suites through all stages, by their own program."""
    more = ["--pretend"] if options.pretend else []
    command = [
        sys.executable,
        str(HERE / "attacks.py"),
        "run",
        "--gpu",
        "--workers",
        str(options.workers),
        "--calls",
        "20",
        *more,
    ]
    command += ["--minutes", f"{seconds / 60:.3f}", "--out", str(options.out / "suites.json")]
    with (options.out / "suites.log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print((options.out / "suites.log").read_text(errors="replace")[-3000:], flush=True)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for what is still under way
