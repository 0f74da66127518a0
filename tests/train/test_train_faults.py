"""Faults injected into real training: the right band fires, the right thing is done, nothing is lost."""

import itertools
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import events, final_weights, losses

from windtunnel.checkpoint import CheckpointStore
from windtunnel.launch import Options, prepare_run
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import train
from windtunnel.train.gpt import GPTEngine
from windtunnel.train.schedule import learning_rate_scale

pytestmark = pytest.mark.end_to_end

NewRun = Callable[..., Path]


def poison(*steps: int, times: int = 1) -> Callable[[int, GPTEngine], None]:
    """Make a weight NaN after the given steps, `times` in all."""
    left = [times]

    def after_step(step: int, engine: GPTEngine) -> None:
        if step in steps and left[0]:
            left[0] -= 1
            with torch.no_grad():
                engine.model.head.weight[0, 0] = float("nan")

    return after_step


def test_nan_goes_back_to_the_last_good_checkpoint_and_skips_batches(new_run: NewRun) -> None:
    folder = new_run("bands.skip_batches=5")
    assert train(folder, after_step=poison(17)) == 0
    kinds = events(folder)
    assert "band:not_finite" in kinds
    assert "rewind" in kinds
    curve = losses(folder)
    assert sorted(curve) == list(range(1, 31))
    assert all(np.isfinite(value) for value in curve.values())
    state = CheckpointStore(folder / "checkpoints").newest_good().state
    # Steps 15 to 30 twice over, less what was redone: 14 + 5 skipped + what had been read beyond step 14.
    assert state["position"] > 30 * 16
    assert state["rewinds"] == 1


def test_nan_before_any_checkpoint_starts_over(new_run: NewRun) -> None:
    folder = new_run("checkpoints.every=1000 steps")
    assert train(folder, after_step=poison(3)) == 0
    assert sorted(losses(folder)) == list(range(1, 31))


def test_nan_again_and_again_ends_with_exit_code_1_and_good_checkpoints(new_run: NewRun) -> None:
    folder = new_run("bands.rewinds=2")
    assert train(folder, after_step=poison(*range(9, 31), times=99)) == 1
    assert RunFolder.open(folder).manifest["status"] == "failed"
    assert events(folder).count("rewind") == 2
    assert all(torch.isfinite(array).all() for array in final_weights(folder).values())


def test_a_checkpoint_with_nan_weights_is_never_written(new_run: NewRun) -> None:
    folder = new_run()
    assert train(folder, after_step=poison(14)) == 0  # 14 is a step at which a checkpoint is due
    assert train(last := new_run(), after_step=poison(30)) == 0  # 30 is the last step
    assert sorted(losses(last)) == list(range(1, 31))
    assert all(torch.isfinite(array).all() for array in final_weights(last).values())
    for checkpoint in CheckpointStore(folder / "checkpoints").all():
        assert all(torch.isfinite(array).all() for array in checkpoint.weights().values())


