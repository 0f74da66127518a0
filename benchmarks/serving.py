"""Measure what serving costs beside a plain loop over the same model, on a CPU: tokens a second of one client and of sixteen.

    python benchmarks/serving.py [--before SRC] [--clients 8 16 32] [--out benchmarks/results/serve-cpu.json]

A real server process answers real HTTP requests, streamed and whole. The plain loop is one process with one thread of torch
that feeds the prompts, takes the likeliest token and goes on: first over the weights as they are loaded, then as generating
lays them out. All sides take turns, so that what else the machine does falls on all of them; medians of the rounds' rates and
of the rounds' ratios count: to the loop's rate, and of streamed answers' to whole ones'. --before: the src folder of an older
checkout, whose server takes its turn too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

PROMPT = "H12+34B"
SERVER = """
import sys
from pathlib import Path
from windtunnel.serve import serve
serve(Path(sys.argv[1]), port=0, on_ready=lambda url: print(url, flush=True))
"""
LOOP = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from windtunnel.data import load_tokenizer
from windtunnel.model import KVCache, extend, lay_out, load_weights
folder = Path(sys.argv[1])
model, tokenizer = load_weights(folder), load_tokenizer(folder / "tokenizer.json")
if sys.argv[2] == "laid_out":
    lay_out(model)
@torch.inference_mode()
def loop(count, tokens, prompt):
    cache, slots = KVCache(model, count), range(count)
    logits = extend(model, torch.tensor([[int(i) for i in tokenizer.encode(prompt, bos=True)]] * count), slots, cache)
    for _ in range(tokens - 1):
        newest = logits.argmax(-1)
        newest.tolist()
        logits = extend(model, newest[:, None], slots, cache)
    return logits
loop(1, 20, "H1")
print("ready", flush=True)
for line in sys.stdin:
    count, tokens, prompt = line.split()
    began = time.perf_counter()
    loop(int(count), int(tokens), prompt)
    print(time.perf_counter() - began, flush=True)
"""


def make_model(folder: Path, depth: int) -> int:
    """Write an exported GPT with random weights, whose greedy text never ends; the number of its weights."""
    import torch

    from windtunnel.checkpoint import write_export
    from windtunnel.data import Characters
    from windtunnel.model import build_model, gpt_shape
    from windtunnel.recipe import ARITHMETIC_ALPHABET, GPTModel

    tokenizer = Characters(ARITHMETIC_ALPHABET)
    shape = gpt_shape(GPTModel(depth=depth, sequence=2048), tokenizer.vocab)
    model = build_model(shape, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 1.2 * shape.dim**-0.5)
        model.head.weight[tokenizer.bos] = 0
    tokenizer.save(folder.parent / "tokenizer.json")
    tensors = [(name, weight.detach()) for name, weight in model.named_parameters()]
    write_export(folder, tensors, config={"shape.json": asdict(shape)}, beside=[folder.parent / "tokenizer.json"])
    return sum(p.numel() for p in model.parameters())


class Loop:
    """The plain loop's process."""

    def __init__(self, folder: Path, layout: str) -> None:
        command = [sys.executable, "-c", LOOP, str(folder), layout]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def rate(self, clients: int, tokens: int) -> float:
        """Tokens a second."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(clients, tokens, PROMPT, file=self.process.stdin, flush=True)
        return clients * tokens / float(self.process.stdout.readline())


class Served:
    """A server's process. src: its package's folder; None: this one."""

    def __init__(self, folder: Path, src: str | None, stream: bool) -> None:
        environment = os.environ | {"GOMP_SPINCOUNT": "10000"} | ({"PYTHONPATH": src} if src else {})
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().removeprefix("http://")
        self.model, self.stream = folder.name, stream

    def rate(self, clients: int, tokens: int) -> float:
        """Tokens a second over HTTP, from the first request to the end of the last answer."""
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            began = time.perf_counter()
            counts = list(pool.map(lambda _: self._ask(tokens), range(clients)))
            seconds = time.perf_counter() - began
        assert counts == [tokens] * clients, counts
        return sum(counts) / seconds

    def _ask(self, tokens: int) -> int:
        body = {"model": self.model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": self.stream}
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse().read().decode()
        connection.close()
        if not self.stream:
            return int(json.loads(answer)["usage"]["completion_tokens"])
        events = [json.loads(e[6:]) for e in answer.split("\n\n") if e.startswith("data: {")]
        return sum(len(e["choices"][0]["text"]) for e in events)  # a token of these models is one character


def measure(depth: int, rounds: int, tokens: int, clients_of: list[int], before: str | None) -> dict[str, Any]:
    """All sides of one model, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        weights = make_model(Path(folder) / "model", depth)
        path = Path(folder) / "model"
        sides: dict[str, Loop | Served] = {"loop": Loop(path, "loaded"), "loop_laid_out": Loop(path, "laid_out")}
        for name, src in [("serve", None), *([("before", before)] if before else [])]:
            whole, streamed = Served(path, src, False), None
            sides[name] = whole
            streamed = object.__new__(Served)
            streamed.__dict__ |= whole.__dict__ | {"stream": True}
            sides[f"{name}_streamed"] = streamed
        try:
            found: dict[str, dict[str, list[float]]] = {str(c): {name: [] for name in sides} for c in clients_of}
            spent: dict[str, dict[str, list[float]]] = {str(c): {name: [] for name in sides} for c in clients_of}
            for name, side in sides.items():
                side.rate(2, 50)  # warm
                print(f"depth {depth}: {name} is ready", file=sys.stderr)
            for _ in range(rounds):
                for clients in clients_of:
                    for name, side in sides.items():
                        began = cpu_seconds(side.process)
                        found[str(clients)][name].append(side.rate(clients, tokens))
                        spent[str(clients)][name].append(clients * tokens / (cpu_seconds(side.process) - began))
        finally:
            for side in sides.values():
                side.process.kill()
    clients = {c: {"seconds": summary(found[c]), "cpu_seconds": summary(spent[c])} for c in found}
    return {"depth": depth, "weights": weights, "clients": clients}


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """What all threads of a process have used so far."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def summary(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of tokens a second, and of each round's ratios: to the loop, and of streamed answers to whole ones."""
    ratio = {
        name: {
            loop: round(statistics.median(a / b for a, b in zip(values, rates[loop], strict=True)), 3)
            for loop in ("loop", "loop_laid_out")
        }
        for name, values in rates.items()
        if not name.startswith("loop")
    }
    whole = [name for name in rates if f"{name}_streamed" in rates]
    streamed = {
        name: round(statistics.median(a / b for a, b in zip(rates[f"{name}_streamed"], rates[name], strict=True)), 3)
        for name in whole
    }
    return {
        "streamed_to_whole": streamed,
        "tokens": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ratio_to": ratio,
        "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="SRC", help="src folder of an older checkout")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_args()
    import torch

    result = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "prompt": PROMPT,
        "tokens": asked.tokens,
        "load_before": os.getloadavg()[0],
        "models": [measure(depth, asked.rounds, asked.tokens, asked.clients, asked.before) for depth in asked.depths],
        "load_after": os.getloadavg()[0],
    }
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
