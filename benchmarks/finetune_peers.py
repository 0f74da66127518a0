"""Supervised fine-tuning beside TRL's SFTTrainer: the same samples, the same steps, on this machine, in one run.

    finetune_peers.py losses --out losses.json             five steps of a tiny model in fp32: losses and gradient norms
    finetune_peers.py speed --out speed.json [--case smollm2-packed ...]     tokens/s and peak memory on a GPU
    finetune_peers.py speed --graphs --case smollm2-packed                   and our side once more, its passes recorded
    finetune_peers.py scaling --out scaling.json [--case ...]                the same steps on one GPU and on all of them
    finetune_peers.py side ours|graphs|trl CASE FOLDER      one side of one case; losses and speed start these

Every side is a process of its own. Tokens are counted alike: ids that are read in a step, without padding. A side's
time is that of its whole loop: reading and packing samples, copying them, steps, logging; gpu_busy is the share of it in
which NVML saw a kernel run. TRL computes with Liger's
kernels on a GPU; it needs `pip install trl liger-kernel`, perhaps in an interpreter of its own (--peer-python).
KERNELS=1 gives a table of our kernels' times in place of valid speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from finetune_cases import CASES, Case, write_samples
from harness import Bench, Side, has_gpu, leave_this_folder, machine

SIDE_SECONDS = 580.0
RESULT = "RESULT "


# Our side


def our_recipe(case: Case, folder: Path, steps: int, graphs: bool = False) -> Any:
    """Return our recipe of a case."""
    from windtunnel.recipe import load_recipe

    return load_recipe("finetune", [*our_sets(case, folder, steps), *["stages.sft.graphs=true"] * graphs])


def our_sets(case: Case, folder: Path, steps: int, gpus: int = 1) -> list[str]:
    """Return what a case changes in the recipe `finetune`; a step has the case's batch on each GPU."""
    model, talks = folder / "model", folder / "talks.jsonl"
    constant = "{warmup_steps: 0, warmdown: 0.0, final: 1.0}"
    return [
        f"model.config={model}", "checkpoints.keep_hourly=false", "checkpoints.keep_best=1", f"model.sequence={case.sequence}",
        f"model.adapter={'null' if case.lora is None else f'{{rank: {case.lora}, alpha: {2 * case.lora}}}'}",
        f"data.corpus={{kind: conversations, files: [{talks}], overlong: truncate}}",
        f"data.tokenizer={{kind: folder, path: {model}}}", "data.validation=0.02",
        f"stages.sft.batch_tokens={gpus * case.batch * case.sequence}", f"stages.sft.micro_batch={case.batch}",
        f"stages.sft.learning_rate={case.rate}", f"stages.sft.schedule={constant}", f"stages.sft.master={case.master}",
        f"stages.sft.compile={case is not CASES['tiny']}", "stages.sft.validate_every=100000 steps",
        "stages.sft.answers=null",
        f"layout.recompute={'block' if case.recompute else 'none'}",
        "budget={dollars: null, hours: null, tokens: null, epochs: null, steps: " + str(steps) + "}",
        *json.loads(os.environ.get("OUR_SETS", "[]")),
    ]  # fmt: skip


def prepared(case: Case, folder: Path) -> Any:
    """Return the prepared data of a case: our own tokens and masks, which the peer is given too."""
    from windtunnel.data import prepare

    return prepare(our_recipe(case, folder, 1))


# The two sides


