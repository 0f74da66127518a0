"""Which metrics of a run share a chart, and the lines across it: what was planned, the budget, where a band warns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from windtunnel.run import RunFolder

LOSS = "Loss"
MOST_CURVES = 8
"""Of a chart, which has so many colours."""
# In this order; what is not among them is a group of its own.
GROUPS: tuple[tuple[str, str], ...] = (
    (LOSS, r"loss|validation_loss"),
    ("Right answers", r"answers_right|answers_low|answers_high|right"),
    ("Bits per byte", r"validation_bits_per_byte"),
    ("Rewards", r"reward|reward_(?!deviation|by_length)\w+|answers_reward"),
    ("Length of answers, tokens", r"answer_length|answer_longest"),
    (
        "Signs of a gamed reward",
        r"accepted_(repeats|elsewhere)|self_repeating|form_alone|kernels_little|swapped_accepted|reward_by_length",
    ),
    ("Rewards that part, standard errors", r"judges_apart|held_out_apart"),
    ("Staleness, updates", r"staleness(_largest)?"),
    ("Mismatch between learner and sampler, nats", r"mismatch|mismatch_p95|mismatch_largest|mismatch_k3"),
    ("Tokens per second", r"tokens_per_second"),
    ("Seconds per step", r"step_seconds"),
    ("Peak memory of a GPU, GiB", r"memory_gib"),
    ("Dollars", r"dollars|dollars_forecast"),
    ("Gradient norm", r"gradient_norm(_step_\d+)?"),
    ("Learning rate, share of its peak", r"learning_rate"),
    ("Loss after each supervision step", r"loss_step_\d+"),
    ("Validation loss after each supervision step", r"validation_loss_step_\d+"),
)


def grouped(names: Iterable[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Return the charts that metrics make, as title and names, and the metrics that are in none."""
    left, charts = list(names), []
    for title, pattern in GROUPS:
        mine = [name for name in left if re.fullmatch(pattern, name)]
        left = [name for name in left if name not in mine]
        if mine:
            charts.append((title, _told_apart(mine)))
    return charts, left


def _told_apart(names: list[str]) -> list[str]:
    """Return as many series as can be told apart by their colours, in order: the first, the last and some between."""
    # step_10 after step_9.
    names = sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    if len(names) <= MOST_CURVES:
        return names
    return [names[round(i * (len(names) - 1) / (MOST_CURVES - 1))] for i in range(MOST_CURVES)]


def limits_of(run: RunFolder, names: list[str]) -> list[dict[str, Any]]:
    """Return lines across a chart of these metrics, as name, kind (plan, warn or bad) and value."""
    plan: dict[str, Any] = run.manifest.get("plan") or {}
    bands, budget = run.recipe.bands, run.recipe.budget.dollars
    found: list[tuple[str, str, Any]] = []
    if "tokens_per_second" in names:
        speed = plan.get("tokens_per_second")
        found += [("planned", "plan", speed), ("warns below", "warn", speed and bands.throughput_warn * speed)]
    if "step_seconds" in names:
        found.append(("planned", "plan", plan.get("step_seconds")))
    if "memory_gib" in names:
        found += [("planned peak", "plan", plan.get("peak_gib")), ("limit", "bad", plan.get("limit_gib"))]
    if "dollars" in names:
        found += [("planned", "plan", plan.get("dollars")), ("80 % of the budget", "warn", budget and 0.8 * budget),
                  ("budget", "bad", budget)]  # fmt: skip
    return [{"name": name, "kind": kind, "value": value} for name, kind, value in found if isinstance(value, int | float)]
