"""The recipe `grpo` from its first stage to its last by `windtunnel train`, its engine and its learner killed on the way.

    PYTHONPATH=src python benchmarks/grpo_job.py --case qwen2.5-7b --placement ray --kill engine@3 --kill learner@6 --out FILE
    PYTHONPATH=src python benchmarks/grpo_job.py --case tiny --engine transformers --placement ray --out /tmp/trial.json

The model has random weights of the case's shape, and the tokenizer of SmolLM2 (`windtunnel fetch smollm2-135m-instruct`;
or --tokenizer FOLDER). Right answers first (sft), then rounds of GRPO from that stage's weights. `--kill engine@3` sends
SIGKILL to an engine's process when round 3 is done, `learner@6` to a learner's. A lost learner ends a run that is not on Ray,
and the run is resumed; on Ray it is started again. The result has every round's seconds by phase, and what each kill cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from windtunnel.run import MetricsReader, RunFolder

QWEN: dict[str, Any] = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
}  # fmt: skip
TINY: dict[str, Any] = QWEN | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "dtype": "float32",
}  # fmt: skip
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "qwen2.5-7b": (QWEN, [
        "model.adapter.rank=16", "stages.rl.learning_rate=1e-6", "stages.rl.prompts=8", "stages.rl.micro_batch=4",
        "stages.rl.engine_adapter=apart",
    ]),
    "tiny": (TINY, [
        "model.sequence=384", "stages.sft.batch_tokens=1536",
        "stages.sft.budget={steps: 5}",
        "stages.rl.prompts=4", "stages.rl.samples=2", "stages.rl.answer_tokens=16", "stages.sft.compile=false",
        "stages.rl.compile=false",
    ]),
}  # fmt: skip
"""Config without its vocabulary, which is the tokenizer's, and what it changes in the recipe."""
PHASES = (
    "step_seconds", "generating_seconds", "judging_seconds", "learning_seconds", "publish_seconds", "load_seconds",
    "waiting_seconds", "canary", "mismatch", "mismatch_largest", "memory_gib", "engine_restarts",
)  # fmt: skip
JUDGES = (
    "{kind: math, of: mathematics, where: boxed}, {kind: exact, of: general, where: answer-tag}, "
    "{kind: code, of: code, key: tests}"
)
REWARD = "def letters(prompt, answer, truth):\n    return len(set(answer)) / 100\n"
"""What a random model's answers differ in: by the recipe's own judges all are wrong, and nothing would be learned."""
PROCESSES = {"engine": ("windtunnel.rl.vllm_engine", "ray::EngineHost"), "learner": ("windtunnel.launch.worker",)}
"""What the command lines of processes have in them."""
LOOK_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="tiny")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--placement", choices=["local", "ray"], default="local")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kill", action="append", default=[], metavar="ROLE@ROUND")
    parser.add_argument(
        "--tokenizer", type=Path, default=Path.home() / ".cache" / "windtunnel" / "models" / "smollm2-135m-instruct"
    )
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--work", type=Path, help="a new folder for the model and the runs; the default is a temporary one")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="grpo-job-"))
    work.mkdir(parents=True, exist_ok=options.work is None)
    config, sets = CASES[options.case]
    model = write_model(config, options.tokenizer, work / "model")
    command = [sys.executable, "-m", "windtunnel", "train", "grpo", "--yes", "--root", str(work / "runs")]
    letters = f"{work / 'reward.py'}:letters"
    (work / "reward.py").write_text(REWARD)
    given = [
        f"model.config={model}", "stages.sft.init_from=random", f"stages.rl.engine={options.engine}",
        f"stages.rl.placement={options.placement}", f"stages.rl.budget={{steps: {options.rounds}}}", "checkpoints.every=2 steps",
        "stages.rl.answers={every: 5 steps, prompts: 8}", "stages.evaluate.exact_match_problems=8",
        "stages.evaluate.gates={gain: -1}",
        f"stages.rl.rewards=[{JUDGES}, {{kind: function, function: '{letters}', weight: 0.1}}]",
        *sets, *options.sets,
    ]  # fmt: skip
    kills = sorted((int(at), role) for role, at in (one.split("@") for one in options.kill))
    began, job = time.time(), Job([*command, *(part for one in given for part in ("--set", one))], work)

    def write() -> dict[str, Any]:
        printed = work / "printed.txt"
        result = {
            "what": "the recipe grpo by `windtunnel train`, random weights, with processes killed on the way",
            "command": " ".join(["benchmarks/grpo_job.py", *sys.argv[1:]]),
            "environment": machine(), "date": datetime.now(UTC).strftime("%Y-%m-%d"), "sets": given,
            "seconds": round(time.time() - began, 1), "ended_with": job.codes, "killed": job.killed, **read(job.root),
            "said": printed.read_text().splitlines()[-80:] if printed.exists() else [],
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        return result

    job.run(kills, write)
    result = write()
    print(json.dumps({key: result[key] for key in ("seconds", "ended_with", "killed", "medians", "evaluation")}))


class Job:
    """`windtunnel train` in a process of its own, resumed for as long as it ends by a kill of ours."""

    def __init__(self, command: list[str], work: Path) -> None:
        self._command, self._work, self.root = command, work, work / "runs"
        self.killed: list[dict[str, Any]] = []
        self.codes: list[int] = []

    def run(self, kills: list[tuple[int, str]], told: Callable[[], Any]) -> None:
        """Train to the end; kill what is asked for when its round is done. `told` is called after each round."""
        command, waiting, seen = self._command, list(kills), 0
        while True:
            with (self._work / "printed.txt").open("a") as printed:
                process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
                while process.poll() is None:
                    time.sleep(LOOK_SECONDS)
                    done = rounds_done(self.root)
                    self._note(done)
                    if done != seen:
                        seen = done
                        told()  # whatever ends this script, the rounds so far are kept
                    if waiting and done >= waiting[0][0]:
                        self._kill(process.pid, *waiting.pop(0))
            self.codes.append(process.returncode)
            died = bool(self.killed) and self.killed[-1]["role"] == "learner"
            if process.returncode == 0 or not died or len(self.codes) > len(kills) + 1:
                return
            command = [*self._command[:4], "--resume", "--yes", "--root", str(self.root)]

    def _kill(self, job: int, at: int, role: str) -> None:
        found = next(processes(job, PROCESSES[role]), None)
        if found is None:
            self.killed.append({"role": role, "round": at, "next_round_after": None, "found": False})
            return
        found.send_signal(signal.SIGKILL)
        self.killed.append({"role": role, "round": at, "at": time.time(), "next_round_after": None})

    def _note(self, done: int) -> None:
        """Note when the first round behind a kill was done; a learner goes on from an older checkpoint."""
        for one in self.killed:
            if one["next_round_after"] is None and "at" in one and done > one["round"]:
                one["next_round_after"] = round(time.time() - one["at"], 1)


def write_model(config: dict[str, Any], tokenizer: Path, folder: Path) -> Path:
    """Write a model's folder without weights, with a tokenizer of somewhere else and its size of vocabulary."""
    folder.mkdir()
    for name in TOKENIZER:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    known = json.loads((tokenizer / "config.json").read_text())
    own = {key: known.get(key) for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps(config | own))
    return folder


def processes(job: int, words: tuple[str, ...]) -> Iterator[psutil.Process]:
    """Yield what a job has started whose command line has one of these words, those with the first word first."""
    below = psutil.Process(job).children(recursive=True)  # none of another job on this machine
    for word in words:
        for process in below:
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()):
                    yield process


