"""Weights on their way from learner to engine, on the scale model: two processes, and the functions that training uses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from windtunnel.recipe import HuggingFaceModel

from . import model_causal
from .context import Context
from .model_learning import one_thread
from .reward_plugin import is_rl
from .sync_bench import ANSWERS, Bench, open_bench, open_engines
from .sync_faults import damaged_are_refused, half_written_is_passed_over, stale_is_noticed
from .sync_tensors import compare_tensors, unmoved
from .types import Check, CheckFailed, Evidence, Say

if TYPE_CHECKING:
    from windtunnel.rl import Mismatch


@dataclass(frozen=True)
class Round:
    """What one precision showed: how learner and engine agree on the canary after a sync and before it, and on answers."""

    tensors: int
    trained: int
    after: Mismatch
    before: float
    sampled: Mismatch


@one_thread()
def weight_sync(context: Context, say: Say) -> Evidence:
    """In fp32, where next to nothing may differ, and in bf16, as learners and engines compute."""
    import torch

    from windtunnel.rl import EngineFailed

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    # Weights packed in fp8 are only held beside bf16.
    precisions = (torch.bfloat16,) if model.weights == "fp8" else (torch.float32, torch.bfloat16)
    rounds = {}
    try:
        with open_engines(precisions) as engines:
            for dtype, engine in zip(precisions, engines, strict=True):
                with open_bench(context, dtype, engine, say) as bench:
                    rounds[str(dtype).removeprefix("torch.")] = _round(bench)
    except EngineFailed as error:
        raise CheckFailed(str(error), "look at free memory; the engine here is transformers on the CPU") from None
    first = next(iter(rounds.values()))
    agreed = ", ".join(f"{r.after.largest:.0e} in {name} ({r.before:.2g} on average before it)" for name, r in rounds.items())
    text = (
        f"{first.tensors} tensors reach another process{', the adapter merged' if model.adapter else ''}, the {first.trained} "
        f"trained ones anew after more steps; after a sync log-probabilities differ by at most {agreed}, of {ANSWERS} sampled "
        f"answers by {max(r.sampled.largest for r in rounds.values()):.0e}; half-written, damaged and stale versions are refused"
    )
    return Evidence(text, {name: asdict(r) for name, r in rounds.items()}, _warnings(context))


def _round(bench: Bench) -> Round:
    """Publish, load, train, see that the engine is stale, publish, load, agree again."""
    import torch

    files = bench.folder / "first.safetensors", bench.folder / "second.safetensors"
    first = bench.publish(1)
    bench.load(first, 1)
    tensors = compare_tensors(bench.job, bench.engine, files[0], 1, bench.dtype)
    old = bench.engine.score(bench.canary)
    before = bench.train_away()
    second = bench.publish(2)
    bench.say("versions that must be refused")
    half_written_is_passed_over(bench.engine, bench.cut_off, 1)
    damaged_are_refused(bench.engine, second, bench.folder / "damaged", 2)
    stale_is_noticed(bench.engine, first, old.version, 2)
    if not torch.equal(bench.engine.score(bench.canary).log_probabilities, old.log_probabilities):
        raise CheckFailed("an engine that refused a publication no longer answers as before")
    receipt = bench.load(second, 2)
    compare_tensors(bench.job, bench.engine, files[1], 2, bench.dtype)
    trained, still = unmoved(bench.job, *files)
    if still:
        raise CheckFailed(f"{', '.join(still[:3])} did not change in the engine though the learner trained it")
    if receipt.canary is None:
        raise CheckFailed("the engine scored no canary: it would not notice that it computes something else")
    return Round(tensors, trained, receipt.canary, before, bench.sampled(2))


def _warnings(context: Context) -> list[str]:
    from transformers import AutoConfig

    rl = context.recipe.rl
    assert rl is not None
    warnings = []
    config = AutoConfig.for_model(**model_causal.scale_config(context)).get_text_config().to_dict()
    drops = {key: value for key, value in config.items() if "dropout" in key and isinstance(value, float) and value > 0}
    if drops:
        named = " and ".join(f"{key} is {value:g}" for key, value in sorted(drops.items()))
        warnings.append(
            f"{named}: learners drop activations where engines do not, so that their probabilities differ at every step; "
            f"set it to 0 in the model's config.json"
        )
    if rl.engine_weights == "fp8":
        warnings.append("stages.rl.engine_weights is fp8: how far that takes the engine from the learner shows on the GPU only")
    return warnings


CHECKS = (
    Check(
        "weight-sync", "every weight reaches the engine, which computes what the learner does; no stale or broken version does",
        "report this with the model's config.json: the package or transformers is at fault", weight_sync,
        shows="first steps", needs=("recipe", "torch", "model"), applies=is_rl, limit=300.0,
    ),
)  # fmt: skip
