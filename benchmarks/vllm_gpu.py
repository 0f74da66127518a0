"""vLLM on the learner's own GPU: weights by files and directly, how fast and how right, and faults that must be caught.

    PYTHONPATH=src python benchmarks/vllm_gpu.py [--models smollm2-135m qwen2.5-7b] [--seconds 460] [--to FILE.json]
    PYTHONPATH=src python benchmarks/vllm_gpu.py --engine 1            the engine on another GPU than the learner: NCCL
    PYTHONPATH=src python benchmarks/vllm_gpu.py --engine 0,1          two ranks, one of them on the learner's GPU: CUDA IPC
    PYTHONPATH=src python benchmarks/vllm_gpu.py --cpu --to /tmp/trial.json    the same with tiny models, to try the script

The interpreter has vLLM, peft and xxhash; or WINDTUNNEL_VLLM_PYTHON names one that has vLLM and xxhash. Models have random
weights and need no tokenizer.
SmolLM2-135M's shape is trained whole, Qwen2.5-7B's by LoRA on all linear layers. The result is written after every step, and
the script ends by itself after --seconds, whatever is under way.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from sync_cases import FAULTS, Answers, Direct, Disk, Way, as_json, compare_answers, give_faults, let_find_faults

from windtunnel.recipe import LoRA
from windtunnel.rl import EngineProcess, Serving
from windtunnel.rl.transfer import Way as Bytes
from windtunnel.rl.vllm_engine import VLLMSettings
from windtunnel.rl.vllm_python import require_vllm
from windtunnel.train import HFJob, Ranks, adapter_settings, build_hf

SMOLLM: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], LoRA | None, float]] = {
    "smollm2-135m": (SMOLLM, None, 1e-3),
    "qwen2.5-7b": (QWEN, LoRA(rank=16), 1e-2),
}
"""Config, adapters (None: all weights learn) and a learning rate at which every step moves all of bf16's weights."""
TINY: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512,
}  # fmt: skip
PROMPT, NEW, TEMPERATURE = 32, 128, 0.9
SLOW_SECONDS = 5.0
WAYS = ["disk", "direct", "adapters"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--engine", default="0", help="the engine's GPUs, each a rank; the learner has GPU 0")
    parser.add_argument("--syncs", type=int, default=5, help="timed syncs of each way")
    parser.add_argument("--disk-seconds", type=float, default=60.0, help="no more syncs by files begin after so many")
    parser.add_argument("--memory", type=float, default=0.4, help="engine's share of the GPU")
    parser.add_argument("--prompts", type=int, default=64, help="prompts that are answered")
    parser.add_argument("--seconds", type=float, default=460.0, help="the script ends after so many")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="tiny models in fp32 on the CPU")
    parser.add_argument("--folder", type=Path, help="of published weights; the default is a temporary one")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "results" / "vllm-h200.json")
    given = parser.parse_args()
    report = Report(given.to, given.seconds)
    report.say("environment", _environment(given.cpu))
    failed = False
    for name in given.models:
        try:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                _measure(name, given, report, Path(folder))
        except BaseException:
            failed = True
            report.say(f"{name}/error", traceback.format_exc()[-3000:])
        gc.collect()
        if not given.cpu:
            torch.cuda.empty_cache()
    report.say("ended", "with errors" if failed else "whole")
    sys.exit(int(failed))


