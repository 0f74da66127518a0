"""Plans beside rounds of GRPO that others have measured and published; the figures stand in published.yaml under `rounds`.

    python benchmarks/published_rounds.py

Every row is planned with the layout that was measured: learners' tensor, expert and pipeline ranks, engines of so many GPUs,
rounds one after the other or overlapped, on GPUs as they were named. Errors are relative, + where the plan says more.
A round of the source scores every answer once more with the learners' weights before the first update, which a plan with one
update a round leaves out: that pass is added here.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import yaml

from windtunnel.plan.constants import load_hf_constants
from windtunnel.plan.hf_layouts import HFTraining
from windtunnel.plan.hf_work import totals
from windtunnel.plan.sharing import Round, grpo_workload, plan_round
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rig import parse_rig

HERE = Path(__file__).parent
FACTS = HERE / "published.yaml"
REPORT = HERE / "results" / "published-rounds.json"
ENGINE_MEMORY = {"in turn": 0.6, "apart": 0.8}
HALVES = ("fitted", "held out")
"""Rows whose releases have an even last digit and others: constants of rounds were chosen by the first."""


@dataclasses.dataclass(frozen=True)
class PublishedRound:
    """A measured round: `keys` as published.yaml describes them."""

    source: str
    keys: dict[str, Any]

    @property
    def gpus(self) -> int:
        """Of the whole rig."""
        return parse_rig(self.keys["rig"]).gpus

    @property
    def half(self) -> str:
        """Whether constants of rounds were chosen by it."""
        return HALVES[0] if self.keys["release"] == "v0.5" else HALVES[1]

    @property
    def prompt(self) -> int:
        """Mean tokens of a prompt: what is left of the tokens that were counted."""
        answers = self.keys["prompts"] * self.keys["samples"]
        counted = self.keys["rate"] * self.gpus * self.keys["seconds"] / answers
        return max(32, min(256, round(counted - self.keys["answer"])))

    def plan(self) -> Round:
        """Plan this round: learners that take turns with engines lie in CPU memory meanwhile, as the source's do."""
        keys, apart = self.keys, self.keys["learners"] is not None
        most = keys["longest"] - self.prompt
        sets = {
            "model.config": keys["model"], "model.sequence": keys["longest"],
            "layout.tensor": keys["tensor"], "layout.pipeline": keys["pipeline"], "layout.expert": keys["expert"],
            "layout.recompute": keys["recompute"],
            "stages.rl.prompts": keys["prompts"], "stages.rl.samples": keys["samples"], "stages.rl.prompt_tokens": self.prompt,
            "stages.rl.answer_tokens": most, "stages.rl.mean_answer": min(1.0, keys["answer"] / most),
            "stages.rl.updates": keys["updates"], "stages.rl.reference": str(keys["reference"]).lower(),
            "stages.rl.micro_batch": keys["micro_batch"], "stages.rl.engine_tensor": keys["engine_tensor"],
            "stages.rl.engine_memory": ENGINE_MEMORY["apart" if apart else "in turn"],
        }  # fmt: skip
        if keys["tensor"] * keys["pipeline"] * keys["expert"] == 1:
            sets["layout.shard"] = "optimizer"
        if apart:
            sets["stages.rl.overlap"] = keys["ahead"]
        recipe, rig = load_recipe("rl", [f"{key}={value}" for key, value in sets.items()]), parse_rig(keys["rig"])
        assert recipe.rl is not None
        assert rig.gpu is not None
        c = load_hf_constants(rig.gpu.name)
        learners = keys["learners"] or rig.gpus
        engines = rig.gpus - learners if apart else rig.gpus
        return plan_round(HFTraining(totals(grpo_workload(recipe, c)), c), recipe.rl, rig, learners, engines, keeps=False)


def load_rounds(path: Path = FACTS) -> tuple[list[PublishedRound], dict[str, Any]]:
    """Every row, and the sources as they stand in the file."""
    sources = yaml.safe_load(path.read_text())["rounds"]
    rows = []
    for name, source in sources.items():
        for values in source["rows"]:
            rows.append(PublishedRound(name, source["defaults"] | dict(zip(source["columns"], values, strict=True))))
    return rows, sources


def compare(row: PublishedRound) -> dict[str, Any]:
    """A published round beside its plan."""
    keys = row.keys
    facts = {
        "source": row.source, "release": keys["release"], "model": keys["model"], "rig": keys["rig"], "gpus": row.gpus,
        "ahead": keys["ahead"], "half": row.half, "measured_seconds": keys["seconds"],
    }  # fmt: skip
    try:
        plan = row.plan()
    except UserError as error:
        return facts | {"refused": error.message}
    # Before the first update the source scores answers with the learners' weights; a plan of one update a round does not.
    passes = 1 + int(keys["updates"] > 1)
    scored = plan.terms["log-probabilities"] / passes if keys["updates"] == 1 else 0.0
    learning = plan.seconds + plan.hidden - plan.terms["generation"] + scored
    hidden = plan.hidden + (min(plan.terms["generation"], learning) - min(plan.terms["generation"], learning - scored))
    seconds = sum(plan.terms.values()) + scored - (hidden if keys["ahead"] else plan.hidden)
    return facts | {
        "planned_seconds": seconds,
        "time_error": seconds / keys["seconds"] - 1,
        "fits": plan.fits,
        "terms": {name: round(value, 2) for name, value in plan.terms.items()} | ({"scored": scored} if scored else {}),
        "hidden_seconds": round(hidden if keys["ahead"] else plan.hidden, 2),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, median and worst absolute error, and the median of the signed errors (bias)."""
    errors = [row["time_error"] for row in rows if "time_error" in row]
    if not errors:
        return {"rows": 0}
    return {
        "rows": len(errors),
        "median": statistics.median(map(abs, errors)),
        "worst": max(map(abs, errors)),
        "bias": statistics.median(errors),
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    published, sources = load_rounds()
    rows = [compare(row) for row in published]
    parts = {"all": rows} | {half: [row for row in rows if row["half"] == half] for half in HALVES}
    parts |= {model: [row for row in rows if row["model"] == model] for model in dict.fromkeys(row["model"] for row in rows)}
    parts |= {"one after the other": [r for r in rows if not r["ahead"]], "overlapped": [r for r in rows if r["ahead"]]}
    report = {
        "what": "windtunnel plan beside published rounds of GRPO; errors are relative, + where the plan says more",
        "date": datetime.date.today().isoformat(),
        "sources": {name: {key: str(source[key]) for key in ("url", "commit", "measured")} for name, source in sources.items()},
        "summary": {name: summarise(part) for name, part in parts.items()},
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        head = f"{row['release']:5} {row['model']:16} {row['rig']:12} {row['ahead']}"
        if "refused" in row:
            print(f"{head} refused: {row['refused']}")
        else:
            terms = " ".join(f"{name[:12]} {value:.1f}" for name, value in row["terms"].items() if value >= 0.05)
            print(f"{head} {row['planned_seconds']:7.1f} {row['measured_seconds']:6.1f} {row['time_error']:+6.0%}  {terms}")
    for name, part in report["summary"].items():
        print(f"{name:22}", {key: round(value, 2) for key, value in part.items()})


if __name__ == "__main__":
    main()
