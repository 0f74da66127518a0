"""DeepSeek-V3's true shapes beside experts frozen in fp8: steps, memory and adapter on the GPUs here, held against the plan.

    python benchmarks/moe_fp8.py --out benchmarks/results/moe-fp8-h200.json
    python benchmarks/moe_fp8.py --tiny          the same on two CPU processes with a tiny model

Weights are random and made where they lie. For each number of layers (all of them with experts, which are what is expensive)
ten steps of one sequence of 4,096 tokens a GPU, adapters of rank 16 on attention, blocks recomputed, experts over all GPUs.
Then, on one GPU with one layer, the adapter is saved, loaded into a new job, and merged; and single products are timed.
Last come the plans of the whole model on 8 x H200 and 8 x B200: as they are, and with time and memory as they came out here.
What was measured is written after each part; no part is begun that would end after --seconds.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.launch import try_steps
from windtunnel.model import hf_shape
from windtunnel.plan import Layout, Plan, load_hf_constants, make_plan
from windtunnel.recipe import Recipe, load_recipe
from windtunnel.rig import detect_rig, parse_rig

RIGS = ("8xH200", "8xB200")
TINY = {
    "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "vocab_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PART_SECONDS = 60.0
"""What a part takes at most when nothing is wrong, starting processes and compiling included."""


@dataclass(frozen=True)
class Case:
    """What is run: a number of layers over some ranks."""

    layers: int
    ranks: int
    tiny: bool
    folder: Path

    @property
    def sequence(self) -> int:
        """Tokens of a sequence."""
        return 128 if self.tiny else 4096

    def recipe(self, *sets: str) -> Recipe:
        """The recipe of a model whose layers all have experts."""
        config = TINY if self.tiny else hf_shape("deepseek-v3").raw
        chosen = {"num_hidden_layers": self.layers, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
        path = self.folder / f"deepseek-{self.layers}" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**config, **chosen}))
        return load_recipe("sft", [*settings(str(path), self.sequence, self.ranks), *sets])

    def plan(self) -> tuple[Plan, Layout]:
        """The plan, and the layout that is run: the plan's, on a CPU the same ranks as on GPUs."""
        if self.tiny:
            plan = make_plan(self.recipe(), detect_rig())
            return plan, replace(plan.layout, ranks=self.ranks, expert=self.ranks, micro_batch=1, accumulation=1)
        plan = make_plan(self.recipe(), parse_rig("H200" if self.ranks == 1 else f"{self.ranks}xH200"))
        return plan, plan.layout


def settings(config: str, sequence: int, ranks: int) -> list[str]:
    """Return what is set in the recipe: adapters of rank 16 on attention beside experts in fp8, a sequence a rank."""
    return [
        f"model.config={config}", f"model.sequence={sequence}", "model.weights=fp8-experts",
        "model.adapter={rank: 16, targets: attention}", "layout.recompute=block", "layout.shard=full", f"layout.expert={ranks}",
        "stages.sft.micro_batch=1", f"stages.sft.batch_tokens={ranks * sequence}",
    ]  # fmt: skip


def steps_of(case: Case, steps: int) -> dict[str, Any]:
    """Run steps on random tokens and hold them against the plan."""
    layout = case.plan()[1]
    trial = try_steps(case.recipe(), layout, steps=steps, warm_up=2, seconds=60.0, timeout=180.0)
    return beside_plan(case, trial.to_json())