def ours(case: Case, folder: Path, graphs: bool = False) -> dict[str, Any]:
    """Train as `windtunnel train` does, and return losses, gradient norms, seconds and memory; graphs: passes are recorded."""
    import torch

    from windtunnel.launch import Options, prepare_run
    from windtunnel.run import MetricsReader, RunFolder
    from windtunnel.train import train

    recipe = our_recipe(case, folder, case.steps, graphs)
    run = prepare_run(recipe, Options(root=folder / "runs", yes=True, price=1.0), lambda text: None)
    run.close()
    clock = Clock(case)
    watch = Kernels(case) if os.environ.get("KERNELS") else None

    def after_step(step: int, engine: Any) -> None:
        clock(step)
        if watch is not None:
            watch(step)

    code = train(run.path, after_step=after_step)
    assert code == 0, f"windtunnel ended with {code}: {run.path}"
    with MetricsReader(RunFolder.open(run.path).metrics_path) as reader:
        curve = {name: [p.value for p in reader.series(name)] for name in ("loss", "gradient_norm")}
    packing = prepared(case, folder).train.packing(case.sequence)
    share = packing.filled
    kernels = {"kernels": watch.table} if watch is not None else {}
    return clock.report(share) | curve | {"torch": torch.__version__} | kernels


def trl(case: Case, folder: Path) -> dict[str, Any]:
    """Train with TRL's SFTTrainer, and return the same."""
    import torch
    import transformers
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer  # type: ignore[import-not-found]

    cuda = torch.cuda.is_available()
    if cuda and case.attention == "sdpa":
        torch.backends.cuda.enable_flash_sdp(False)  # where cuDNN's is faster
    data = prepared(case, folder).train
    rows = []
    packs = data.packing(case.sequence)
    for number, length in zip(packs.order.tolist(), packs.lengths.tolist(), strict=True):
        ids, learned = data.sample(number)
        labels = np.where(learned, ids, -100)[:length].tolist()
        rows.append({"input_ids": ids[:length].tolist(), "labels": labels})
    packing = not case.whole and case is not CASES["tiny"]
    settings = {k: v for k, v in case.config.items() if k != "architectures"}
    config = AutoConfig.for_model(**settings)
    dtype = torch.float32 if case.master and case.lora is None else torch.bfloat16
    if case is CASES["tiny"]:
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype, attn_implementation=case.attention)
    else:
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=case.attention)
    peft = None
    if case.lora is not None:
        from peft import LoraConfig

        peft = LoraConfig(r=case.lora, lora_alpha=2 * case.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    tiny = case is CASES["tiny"]
    args = SFTConfig(
        output_dir=str(folder / "trl"), max_steps=case.steps, learning_rate=case.rate, lr_scheduler_type="constant",
        per_device_train_batch_size=len(rows) if tiny else case.batch, gradient_checkpointing=case.recompute,
        gradient_checkpointing_kwargs={"use_reentrant": False} if case.recompute else None,
        max_length=case.sequence, packing=packing, bf16=cuda and not tiny, use_cpu=not cuda, optim="adamw_torch_fused",
        adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, logging_steps=1 if tiny else 1000, report_to="none",
        save_strategy="no",
        use_liger_kernel=cuda, dataloader_num_workers=0 if tiny else 2, dataloader_pin_memory=cuda, seed=1,
    )  # fmt: skip
    clock = Clock(case)

    class Told(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock(state.global_step)

    trainer = SFTTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows), peft_config=peft,
        processing_class=AutoTokenizer.from_pretrained(folder / "model"), callbacks=[Told()],
    )  # fmt: skip
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    curve = {"loss": [e["loss"] for e in logs], "gradient_norm": [float(e["grad_norm"]) for e in logs]}
    share = 1.0
    if packing:  # its own packs are counted
        lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
        share = sum(lengths[: case.steps * case.batch]) / (len(lengths[: case.steps * case.batch]) * case.sequence)
    versions: dict[str, str | None] = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions |= {"attention": case.attention, "trl": version("trl"), "liger": version("liger-kernel") if cuda else None}
    return clock.report(share) | curve | versions


