"""Rounds that are answered and not yet learned from, on the disk: a run that was killed goes on with the very same answers."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.data import PromptFile
from windtunnel.files import write_atomic

from .judges import Reward
from .rollouts import Round, Sample

FORMAT = 3
BEHIND = 64
"""Rounds behind the learner whose files stay in any case: a checkpoint that needs them may still be on its way to the disk."""


@dataclass(frozen=True)
class Answered:
    """A round with what it took: `begins` and `ends` are positions of the prompts, `metrics` those of the engines."""

    found: Round
    begins: int
    ends: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptRounds:
    """One rank's rounds, a file each; zip's own checksums tell what is damaged.

    Args:
        folder: made when it is needed.
        rank: of `world`.
        prompts: that the answers are to.
        needed: steps of the checkpoints there are.
        ahead: rounds behind a checkpoint's that it goes on with.
    """

    folder: Path
    rank: int
    world: int
    prompts: PromptFile
    needed: Callable[[], Sequence[int]]
    ahead: int

    def write(self, number: int, version: int, answered: Answered) -> None:
        """Keep a round that weights of this version answered. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez(content, **_as_arrays(answered, {"format": FORMAT, "version": version, "world": self.world}))
        # Not synchronised: after a power cut the round is answered anew, which costs time and nothing else.
        write_atomic(self._path(number), content.getvalue(), durable=False)

    def read(self, number: int, begins: int, version: int) -> Answered | None:
        """Return a round; None: it is not there, damaged, of other prompts or by other weights."""
        try:
            with np.load(self._path(number), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(arrays["facts"].tobytes())
            # Any of these that differs would make it a round that this run never asked: then it is as good as not there.
            wanted = {"format": FORMAT, "version": version, "world": self.world, "begins": begins}
            if any(facts[key] != value for key, value in wanted.items()):
                return None
            return _answered(arrays, facts, self.prompts)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return None

    def forget_before(self, number: int) -> None:
        """Remove rounds that neither the learner at `number` nor a checkpoint goes on with."""
        old = [(at, path) for at, path in self._files() if at <= number - BEHIND]
        # Looking through the checkpoints takes a look at the disk: only where there is something to remove.
        steps = self.needed() if old else ()
        for at, path in old:
            # A run that goes back to a checkpoint wants the rounds that were ahead of it then.
            if not any(step < at <= step + self.ahead for step in steps):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all."""
        for _, path in self._files():
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.{self.rank}.npz"

    def _files(self) -> Iterator[tuple[int, Path]]:
        for path in list(self.folder.glob(f"round-*.{self.rank}.npz")) if self.folder.is_dir() else []:
            yield int(path.name.partition("-")[2].partition(".")[0]), path


_APART = ("prompt", "tokens", "log_probabilities", "reward", "versions")
_SAMPLE = tuple(f.name for f in fields(Sample) if f.name not in _APART)
_ROUND = tuple(f.name for f in fields(Round) if f.name not in ("groups", "dropped"))


def _as_arrays(answered: Answered, facts: Mapping[str, Any]) -> dict[str, Any]:
    found = answered.found
    samples = found.everything
    content = {
        **facts, "begins": answered.begins, "ends": answered.ends, "metrics": dict(answered.metrics),
        "round": {name: getattr(found, name) for name in _ROUND},
        "groups": [len(group) for group in found.groups], "dropped": [len(group) for group in found.dropped],
        "samples": [
            {name: getattr(s, name) for name in _SAMPLE} | {"prompt": s.prompt.number, "reward": asdict(s.reward)}
            for s in samples
        ],
        "lengths": [len(s.tokens) for s in samples],
    }  # fmt: skip
    # Answers of all lengths stand in one array, which NumPy stores without pickle; a round may also have none at all.
    empty = np.zeros(0)
    return {
        "facts": np.frombuffer(json.dumps(content).encode(), dtype=np.uint8),
        "tokens": np.concatenate([empty.astype(np.int64), *(s.tokens for s in samples)]),
        "log_probabilities": np.concatenate([empty.astype(np.float32), *(s.log_probabilities for s in samples)]),
        "versions": np.concatenate([empty.astype(np.int64), *(s.token_versions for s in samples)]),
    }


def _answered(arrays: Mapping[str, Any], facts: Mapping[str, Any], prompts: PromptFile) -> Answered:
    # Where each answer ends in the arrays that hold all of them.
    ends = np.cumsum(facts["lengths"], dtype=np.int64)
    parts = (np.split(arrays[name], ends[:-1]) for name in ("tokens", "log_probabilities", "versions"))
    samples = []
    for one, own, scored, versions in zip(facts["samples"], *parts, strict=True):
        reward = Reward(**(one["reward"] | {"parts": tuple(one["reward"]["parts"])}))
        values = {name: one[name] for name in _SAMPLE} | {"versions": versions if (versions != one["version"]).any() else None}
        samples.append(Sample(prompts.prompt(one["prompt"]), tokens=own, log_probabilities=scored, reward=reward, **values))
    every = iter(samples)
    groups, dropped = (tuple(tuple(next(every) for _ in range(n)) for n in facts[name]) for name in ("groups", "dropped"))
    return Answered(Round(groups, dropped, **facts["round"]), facts["begins"], facts["ends"], facts["metrics"])