class Report:
    """What was found so far, in a file; it ends the process when its time is over.

    Args:
        file: gets JSON. seconds: that the script may take.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self._file, self._began = file, time.monotonic()
        self._found: dict[str, Any] = {
            "what": "vLLM on the learner's GPU: seconds of a sync by files and directly, receipts, canary, mismatch and faults",
            "command": " ".join(sys.argv),
        }
        self.engines: list[EngineProcess] = []
        timer = threading.Timer(seconds, self._over)
        timer.daemon = True
        timer.start()

    def say(self, place: str, value: Any) -> None:
        """Note a value under a path of names, and write all."""
        at = self._found
        *above, last = place.split("/")
        for name in above:
            at = at.setdefault(name, {})
        at[last] = value
        self._write()
        print(f"[{time.monotonic() - self._began:6.1f} s] {place}: {json.dumps(value)[:1500]}", flush=True)

    def _write(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._found, indent=1) + "\n")
        temporary.replace(self._file)

    def _over(self) -> None:
        self.say("ended", "its time was over")
        for engine in self.engines:
            with contextlib.suppress(OSError):
                os.killpg(engine.pid, 9)
        os._exit(3)


def _measure(name: str, given: argparse.Namespace, report: Report, folder: Path) -> None:
    config, lora, rate = MODELS[name]
    dtype = torch.float32 if given.cpu else torch.bfloat16
    if given.cpu:
        config = {**config, **TINY}
        given = argparse.Namespace(**{**vars(given), "prompts": 4})
    began = time.monotonic()
    job = _learner(config, lora, dtype, given.cpu)
    draw = torch.Generator().manual_seed(3)
    vocabulary = config["vocab_size"]
    canary = torch.randint(2, vocabulary, (4, 63), generator=draw)
    prompts = torch.randint(2, vocabulary, (given.prompts, PROMPT), generator=draw).tolist()
    report.say(
        f"{name}/learner", {"parameters": job.parameters.total, "seconds": round(time.monotonic() - began, 1), **_memory()}
    )

    def learn() -> None:
        tokens = torch.randint(2, vocabulary, (4, 64), generator=draw).to(job.ranks.device)  # others each time: it keeps moving
        job.step([(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())], 4 * 63, rate)

    fault, answers = let_find_faults(folder), Answers()
    by: Bytes = "gloo" if given.cpu else "ipc" if "0" in given.engine.split(",") else "nccl"
    if lora is not None and "adapters" in given.ways:
        _adapters(name, given, report, folder, job, canary, learn, fault, prompts, by)
    with _engine(given, dtype, answers, report) as engine:
        versions = itertools.count(1)
        disk = Disk(job, engine, folder / "published", dtype, canary)
        began = time.monotonic()
        receipt, seconds = disk.give(next(versions))
        report.say(
            f"{name}/start", {"until it answers": round(time.monotonic() - began, 1), **as_json(receipt, seconds), **_memory()}
        )
        ways: dict[str, Way] = {}
        if "direct" in given.ways:
            ways["direct"] = Direct(job, engine, dtype, canary, by, _ranks(given), given.seconds)
        if "disk" in given.ways:
            ways["disk"] = disk
        for kind, way in ways.items():
            place = f"{name}/{kind}"
            median = _syncs(place, way, versions, learn, given.syncs, given.disk_seconds, report)
            learn()
            version = next(versions)
            way.give(version)
            found = compare_answers(engine, job, answers, version, prompts, NEW, TEMPERATURE)
            report.say(f"{place}/answers", found)
            slow = kind == "disk" and median > SLOW_SECONDS  # the same faults, each followed by another sync
            if not given.no_faults and not slow:
                for one in [one for one in FAULTS if one != "swapped ranks" or _ranks(given) > 1]:
                    report.say(f"{place}/faults/{one}", give_faults(way, versions, learn, fault, [one])[one])
                version = next(versions)
                way.give(version)
                found = compare_answers(engine, job, answers, version, prompts, NEW, TEMPERATURE)
                report.say(f"{place}/afterwards", found)


def _adapters(
    name: str, given: argparse.Namespace, report: Report, folder: Path, job: HFJob, canary: torch.Tensor, learn: Any, fault: Path,
    prompts: list[list[int]], by: Bytes,
) -> None:  # fmt: skip
    """Adapters alone, to an engine that has the weights beside them."""
    answers, place, dtype = Answers(), f"{name}/adapters", torch.float32 if given.cpu else torch.bfloat16
    with _engine(given, dtype, answers, report, "FaultyAdapters", adapter_settings(job)) as engine:
        began = time.monotonic()
        way = Direct(job, engine, dtype, canary, by, _ranks(given), given.seconds, folder / "base")
        report.say(f"{place}/start", {"until it answers": round(time.monotonic() - began, 1), **_memory()})
        versions = itertools.count(1)
        _syncs(place, way, versions, learn, given.syncs, given.disk_seconds, report)
        learn()
        version = next(versions)
        way.give(version)
        report.say(f"{place}/answers", compare_answers(engine, job, answers, version, prompts, NEW, TEMPERATURE))
        for one in [] if given.no_faults else [one for one in FAULTS if one != "swapped ranks" or _ranks(given) > 1]:
            report.say(f"{place}/faults/{one}", give_faults(way, versions, learn, fault, [one])[one])
    shutil.rmtree(folder / "base")


def _syncs(place: str, way: Way, versions: Iterator[int], learn: Any, count: int, most: float, report: Report) -> float:
    """Time right syncs, of which the first is apart: it makes what the others find made. Returns their median."""
    found: list[dict[str, float]] = []
    began = time.monotonic()
    for number in range(count + 1):
        learn()
        receipt, seconds = way.give(next(versions))
        assert receipt.canary is not None
        if number == 0:
            report.say(f"{place}/first", as_json(receipt, seconds))
            continue
        found.append(
            {
                **seconds,
                "load and prove": receipt.seconds,
                "canary mean": receipt.canary.mean,
                "canary largest": receipt.canary.largest,
            }
        )
        if time.monotonic() - began > most:
            break
    median = {key: statistics.median(one[key] for one in found) for key in found[0]}
    report.say(
        f"{place}/syncs", {"count": len(found), "bytes": receipt.bytes, "median": median, "each": [one["all"] for one in found]}
    )
    report.say(f"{place}/bytes per second", receipt.bytes / median["all"])
    return median["all"]


@contextlib.contextmanager
def _engine(
    given: argparse.Namespace, dtype: torch.dtype, answers: Answers, report: Report,
    worker: str = "Faulty", adapter: dict[str, Any] | None = None,
) -> Iterator[EngineProcess]:  # fmt: skip
    """vLLM in a process of its own, as `stages.rl.engine: vllm` starts it, on the learner's GPU."""
    devices = None if given.cpu else given.engine
    log = given.to.with_suffix(".vllm.log")
    settings = VLLMSettings(_ranks(given), given.memory, devices, log, f"vllm_faults.{worker}", require_vllm(), adapter)
    engine = EngineProcess(
        dtype, "cpu" if given.cpu else "cuda:0", serving=Serving(given.prompts, PROMPT + NEW, (1,)), vllm=settings,
        answered=answers.take, limit=given.seconds,
    )  # fmt: skip
    report.engines.append(engine)
    try:
        yield engine
    except BaseException:
        print(log.read_text(errors="replace")[-6000:], flush=True)
        raise
    finally:
        report.engines.remove(engine)
        engine.close()


