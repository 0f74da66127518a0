"""How fast this process writes the answers of a round: seconds, steps, and what a step costs the GPU and the host.

    generating.py --out benchmarks/results/generating-h100.json           SmolLM2-135M's shape, 256 answers of 512 tokens
    generating.py --case short --case smollm2-135m --times 2 --out FILE
    generating.py --cpu --out /tmp/trial.json                              a tiny model without a GPU, to try the script

Random weights. Each case is answered several times by one decoder, as rounds of reinforcement learning are: the first time makes
what stays (memory, compiled kernels, recordings). Nothing ends an answer before its last token. A profile of some steps in the
midst says which kernels they launch and how long the GPU needs for them; it is a run of its own, since profiling takes time too.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from grpo_speed import QWEN, SMOLLM2, TINY
from harness import machine

from windtunnel.generate import BatchedGenerator, GenerationJob, NoText, RecordedDecoder, hf_decoder

PROFILED_SECONDS, SHOWN = 0.15, 14


@dataclass(frozen=True)
class Case:
    """What is answered.

    Attributes:
        config: a config.json.
        prompts, samples: different prompts, and answers to each.
        prompt_tokens, answer_tokens: all prompts and answers are of these lengths.
        slots: answers written together.
        temperature: they are drawn at.
    """

    config: dict[str, Any]
    prompts: int
    samples: int
    prompt_tokens: int
    answer_tokens: int
    slots: int = 256
    temperature: float = 1.0


CASES = {
    "smollm2-135m": Case(SMOLLM2, 32, 8, 128, 512),
    "short": Case(SMOLLM2, 64, 8, 64, 32),
    "qwen2.5-7b": Case(QWEN, 8, 8, 128, 512),
    "tiny": Case(TINY, 4, 4, 16, 32),
}


def random_model(config: dict[str, Any], device: torch.device) -> Any:
    """Return a model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    torch.manual_seed(0)
    with device:
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.bfloat16)
    return made.eval()


def answered(decoder: Any, case: Case, ends: Callable[[BatchedGenerator], None] = lambda _: None) -> dict[str, float]:
    """Have all answers written; what it took."""
    draw = random.Random(1)
    prompts = [tuple(draw.randrange(case.config["vocab_size"]) for _ in range(case.prompt_tokens)) for _ in range(case.prompts)]
    jobs = [
        GenerationJob(prompt, case.answer_tokens, temperature=case.temperature, seed=number * case.samples + i, draws=True)
        for number, prompt in enumerate(prompts)
        for i in range(case.samples)
    ]
    engine = BatchedGenerator(decoder, NoText(decoder.vocab, ()), slots=case.slots)
    began, busy = time.monotonic(), time.process_time()
    tickets = engine.submit(jobs, bounded=False)
    ends(engine)
    for ticket in tickets:
        ticket.result()
    seconds = time.monotonic() - began
    found = {
        "seconds": seconds, "steps": engine.stats.steps, "ms_a_step": 1e3 * seconds / engine.stats.steps,
        "tokens_per_second": sum(len(ticket.drawn) for ticket in tickets) / seconds,
        "processor_seconds": time.process_time() - busy,
    }  # fmt: skip
    engine.close()
    return found


def profiled(decoder: Any, case: Case) -> dict[str, Any]:
    """Return what kernels some steps in the midst of an answer launch, and how long the GPU worked a step."""
    from torch.profiler import ProfilerActivity, profile

    seen: dict[str, Any] = {}

    def look(engine: BatchedGenerator) -> None:
        while engine.stats.steps < case.answer_tokens // 2:
            time.sleep(0.002)
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            first = engine.stats.steps
            time.sleep(PROFILED_SECONDS)
            seen["steps"] = engine.stats.steps - first
        events = [e for e in found.key_averages() if e.self_device_time_total > 0]
        total = sum(e.self_device_time_total for e in events)
        steps = max(1, seen["steps"])
        seen["gpu_ms_a_step"] = total / 1e3 / steps
        seen["kernels_a_step"] = sum(e.count for e in events) / steps
        top = sorted(events, key=lambda e: -e.self_device_time_total)[:SHOWN]
        seen["kernels"] = [
            {"name": e.key[:90], "us_a_step": e.self_device_time_total / steps, "a_step": e.count / steps} for e in top
        ]

    answered(decoder, case, look)
    return seen


def main(given: list[str]) -> None:
    """Measure the cases that are asked for, and write what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", action="append", choices=[*CASES])
    parser.add_argument("--times", type=int, default=4, help="rounds of each case")
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args(given)
    device = torch.device("cpu" if asked.cpu else "cuda")
    results: dict[str, Any] = {}
    for name in asked.case or (["tiny"] if asked.cpu else ["smollm2-135m", "short"]):
        case = CASES[name]
        model, capacity = random_model(case.config, device), case.prompt_tokens + case.answer_tokens
        decoder = RecordedDecoder(model, capacity, lambda: _Again) if asked.cpu else hf_decoder(model, capacity)
        rounds = []
        gc.collect()
        gc.freeze()  # as training does
        for _ in range(asked.times):
            rounds.append(answered(decoder, case))
            print(name, json.dumps({key: round(value, 3) for key, value in rounds[-1].items()}), flush=True)
        later = {key: statistics.median(one[key] for one in rounds[1:] or rounds) for key in rounds[0]}
        results[name] = {"case": asdict(case), "first": rounds[0], "later": later, "rounds": rounds}
        if not asked.cpu:
            results[name]["profile"] = profiled(decoder, case)
            results[name]["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            print(json.dumps(results[name]["profile"], indent=1), flush=True)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        head = {"command": " ".join(["benchmarks/generating.py", *given]), "machine": machine(gpu=not asked.cpu)}
        asked.out.write_text(json.dumps(head | {"weights": "random", "results": results}, indent=1) + "\n")
        del decoder, model
        assert threading.active_count() < 50, "generators do not end"


@dataclass
class _Again:
    """Stands for a recording where there is no GPU."""

    replay: Callable[[], None]


if __name__ == "__main__":
    main(sys.argv[1:])
