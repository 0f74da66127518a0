"""Time one optimizer step of fine-tuning, phase by phase and kernel by kernel, in several ways of computing it.

    hf_step.py smollm2 --out step.json --try attention=flash4 --try attention=flex,exact=false --profile
    hf_step.py qwen --batch 4 --sequence 4096 --lora 16 --recompute --try keep_attention=false --try keep_attention=true
    hf_step.py tiny --device cpu --steps 3 --warm 1

Conversations of realistic lengths are packed and read by the package's own loader; weights are random. Each --try is a
process of its own that changes options by name (see `Way`); without any the options are timed as they are. Milliseconds of
a phase are those of the device, from an event behind the phase before to one behind it; 'data' is what the host waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from finetune_cases import QWEN, SMOLLM2, TINY

CONFIGS = {"smollm2": SMOLLM2, "qwen": QWEN, "tiny": TINY}
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Way:
    """What is computed and how.

    Attributes:
        batch: sequences of a step, in `accumulation` micro-batches. lora: rank on all linear layers; 0: all weights.
        whole: each sample fills a sequence; else conversations of many lengths (median 300 tokens) are packed.
        answers: share of a conversation's tokens that are learned.
        dense: batches of plain windows, as of text: no documents and every token a target.
    """

    batch: int = 16
    sequence: int = 2048
    accumulation: int = 1
    lora: int = 0
    recompute: bool = False
    keep_attention: bool = False
    kept_blocks: int = 0
    master: bool = True
    states: str = "fp32"
    weights: str = "bf16"
    compile: bool = True
    attention: str = "auto"
    exact: bool = True
    whole: bool = False
    dense: bool = False
    answers: float = 0.67
    steps: int = 30
    warm: int = 10

    def changed(self, text: str) -> Way:
        """Return this with 'name=value,...' changed."""
        kinds = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        given = dict(pair.split("=") for pair in text.split(",") if pair)
        return replace(self, **{k: value == "true" if kinds[k] is bool else kinds[k](value) for k, value in given.items()})


def conversations(way: Way, vocab: int, path: Path) -> Any:
    """Write samples of random tokens and return them as the loader reads them."""
    from windtunnel.data import ConversationFile
    from windtunnel.data.packing import pack_ids

    draw, parts, total = np.random.default_rng(7), [], 0
    # Four times what is read: of few samples the last sequences would be packed badly.
    while total < 4 * way.batch * way.sequence * (way.steps + 2):
        drawn = way.sequence if way.whole else int(np.clip(draw.lognormal(5.7, 0.85), 16, way.sequence))
        learned = np.arange(drawn) >= round(drawn * (1 - way.answers))
        parts.append(pack_ids(draw.integers(0, vocab, drawn), learned))
        total += drawn
    ids = np.concatenate(parts)
    ids.tofile(path)
    return ConversationFile(path, "uint32", len(ids), vocab)


def batches(way: Way, vocab: int, folder: Path, device: Any) -> Any:
    """Return a loader of the micro-batches of a way."""
    from windtunnel.data import BatchLoader, TokenFile

    if way.dense:
        ids = np.random.default_rng(7).integers(0, vocab, way.batch * way.sequence * (way.steps + 2)).astype(np.uint32)
        ids.tofile(folder / "text.bin")
        data: Any = TokenFile(folder / "text.bin", "uint32", len(ids), vocab)
    else:
        data = conversations(way, vocab, folder / "talks.bin")
    return BatchLoader(
        data, sequence=way.sequence, micro_batch=way.batch // way.accumulation, accumulation=way.accumulation, rank=0, world=1,
        seed=1, device=device,
    )  # fmt: skip


class Stopwatch:
    """Notes the ends of phases: on a GPU as events, for which nothing waits."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self.notes: list[tuple[str, Any]] = []

    def __call__(self, phase: str) -> None:
        """Note that a phase has been launched."""
        import torch

        if not self._cuda:
            self.notes.append((phase, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.notes.append((phase, event))

    def milliseconds(self, steps: int) -> dict[str, float]:
        """Return the mean of each phase of a step; the device must have come to the end."""
        spent = dict.fromkeys(PHASES, 0.0)
        for (_, began), (phase, ended) in zip(self.notes, self.notes[1:], strict=False):
            if phase in spent:
                spent[phase] += began.elapsed_time(ended) if self._cuda else 1e3 * (ended - began)
        return {phase: total / steps for phase, total in spent.items()}


def measure(name: str, way: Way, device: str, profile: bool, folder: Path) -> dict[str, Any]:
    """Build a model, take its steps and return what they took."""
    import torch
    import transformers

    from windtunnel.recipe import LoRA
    from windtunnel.train import Ranks, build_hf

    cuda = device == "cuda"
    there = torch.device("cuda", 0) if cuda else torch.device("cpu")
    config = CONFIGS[name] if name in CONFIGS else json.loads(Path(name).read_text())
    began = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    options: dict[str, Any] = {k: getattr(way, k) for k in ("weights", "master", "states", "compile", "attention", "exact")}
    job = build_hf(
        config, lora=LoRA(rank=way.lora, alpha=2 * way.lora) if way.lora else None, shard="full", seed=1,
        recompute="block" if way.recompute else "none", keep_attention=way.keep_attention, kept_blocks=way.kept_blocks,
        sequence=way.sequence, ranks=Ranks(0, 1, there, None), compute=torch.bfloat16, **options,
    )  # fmt: skip
    built = time.perf_counter() - began
    watch, sums, host = Stopwatch(cuda), [], 0.0
    loader = batches(way, config["vocab_size"], folder, there)

    def step(mark: Any = None) -> None:
        given = (loader.next_batch() for _ in range(way.accumulation))
        sums.append(job.step(given, way.batch * way.sequence, 1e-5, mark))

    def wait() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    began = time.perf_counter()
    for _ in range(way.warm):
        step()
    began, warmed = wait(), wait() - began
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    waited = loader.wait_seconds
    for _ in range(way.steps):
        watch("begun")
        launched = time.perf_counter()
        step(watch)
        host += time.perf_counter() - launched
    seconds = (wait() - began) / way.steps
    waited = loader.wait_seconds - waited
    nats, targets = (sum(float(s[i]) for s in sums[-way.steps :]) for i in (0, 1))
    filled = 1.0 if way.dense else loader.tokens.packing(way.sequence).filled
    found = {
        "way": asdict(way), "attention": "rows" if way.dense else job.network.attention.kind, "step_ms": 1e3 * seconds,
        "positions_per_second": way.batch * way.sequence / seconds, "filled": filled,
        "tokens_per_second": way.batch * way.sequence * filled / seconds, "targets_per_step": targets / way.steps,
        "phases_ms": watch.milliseconds(way.steps), "host_ms": 1e3 * host / way.steps, "data_ms": 1e3 * waited / way.steps,
        "loss": nats / targets, "norm": float(sums[-1][2]) ** 0.5, "build_seconds": built, "warm_seconds": warmed,
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    if cuda:
        memory = torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9
        found |= {"allocated_gb": memory[0], "reserved_gb": memory[1], "device": torch.cuda.get_device_name()}
    if profile:
        found |= kernels(step, wait, cuda)
    loader.close()
    return found


def kernels(step: Any, wait: Any, cuda: bool, steps: int = 3) -> dict[str, Any]:
    """Return what the device did in some steps: share of the time that it was busy, launches, the 20 longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as seen:
        began = wait()
        for _ in range(steps):
            step()
        seconds = wait() - began

    def spent(event: Any) -> float:
        microseconds: float = event.self_device_time_total if cuda else event.self_cpu_time_total
        return microseconds / 1e3 / steps

    table = sorted(seen.key_averages(), key=spent, reverse=True)
    busy = sum(spent(e) for e in table)
    rows = [{"name": e.key[:110], "ms": round(spent(e), 3), "calls": e.count / steps} for e in table[:20]]
    launches = sum(e.count for e in table) / steps
    return {"profiled_step_ms": 1e3 * seconds / steps, "busy_ms": busy, "launches": launches, "kernels": rows}


def show(found: dict[str, Any]) -> None:
    """Print one way's figures, and its kernels."""
    if "failed" in found:
        print(f"{found['try']}: FAILED\n{found['failed']}", flush=True)
        return
    phases = ", ".join(f"{name} {ms:.1f}" for name, ms in found["phases_ms"].items())
    memory = f", {found['allocated_gb']:.2f} GB allocated, {found['reserved_gb']:.2f} reserved" if "allocated_gb" in found else ""
    print(
        f"{found['try'] or 'as given'} [{found['attention']}]: {found['tokens_per_second']:,.0f} tokens/s"
        f" ({found['positions_per_second']:,.0f} positions/s){memory}; {found['step_ms']:.1f} ms a step: {phases}; host"
        f" {found['host_ms']:.1f}, data {found['data_ms']:.1f}; loss {found['loss']:.4f}, norm {found['norm']:.4g}",
        flush=True,
    )
    if "kernels" in found:
        print(f"  busy {found['busy_ms']:.1f} of {found['profiled_step_ms']:.1f} ms, {found['launches']:.0f} launches a step")
        for row in found["kernels"]:
            print(f"  {row['ms']:9.3f} ms {row['calls']:7.1f} x  {row['name']}")


def main() -> None:
    """Time every way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="smollm2, qwen, tiny, or a config.json")
    for field in fields(Way):
        default: Any = field.default
        if isinstance(default, bool):
            parser.add_argument(f"--{field.name}", action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(f"--{field.name}", type=type(default), default=default)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="NAME=VALUE,...")
    parser.add_argument("--profile", action="store_true", help="three more steps, kernel by kernel")
    parser.add_argument("--limit", type=int, default=400, help="seconds that one way may take")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    way = Way(**{f.name: getattr(given, f.name) for f in fields(Way)})
    if os.environ.get("HF_STEP_CHILD"):
        with tempfile.TemporaryDirectory() as folder:
            chosen = way.changed(given.tries[0])
            print("RESULT " + json.dumps(measure(given.config, chosen, given.device, given.profile, Path(folder))))
        return
    results = []
    arguments = [a for i, a in enumerate(sys.argv[1:]) if a != "--try" and sys.argv[i] != "--try"]
    for text in given.tries or [""]:
        command = [sys.executable, __file__, *arguments, "--try", text]
        environment = os.environ | {"HF_STEP_CHILD": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit, env=environment)
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            said = f"took more than {given.limit} s\n{(error.stderr or b'')[-1500:]!r}"
        lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
        found = json.loads(lines[-1].removeprefix("RESULT ")) if lines else {"failed": said[-3000:]}
        results.append({"try": text} | found)
        show(results[-1])
        if given.out is not None:
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