class Clock:
    """Times a loop from the end of its warm-up to its last step, from an idle GPU to an idle GPU."""

    def __init__(self, case: Case) -> None:
        self._case, self._began, self._ended = case, 0.0, 0.0
        self._timed: list[float] = []

    def __call__(self, step: int) -> None:
        """Note that a step has been started or is done; the GPU is waited for at both ends."""
        import torch

        if not torch.cuda.is_available():
            return
        if step == self._case.warm:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._began = time.perf_counter()
        elif step == self._case.steps:
            torch.cuda.synchronize()
            self._ended = time.perf_counter()
        if step in (self._case.warm, self._case.steps):
            self._timed.append(time.time())

    def report(self, share: float) -> dict[str, Any]:
        """Return tokens a second and peak memory; `share` of the positions hold a token."""
        import torch

        if not torch.cuda.is_available():
            return {}
        case = self._case
        seconds = (self._ended - self._began) / (case.steps - case.warm)
        positions = case.batch * case.sequence
        memory = torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9
        return {
            "step_seconds": seconds, "filled": share, "tokens_per_second": positions * share / seconds,
            "positions_per_second": positions / seconds, "allocated_gb": memory[0], "reserved_gb": memory[1],
            "timed": self._timed,
        }  # fmt: skip


class Kernels:
    """The kernels of three warm-up steps by the time they take. A run that lists them is slower after it: do not time it.

    Attributes:
        table: as the profiler prints it.
    """

    def __init__(self, case: Case) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._first, self.table = max(1, case.warm - 4), ""
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def __call__(self, step: int) -> None:
        """Note that a step has been started."""
        import torch

        if step == self._first:
            self._profile.start()
        elif step == self._first + 3:
            torch.cuda.synchronize()
            self._profile.stop()
            sums = self._profile.key_averages()
            for order in ("self_cuda_time_total", "self_cpu_time_total"):
                self.table += sums.table(sort_by=order, row_limit=32, max_name_column_width=70)


# The comparison


@dataclass(frozen=True)
class Peers:
    """What runs the sides. Attributes: python: the interpreter of TRL's."""

    bench: Bench
    folder: Path
    python: str

    def side(self, side: str, case: str, folder: Path) -> dict[str, Any]:
        """Run one side in a process of its own and return what it found."""
        python = self.python if side == "trl" else sys.executable
        words, log = [python, str(Path(__file__).resolve()), "side", side, case, str(folder)], folder / f"{side}.log"
        ended = self.bench.run(Side(words, log), min(SIDE_SECONDS, self.bench.left))
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.startswith(RESULT)]
        if not lines:
            return {"failed": f"{ended.how}: {ended.words}"}
        found: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT))
        timed = found.pop("timed", [])
        idle = self.bench.meter.idle(*timed) if len(timed) == 2 else None
        return found | ({} if idle is None else {"gpu_busy": 1 - idle})


def compare_losses(peers: Peers, results: dict[str, Any]) -> None:
    """Train the tiny model on one batch of conversations, again and again, on both sides."""
    write_samples(CASES["tiny"], peers.folder)
    for side in ("ours", "trl"):
        results[side] = peers.side(side, "tiny", peers.folder)
        peers.bench.write()
    mine, theirs = results["ours"], results["trl"]
    for name in ("loss", "gradient_norm"):
        if mine.get(name) and theirs.get(name):
            apart = [abs(a - b) / abs(b) for a, b in zip(mine[name], theirs[name], strict=True)]
            # In the first step the weights are the same; what updates did to the difference stands in the others.
            results[f"{name}_first_step_difference"], results[f"{name}_largest_difference"] = apart[0], max(apart)


