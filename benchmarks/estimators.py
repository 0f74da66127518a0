"""What DeepSpeed's and accelerate's memory estimators answer, beside the plan and the measurement.

    export PYTHONPATH=src:.venv/lib/python3.11/site-packages    # this package, torch and transformers
    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install wheel ninja hjson msgpack einops py-cpuinfo
    DS_BUILD_OPS=0 /tmp/peers/bin/pip install --no-deps --no-build-isolation deepspeed accelerate
    /tmp/peers/bin/python benchmarks/estimators.py
    python benchmarks/estimators.py --asked benchmarks/results/estimators.json    # plans or measurements have changed

Both count weights, gradients and optimizer states of a model of which every weight is trained, and
neither is told batch or sequence. So they are asked about full fine-tuning of Hugging Face models with
fp32 master weights only; DeepSpeed's for ZeRO-2 and ZeRO-3 without offloading, accelerate's for one GPU.
For the rest of planning_configs.yaml (GPTs with Muon, adapters, bf16 weights, replicated weights) they
have no answer, and the file says why.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planning import RESULTS as MEASURED
from planning import Config, load_configs

from windtunnel.model import hf_shape
from windtunnel.recipe import HuggingFaceModel

REPORT = Path(__file__).parent / "results" / "estimators.json"
GIB = 2**30
PEERS = ("deepspeed", "accelerate")


@dataclass(frozen=True)
class Question:
    """A configuration as the estimators see it, or why they cannot be asked."""

    config: Config
    without_answer: str | None
    stage: int | None  # DeepSpeed's ZeRO stage


def question(config: Config) -> Question:
    """What can be asked about a configuration."""
    recipe = config.recipe()
    if not isinstance(recipe.model, HuggingFaceModel):
        return Question(config, "a GPT of this package's own, with Muon", None)
    if recipe.model.adapter is not None:
        return Question(config, "an adapter on frozen weights", None)
    if not recipe.sft.master:
        return Question(config, "bf16 weights without fp32 master weights", None)
    stage = {"full": 3, "optimizer": 2, "none": None}[config.layout().shard]
    return Question(config, None if stage else "replicated weights", stage)


def deepspeed_gib(model: Any, stage: int, gpus: int) -> float:
    """DeepSpeed's GiB a GPU on one node, nothing offloaded; parameters counted as its `all_live` functions do."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    total = sum(parameter.numel() for parameter in model.parameters())
    if stage == 2:
        _, gpu = estimate_zero2_model_states_mem_needs(total, num_gpus_per_node=gpus, num_nodes=1, cpu_offload=False)
        return float(gpu) / GIB
    largest = max(sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    _, gpu, _ = estimate_zero3_model_states_mem_needs(
        total, largest, num_gpus_per_node=gpus, num_nodes=1, cpu_offload=False, cpu_offload_params=False
    )
    return float(gpu) / GIB


def accelerate_gib(body: Any, dtype: str) -> float:
    """What `accelerate estimate-memory` calls peak memory of training with Adam; its model is AutoModel, without a head."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(body)
    return float(max(estimate_training_usage(total, dtype).values())) / GIB


def ask(found: Question) -> dict[str, float]:
    """Every answer in GiB a GPU, by a name for its column."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    model = found.config.recipe().model
    assert isinstance(model, HuggingFaceModel)
    config = AutoConfig.for_model(**hf_shape(model.config).raw)
    answers = {}
    if found.stage is not None:
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        answers["deepspeed"] = deepspeed_gib(whole, found.stage, found.config.gpus)
    if found.config.gpus == 1:
        with torch.device("meta"):
            body = AutoModel.from_config(config, dtype=torch.float32)
        answers["accelerate"] = accelerate_gib(body, "float16")
        answers["accelerate_float32"] = accelerate_gib(body, "float32")
    return answers


def row(found: Question, measured: dict[str, Any], answered: dict[str, float] | None) -> dict[str, Any]:
    """One configuration: answers, plan, measurement, and relative errors of the peak (+ where more was said).

    answered: what the estimators said before; None to ask them.
    """
    config = found.config
    facts: dict[str, Any] = {"name": config.name, "split": config.split, "gpus": config.gpus, "zero_stage": found.stage}
    facts["planned_gib"] = config.plan().reserved_gib
    trial = measured.get("trial", {"failure": "not measured"})
    facts |= {key: trial.get(key) for key in ("reserved_gib", "static_gib")} if trial["failure"] is None else {}
    if found.without_answer is not None and found.stage is None and found.without_answer != "replicated weights":
        return facts | {"without_answer": found.without_answer}
    answers = ask(found) if answered is None else answered
    facts |= {"answers_gib": answers} | ({"without_answer": found.without_answer} if not answers else {})
    if facts.get("reserved_gib"):
        everyone = answers | {"windtunnel": facts["planned_gib"]}
        facts["errors"] = {name: gib / facts["reserved_gib"] - 1 for name, gib in everyone.items()}
    return facts


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst absolute error of each, over the rows that it answered; the plan's over the same rows."""
    summary: dict[str, Any] = {}
    for name in ("deepspeed", "accelerate", "accelerate_float32"):
        answered = [row["errors"] for row in rows if name in row.get("errors", {})]
        if answered:
            summary[name] = {"rows": len(answered)} | _sizes([errors[name] for errors in answered])
            summary[name]["windtunnel_on_the_same"] = _sizes([errors["windtunnel"] for errors in answered])
    return summary


def _sizes(errors: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(map(abs, errors)), "worst": max(map(abs, errors)), "bias": statistics.median(errors)
    }  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--out", type=Path, default=REPORT)
    parser.add_argument("--asked", type=Path, help="a report whose answers are kept: only plans and measurements are new")
    args = parser.parse_args()
    measured, asked = _by_name(args.measured), json.loads(args.asked.read_text()) if args.asked else None
    answers = {facts["name"]: facts.get("answers_gib", {}) for facts in asked["rows"]} if asked else {}
    versions = asked["versions"] if asked else {peer: importlib.metadata.version(peer) for peer in PEERS}
    rows = [row(question(config), measured.get(config.name, {}), answers.get(config.name)) for config in load_configs()]
    report = {
        "what": "GiB a GPU that estimators answer, beside the plan and the measured reserved peak; errors are relative to that",
        "date": datetime.date.today().isoformat(), "versions": versions,
        "summary": {
            "all": summarise(rows),
            "held_out": summarise([row for row in rows if row["split"] == "held_out"]),
        },
        "rows": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for facts in rows:
        print(_line(facts))
    print(json.dumps(report["summary"], indent=1))


def _by_name(path: Path) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(path.read_text())["configs"]} if path.exists() else {}


def _line(facts: dict[str, Any]) -> str:
    measured = f"{facts['reserved_gib']:7.1f}" if facts.get("reserved_gib") else "      -"
    head = f"{facts['name']:36} measured {measured} planned {facts['planned_gib']:6.1f}"
    if "answers_gib" not in facts or not facts["answers_gib"]:
        return f"{head}  no answer: {facts['without_answer']}"
    return head + "".join(f"  {name} {gib:6.1f}" for name, gib in facts["answers_gib"].items())


if __name__ == "__main__":
    main()
