"""Trains the recipe `kernels` on this machine and writes what came of it: right kernels before and after each stage, and time.

    python benchmarks/kernels.py --out benchmarks/results/kernels-h100.json --root build/kernels --engine vllm --rounds 20
    python benchmarks/kernels.py --out FILE --root build/kernels --parts rl rl-evaluation --keep     # behind an sft that is there
    python benchmarks/kernels.py --out /tmp/kernels.json --tiny                  # a random model, minutes on a CPU

The parts are commands of windtunnel: prepare, the stage sft, its evaluation, the stage rl, its evaluation. An evaluation asks
held-out tasks that chose no checkpoint, and asks the weights that the stage began with the same; beside it stands what the
stage asked itself (`held_out`). A part that takes more than its share of --seconds is ended, a stage with a checkpoint: all ends
by itself, and the file is written whenever more is known. Where sft did not come to its end or its gates did not hold, rl is
left out.

`compile_seconds` is by how much the first steps took longer than the median. Seconds of a round lie between the ends of two;
medians are of the rounds behind the first. `idle` is the share of the steps' time in which NVML saw no kernel, `peak_gb` the most
memory of the GPU that was in use, engines and judges included; without a GPU it is that of all processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import VLLM, Bench, Ended, Side, has_gpu, leave_this_folder, machine, medians, round_parts

leave_this_folder()

from windtunnel.recipe import UserError, dump_recipe  # noqa: E402  (behind the import path)
from windtunnel.run import Event, MetricsReader, RunFolder  # noqa: E402

SHARES = {"prepare": 0.1, "sft": 0.32, "sft-evaluation": 0.13, "rl": 0.32, "rl-evaluation": 0.13}
STAGES = ("sft", "rl")
GRACE_SECONDS = 25.0
"""In which a stage whose time is over may save."""
FIRST_STEPS, WARM = 20, 1
SHOWN_OF_ROUND = ("reward", "right", "answer_length", "truncated", "unknown", "learned", "mismatch", "level", "different")
SPENT = "judge_seconds_"
COUNTS = ("metric", "share", "right", "n", "low", "high", "cut", "unknown", "reward")

Found = dict[str, Any]


def settings(given: argparse.Namespace) -> list[str]:
    """Return what the options change in the recipe."""
    sets = list(given.set)
    if given.sft_steps:
        sets.append(f"stages.sft.budget={{steps: {given.sft_steps}}}")
    if given.rounds:
        sets.append(f"stages.rl.budget={{steps: {given.rounds}}}")
    if given.engine:
        sets.append(f"stages.rl.engine={given.engine}")
    if given.answers:
        sets += [f"stages.{stage}.answers.prompts={given.answers}" for stage in STAGES]
    return sets


def tiny_recipe(folder: Path, sets: list[str]) -> Path:
    """Write the scale model of all stages, as it is rehearsed: a random model of the same architecture, a few steps a stage."""
    from windtunnel.rehearse.context import Rehearsal

    path = folder / "tiny.yaml"
    path.write_text(dump_recipe(Rehearsal("kernels", tuple(sets), ("H100",), folder).small_stages), encoding="utf-8")
    return path


class Kernels:
    """The parts of a measurement, and what they found.

    Args:
        bench: runs them. root: of the runs. recipe: a name or a file. sets: keys of it. problems: of an evaluation; None: the
            recipe's. attempts: at each of them, beside the greedy answer; None: none.
    """

    def __init__(
        self, bench: Bench, root: Path, recipe: str, sets: list[str], problems: int | None, attempts: int | None = None
    ) -> None:
        self._bench, self._root, self._recipe, self._problems, self._attempts = bench, root, recipe, problems, attempts
        self._sets = [part for item in sets for part in ("--set", item)]
        self.parts: dict[str, Found] = bench.found["parts"]

    def run(self, part: str, seconds: float) -> None:
        """Run a part and keep what it found."""
        stage, _, evaluation = part.partition("-")
        why = self._missing(part)
        if why is not None:
            self._keep(part, {"ended": f"left out: {why}"})
        elif part == "prepare":
            words = ["prepare", self._recipe, "--json", *self._sets]
            ended, said = self._command(part, words, seconds)
            self._keep(part, data_of(said), ended)
        elif evaluation:
            words = ["evaluate", str(self._folder(stage)), "--json"]
            words += ["--problems", str(self._problems)] if self._problems is not None else []
            words += ["--attempts", str(self._attempts)] if self._attempts is not None else []
            ended, said = self._command(part, words, seconds)
            self._keep(part, evaluation_of(said), ended)
        else:
            words = ["train", self._recipe, "--stage", stage, "--root", str(self._root), "--yes", "--json", *self._sets]
            ended, _ = self._command(part, words, seconds, stage)
            self._keep(part, self.parts.get(part, {}), ended)

    def _missing(self, part: str) -> str | None:
        """Say why a part cannot be run; None: it can."""
        stage, _, evaluation = part.partition("-")
        if evaluation and self._folder(stage) is None:
            return f"there is no run of {stage} in {self._root}"
        before = self.parts.get("sft", {})
        if part == "rl" and before and before.get("exit_code") != 0:
            return f"sft is no stage to go on from: {before['ended']}"
        return None

    def _folder(self, stage: str) -> Path | None:
        """Return the newest run of a stage: its name ends with the time."""
        return max(self._root.glob(f"*-{stage}-*"), default=None)

    def _command(self, part: str, words: list[str], seconds: float, stage: str | None = None) -> tuple[Ended, Found]:
        """Run a command of windtunnel; while it trains, keep what its run shows. Return how it ended, and its last JSON."""
        log, out = self._root / f"{part}.log", self._root / f"{part}.out"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "windtunnel", *words]
        side = Side(command, log, VLLM, grace=GRACE_SECONDS if stage else 0.0, out=out)

        def look(since: float) -> None:
            run = self._folder(stage or "")
            if stage is None or run is None or run.stat().st_ctime < since:
                return
            shown = stage_of(run, stage)
            if shown != self.parts.get(part):
                self._keep(part, shown)

        ended = self._bench.run(side, seconds, look)
        return ended, last_json(out)

    def _keep(self, part: str, found: Found, ended: Ended | None = None) -> None:
        """Write what is known of a part; at its end with the memory and the GPU's idle time, and what was said if it failed."""
        self.parts[part] = found
        if ended is not None:
            found |= {"ended": ended.how, "exit_code": ended.code, "seconds": round(ended.seconds, 1)}
            found["peak_gb"] = self._bench.meter.peak(ended.began)
            if "stepping" in found:
                found["idle"] = self._bench.meter.idle(*found.pop("stepping"))
            if ended.code != 0:
                found["last_words"] = ended.words
        self._bench.found["held_out"] = held_out(self.parts)
        self._bench.write()


