"""What a run logs: probabilities at its own temperature, every documented metric and no other, right answers by subject."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from runs import DIGITS, new_run, require_same, series

from windtunnel.recipe import UserError
from windtunnel.rl import method, rollouts, train_policy
from windtunnel.run import MetricsReader, RunFolder, described

REWARD = "rewards=[{kind: function, function: 'SCORE', of: sums}, {kind: exact, of: words}]"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of prompts of two subjects, sampled at a temperature of 0.7."""
    folder = tmp_path_factory.mktemp("shown")
    pairs = [(i % 7, i // 7) for i in range(49)]
    records = [{"prompt": f"{a}+{b}", "answer": str(a + b), "subject": ("sums", "words")[(a + b) % 2]} for a, b in pairs]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    judges = REWARD.replace("SCORE", f"{folder}/reward.py:score")
    sets = [
        f"data.corpus={{kind: prompts, files: ['{folder / 'prompts.jsonl'}']}}", "budget.steps=2", "stages.rl.temperature=0.7",
        "stages.rl.equal_rewards=keep", "stages.rl.reward=null", f"stages.rl.{judges}",
    ]  # fmt: skip
    found = new_run(folder, *sets)
    assert train_policy(found) == 0
    return found


def test_sampler_and_learner_agree_at_the_temperature_of_sampling(run: Path) -> None:
    assert max(series(run, "mismatch_largest").values()) < 1e-4  # raw log-probabilities are 0.1 nats and more away


def test_every_metric_of_a_round_that_is_logged_is_documented(run: Path) -> None:
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        logged = set(reader.names())
    assert {"reward", "right", "mismatch", "staleness", "truncated", "equal_rewards", "answers_reward"} <= logged
    assert not [name for name in logged if described(name) is None]
    assert (described("right_of_law") or "").endswith("of the subject law")


def test_right_answers_are_counted_by_subject(run: Path) -> None:
    for name in ("right_of_sums", "right_of_words"):
        assert all(0 <= share <= 1 for share in series(run, name).values())
        assert series(run, name)
    rows = [json.loads(line) for line in (run / "rollouts/round-000001.jsonl").read_text().splitlines()]
    assert all((row["parts"][0] is None) != (row["parts"][1] is None) for row in rows)
    assert not any(row["reward"] is None for row in rows)


class Unavailable(BaseHTTPRequestHandler):
    """A service that never has the time."""

    def do_POST(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("sets", "words"),
    [(("stages.rl.answers=null",), r"of \d+ answers nothing is known: .*503"), ((), r"of 8 held-out answers .*known: .*503")],
    ids=["in a round", "before the first"],
)
def test_judges_behind_a_service_that_always_answers_503_end_the_run_and_are_never_a_reward(
    sets: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asks = f"""
import urllib.request
def score(prompt, answer, truth):
    return float(urllib.request.urlopen("http://127.0.0.1:{server.server_port}/verify", data=answer.encode(), timeout=10).read())
"""
        run = new_run(tmp_path, *sets, "stages.rl.retries=1", reward=asks)
        with pytest.raises(UserError, match=words) as caught:
            train_policy(run)
        server.shutdown()
    assert "judges" in (caught.value.fix or "")
    assert not series(run, "reward")


def test_judges_that_fail_for_a_while_are_waited_for_and_the_run_is_that_of_judges_that_never_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down, said = tmp_path / "down", list[str]()
    failing = DIGITS.replace(":\n", f":\n    import os\n    if os.path.exists({str(down)!r}): raise OSError('down')\n")

    def tell(text: str, *arguments: Any) -> None:
        said.append(text)
        if "are judged again" in text:
            down.unlink()  # the service is there again

    monkeypatch.setattr(rollouts, "PATIENCE", (0.1, 0.1))
    monkeypatch.setattr(method.log, "warning", tell)
    runs = []
    for folder, ill in ((tmp_path / "well", False), (tmp_path / "ill", True)):
        folder.mkdir()
        run = new_run(folder, "stages.rl.keep_rollouts=9", reward=failing)
        assert train_policy(run, after_step=lambda step, _, ill=ill: down.touch() if ill and step == 2 else None) == 0
        runs.append(run)
    require_same(*runs)
    (waited,) = [text for text in said if "are judged again" in text]
    assert "nothing is known: OSError: down" in waited


def test_judges_that_fail_for_good_are_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    down = tmp_path / "down"
    failing = DIGITS.replace(":\n", f":\n    import os\n    if os.path.exists({str(down)!r}): raise OSError('down')\n")
    said: list[str] = []
    monkeypatch.setattr(rollouts, "PATIENCE", (0.1, 0.1))
    monkeypatch.setattr(method.log, "warning", lambda text, *arguments: said.append(text))
    run = new_run(tmp_path, reward=failing)
    with pytest.raises(UserError, match=r"of \d+ answers nothing is known: OSError: down"):
        train_policy(run, after_step=lambda step, _: down.touch() if step == 2 else None)
    assert list(series(run, "reward")) == [1, 2]
    assert len([text for text in said if "are judged again" in text]) == 2