def test_overfitting_stops_early_and_names_the_best_checkpoint(new_run: NewRun, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    text = "\n\n".join("".join(generator.choice(list("abcdefgh"), 60)) for _ in range(60))
    (tmp_path / "noise.txt").write_text(text)
    folder = new_run(
        "data.corpus.kind=text", f"data.corpus.files=[{tmp_path / 'noise.txt'}]", "data.corpus.separator='\n\n'",
        "data.tokenizer.alphabet=auto", "data.validation=0.3", "model.depth=4", "budget.steps=600",
        "stages.pretrain.optimizer.matrix_lr=0.02", "stages.pretrain.schedule.warmdown=0",
        options={"yes": True},
    )  # fmt: skip
    assert train(folder) == 0
    manifest = RunFolder.open(folder).manifest
    assert "best" in manifest["reason"]
    assert manifest["summary"]["best_step"] < manifest["summary"]["step"] < 600
    assert "band:overfit" in events(folder)
    best = CheckpointStore(folder / "checkpoints").best()
    assert best.step == manifest["summary"]["best_step"]


def test_a_loss_spike_past_its_limit_goes_back(new_run: NewRun) -> None:
    folder = new_run("budget.steps=120", "checkpoints.every=20 steps", "stages.pretrain.optimizer.matrix_lr=0.0001")
    done = []

    def shake(step: int, engine: GPTEngine) -> None:
        if step == 90 and not done:
            done.append(step)
            with torch.no_grad():
                engine.model.head.weight.normal_(0, 3)

    assert train(folder, after_step=shake) == 0
    kinds = events(folder)
    assert "band:loss_spike" in kinds
    assert "rewind" in kinds


def test_a_budget_in_hours_ends_with_the_schedule_finished(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it ends within 1 % of the time is proven with a clock of the test's own in test_run_budget."""
    seconds = 12.0
    # A fast machine reads the text five times in these seconds and more, and overfits: here the budget is to end the run.
    sets = ("budget.steps=null", f"budget.hours={seconds / 3600}", "checkpoints.every=100 s", "bands.overfit_patience=1000")
    folder = new_run(*sets, options={"yes": True})
    monkeypatch.setenv("WINDTUNNEL_STARTED", repr(time.time()))
    assert train(folder) in (0, 3)
    with MetricsReader(folder / "metrics.sqlite") as reader:
        rate = reader.latest()["learning_rate"].value
        progress = reader.latest()["progress"].value
    assert progress > 0.5  # how near it comes depends on how much its steps differ
    assert rate < 1.0  # it warms down


def test_signals_stop_with_a_checkpoint_of_the_very_step(new_run: NewRun) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        folder = new_run()

        def interrupt(step: int, _: object, number: int = number) -> None:
            if step == 5:
                os.kill(os.getpid(), number)

        assert train(folder, after_step=interrupt) == 3
        assert CheckpointStore(folder / "checkpoints").newest_good().step == max(losses(folder)) <= 6


@pytest.mark.parametrize("where", ["forward", "update"])
def test_out_of_memory_ends_in_one_line_with_the_last_good_state(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Before weights change the state after the step before is saved; resumed, the run is as one that had the memory."""
    whole, short, small = new_run("budget.steps=20"), new_run("budget.steps=20"), []
    assert train(whole) == 0

    def shrink(step: int, engine: GPTEngine) -> None:
        if step == 16 and not small:
            small.append(step)
            target, name = (engine.model, "forward") if where == "forward" else (engine.optimizer.groups[1], "update")

            def fail(*_: object, **__: object) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")

            monkeypatch.setattr(target, name, fail)

    assert train(short, after_step=shrink) == 1
    manifest = RunFolder.open(short).manifest
    assert manifest["status"] == "failed"
    assert "out of memory in step 17 (20.00 GiB more were not there)" in manifest["reason"]
    assert "out_of_memory" in events(short)
    newest = CheckpointStore(short / "checkpoints").newest_good(with_optimizer=True)
    assert newest is not None
    assert newest.step == (16 if where == "forward" else 14)
    assert train(short) == 0
    assert losses(whole) == losses(short)


def test_a_spot_notice_stops_with_a_checkpoint(new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_SPOT_NOTICE", f"file:{tmp_path / 'notice'}")
    folder = new_run("budget.steps=100000", options={"yes": True})
    assert train(folder, after_step=lambda step, _: (tmp_path / "notice").touch() if step == 3 else None) == 3
    assert "spot notice" in RunFolder.open(folder).manifest["reason"]
    assert CheckpointStore(folder / "checkpoints").newest_good() is not None


def test_a_spent_budget_says_so(new_run: NewRun) -> None:
    folder = new_run("budget.steps=5")
    assert train(folder) == 0
    ended = RunFolder.open(folder).manifest
    with pytest.raises(UserError, match=r"budget\.steps is already spent"):
        train(folder)
    after = RunFolder.open(folder).manifest
    assert [after[key] for key in ("status", "reason")] == [ended[key] for key in ("status", "reason")]
    assert after["status"] == "done"


def test_a_damaged_checkpoint_is_passed_over(new_run: NewRun) -> None:
    whole, damaged = new_run(), new_run()
    assert train(whole) == 0

    def interrupt(step: int, _: object) -> None:
        if step == 16:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(damaged, after_step=interrupt) == 3
    newest = CheckpointStore(damaged / "checkpoints").newest_good()
    file = newest.path / "model/__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[-100] ^= 0xFF
    file.write_bytes(bytes(data))
    assert train(damaged) == 0
    assert "checkpoint_damaged" in events(damaged)
    assert losses(whole) == losses(damaged)


def test_a_full_disk_is_a_warning_and_older_checkpoints_stay(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_run()
    free = CheckpointStore.free_bytes
    calls = []

    def shrinking(store: CheckpointStore) -> int:
        calls.append(1)
        return free(store) if len(calls) < 3 else 1000

    monkeypatch.setattr(CheckpointStore, "free_bytes", shrinking)
    assert train(folder) == 1
    assert "disk_full" in events(folder)
    assert CheckpointStore(folder / "checkpoints").newest_good() is not None
    assert not list((folder / "checkpoints").glob("*.tmp-*"))


def test_a_last_checkpoint_that_cannot_be_written_ends_the_run_as_failed(new_run: NewRun) -> None:
    """The room is checked before a save; a quota or a limit shows only while it is written."""
    sets = ("model.aspect=64", "checkpoints.every=100 steps", "stages.pretrain.validate_every=100 steps")
    folder = new_run("budget.steps=12", *sets)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(step: int, _: object) -> None:
        if step == 11:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))  # less than the weights, more than metrics

    try:
        assert train(folder, after_step=limit) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    ended = RunFolder.open(folder).manifest
    assert ended["status"] == "failed"
    assert "the last checkpoint could not be saved" in ended["reason"]
    assert "checkpoint_failed" in events(folder)
    assert not list((folder / "checkpoints").iterdir())
    assert train(folder) == 0, "once there is room it can be trained"


def test_corrupted_metrics_are_put_aside_and_training_goes_on(new_run: NewRun) -> None:
    folder = new_run()
    assert train(folder, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 8 else None) == 3
    (folder / "metrics.sqlite").write_bytes(b"not a database" * 500)
    assert train(folder) == 0
    assert list(folder.glob("metrics.sqlite.damaged-*"))
    assert max(losses(folder)) == 30


def test_the_run_folder_of_another_recipe_is_refused(new_run: NewRun, tiny: Path) -> None:
    folder = new_run()
    with pytest.raises(UserError, match=r"model\.depth"):
        prepare_run(load_recipe(tiny, ["model.depth=3"]), Options(run=folder), print)


def test_a_depth_that_does_not_fit_names_the_largest_that_does_before_data_is_prepared(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError) as error:
        new_run("model.depth=200", "model.aspect=64", "model.head_dim=128", "model.sequence=2048")
    assert "does not fit" in error.value.message
    assert "model.depth=" in (error.value.fix or "")
    assert "--rig" not in (error.value.fix or "")
    assert not list((tmp_path / "cache").glob("arithmetic-*"))


def test_dollars_without_a_price_are_refused_before_anything_is_made(new_run: NewRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no known price") as error:
        new_run("budget.dollars=5")
    assert "--price" in (error.value.fix or "")
    assert not (tmp_path / "runs").exists()


def test_dollars_on_a_machine_that_costs_nothing_are_no_limit(new_run: NewRun, tmp_path: Path) -> None:
    free = {"price": 0.0, "yes": True}
    with pytest.raises(UserError, match=r"\$0 an hour: training would never end") as error:
        new_run("budget.steps=null", "budget.dollars=5", options=free)
    assert "--set budget.hours=1" in (error.value.fix or "")
    assert not (tmp_path / "runs").exists()
    assert new_run("budget.dollars=5", options=free).is_dir()  # steps end it


def test_a_budget_in_dollars_ends_a_run(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_run("budget.steps=null", "budget.dollars=0.01", options={"price": 3.0, "yes": True})  # 12 seconds
    monkeypatch.setenv("WINDTUNNEL_STARTED", repr(time.time()))
    assert train(folder) in (0, 3)
    with MetricsReader(folder / "metrics.sqlite") as reader:
        spent = reader.latest()["dollars"].value
    assert spent > 0
    assert RunFolder.open(folder).manifest["summary"]["step"] > 5


def test_too_many_epochs_ask_for_yes(new_run: NewRun) -> None:
    with pytest.raises(UserError, match="epochs") as error:
        new_run("budget.steps=null", "budget.epochs=40")
    assert "--yes" in (error.value.fix or "")
    new_run("budget.steps=null", "budget.epochs=40", options={"yes": True})


def test_learning_rate_follows_progress(tiny: Path) -> None:
    schedule = load_recipe(tiny).pretrain.schedule
    rates = [learning_rate_scale(schedule, step, step / 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(1 / 40)
    assert max(rates) == 1.0
    assert rates[350] == 1.0
    assert rates[1000] == pytest.approx(schedule.final)
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(rates[350:]))


def test_a_run_folder_that_takes_nothing_more_at_the_end_is_told_with_how_to_go_on(new_run: NewRun) -> None:
    folder = new_run("budget.steps=8")

    def block(step: int, _: object) -> None:
        if step == 7:  # as good as a disk that became read-only, also for root
            (folder / "manifest.json").rename(folder / "kept")
            (folder / "manifest.json").mkdir()

    with pytest.raises(UserError, match=r"after 8 steps \(.*\), but run folder .* cannot be written: Is a directory") as told:
        train(folder, after_step=block)
    assert told.value.exit_code == 1
    assert f"windtunnel train --resume --run {folder}" in (told.value.fix or "")
    (folder / "manifest.json").rmdir()
    (folder / "kept").rename(folder / "manifest.json")
    assert train(folder) == 0
    assert RunFolder.open(folder).manifest["status"] == "done"