def beside_plan(case: Case, trial: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured with the plan of today and its errors, relative to what was measured."""
    plan, layout = case.plan()
    entry: dict[str, Any] = {"layers": case.layers, "ranks": case.ranks, "sequence": case.sequence, "layout": layout.describe()}
    entry["planned"] = {"reserved_gib": plan.reserved_gib, "step_seconds": plan.step_seconds, "terms": plan.step_terms,
                        "components": plan.components}  # fmt: skip
    entry["trial"] = trial
    if trial["failure"] is None and trial["reserved_gib"] is not None:
        # On a CPU the plan is of one rank, and nothing is to be learned from it.
        entry["memory_error"] = plan.reserved_gib / trial["reserved_gib"] - 1
        entry["time_error"] = plan.step_seconds / trial["step_seconds"] - 1
    return entry


# In processes of their own


def in_child(part: str, case: Case, timeout: float) -> dict[str, Any]:
    """Run a part of this file in a process of its own, so that no memory is left of it."""
    words = [sys.executable, __file__, "--part", part, "--folder", str(case.folder), *(["--tiny"] if case.tiny else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not found:
        return {"failure": done.stderr[-2000:]}
    result: dict[str, Any] = json.loads(found[-1].removeprefix("RESULT "))
    return result


def adapter(case: Case) -> dict[str, Any]:
    """Save an adapter after three steps, load it into a new job and go on; then merge it and look at what that changes."""
    import torch

    from windtunnel.checkpoint import CheckpointStore, Facts
    from windtunnel.train import join_ranks, restore_engine
    from windtunnel.train.checkpoints import make_saver
    from windtunnel.train.hf import build_hf_engine
    from windtunnel.train.hf.weights import merged
    from windtunnel.train.trial import random_feed

    recipe, (_, layout) = case.recipe("stages.sft.learning_rate=1e-2"), case.plan()
    layout = replace(layout, ranks=1, expert=1, compile=False)
    config = hf_shape(recipe.model.config).raw  # type: ignore[union-attr]
    with join_ranks(layout.device) as ranks:

        def engine() -> Any:
            (case.folder / "tokens").mkdir(exist_ok=True)
            feed = random_feed(layout, ranks, config["vocab_size"], case.folder / "tokens", recipe.seed)
            return build_hf_engine(recipe, layout, ranks, feed, config)

        def steps(on: Any, first: int, last: int) -> list[float]:
            return [on.step(step, 0.1).result().loss for step in range(first, last + 1)]

        one, store = engine(), CheckpointStore(case.folder / "checkpoints")
        first = steps(one, 1, 3)
        began = time.monotonic()
        saver = make_saver(one, store, ranks)
        saver.save(Facts(3, one.state_dict().facts))
        assert saver.wait() is not None
        saved = time.monotonic() - began
        wanted = steps(one, 4, 5)
        one.close()
        del one, saver
        gc.collect()
        two = engine()
        began = time.monotonic()
        restore_engine(two, store.at(3))
        loaded = time.monotonic() - began
        got = steps(two, 4, 5)
        batch = next(iter(two.feed.validation()))
        (tokens, targets), more = two.job.network.given(batch)
        layers = [module for module in two.job.network.modules() if hasattr(module, "lora_A")]

        def loss() -> torch.Tensor:
            return two.job.network(tokens, targets, **more)[0].clone()

        with torch.no_grad():
            beside, before = loss(), [layer.base_layer.weight.clone() for layer in layers]
            began = time.monotonic()
            for layer in layers:
                layer.base_layer.weight.copy_(merged(layer.base_layer.weight, layer))
            merging = time.monotonic() - began
            for layer in layers:
                for side in layer.lora_B.values():
                    side.weight.zero_()
            inside = loss()
            for layer, plain in zip(layers, before, strict=True):
                layer.base_layer.weight.copy_(plain)
            without = loss()
        two.close()
        return {
            "losses": first, "after": wanted, "after_loading": got, "same_bits": wanted == got, "save_seconds": saved,
            "load_seconds": loaded, "merged_layers": len(layers), "merge_seconds": merging,
            "adapter_changes_loss_by": float((beside - without).abs().mean()),
            "merging_changes_loss_by": float((beside - inside).abs().mean()),
        }  # fmt: skip


def products(case: Case) -> dict[str, Any]:
    """Time what a step does with an expert: turning codes into bf16, and its products, by rows an expert has."""
    import torch

    from windtunnel.model import BlockFP8
    from windtunnel.model.fp8_experts import _Product

    device = torch.device("cuda" if torch.cuda.is_available() and not case.tiny else "cpu")
    dim, hidden, count = (64, 32, 8) if case.tiny else (7168, 2048, 32)
    grid = (-(-hidden // 128), -(-dim // 128))
    codes = torch.randint(0, 120, (count, 2, hidden, dim), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    weights = BlockFP8(codes, torch.rand(count, 2, *grid, device=device) * 1e-3, (128, 128))
    found: dict[str, Any] = {"experts": count, "shape": [2 * hidden, dim]}

    def seconds(what: Any) -> float:
        what()
        runs = 3 if case.tiny else 10
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(runs):
            what()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / runs

    few = min(4, count)
    found["decode_seconds_per_expert"] = seconds(lambda: weights.decode(0, few, torch.bfloat16)) / few
    for rows in (2, 8) if case.tiny else (16, 128, 1024):
        x = torch.randn(rows * count, dim, dtype=torch.bfloat16, device=device)
        took = seconds(lambda x=x, rows=rows: _Product.apply(x, weights, [rows] * count))
        found[f"product_{rows}_rows"] = {"seconds": took, "tflops": 4e-12 * rows * count * hidden * dim / took}
    return found


# The whole model


def whole_plans(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Plan the whole model on one node, as shipped and with time and memory as they were measured, and print both."""
    good = [entry for entry in entries if "time_error" in entry]
    largest = max(good, key=lambda entry: entry["layers"], default=None)
    found: dict[str, Any] = {}
    for name in RIGS:
        rig = parse_rig(name)
        recipe = load_recipe("sft", [*settings("deepseek-v3", 4096, 8)[:5], "layout.expert=8"])
        constants = {"as shipped": None}
        if largest is not None:
            own = load_hf_constants(rig.gpu.name if rig.gpu else "")
            factor = own.time_factor / (1 + largest["time_error"])
            extra = largest["trial"]["reserved_gib"] - largest["planned"]["reserved_gib"]
            constants["as measured"] = replace(own, time_factor=factor, extra_gib=own.extra_gib + max(0.0, extra))  # type: ignore[assignment]
        for how, values in constants.items():
            plan = make_plan(recipe, rig, calibration=values)
            found[f"{name}, {how}"] = {
                "fits": plan.fits, "layout": plan.layout.describe(), "peak_gib": plan.peak_gib, "limit_gib": plan.limit_gib,
                "step_seconds": plan.step_seconds, "tokens_per_second": plan.tokens_per_second, "components": plan.components,
                "terms": plan.step_terms,
            }  # fmt: skip
            fits = "fits" if plan.fits else "does not fit"
            print(
                f"{name}, {how}: {fits}, {plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank, {plan.step_seconds:.2f} s a step"
            )
            print(f"  {plan.tokens_per_second:,.0f} tokens/s; {plan.layout.describe()}")
    return found


def machine() -> dict[str, Any]:
    """Return what this was measured on."""
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return {"gpu": gpu, "gpus": torch.cuda.device_count(), "cpu": platform.machine(), **versions}


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on two CPU processes")
    parser.add_argument(
        "--layers", type=lambda text: [int(n) for n in text.split(",")], help="as 4,1; by default for the GPUs here"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no part that would end later")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="measure nothing: hold what FILE has against the plans of today"
    )
    parser.add_argument("--part", choices=["adapter", "products"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        case = Case(1, 1, args.tiny, args.folder)
        print("RESULT " + json.dumps({"adapter": adapter, "products": products}[args.part](case)), flush=True)
        return 0
    if args.again:
        return _plan_again(args.again, args.out)
    began = time.monotonic()
    report: dict[str, Any] = {"machine": machine(), "date": datetime.date.today().isoformat(), "tiny": args.tiny, "steps": []}
    ranks = 2 if args.tiny else max(1, report["machine"]["gpus"])
    layers = args.layers or ([2] if args.tiny else [4, 1] if ranks == 1 else [4 * ranks, 1])

    def left() -> float:
        return args.seconds - (time.monotonic() - began)

    with tempfile.TemporaryDirectory() as name:
        for count in layers:
            if left() > PART_SECONDS or args.tiny:
                entry = steps_of(Case(count, ranks, args.tiny, Path(name)), args.steps)
                report["steps"].append(entry)
                _tell(entry)
                _write(args.out, report)
        for part in ("adapter", "products"):
            if left() > PART_SECONDS / 2 or args.tiny:
                report[part] = in_child(part, Case(1, 1, args.tiny, Path(name)), max(60.0, left()))
                print(f"{part}: {json.dumps(report[part])[:600]}", flush=True)
                _write(args.out, report)
    report["plans"] = whole_plans([] if args.tiny else report["steps"])
    report["wall_seconds"] = time.monotonic() - began
    _write(args.out, report)
    failed = [entry["trial"]["failure"] for entry in report["steps"]]
    failed += [report.get(part, {}).get("failure") for part in ("adapter", "products")]
    return 1 if any(failed) else 0


def _plan_again(path: Path, out: Path | None) -> int:
    report = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as name:
        cases = [Case(entry["layers"], entry["ranks"], report["tiny"], Path(name)) for entry in report["steps"]]
        report["steps"] = [beside_plan(case, entry["trial"]) for case, entry in zip(cases, report["steps"], strict=True)]
    for entry in report["steps"]:
        _tell(entry)
    report["plans"] = whole_plans(report["steps"])
    _write(out, report)
    return 0


def _tell(entry: dict[str, Any]) -> None:
    trial = entry["trial"]
    if trial["failure"]:
        print(f"{entry['layers']} layers: {trial['failure']}\n{trial['log'][-2000:]}", flush=True)
        return
    print(
        f"{entry['layers']} layers on {entry['ranks']} ranks: {trial['step_seconds']:.3f} s a step (planned "
        f"{entry['planned']['step_seconds']:.3f}), {trial['tokens_per_second']:,.0f} tokens/s, {trial['reserved_gib']:.2f} GiB "
        f"(planned {entry['planned']['reserved_gib']:.2f}), losses {trial['losses'][0]:.3f} to {trial['losses'][-1]:.3f}",
        flush=True,
    )


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
