"""Runs of reinforcement learning on sums, small enough for a CPU and ready to train."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from waiting import HANG

from windtunnel.checkpoint import CheckpointStore
from windtunnel.launch import Options
from windtunnel.launch.prepare import prepare_run
from windtunnel.recipe import load_recipe
from windtunnel.run import MetricsReader, RunFolder

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
RECIPE = """
name: tiny-rl
model: {kind: huggingface, config: CONFIG, sequence: 32}
data: {corpus: {kind: prompts, arithmetic: {documents: 300, digits: 1, terms: 2}}, validation: 0.1}
stages:
  rl:
    {prompts: 4, samples: 4, prompt_tokens: 8, answer_tokens: 6, learning_rate: 1e-2, compile: false, micro_batch: 2,
     mask_truncated: false, reward: 'REWARD:score', answers: {every: 3 steps, prompts: 8}}
budget: {steps: 6}
checkpoints: {every: 2 steps}
"""
DIGITS = "def score(prompt, answer, truth):\n    return sum(c.isdigit() for c in answer) / 6\n"
"""An untrained model writes some digits, and it can learn to write more."""
SAME = ("loss", "reward", "answer_length", "answers_reward", "entropy", "mismatch_largest")

DYING = """
import os, signal, sys, threading
from pathlib import Path
import torch
from windtunnel.rl import train_policy
run, step, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
seen = []
def after(done, _):
    if done >= step and not seen:
        seen.append(done)
        threading.Timer(seconds, die).start() if seconds else die()
train_policy(run, after_step=after)
"""


def killed(run: Path, step: int = 0, seconds: float = 0.0) -> bool:
    """Return whether a run in a process of its own was killed: so many seconds after its first step from `step` on."""
    done = subprocess.run([sys.executable, "-c", DYING, str(run), str(step), str(seconds)], timeout=HANG)
    assert done.returncode in (-signal.SIGKILL, 0)
    return done.returncode != 0


def new_run(folder: Path, *sets: str, reward: str = DIGITS, config: dict[str, Any] | None = None) -> Path:
    """Return the folder of a run that is ready to train.

    Args:
        folder: gets recipe, config, reward and runs.
        sets: as --set gives them.
        reward: source of a module with the function `score`.
        config: what differs in the model's config.json.
    """
    path, model, judge = folder / "tiny-rl.yaml", folder / "model.json", folder / "reward.py"
    model.write_text(json.dumps(CONFIG | (config or {})))
    judge.write_text(reward)
    path.write_text(RECIPE.replace("CONFIG", str(model)).replace("REWARD", str(judge)))
    run = prepare_run(load_recipe(path, sets), Options(root=folder / "runs", yes=True), lambda text: None)
    run.close()
    return run.path


def series(run: Path, name: str) -> dict[int, float]:
    """Return a metric by step."""
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        return {point.step: point.value for point in reader.series(name)}


def rounds(run: Path) -> dict[str, Sequence[dict[str, Any]]]:
    """Return the answers that a run keeps, by file."""
    files = sorted((run / "rollouts").glob("*.jsonl"))
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def weights(run: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return the weights of a run's newest checkpoint."""
    newest = CheckpointStore(run / "checkpoints").newest_good()
    assert newest is not None
    return {name: tensor.float().numpy() for name, tensor in newest.part().tensors()}


def require_same(one: Path, other: Path) -> None:
    """Require the same losses, answers and weights of two runs, bit for bit."""
    for name in SAME:
        assert series(one, name) == series(other, name), name
    assert rounds(one) == rounds(other)
    mine, theirs = weights(one), weights(other)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
