"""The page of a run of reinforcement learning, in a real browser: rewards by verifier, lengths, staleness, mismatch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from runs import new_run
from watch_pages import TOKEN, pages_of

from windtunnel.rl import train_policy

CHARTS = {
    "Rewards": {"reward", "reward function", "reward exact"},
    "Signs of a gamed reward": {"reward by length", "swapped accepted"},  # the first is a correlation, and no reward
    "Length of answers, tokens": {"answer length", "answer longest"},
    "Staleness, updates": {"staleness", "staleness largest"},
    "Mismatch between learner and sampler, nats": {"mismatch", "mismatch p95", "mismatch largest", "mismatch k3"},
}
SHOWN = """[...document.querySelectorAll('.chart')].filter(chart => chart.getClientRects().length).map(chart => ({
  title: chart.innerText.split('\\n')[0],
  curves: [...chart.querySelectorAll('.legend span')].map(chip => chip.textContent.trim()),
  right: chart.getBoundingClientRect().right,
  painted: (c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))(chart.querySelector('canvas')),
}))"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_rewards_by_verifier_lengths_staleness_and_mismatch_are_drawn(tmp_path: Path) -> None:
    records = [{"prompt": f"{i % 7}+{i // 7}", "answer": str(i % 7 + i // 7)} for i in range(49)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    run = new_run(
        tmp_path, f"data.corpus={{kind: prompts, files: ['{tmp_path / 'prompts.jsonl'}']}}", "budget.steps=6",
        "stages.rl.equal_rewards=keep", "stages.rl.reward=null",
        f"stages.rl.rewards=[{{kind: function, function: '{tmp_path}/reward.py:score'}}, {{kind: exact}}]",
    )  # fmt: skip
    assert train_policy(run) == 0
    with pages_of(run.parent) as url, Browser(tmp_path / "profile") as browser:
        for width in (1200, 400):
            browser.open(f"{url}/#token={TOKEN.replace(' ', '%20')}", width)
            browser.until("document.querySelectorAll('tbody tr').length == 1")
            browser.value(f"location.hash = '#/run/{run.name}'")
            browser.until("[...document.querySelectorAll('.chart')].some(chart => chart.innerText.startsWith('Mismatch'))")
            shown = {chart["title"]: chart for chart in browser.value(SHOWN)}
            for title, curves in CHARTS.items():
                chart = shown[title]
                assert curves <= {curve.rpartition(" ")[0] for curve in chart["curves"]}  # each with its last value
                assert chart["painted"]
                assert chart["right"] <= width
            assert browser.value("document.documentElement.scrollWidth") == width
            if pictures := os.environ.get("PICTURES"):
                browser.picture(Path(pictures) / f"rl-{width}.png")
        assert browser.problems == []
