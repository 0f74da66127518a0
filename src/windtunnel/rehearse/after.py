"""After training: weights that load elsewhere, and what the model is worth."""

from __future__ import annotations

import math

from windtunnel.check import CheckFailed, Evidence, Say

from .state import Rehearsal, Stage


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
    if difference != 0.0:
        raise CheckFailed(f"the exported weights give other logits: they differ by up to {difference:.2e}")
    size = made.bytes
    text = f"{size / 1e6:,.1f} MB of safetensors, loaded alone: the same {length} x {tokenizer.vocab} logits bit for bit"
    return Evidence(text, {"bytes": size, "largest_difference": difference})


def evaluate(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Bits per byte, exact match where there are answers, samples."""
    from windtunnel.evaluate import evaluate_run

    assert rehearsal.run is not None
    report = evaluate_run(
        rehearsal.run,
        prepared=rehearsal.prepared,
        device=rehearsal.device,
        progress=lambda share, what: say(f"{what} ({share:.0%})"),
    )
    rehearsal.evaluation = report
    if not math.isfinite(report.validation.bits_per_byte):
        raise CheckFailed("bits per byte is not a number")
    text = f"{report.validation.bits_per_byte:.3f} bits per byte at step {report.step}"
    if report.puzzles is not None:  # no text
        text = f"{report.validation.loss:.3f} nats a cell at step {report.step}"
    if report.exact_match is not None:
        text += f"; exact match {report.exact_match}"
    if report.puzzles is not None:
        text += f"; held-out puzzles solved exactly: {report.puzzles.exact}"
    return Evidence(text, {key: value for key, value in report.to_json().items() if key != "samples"})


CHECKS = (
    Stage(
        "export",
        "the exported weights alone give the same model",
        "look at the free disk and the rehearsal's folder",
        export,
        shows="end",
        needs=("resume",),
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
