"""After training: what the run shows, what saving cost, weights that load elsewhere, and what the model is worth."""

from __future__ import annotations

import math
import statistics

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.run import MetricsReader, RunFolder

from .context import Context, Rehearsal, Stage, is_gpt, trains_here

# Of a few hundred steps of a toy; a model whose targets are shifted by one stays above it.
LEARNED = 0.9
"""Validation loss at the end over ln V: clearly better than knowing nothing."""
SECONDS_BETWEEN_SAVES = 60.0
MOST_STALL = 0.05
"""Share of the time, at one save a minute."""
STEPS_AROUND_SAVE = 2


def learning(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Follow the validation loss from ln V down, and tell the alerts of the bands."""
    assert rehearsal.run is not None
    folder = RunFolder.open(rehearsal.run)
    with MetricsReader(folder.metrics_path) as metrics:
        losses, validation = metrics.series("loss"), metrics.series("validation_loss")
        events = [event for event in metrics.events() if event.level != "info"]
    start = math.log(rehearsal.prepared.tokenizer.vocab)
    if not all(math.isfinite(point.value) for point in losses):
        raise CheckFailed("the loss became NaN", blocks=False)
    if not validation:
        raise CheckFailed("the run was never validated", blocks=False)
    last = validation[-1].value
    text = f"validation loss {start:.3f} (ln V) to {last:.3f} in {losses[-1].step} steps, training loss {losses[-1].value:.3f}"
    if last > LEARNED * start:
        raise CheckFailed(f"{text}: it hardly learned", blocks=False)
    warned = [event.message for event in events if event.level == "warn"]
    bad = [event.message for event in events if event.level == "bad"]
    if warned:
        bands = ", ".join(sorted({event.kind.removeprefix("band:").replace("_", " ") for event in events}))
        text += f"; {len(warned)} warning{'s' if len(warned) > 1 else ''} on the way ({bands})"
    numbers = {"ln_vocabulary": start, "validation_loss": last, "training_loss": losses[-1].value, "alerts": [*bad, *warned]}
    return Evidence(text, numbers, warnings=["; ".join(bad[:2])] if bad else [])


def saving(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Measure how much longer the steps beside a save take than the others."""
    assert rehearsal.run is not None
    with MetricsReader(RunFolder.open(rehearsal.run).metrics_path) as metrics:
        seconds = {point.step: point.value for point in metrics.series("step_seconds")}
        saves = {event.step: event.message for event in metrics.events("checkpoint") if event.step is not None}
        checked = {point.step for point in metrics.series("validation_loss")}
    beside = {step + i for step in saves for i in range(1, STEPS_AROUND_SAVE + 1)}
    # Nor is a step after a validation usual: the device stood still before it.
    # The first steps after a save share the disk and the cores with the thread that writes it.
    usual = [value for step, value in seconds.items() if step not in beside and step - 1 not in checked]
    costs = []
    for step in saves:
        around = [seconds.get(step + i) for i in range(1, STEPS_AROUND_SAVE + 1)]
        # After the step that was gone on from everything is compiled and allocated anew.
        if usual and None not in around and step != rehearsal.resumed_from:
            costs.append(sum(value for value in around if value) - STEPS_AROUND_SAVE * statistics.median(usual))
    if not costs:
        return Evidence(f"{len(saves)} saves, none with steps on both sides to compare", absent="rehearse with more --steps")
    stall, pace = max(0.0, statistics.median(costs)), statistics.median(usual)
    share = stall / SECONDS_BETWEEN_SAVES
    text = (
        f"a save delays the steps beside it by {1000 * stall:.0f} ms in all (median of {len(costs)}; a step takes "
        f"{1000 * pace:.0f} ms): {share:.2%} of the time at one a minute"
    )
    numbers = {"stall_seconds": stall, "step_seconds": pace, "share_at_one_a_minute": share, "saves": len(saves)}
    if share > MOST_STALL and rehearsal.device != "cpu":
        raise CheckFailed(f"{text}; at most {MOST_STALL:.0%}", blocks=False)
    if share > MOST_STALL:  # where the writing thread takes cores from the steps; a GPU's go on beside it
        warning = (
            f"a save delays CPU steps by {stall:.1f} s, as both need its cores; on GPUs at most {MOST_STALL:.0%} is to be lost"
        )
        return Evidence(text, numbers, warnings=[warning])
    return Evidence(text, numbers)


def export(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Export the weights, load the exported folder alone, and compare its logits with the checkpoint's."""
    import torch

    from windtunnel.checkpoint import export_run
    from windtunnel.data import load_tokenizer
    from windtunnel.generate import load_run
    from windtunnel.model import load_weights

    assert rehearsal.run is not None
    folder = rehearsal.folder / "export"
    made = export_run(rehearsal.run, folder, dtype="fp32")
    say("loading it again")
    ours = load_run(rehearsal.run, device=rehearsal.device)
    theirs = load_weights(folder, device=rehearsal.device, compute=ours.model.compute)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    if tokenizer.pieces != ours.tokenizer.pieces:
        raise CheckFailed("the exported tokenizer is another one")
    length = min(ours.model.shape.sequence, rehearsal.prepared.validation.count)
    tokens = torch.from_numpy(rehearsal.prepared.validation.array[:length].astype("int64"))[None].to(rehearsal.device)
    with torch.inference_mode():
        difference = float((ours.model(tokens) - theirs(tokens)).abs().max())
    # The same weights in the same code: any difference is another weight, not a rounding.
    if difference != 0.0:
        raise CheckFailed(f"the exported weights give other logits: they differ by up to {difference:.2e}")
    size = made.bytes
    text = f"{size / 1e6:,.1f} MB of safetensors, loaded alone: the same {length} x {tokenizer.vocab} logits bit for bit"
    return Evidence(text, {"bytes": size, "largest_difference": difference})


def evaluate(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Evaluate the best checkpoint: bits per byte where there are targets, exact match where there are answers, samples."""
    from windtunnel.rl import evaluate_trained

    assert rehearsal.run is not None
    report = evaluate_trained(
        rehearsal.run,
        prepared=rehearsal.prepared,
        device=rehearsal.device,
        progress=lambda share, what: say(f"{what} ({share:.0%})"),
    )
    rehearsal.evaluation = report
    value, text = report.validation, f"step {report.step}"
    if value is None and report.answers is None:
        raise CheckFailed("of no answer to a held-out prompt it is known whether it is right")
    if value is not None:
        if not math.isfinite(value.bits_per_byte):
            raise CheckFailed("bits per byte is not a number")
        said = f"{value.bits_per_byte:.3f} bits per byte" if report.puzzles is None else f"{value.loss:.3f} nats a cell"
        text = f"{said} at {text}"
    if report.answers is not None:
        text += f"; exact match {report.answers}" if report.tuned is None else f"; right answers {report.answers}"
    if report.puzzles is not None:
        text += f"; held-out puzzles solved exactly: {report.puzzles.exact}"
    return Evidence(text, {key: value for key, value in report.to_json().items() if key != "samples"})


def _saves_now_and_then(context: Context) -> bool:
    """Return whether the scale model takes steps without a save beside them, which a policy's does not."""
    return trains_here(context) and context.recipe.rl is None


CHECKS = (
    Stage(
        "learning",
        "the loss falls clearly below that of a model that knows nothing",
        "look at the loss in report.html; lower stages.pretrain.optimizer's rates, or check the data",
        learning,
        shows="end",
        needs=("resume",),
        applies=is_gpt,
    ),
    Stage(
        "saving",
        "checkpoints are written beside training, not in its way",
        "use a faster or local disk for --root",
        saving,
        shows="first checkpoint",
        needs=("resume",),
        applies=_saves_now_and_then,
    ),
    Stage(
        "export",
        "the exported weights alone give the same model",
        "look at the free disk and the rehearsal's folder",
        export,
        shows="end",
        needs=("resume",),
        applies=is_gpt,
    ),
    Stage(
        "evaluate",
        "the best checkpoint can be measured on held-out data",
        "look at stages.evaluate in the recipe",
        evaluate,
        shows="end",
        needs=("resume",),
    ),
)
