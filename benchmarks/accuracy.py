"""Writes docs/accuracy.md from what planning.py report, estimators.py and published.py have found.

python benchmarks/accuracy.py
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOC = HERE.parent / "docs" / "accuracy.md"
HALVES = {"calibrate": "fitted to", "held_out": "held out"}
ROW = ("configuration", "half", "GPUs", "GiB measured", "planned", "error", "seconds measured", "planned", "error")
# What is asked of the plans of configurations that nothing was fitted to: most of the median and of the worst error.
BARS = {"memory_error": (0.03, 0.08), "time_error": (0.08, 0.20)}
ESTIMATORS = {
    "deepspeed": "DeepSpeed, ZeRO-2 or ZeRO-3",
    "accelerate": "accelerate, mixed precision",
    "accelerate_float32": "accelerate, fp32",
}


def document(
    planning: dict[str, Any],
    recorded: dict[str, Any] | None,
    recursive: dict[str, Any],
    estimators: dict[str, Any],
    published: dict[str, Any],
    rounds: dict[str, Any],
    experts: dict[str, Any],
) -> str:
    """The whole page; recorded: None where it has not been measured."""
    parts = [
        "# How close plans are",
        "<!-- Written by benchmarks/accuracy.py; change that, not this. -->",
        "Errors are relative to what was measured: + where the plan says more. Medians and worst are of absolute errors; "
        "bias is the median with its sign.",
        *_measured(planning), *_experts(experts), *_recursive(recorded, recursive, planning),
        *_bars(planning, recorded, recursive), *_estimated(estimators), *_published(published), *_rounds(rounds),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


# Measured by this project


def _measured(found: dict[str, Any]) -> list[str]:
    gpus = ", ".join(found["gpu"]) or "GPUs"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    halves = [
        [HALVES[half], str(found[half]["measured"]), *_error(found[half]["memory_error"]), *_error(found[half]["time_error"])]
        for half in HALVES
    ]
    ran_out = [name for half in HALVES for name in found[half]["said_to_fit_but_ran_out"]]
    fitted = "No configuration that was planned to fit ran out of memory."
    if ran_out:
        fitted = f"Planned to fit, but ran out of memory: {', '.join(ran_out)}."
    return [
        "## Beside measured steps",
        f"Full-size training steps on random tokens ({gpus}; {versions}), each planned with the layout that was run. "
        "Memory is the peak that PyTorch's allocator reserved on the GPU that had most; time is the median step after "
        "compilation. The planner's constants were fitted to one half of the configurations; which half a configuration "
        "belongs to was fixed before it was measured.",
        _table(["half", "configurations", "memory, median", "worst", "time, median", "worst"], halves),
        fitted,
        _table(
            ROW,
            [_measured_row(row) for row in sorted(found["configs"], key=lambda row: row["split"], reverse=True)],
        ),
        *(
            [f"{found['changes']['gathered']} {found['changes']['in place']} Left out: {', '.join(found['left_out'])}."]
            if found.get("left_out")
            else []
        ),
        "`benchmarks/planning_configs.yaml` has the configurations, `benchmarks/results/planning-h200.json` the measurements.",
    ]


def _experts(found: dict[str, Any]) -> list[str]:
    """Steps beside experts frozen in fp8."""
    rows = [
        [
            f"{entry['layers']} layers", str(entry["ranks"]), f"{entry['trial']['reserved_gib']:.1f}",
            f"{entry['planned']['reserved_gib']:.1f}", f"{entry['memory_error']:+.1%}", f"{entry['trial']['step_seconds']:.3f}",
            f"{entry['planned']['step_seconds']:.3f}", f"{entry['time_error']:+.1%}",
        ]
        for entry in found["steps"]
    ]  # fmt: skip
    return [
        f"Of DeepSeek-V3's true shapes, random weights, experts frozen in fp8 and spread over the GPUs, adapters of rank 16 on "
        f"attention, {found['steps'][0]['sequence']:,} tokens a GPU, blocks recomputed ({found['machine']['gpu']}):",
        _table(["layers", "GPUs", "GiB measured", "planned", "error", "seconds measured", "planned", "error"], rows),
        "`benchmarks/results/moe-fp8-h200.json`. No constant was fitted to these; what memory counts was corrected by them.",
    ]


def _recursive(recorded: dict[str, Any] | None, launched: dict[str, Any], planning: dict[str, Any]) -> list[str]:
    """The same of recursive GPTs, apart and together with the others: as runs have them, then with every kernel launched."""
    parts = [
        "### Recursive GPTs",
        "Measured and planned in the same way. Runs record the passes of a recursive GPT as CUDA graphs; with "
        "`stages.pretrain.graphs=false` the host launches every kernel.",
    ]
    if recorded is None:
        parts.append("Recorded passes have not been measured.")
    else:
        parts += [
            f"Passes recorded ({', '.join(recorded['gpu'])}). Nothing was fitted to them, to neither half; the errors that "
            "plans state were taken from the one that is called fitted to. None is in fp8, for which plans state a larger one:",
            *_recursive_tables(recorded, planning, "recorded"),
        ]
    return [
        *parts,
        f"Every kernel launched by the host ({', '.join(launched['gpu'])}). To those fitted to, one constant was fitted: the "
        "host's seconds to launch the kernels of a pass through a block; all others are the plain GPT's. Such steps are bound "
        "by the host where a micro-batch is small, and then differ from one moment to the next:",
        *_recursive_tables(launched, planning, "recursive"),
    ]


def _recursive_tables(found: dict[str, Any], planning: dict[str, Any], name: str) -> list[str]:
    """Halves and rows of one file of configurations."""
    halves = [_half(HALVES[half], _of(found, half)) for half in HALVES]
    halves.append(_half("held out, with all others", _of(found, "held_out") + _of(planning, "held_out")))
    return [
        _table(["half", "configurations", "memory, median", "worst", "time, median", "worst"], halves),
        _table(
            [*ROW, "bound by", "seconds, least to most"],
            [[*_measured_row(row), row["bound"], _spread(row)] for row in sorted(found["configs"], key=_split, reverse=True)],
        ),
        f"`benchmarks/planning_{name}.yaml` has the configurations, `benchmarks/results/planning-{name}-h200.json` the "
        "measurements; the last column has the least and the most of the measured steps."
        + (f" Not measured: {', '.join(found['missing'])}." if found["missing"] else ""),
    ]


def _bars(planning: dict[str, Any], recorded: dict[str, Any] | None, launched: dict[str, Any]) -> list[str]:
    """Over which configurations the bars hold."""
    plain, again, slow = (_of(found, "held_out") if found else [] for found in (planning, recorded, launched))
    sets = {
        "plain GPTs and Hugging Face models": plain,
        "recursive GPTs, passes recorded": again,
        "both: what runs do unless told otherwise": plain + again,
        "recursive GPTs, every kernel launched": slow,
        "all": plain + again + slow,
    }
    measured = [found for found in (planning, recorded, launched) if found]
    ran_out = [name for found in measured for name in found["held_out"]["said_to_fit_but_ran_out"]]
    asked = "; ".join(
        f"of {what.removesuffix('_error')}, {median:.0%} in the median and {worst:.0%} at worst"
        for what, (median, worst) in BARS.items()
    )
    return [
        "### What is asked of plans",
        f"Of configurations that nothing was fitted to, at most an error {asked}, and no plan that says it fits may run out. "
        + (f"These ran out: {', '.join(ran_out)}." if ran_out else "None ran out."),
        _table(
            ["held out", "configurations", "memory, median", "worst", "time, median", "worst"],
            [_barred(title, rows) for title, rows in sets.items() if rows],
        ),
    ]


def _barred(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of held out configurations, with what is more than asked in bold."""
    cells = [title, str(len(rows))]
    for what, asked in BARS.items():
        errors = [abs(row[what]) for row in rows]
        for error, most in zip((statistics.median(errors), max(errors)), asked, strict=True):
            cells.append(f"{error:.1%}" if error <= most else f"**{error:.1%}: too much**")
    return cells


