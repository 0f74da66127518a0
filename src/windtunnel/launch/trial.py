"""A trial: a few full-size steps of a recipe and layout on this machine, in processes of their own, to see what they take."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.plan import Layout
from windtunnel.recipe import Recipe, UserError
from windtunnel.rig import detect_rig

from .forking import Forker
from .processes import ALLOCATOR, run_child, stage_of, watch
from .rank import open_store, rank_environment

LOG_LINES = 60  # of a failed trial's output that are kept


@dataclass(frozen=True)
class Phase:
    """One phase of a step, over its micro-batches: seconds, most GiB allocated during it and GiB allocated at its end."""

    seconds: float
    peak_gib: float
    end_gib: float


@dataclass(frozen=True)
class Trial:
    """What was measured; GiB are 2^30 bytes of the rank that had most. On a CPU memory is the process's resident set.

    Attributes:
        failure: why there is no measurement, or None. out_of_memory: because memory ran out.
        log: the end of what a failed trial's processes printed.
        stage: what the trial was doing last.
        step_seconds: median after the warm-up; all_step_seconds: of each such step.
        tokens_per_second: of all ranks.
        losses, gradient_norms: of every step from the first on; nats.
        reserved_gib: most that PyTorch's allocator held; allocated_gib: most of it in use.
        static_gib: in use between two steps; built_gib: before the first.
        context_gib: used on the device outside the allocator.
        phases: 'forward', 'backward' and 'optimizer' of one more step, not recorded, that waits for the device after each.
        first_step_seconds: with its compilation; build_seconds: model and optimizer; wall_seconds: everything.
        parameters, trained: of the whole model, and those of them that are trained.
        layout: as it was run.
    """

    layout: dict[str, Any]
    failure: str | None = None
    out_of_memory: bool = False
    log: str = ""
    stage: str = ""
    step_seconds: float | None = None
    steps: int = 0
    all_step_seconds: tuple[float, ...] = ()
    tokens_per_second: float | None = None
    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    reserved_gib: float | None = None
    allocated_gib: float | None = None
    static_gib: float | None = None
    built_gib: float | None = None
    context_gib: float | None = None
    device_gib: float | None = None
    allocation_retries: int = 0
    phases: dict[str, Phase] = field(default_factory=dict)
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    wall_seconds: float = 0.0
    parameters: int | None = None
    trained: int | None = None
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def try_steps(
    recipe: Recipe,
    layout: Layout,
    *,
    steps: int = 10,
    warm_up: int = 3,
    vocab: int | None = None,
    seconds: float = 300.0,
    timeout: float = 1200.0,
    say: Callable[[str], None] | None = None,
    forker: Forker | None = None,
) -> Trial:
    """Run `steps` full-size steps on random tokens in fresh processes, one a rank, and measure time and memory.

    Of reinforcement learning it is the learners' update, on made-up answers as long as they may be; nothing generates or judges.

    Args:
        recipe: its depth must be a number.
        layout: of a plan for this machine.
        steps: timed steps; at least one.
        warm_up: steps before them, which compile and allocate; at least one.
        vocab: tokens of a GPT's vocabulary, as the plan has it.
        seconds: begin no further timed step after so long, once there are three.
        timeout: seconds after which the processes are killed, whatever they are doing.
        say: told each stage.
        forker: starts the processes, where they need no GPU; None: each imports torch anew, as those of a run do.

    Returns:
        The measurement; also when memory ran out, a process crashed or hung: see Trial.failure.

    Raises:
        UserError: the layout needs more GPUs than there are here, or another engine.
    """
    assert steps >= 1
    assert warm_up >= 1
    _check(recipe, layout)
    request = {
        "recipe": recipe.model_dump(mode="json"),
        "layout": layout.as_dict(),
        "vocab": vocab,
        "config": _config(recipe),
        "steps": steps,
        "warm_up": warm_up,
        "seconds": seconds,
    }
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="windtunnel-trial-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        trouble = _run(folder, layout.ranks, timeout, say or (lambda _: None), forker)
        outcomes = _outcomes(folder, layout.ranks)
        return _trial(layout, folder, outcomes, trouble, time.monotonic() - began)


def _check(recipe: Recipe, layout: Layout) -> None:
    if layout.engine != "windtunnel":
        raise UserError(
            f"this layout is for the engine {layout.engine}, which a trial does not start",
            "--set layout.tensor=1 --set layout.pipeline=1 --set layout.expert=1",
        )
    if layout.offload != "none":
        raise UserError("a trial cannot keep optimizer states in CPU memory yet", "--set layout.offload=none")
    # Recursive models keep weights whole, since every block is used many times a step.
    again, shards = not recipe.recomputes and layout.recompute != "none", ("optimizer", "full")[: 1 if recipe.supervision else 2]
    if recipe.model.kind == "gpt" and (layout.shard not in shards or again):
        raise UserError(
            f"a GPT is trained with {' or '.join(shards)} sharded and nothing recomputed, not shard {layout.shard}, "
            f"recompute {layout.recompute}",
            "--set layout.shard=optimizer --set layout.recompute=none",
        )
    # Layouts for CPUs can be tried anywhere: ranks are then processes.
    if layout.device == "cuda":
        have = detect_rig(measure_cpu=False).gpus
        if layout.ranks > have:
            raise UserError(f"the layout has {layout.ranks} ranks, and this machine {have or 'no'} GPUs", f"plan for {have or 1}")


def _config(recipe: Recipe) -> dict[str, Any] | None:
    if recipe.model.kind == "gpt":
        return None
    from windtunnel.model import hf_shape

    return hf_shape(recipe.model.config).raw


def _run(folder: Path, ranks: int, timeout: float, say: Callable[[str], None], forker: Forker | None) -> str | None:
    """Start the ranks and wait; return why they were stopped, or None where they ended by themselves."""
    module = ["-m", "windtunnel.launch.trial_worker", str(folder)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--log-dir", str(folder / "ranks")]
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        **ALLOCATOR,
        **os.environ,
    }
    if forker is not None:
        # By hand what torchrun does: forked processes start in milliseconds, torchrun takes seconds.
        store = open_store() if ranks > 1 else None
        whole = [environment if store is None else environment | rank_environment(i, ranks, store.port) for i in range(ranks)]
        started = [forker.start(module, each, folder / "log") for each in whole]
        return watch(started, folder / "stage-0", timeout, say)
    arguments = [*(torchrun if ranks > 1 else []), *module]
    return run_child(arguments, environment, folder / "log", folder / "stage-0", timeout, say)[1]


def _outcomes(folder: Path, ranks: int) -> list[dict[str, Any]]:
    paths = (folder / f"rank-{rank}.json" for rank in range(ranks))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _trial(layout: Layout, folder: Path, outcomes: list[dict[str, Any]], trouble: str | None, wall: float) -> Trial:
    for outcome in outcomes:
        if "refused" in outcome:
            raise UserError(*outcome["refused"])
    stage, spread = stage_of(folder / "stage-0"), layout.as_dict()
    failed = [outcome for outcome in outcomes if "failure" in outcome]
    if failed or trouble or len(outcomes) < layout.ranks:
        # Where memory ran out on one rank, others may have failed for want of it.
        worst = max(failed, key=lambda outcome: outcome["out_of_memory"], default={})
        why = worst.get("failure") or trouble or f"a process ended without a word, while {stage or 'starting'}"
        return Trial(
            spread, why, worst.get("out_of_memory", False), _last_words(folder), stage, reserved_gib=worst.get("reserved_gib"),
            allocated_gib=worst.get("allocated_gib"), wall_seconds=wall,
        )  # fmt: skip
    return _merged(layout, outcomes, stage, wall)


def _last_words(folder: Path) -> str:
    return "\n".join((folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:])


def _merged(layout: Layout, outcomes: list[dict[str, Any]], stage: str, wall: float) -> Trial:
    # Losses are those of all ranks, whose steps end together; memory differs, and the largest counts.
    first = next(outcome for outcome in outcomes if outcome["rank"] == 0)

    def most(key: str) -> Any:
        values = [outcome[key] for outcome in outcomes if outcome.get(key) is not None]
        return max(values) if values else None

    phases = {
        name: Phase(*(max(outcome["phases"][name][key] for outcome in outcomes) for key in ("seconds", "peak_gib", "end_gib")))
        for name in first["phases"]
    }
    return Trial(
        layout.as_dict(),
        stage=stage,
        step_seconds=first["step_seconds"],
        steps=len(first["all_step_seconds"]),
        all_step_seconds=tuple(first["all_step_seconds"]),
        tokens_per_second=layout.batch_tokens / first["step_seconds"],
        losses=tuple(first["losses"]),
        gradient_norms=tuple(first["gradient_norms"]),
        phases=phases,
        wall_seconds=wall,
        allocation_retries=most("allocation_retries") or 0,
        parameters=first["parameters"],
        trained=first["trained"],
        device=first["device"],
        versions=first["versions"],
        **{
            key: most(key)
            for key in (
                "reserved_gib", "allocated_gib", "static_gib", "built_gib", "context_gib", "device_gib", "build_seconds",
                "first_step_seconds",
            )
        },
    )  # fmt: skip