def newest_run(root: Path) -> RunFolder | None:
    """Return the newest run of the stage rl."""
    found = sorted(root.glob("*-rl-*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return RunFolder.open(found[-1].parent) if found else None


def rounds_done(root: Path) -> int:
    """Return the last round that the run has metrics of."""
    run = newest_run(root)
    if run is None or not run.metrics_path.exists():
        return 0
    with MetricsReader(run.metrics_path) as reader:
        latest = reader.latest()
    return latest["reward"].step if "reward" in latest else 0


def read(root: Path) -> dict[str, Any]:
    """Return what the run of the stage rl says: rounds by phase, events, and the evaluation of the job."""
    run = newest_run(root)
    if run is None:
        return {"rounds": [], "medians": {}, "events": [], "evaluation": None}
    with MetricsReader(run.metrics_path) as reader:
        each: dict[int, dict[str, float]] = {}
        for name in PHASES:
            for point in reader.series(name):
                each.setdefault(point.step, {})[name] = point.value
        events = [{"step": event.step, "kind": event.kind, "message": event.message} for event in reader.events()]
    medians = {
        name: statistics.median(values)
        for name in PHASES
        if (values := [row[name] for step, row in each.items() if step > 1 and name in row])
    }
    evaluations = sorted(root.rglob("evaluation.json"), key=lambda path: path.stat().st_mtime)
    found = json.loads(evaluations[-1].read_text()) if evaluations else {}
    return {
        "plan": run.manifest["plan"].get("roles"), "rounds": [{"round": step, **row} for step, row in sorted(each.items())],
        "medians": medians, "events": events,
        "evaluation": {name: value for name, value in found.items() if value is not None and name != "samples"},
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """Return what it ran on."""
    gpu = shutil.which("nvidia-smi")
    told = subprocess.run([gpu, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True) if gpu else None
    versions = {}
    for name in ("torch", "transformers", "peft", "ray"):
        try:
            versions[name] = __import__("importlib.metadata").metadata.version(name)
        except Exception:  # a package that is not there has no version
            versions[name] = None
    return {
        "gpus": told.stdout.strip().splitlines() if told else [], "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(), "versions": versions,
    }  # fmt: skip


if __name__ == "__main__":
    main()