def _of(found: dict[str, Any], half: str) -> list[dict[str, Any]]:
    return [row for row in found["configs"] if row["split"] == half and "memory_error" in row]


def _half(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = [title, str(len(rows))]
    for what in ("memory_error", "time_error"):
        errors = [abs(row[what]) for row in rows]
        cells += _error({"median": statistics.median(errors), "worst": max(errors)} if errors else None)
    return cells


def _split(row: dict[str, Any]) -> str:
    return str(row["split"])


def _spread(row: dict[str, Any]) -> str:
    return "{:.3f} to {:.3f}".format(*row["measured_range"]) if row.get("measured_range") else ""


def _measured_row(row: dict[str, Any]) -> list[str]:
    head = [row["name"] + (" \\*" if row.get("before") else ""), HALVES[row["split"]], str(row["gpus"])]
    if "memory_error" not in row:
        ended = "ran out" if row.get("out_of_memory") else "failed"
        return [*head, ended, f"{row['planned_gib']:.1f}", "", ended, f"{row['planned_seconds']:.3f}", ""]
    return [
        *head, f"{row['measured_gib']:.1f}", f"{row['planned_gib']:.1f}", f"{row['memory_error']:+.1%}",
        f"{row['measured_seconds']:.3f}", f"{row['planned_seconds']:.3f}", f"{row['time_error']:+.1%}",
    ]  # fmt: skip


def _error(found: dict[str, float] | None) -> list[str]:
    return [f"{found['median']:.1%}", f"{found['worst']:.1%}"] if found else ["", ""]


# Other estimators


def _estimated(found: dict[str, Any]) -> list[str]:
    rows = []
    for half, title in (("all", "all"), ("held_out", "held out")):
        for name, one in found["summary"][half].items():
            ours = one["windtunnel_on_the_same"]
            both = [*_error(one), f"{one['bias']:+.0%}", *_error(ours)]
            rows.append([ESTIMATORS[name], title, str(one["rows"]), *both])
    asked = [row for row in found["rows"] if row.get("answers_gib") and row.get("reserved_gib")]
    unasked = sum("without_answer" in row for row in found["rows"])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [
        "## Beside other estimators",
        f"The same measured peaks beside the estimators of {versions}. Both count weights, gradients and optimizer states "
        "and neither is told batch or sequence, so they were asked about full fine-tuning with fp32 master weights only, "
        f"accelerate's on one GPU; {unasked} of the {len(found['rows'])} configurations are nothing that either can be asked "
        "about (adapters, quantised or bf16 weights, replicated weights, GPTs with Muon).",
        _table(["estimator", "of", "configurations", "median", "worst", "bias", "this planner, median", "worst"], rows),
        _table(
            ["configuration", "GiB measured", "DeepSpeed", "accelerate mixed", "accelerate fp32", "this planner"],
            [_estimated_row(row) for row in asked],
        ),
    ]


def _estimated_row(row: dict[str, Any]) -> list[str]:
    answers = [f"{row['answers_gib'][name]:.1f}" if name in row["answers_gib"] else "" for name in ESTIMATORS]
    return [row["name"], f"{row['reserved_gib']:.1f}", *answers, f"{row['planned_gib']:.1f}"]


# Published figures


def _published(found: dict[str, Any]) -> list[str]:
    summary = found["summary"]
    shown = {name: part for name, part in summary.items() if part["memory_error"] or part["time_error"]}
    refused = [row for row in found["rows"] if "refused" in row]
    differences = {name: what["what"] for name, what in found["differences"].items()}
    sources = [
        f"- [{name}]({source['url']}), measured {source['measured']}" for name, source in found["sources"].items()
    ]  # fmt: skip
    over = Counter(row["source"] for row in found["rows"] if row.get("fits") is False)
    lists = [
        f"{over.total()} of {len(found['rows'])} steps ran although the plan says that the layout does not fit"
        + (f" ({', '.join(f'{name} {count}' for name, count in over.items())}); below they have a star." if over else "."),
    ]
    if refused:
        lists.append(f"{len(refused)} were refused: " + "; ".join(f"{row['name']} ({row['refused']})" for row in refused) + ".")
    return [
        "## Beside published figures",
        "Steps that others measured with their own engines, planned in the same layout. No H100, A100 or B200 was measured for "
        "the planner, and one of its constants was chosen by figures here: how much slower layouts are that split matrices, "
        "experts or layers, by kempnerforge's and by the rounds of NeMo RL v0.5 below. These engines do some things that the "
        "plan does not assume; those that are known are listed, and errors are given as they are, also apart for steps that no "
        "known difference reaches.",
        "\n".join(sources),
        _table(["known difference", "what these engines do"], [[name, what] for name, what in differences.items()]),
        _table(
            ["steps", "memory: steps", "median", "worst", "bias", "time: steps", "median", "worst", "bias"],
            [[name, *_figure(part["memory_error"]), *_figure(part["time_error"])] for name, part in shown.items()],
        ),
        *_brackets(summary["all"]), *_logits(found["unplanned_bytes_per_logit"]), *lists,
        "<details><summary>Every step</summary>\n\n"
        + _table(
            ["source", "step", "GiB measured", "planned", "error", "seconds measured", "planned", "error"],
            [_published_row(row) for row in found["rows"] if "refused" not in row],
        )
        + "\n\n</details>",
    ]  # fmt: skip


def _rounds(found: dict[str, Any]) -> list[str]:
    sources = ", ".join(f"[{name}]({source['url']})" for name, source in found["sources"].items())
    parts = [
        [name, str(part["rows"]), f"{part['median']:.0%}", f"{part['worst']:.0%}", f"{part['bias']:+.0%}"]
        for name, part in found["summary"].items()
    ]
    rows = [
        [row["release"], row["model"], row["rig"], str(row["ahead"]), f"{row['measured_seconds']:.1f}",
         f"{row['planned_seconds']:.1f}", f"{row['time_error']:+.0%}"]
        for row in found["rows"]
    ]  # fmt: skip
    return [
        "## Beside published rounds of GRPO",
        f"Whole rounds as {sources} publishes them: answers, log-probabilities, updates, weights to the engines. Planned with "
        "the same learners, engines and layouts; `fitted` are the rounds of v0.5, by which constants were chosen, `held out` "
        "those of v0.4 and v0.6.",
        _table(["rounds", "of them", "median", "worst", "bias"], parts),
        "Where learners and engines take turns the source moves learners' weights and states to CPU memory and back in every "
        "round and wakes its engines; a plan keeps them on the GPUs and counts neither. That is the likely cause of what is "
        "still missing there.",
        "<details><summary>Every round</summary>\n\n"
        + _table(["release", "model", "rig", "rounds ahead", "seconds measured", "planned", "error"], rows)
        + "\n\n</details>",
    ]


def _figure(found: dict[str, Any] | None) -> list[str]:
    return [str(found["rows"]), *_error(found), f"{found['bias']:+.0%}"] if found else ["0", "", "", ""]


def _brackets(part: dict[str, Any]) -> list[str]:
    memory, time = part.get("memory_error_of_brackets"), part.get("time_error_of_brackets")
    if not memory or not time:
        return []
    return [
        "Where only some products of a block were computed again, no plan is of that layout: the plans without and with "
        f"recomputation of whole blocks enclose the memory of {memory['inside']} of {memory['rows']} such steps (the "
        f"farthest is {memory['worst']:.0%} outside) and the time of {time['inside']} of {time['rows']} ({time['worst']:.0%}). "
        "They are not in the table above."
    ]


def _logits(found: dict[str, Any] | None) -> list[str]:
    if not found:
        return []
    return [
        f"In the {found['rows']} steps whose only known difference in memory is that all logits are held, {found['median']:.0f} "
        f"bytes a token and word of the vocabulary more were measured than planned ({found['least']:.0f} to {found['most']:.0f})."
    ]


def _published_row(row: dict[str, Any]) -> list[str]:
    memory = ["", "", ""]
    if "memory_error" in row:
        memory = [f"{row['measured_gib']:.1f}", _range(row["planned_gib"], ".1f"), f"{row['memory_error']:+.0%}"]
    name = row["name"] + ("" if row["fits"] else " *")
    time = [f"{row['measured_seconds']:.2f}", _range(row["planned_seconds"], ".2f"), f"{row['time_error']:+.0%}"]
    return [row["source"], name, *memory, *time]


def _range(values: Sequence[float], style: str) -> str:
    return " to ".join(format(value, style) for value in values)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=DOC)
    args = parser.parse_args()
    found: list[Any] = []
    for name, maker in (
        ("planning-accuracy", "planning.py report"),
        ("planning-recorded-accuracy", None),
        ("planning-recursive-accuracy", "planning.py report --configs benchmarks/planning_recursive.yaml"),
        ("estimators", "estimators.py"),
        ("published", "published.py"),
        ("published-rounds", "published_rounds.py"),
        ("moe-fp8-h200", "moe_fp8.py --out benchmarks/results/moe-fp8-h200.json"),
    ):
        path = args.results / f"{name}.json"
        if not path.exists() and maker is not None:
            parser.error(f"{path} is not there: python benchmarks/{maker}")
        found.append(json.loads(path.read_text()) if path.exists() else None)
    args.out.write_text(document(*found))


if __name__ == "__main__":
    main()
