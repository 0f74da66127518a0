"""Writes docs/rl-sizes.md: GRPO of 7 B and 32 B models on nodes of 4 x GH200, beside the table that a cluster's guide gives.

    python benchmarks/rl_sizes.py

The guide's figures are its own estimates, not measurements; what the plan says is computed anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.plan import Plan, make_plan
from windtunnel.recipe import load_recipe
from windtunnel.rig import parse_rig

DOC = Path(__file__).parents[1] / "docs" / "rl-sizes.md"
NODE_GPUS = 4
ROWS = ("weights", "gradients", "optimizer states", "activations", "the rest")
PARTS = {
    "weights": ("master_weights", "weights"),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer_states",),
    "activations": ("activations", "loss"),
}


@dataclass(frozen=True)
class Setup:
    """A model with its lengths, as the guide trains it: 32 prompts x 8 answers, engines up to 4 rounds ahead.

    Attributes:
        guide: of each number of learners that the guide has a table for, its GiB by row, the last two as a range.
        nodes: numbers of nodes that are tried.
    """

    name: str
    model: str
    prompt: int
    answer: int
    engine_memory: float
    guide: dict[int, tuple[str, str, str, str, str]]
    nodes: tuple[int, ...]

    def plan(self, nodes: int, *sets: str) -> Plan:
        """Plan it on so many nodes."""
        own = [
            f"model.config={self.model}", f"model.sequence={self.prompt + self.answer}",
            f"stages.rl.prompt_tokens={self.prompt}", f"stages.rl.answer_tokens={self.answer}", "stages.rl.prompts=32",
            "stages.rl.samples=8", "stages.rl.overlap=4", f"stages.rl.engine_memory={self.engine_memory}",
            "stages.rl.rewards=[{kind: math}, {kind: code}]",
        ]  # fmt: skip
        return make_plan(load_recipe("rl", [*own, *sets]), parse_rig(rig_name(nodes)), suggest=False)


SETUPS = (
    Setup("7 B", "olmo-3-7b", 2048, 16384, 0.65, {2: ("7", "7", "28", "15-25", "57-67")}, (1, 2, 3, 4, 6, 8, 10)),
    Setup("32 B", "olmo-3-32b", 2048, 8192, 0.55, {8: ("8", "8", "32", "20-30", "68-78"), 16: ("4", "4", "16", "20-30", "44-54")},
          (2, 3, 4, 6, 8, 12, 16, 20)),
)  # fmt: skip


def rig_name(nodes: int) -> str:
    """Nodes as `--on` takes them."""
    return f"{nodes}x({NODE_GPUS}xGH200)" if nodes > 1 else f"{NODE_GPUS}xGH200"


def document() -> str:
    """The whole page."""
    parts = [
        "# How many GPUs GRPO of 7 B and 32 B needs",
        "<!-- Written by benchmarks/rl_sizes.py; change that, not this. -->",
        "Ask for your own model and rig:",
        "```bash\nwindtunnel plan rl --set model.config=olmo-3-32b --set model.sequence=10240 \\\n"
        "  --set stages.rl.answer_tokens=8192 --set stages.rl.overlap=4 --on '8x(4xGH200)'\n```",
        "Below are plans for nodes of four GH200 with 96 GB, in rounds of 32 prompts x 8 answers judged as mathematics and code: "
        "7 B with answers of up to 16,384 tokens, 32 B of up to 8,192, engines up to four rounds ahead, all weights trained, "
        "and held-out prompts answered by the engines, between rounds. "
        "Nothing here was measured: nothing has been measured on a GH200 yet, so memory is within 20 % and time within 40 %.",
    ]
    for setup in SETUPS:
        parts += [f"## {setup.name} ({setup.model})", *_answer(setup), *_sizes(setup)]
    parts += ["## Beside a guide's table", *_why(), *(part for setup in SETUPS for part in _beside(setup))]
    return "\n\n".join(parts) + "\n"


def _answer(setup: Setup) -> list[str]:
    """Least, recommended, and why."""
    plans = {nodes: setup.plan(nodes) for nodes in setup.nodes}
    fitting = {nodes: plan for nodes, plan in plans.items() if plan.fits}
    least = min(fitting)
    cheap = min(
        (nodes for nodes in fitting if fitting[nodes].verdict == "fits"), key=lambda nodes: nodes * fitting[nodes].step_seconds
    )
    said = [
        f"- **Least that fits**: {_nodes(least)}, {_shared(fitting[least])}: {fitting[least].peak_gib:.0f} of "
        f"{fitting[least].limit_gib:.0f} GiB a learner"
        + (", which is tight: 20 % more would not fit." if fitting[least].verdict == "tight" else "."),
        f"- **Recommended**: {_nodes(cheap)}, {_shared(fitting[cheap])}: {fitting[cheap].peak_gib:.0f} GiB a learner leave room "
        f"for the error, and a round takes the fewest GPU-seconds of all that do.",
        f"- More nodes than that shorten a round: {_nodes(max(fitting))} take {fitting[max(fitting)].step_seconds:.0f} s in the "
        f"place of {fitting[cheap].step_seconds:.0f} s.",
    ]
    return ["\n".join(said)]


def _sizes(setup: Setup) -> list[str]:
    rows = []
    for nodes in setup.nodes:
        plan = setup.plan(nodes)
        learner, engine = plan.roles["learner"], plan.roles["engine"]
        judging = plan.step_terms.get("judging", 0.0)
        rows.append([
            str(nodes), plan.verdict, str(learner.gpus), f"{learner.peak_gib:.0f} of {learner.limit_gib:.0f}",
            f"{engine.gpus // engine.layout.tensor} x {engine.layout.tensor}", f"{engine.facts['longest_sequences_at_once']:.0f}",
            f"{plan.step_terms['generation']:.0f}", f"{judging:.1f}", f"{_learning(plan):.0f}",
            f"{plan.step_terms['weight sync']:.1f}", f"{plan.step_seconds:.0f}" if plan.fits else "",
            f"{plan.step_seconds * nodes * NODE_GPUS / 3600:.2f}" if plan.fits else "",
        ])  # fmt: skip
    heads = ["nodes", "memory", "learners", "GiB a learner", "engines x GPUs", "longest answers at once, an engine",
             "generation, s", "judging, s", "learning, s", "weight sync, s", "round, s", "GPU-hours a round"]  # fmt: skip
    return [_table(heads, rows)]


def _why() -> list[str]:
    return [
        "A guide for a cluster of such nodes estimates memory from 12 bytes a parameter: 2 of weights, 2 of gradients, 8 of "
        "AdamW's moments, shared by ZeRO-3. The plan differs where that leaves something out:",
        "- **Weights and gradients** are fp32 here, 4 bytes each: bf16 weights that learn at 1e-6 lose most updates to rounding. "
        "That adds 4 bytes a parameter (`stages.rl.master=false` takes them away, and learns in bf16).\n"
        "- **Activations** are counted for the longest row and blocks that are computed again, and grow with the micro-batch "
        "that the plan chooses while there is room; a range cannot say which part of it is needed.\n"
        "- **The rest** is no row of the guide's: the block that ZeRO-3 gathers with the next one behind it, embedding and head "
        "whole, the buffer that their gradients are reduced in, CUDA's context, NCCL, what the allocator cannot use. It is what "
        "runs out of memory in an all-gather.\n"
        "- **Engines** hold bf16 weights beside KV cache: of 32 B one GPU holds 60 GiB and does not have them at 55 % of its "
        "memory, so two share them.",
    ]


def _beside(setup: Setup) -> list[str]:
    parts = []
    for learners, guide in setup.guide.items():
        nodes = max(1, learners)  # a learner a node, as the guide has them
        plan = setup.plan(nodes, f"stages.rl.learners={learners}", "layout.shard=full", "stages.rl.micro_batch=1")
        held = plan.roles["learner"].components
        counted = [sum(held.get(name, 0.0) for name in PARTS[row]) for row in ROWS[:-1]]
        rest = plan.peak_gib - sum(counted)
        rows = [[row, said, f"{gib:.1f}"] for row, said, gib in zip(ROWS, (*guide[:-1], ""), (*counted, rest), strict=True)]
        rows.append(["together", guide[-1], f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f}: {plan.verdict}"])
        title = (
            f"{setup.name}, {learners} learners (ZeRO-3), one row of {setup.prompt + setup.answer:,} tokens at a time, GiB a GPU"
        )
        parts += [f"### {title}", _table(["", "the guide", "the plan"], rows)]
    return parts


def _learning(plan: Plan) -> float:
    return sum(plan.roles["learner"].seconds.values())


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


def _shared(plan: Plan) -> str:
    engine = plan.roles["engine"]
    each = engine.layout.tensor
    return f"{plan.roles['learner'].gpus} GPUs that learn, {engine.gpus // each} engines of {each} GPU{'s' if each > 1 else ''}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOC)
    parser.parse_args().out.write_text(document())


if __name__ == "__main__":
    main()