def last_json(path: Path) -> Found:
    """Return the last JSON object that a command printed, over one line or many; nothing where there is none."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    for start in [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]:
        try:
            found = json.loads(text[start:])
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def data_of(said: Found) -> Found:
    """Return the sizes of the prepared data of each stage."""
    reports = said.get("prepared", [said] if said else [])
    names = ("train_documents", "validation_documents", "train_tokens", "validation_tokens", "seconds", "reused", "notes")
    return {"data": [{name: report[name] for name in names if name in report} for report in reports]}


def evaluation_of(said: Found) -> Found:
    """Return right answers of a run and of the weights that its stage began with, and what the stage brought."""
    untuned = said.get("untuned") or {}
    found = {"after": counts(said.get("answers")), "before": counts(untuned.get("answers")), "gain": untuned.get("gain")}
    found |= {"attempts_after": said.get("attempts"), "attempts_before": untuned.get("attempts")}
    found |= {"pass_at_gain": untuned.get("pass_at_difference") or None}
    return {key: value for key, value in found.items() if value is not None} | ({"step": said["step"]} if "step" in said else {})


def counts(answers: Found | None) -> Found | None:
    """Return the numbers of judged answers."""
    return None if answers is None else {name: answers[name] for name in COUNTS if name in answers}


def stage_of(run: Path, stage: str) -> Found:
    """Return what the run of a stage shows so far."""
    try:
        folder = RunFolder.open(run)
        with MetricsReader(folder.metrics_path) as reader:
            names = reader.names()
            series = {name: {p.step: (p.value, p.time) for p in reader.series(name)} for name in names}
            events = list(reader.events())
    except (UserError, OSError):
        return {}
    manifest = folder.manifest
    found: Found = {"run": run.name, "status": manifest.get("status"), "reason": manifest.get("reason")}
    plan = manifest.get("plan") or {}
    found |= {"layout": plan.get("layout"), "gates": manifest.get("gates")}
    found["held_out"] = [asked(event) for event in events if event.kind == "answers"]
    steps = series.get("step_seconds", {})
    if not steps:
        return found
    taken = [seconds for seconds, _ in steps.values()]
    middle = statistics.median(taken)
    first, last = steps[min(steps)], steps[max(steps)]
    found |= {
        "steps": len(steps), "step_seconds": middle, "steps_seconds": sum(taken),
        "first_step_after": first[1] - first[0] - manifest["created"],
        "compile_seconds": sum(max(0.0, seconds - middle) for seconds in taken[:FIRST_STEPS]),
        "memory_gib": max((value for value, _ in series.get("memory_gib", {}).values()), default=None),
        "stepping": (first[1] - first[0], last[1]),
    }  # fmt: skip
    for name in ("loss", "validation_loss", "epoch"):
        if series.get(name):
            found[name] = series[name][max(series[name])][0]
    if stage == "rl":
        found |= rounds_of({name: {step: value for step, (value, _) in points.items()} for name, points in series.items()})
    return found


def asked(event: Event) -> Found:
    """Return held-out answers of a stage by the step."""
    return {"step": event.step} | (counts(event.data) or {})


def rounds_of(series: dict[str, dict[int, float]]) -> Found:
    """Return the rounds of reinforcement learning, and the medians of their parts."""
    each = []
    for step, seconds in sorted(series["step_seconds"].items()):
        value = {name: points[step] for name, points in series.items() if step in points}
        if "learning_seconds" in value:
            shown = {name: value[name] for name in value if name in SHOWN_OF_ROUND or name.startswith(SPENT)}
            each.append({"step": step, "seconds": seconds, "parts": round_parts(value, seconds)} | shown)
    counted = each[WARM:] or each
    found: Found = {"rounds": {"counted": len(counted), "each": each}}
    if counted:
        found["rounds"]["seconds"] = statistics.median(one["seconds"] for one in counted)
        found["rounds"]["parts"] = medians(counted)
    return found


def held_out(parts: dict[str, Found]) -> Found:
    """Return accepted held-out tasks before and after each stage: by its evaluation, else by what the stage itself asked."""
    found: Found = {}
    for stage in STAGES:
        evaluation, own = parts.get(f"{stage}-evaluation", {}), parts.get(stage, {}).get("held_out") or []
        first = [one for one in own if one["step"] == 0]
        last = [one for one in own if one["step"] != 0]
        before, after = evaluation.get("before") or (first or [None])[0], evaluation.get("after") or (last or [None])[-1]
        if before or after:
            found[stage] = {"before": before, "after": after}
    return found


def told(found: Found) -> str:
    """Return what a person is shown in the end."""
    lines = []
    for name, part in found["parts"].items():
        lines.append(f"{name}: {part.get('ended')}, {part.get('seconds', 0):.0f} s")
        if "rounds" in part and "seconds" in part["rounds"]:
            parts = ", ".join(f"{what} {seconds:.2f}" for what, seconds in part["rounds"]["parts"].items())
            lines.append(f"  {part['rounds']['seconds']:.2f} s a round ({parts}), median of {part['rounds']['counted']}")
    for stage, shares in found["held_out"].items():
        for when, share in shares.items():
            if share is not None:
                low, high = share["low"], share["high"]
                lines.append(f"{when} {stage}: {share['right']} of {share['n']} right, 95 % interval {low:.1%} to {high:.1%}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="of runs and logs; the default is a folder that is removed")
    parser.add_argument("--parts", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--keep", action="store_true", help="what --out has of other parts stays there")
    parser.add_argument("--seconds", type=float, default=570.0, help="that all may take")
    parser.add_argument(
        "--engine", choices=["in-turn", "transformers", "vllm"], help="what answers in rl; the default is the recipe's"
    )
    parser.add_argument("--sft-steps", type=int, help="in place of the recipe's three epochs")
    parser.add_argument("--rounds", type=int, help="of rl, in place of the recipe's")
    parser.add_argument("--answers", type=int, help="held-out tasks that a stage itself asks, in place of the recipe's 64")
    parser.add_argument("--problems", type=int, help="held-out tasks of an evaluation, in place of the recipe's 200")
    parser.add_argument("--attempts", type=int, help="at each of them, for pass@1 and pass@k")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--cpu", action="store_true", help="look for no GPU")
    parser.add_argument("--tiny", action="store_true", help="the recipe's scale model with random weights")
    return parser.parse_args()


def main() -> int:
    """Run the parts; return 1 where one did not end well."""
    given = arguments()
    gpu = not given.cpu and has_gpu()
    sets, began = settings(given), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernels-") as temporary:
        root = (given.root or Path(temporary)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        recipe = str(tiny_recipe(root, sets)) if given.tiny else "kernels"
        kept = json.loads(given.out.read_text("utf-8"))["parts"] if given.keep and given.out.exists() else {}
        found: Found = {
            "what": "windtunnel train kernels: held-out tasks whose kernels are right, before and after each stage, and time",
            "command": ["python", "benchmarks/kernels.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(gpu=gpu),
            "settings": {"recipe": "kernels, its scale model" if given.tiny else "kernels", "sets": sets},
            "held_out": {},
            "parts": {name: part for name, part in kept.items() if name not in given.parts},
        }  # fmt: skip
        with Bench(given.out, found, given.seconds, gpu=gpu) as bench:
            measured = Kernels(bench, root, recipe, [] if given.tiny else sets, given.problems, given.attempts)
            for part, seconds in bench.turns({name: share for name, share in SHARES.items() if name in given.parts}):
                measured.run(part, seconds)
            found["seconds"] = round(time.monotonic() - began, 1)
            bench.write()
        print(told(found))
    return int(any(found["parts"][part].get("exit_code") != 0 for part in given.parts))


if __name__ == "__main__":
    raise SystemExit(main())