def _learner(config: dict[str, Any], lora: LoRA | None, dtype: torch.dtype, cpu: bool) -> HFJob:
    ranks = Ranks(0, 1, torch.device("cpu") if cpu else torch.device("cuda", 0), None)
    return build_hf(
        config, lora=lora, weights="bf16", master=True, states="fp32", recompute="none", compile=False, shard="full",
        ranks=ranks, sequence=256, seed=7, compute=dtype,
    )  # fmt: skip


def _ranks(given: argparse.Namespace) -> int:
    return len(given.engine.split(","))


def _memory() -> dict[str, float]:
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"learner GiB": round(torch.cuda.memory_allocated() / 2**30, 1), "GPU in use GiB": round((total - free) / 2**30, 1)}


def _environment(cpu: bool) -> dict[str, Any]:
    import transformers

    asked = "import vllm, torch; print(vllm.__version__, torch.__version__)"
    done = subprocess.run([require_vllm(), "-c", asked], capture_output=True, text=True, check=True)
    vllm, torch_there = done.stdout.split()[-2:]
    machine = platform.machine() if cpu else torch.cuda.get_device_name()
    disk = shutil.disk_usage(tempfile.gettempdir())
    return {
        "date": str(datetime.date.today()), "machine": machine, "free disk GiB": round(disk.free / 2**30),
        "versions": {"vllm": vllm, "torch": torch_there, "torch of the learner": torch.__version__,
                     "transformers": transformers.__version__, "python": platform.python_version()},
    }  # fmt: skip


if __name__ == "__main__":
    main()
