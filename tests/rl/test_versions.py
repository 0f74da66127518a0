"""The versions of the weights that gave an answer its tokens stay with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from windtunnel.data import Prompt, PromptFile
from windtunnel.rl import Reward, Sample
from windtunnel.rl.kept_rounds import Answered, KeptRounds
from windtunnel.rl.rollouts import Round, runs_of


class Prompts(PromptFile):
    """Prompts that need no file."""

    def __init__(self) -> None: ...

    def prompt(self, number: int) -> Prompt:
        return Prompt(number, np.arange(2), "", None, {})


def sample(number: int, version: int, versions: list[int] | None) -> Sample:
    own = None if versions is None else np.array(versions, dtype=np.int64)
    reward = Reward(0.0, (0.0,), False)
    return Sample(
        Prompts().prompt(1), number, np.arange(4), np.zeros(4, np.float32), "7", False, version, reward, versions=own
    )  # fmt: skip


def test_versions_of_tokens_are_written_as_runs_where_there_are_several() -> None:
    assert runs_of(np.array([3, 3, 4, 6, 6, 6])) == [[3, 2], [4, 1], [6, 3]]
    assert sample(0, 3, [3, 3, 3, 4]).to_json()["versions"] == [[3, 3], [4, 1]]
    one = sample(0, 3, None)
    assert "versions" not in one.to_json()
    assert one.token_versions.tolist() == [3] * 4


def test_a_round_that_was_answered_ahead_keeps_the_versions_of_its_tokens(tmp_path: Path) -> None:
    group = (sample(0, 2, [2, 2, 3, 4]), sample(1, 2, None))
    kept = KeptRounds(tmp_path, 0, 1, Prompts(), lambda: (), 1)
    kept.write(1, 2, Answered(Round((group,), (), 0.0, 0, 1.0, 0.5), 0, 1))
    found = kept.read(1, 0, 2)
    assert found is not None
    first, second = found.found.samples
    assert first.token_versions.tolist() == [2, 2, 3, 4]
    assert (first.version, second.version, second.versions) == (2, 2, None)