def compare_speed(peers: Peers, cases: list[str], sides: list[str], results: dict[str, Any]) -> None:
    """Run both sides of each case in turns."""
    for name in cases:
        write_samples(CASES[name], peers.folder / name)
        prepared(CASES[name], peers.folder / name)
        result = results[name] = {"case": asdict(CASES[name])}
        for side in sides:
            result[side] = peers.side(side, name, peers.folder / name)
            peers.bench.write()
            shown = {key: value for key, value in result[side].items() if key not in ("loss", "gradient_norm")}
            print(name, side, json.dumps(shown), flush=True)
        for side, first in (("ours", ""), ("graphs", "graphs_")):
            if all("tokens_per_second" in result.get(one, {}) for one in (side, "trl")):
                result[f"{first}speed_ratio"] = result[side]["tokens_per_second"] / result["trl"]["tokens_per_second"]
                result[f"{first}memory_ratio"] = result[side]["allocated_gb"] / result["trl"]["allocated_gb"]
        if any(key.endswith("ratio") for key in result):
            print(name, {k: round(v, 3) for k, v in result.items() if k.endswith("ratio")}, flush=True)


def compare_scaling(peers: Peers, cases: list[str], results: dict[str, Any]) -> None:
    """Run `windtunnel train` on one GPU and on all, the batch growing with them, and compare the time of a step."""
    import torch

    from windtunnel.run import MetricsReader, RunFolder, newest_run

    for name in cases:
        case, place = CASES[name], peers.folder / name
        if not (place / "talks.jsonl").exists():
            write_samples(case, place)
        prepared(case, place)
        result = results[name] = {}
        for gpus in (1, torch.cuda.device_count()):
            root = place / f"runs-{gpus}"
            sets = [part for entry in our_sets(case, place, case.steps, gpus) for part in ("--set", entry)]
            command = [sys.executable, "-m", "windtunnel", "train", "finetune", *sets]
            command += ["--gpus", str(gpus), "--price", "1", "--yes", "--root", str(root)]
            ended = peers.bench.run(Side(command, place / f"scaling-{gpus}.log"), min(SIDE_SECONDS, peers.bench.left))
            if ended.code != 0:
                result[str(gpus)] = {"failed": f"{ended.how}: {ended.words}"}
                continue
            with MetricsReader(RunFolder.open(newest_run(root, "finetune")).metrics_path) as reader:
                seconds = [p.value for p in reader.series("step_seconds") if p.step > case.warm]
            result[str(gpus)] = {"step_seconds": statistics.median(seconds), "steps": len(seconds)}
            peers.bench.write()
        pair = [r["step_seconds"] for r in result.values() if "step_seconds" in r]
        if len(pair) == 2:
            result["speed_up"] = torch.cuda.device_count() * pair[0] / pair[1]
        print(name, json.dumps(result)[:3000], flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["losses", "speed", "scaling", "side"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("build/finetune_peers.json"))
    parser.add_argument("--folder", type=Path, default=Path("build/finetune_peers"))
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--side", action="append", choices=["ours", "graphs", "trl"])
    parser.add_argument("--graphs", action="store_true", help="our side once more, with stages.sft.graphs=true")
    parser.add_argument("--seconds", type=float, default=3600.0, help="that all may take")
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()
    if args.command == "side":
        leave_this_folder()
        side, case, folder = args.rest
        run: dict[str, Callable[[Case, Path], dict[str, Any]]]
        run = {"ours": ours, "graphs": partial(ours, graphs=True), "trl": trl}
        print(RESULT + json.dumps(run[side](CASES[case], Path(folder))), flush=True)
        return
    gpu, results = has_gpu(), dict[str, Any]()
    found = {"machine": machine(gpu=gpu) | {"weights": "random"}, "command": args.command, "results": results}
    with Bench(args.out, found, args.seconds, gpu=gpu) as bench:
        peers = Peers(bench, args.folder.resolve(), args.peer_python)
        if args.command == "losses":
            compare_losses(peers, results)
            print(json.dumps({k: v for k, v in results.items() if k.endswith("difference")}))
        elif args.command == "scaling":
            compare_scaling(peers, args.case or ["smollm2-packed", "qwen-lora-packed", "qwen-full-packed"], results)
        else:
            cases = args.case or [name for name in CASES if name != "tiny"]
            compare_speed(peers, cases, args.side or ["trl", "ours", *["graphs"] * args.graphs], results)
        bench.write()


if __name__ == "__main__":
    main()
