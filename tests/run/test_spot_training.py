"""Training on a machine that is about to be taken away: told as each provider tells it, and ended when its notice is over."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from metadata_server import metadata_server
from tiny_recipes import write_tiny
from waiting import until

from windtunnel.checkpoint import CheckpointStore
from windtunnel.recipe import UserError
from windtunnel.run import NOTICE_SECONDS, NOTICE_VARIABLE, MetricsReader, RunFolder

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]


TUNED = """
name: tiny
model: {kind: huggingface, config: CONFIG, sequence: 32}
data: {corpus: {kind: arithmetic, documents: 3000, digits: 1, terms: 2}, validation: 0.05}
stages:
  sft: {batch_tokens: 256, micro_batch: 4, validate_every: 1000000 steps, validation_tokens: 1024, compile: false}
budget: {steps: 1000000}
checkpoints: {keep_last: 2, keep_hourly: false}
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip


def write_tuned(folder: Path) -> Path:
    """Write a recipe that fine-tunes a tiny Hugging Face model; returns its file."""
    config, recipe = folder / "config.json", folder / "tiny.yaml"
    config.write_text(json.dumps(LLAMA))
    recipe.write_text(TUNED.replace("CONFIG", str(config)))
    return recipe


class Training:
    """A run as a user starts it. Attributes: process: the command. run: its folder, once it has one."""

    def __init__(self, place: Path, notice: str, write: Callable[[Path], Path] = write_tiny) -> None:
        write(place)
        self._root = place / "runs"
        command = [sys.executable, "-m", "windtunnel", "train", "tiny.yaml", "--yes", "--root", str(self._root)]
        # Saved seldom: what is there at the end was saved for the notice.
        command += ["--set", "checkpoints.every=1000000 steps"]
        self.process = subprocess.Popen(
            command, cwd=place, env={**os.environ, NOTICE_VARIABLE: notice, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=open(place / "said", "w"), stdin=subprocess.DEVNULL,  # noqa: SIM115
        )  # fmt: skip
        until(lambda: self.step() > 20 or self.process.poll() is not None, "it does not train")
        assert self.process.poll() is None, (place / "said").read_text()

    @property
    def run(self) -> Path:
        return next(self._root.glob("tiny-*/manifest.json")).parent

    def step(self) -> int:
        """The step that it has come to; 0 also while its database is being made."""
        with contextlib.suppress(StopIteration, UserError), MetricsReader(self.run / "metrics.sqlite") as reader:
            return max((point.step for point in reader.series("loss")), default=0)
        return 0

    def saved(self) -> int:
        """The step of the newest whole checkpoint, as going on would find it."""
        newest = CheckpointStore(self.run / "checkpoints").newest_good(with_optimizer=True)
        return 0 if newest is None else newest.step

    def take_away(self) -> None:
        """SIGKILL all of it, as at the end of a notice."""
        for one in [*self._tree(), self.process]:
            one.kill()
        self.process.wait()

    def _tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@pytest.fixture
def trainings() -> Iterator[list[Training]]:
    begun: list[Training] = []
    yield begun
    for training in begun:
        training.take_away()


@pytest.mark.parametrize(
    ("provider", "write"), [("aws", write_tiny), ("gcp", write_tiny), ("azure", write_tiny), ("gcp", write_tuned)]
)
def test_a_notice_ends_training_with_everything_saved_before_it_is_over(
    provider: str, write: Callable[[Path], Path], tmp_path: Path, trainings: list[Training]
) -> None:
    with metadata_server() as metadata:
        training = Training(tmp_path, f"{provider}@http://127.0.0.1:{metadata.server_port}", write)
        trainings.append(training)
        then, told_at = training.step(), time.monotonic()
        assert training.saved() < then
        metadata.taken = True
        code = training.process.wait(NOTICE_SECONDS[provider])  # later, and there would be no machine to save on
        print(f"{provider}: ended {time.monotonic() - told_at:.2f} s after the notice of {NOTICE_SECONDS[provider]:.0f} s")
    assert code == 3, (tmp_path / "said").read_text()
    assert training.saved() == training.step() >= then
    manifest = RunFolder.open(training.run).manifest
    assert (manifest["status"], manifest["reason"].partition(":")[0]) == ("stopped", "spot notice")


def test_runpod_s_five_seconds_are_enough_to_save(tmp_path: Path, trainings: list[Training]) -> None:
    training = Training(tmp_path, "runpod")
    trainings.append(training)
    then, told_at = training.step(), time.monotonic()
    assert training.saved() < then
    training.process.send_signal(signal.SIGTERM)
    end = told_at + NOTICE_SECONDS["runpod"]
    saved_at = None
    while saved_at is None and time.monotonic() < end:
        saved_at = time.monotonic() if training.saved() >= then else None
        time.sleep(0.02)
    time.sleep(max(0.0, end - time.monotonic()))
    training.take_away()  # as RunPod does, whether it has ended or not
    assert saved_at is not None, (tmp_path / "said").read_text()
    print(f"runpod: saved {saved_at - told_at:.2f} s after SIGTERM")
    assert training.process.returncode in (3, -signal.SIGKILL)  # on a busy machine its report need not be done by then
    assert training.saved() == training.step()
