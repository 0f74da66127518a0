"""Which layouts a Hugging Face model may have on a rig: those that divide evenly and that an engine runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from windtunnel.recipe import MEGATRON, OWN_ENGINE, Layout, LayoutChoice, UserError
from windtunnel.rig import Rig

from . import engine_fsdp, engine_megatron
from .constants import HFConstants
from .hf_steptime import Passes, step_seconds
from .hf_work import Totals, Workload, recording_pays
from .memory import Memory
from .search import Candidate, Found, Promising, search
from .steptime import StepTime

LARGEST_MICRO = 64
# Along a pipeline and with split matrices small micro-batches do: what is saved is the bubble and memory.
SPLIT_MICRO = (1, 2, 4, 8)


@dataclass(frozen=True)
class HFTraining:
    """Optimizer steps on a Hugging Face model, as the layout search sees them (see search.Trainable)."""

    sums: Totals
    c: HFConstants

    preferred_first = False

    @property
    def step_tokens(self) -> int | None:
        """Tokens of a step, whatever the layout; None: those of the layout, which may raise the batch."""
        return self.sums.work.batch_tokens if self.sums.work.uneven else None

    @cached_property
    def passes(self) -> Passes:
        """Of all layouts that are asked for."""
        return Passes(self.sums, self.c)

    def layouts(self, rig: Rig, ranks: int, promising: Promising = lambda layout: True) -> Iterator[Layout]:
        """Yield every layout worth computing, cheapest kinds first; only those that the recipe's choice allows.

        Raises:
            UserError: the recipe's layout contradicts itself, the model or the rig.
        """
        work = self.sums.work
        check_choice(work, rig, ranks)
        if not _is_split(work) and work.precision == "bf16":
            yield from _own(work, rig, ranks, promising)
        if not work.shares_experts and work.recorded is not True and (not work.own_engine or _is_split(work)):
            yield from _megatron(work, rig, ranks, promising)

    def least_gib(self, layout: Layout) -> float:
        """Return what a rank holds of weights, states and copies: all that does not grow with the tokens of a micro-batch."""
        # Activations, logits and masks go with the tokens: without any, what is left is what the kind holds in any case.
        empty = replace(layout, micro_batch=0, accumulation=1, recompute="none")
        return self.memory(empty).least_gib

    def memory(self, layout: Layout) -> Memory:
        """Return a rank's memory over a step."""
        return (engine_megatron if layout.engine == MEGATRON else engine_fsdp).memory(self.sums, layout, self.c)

    def time(self, layout: Layout, rig: Rig) -> StepTime:
        """Return a step's seconds."""
        return step_seconds(self.sums, layout, rig, self.c, self.passes)

    def host_gib(self, layout: Layout, rig: Rig) -> float:
        """Return the GiB of CPU memory that optimizer states take on a node."""
        return engine_megatron.host_gib(self.sums, layout, rig.gpus_per_node)

    def limit_gib(self, rig: Rig) -> float:
        """Return the GiB of a GPU that one rank may use."""
        return rig.gpu.memory_gib * self.c.usable_share if rig.gpu else 0.0

    def search(self, rig: Rig, ranks: int, less_gib: float = 0.0) -> Found:
        """Choose among all layouts (see search.search).

        Raises:
            UserError: the recipe's layout contradicts itself, the model or the rig; or no engine runs it.
        """
        found = search(self, rig, ranks, less_gib)
        if found is not None:
            return replace(found, best=self._with_kept_blocks(found.best, rig))
        work = self.sums.work
        keys = ", ".join(f"layout.{key}={value}" for key, value in work.choice.model_dump().items() if value is not None)
        raise UserError(
            f"no engine runs {work.shape.name} with {keys or 'any layout'} and {work.stage}'s keys on {rig.name}",
            "more GPUs, or leave layout's keys null and let the plan search",
        )

    def _with_kept_blocks(self, best: Candidate, rig: Rig) -> Candidate:
        """Return a layout that recomputes blocks with as many of the last ones kept instead as do not raise its peak.

        Where all weights are trained the peak is at the end of the backward pass, when all gradients exist; at its beginning
        there is room. With several micro-batches there is none, for the gradients of the earlier ones exist by then.
        """
        layout = best.layout
        alone = layout.ranks == 1 and layout.accumulation == 1 and layout.engine == OWN_ENGINE and not layout.recorded
        if layout.recompute != "block" or not alone or not layout.compile or self.sums.work.shares_experts:
            return best
        most = self.sums.work.shape.layers - 1
        asked = self.sums.work.choice.kept_blocks
        for kept in range(most if asked is None else min(asked, most), 0, -1):
            fuller = replace(layout, kept_blocks=kept)
            memory = self.memory(fuller)
            if memory.peak_gib <= best.peak_gib:
                return replace(best, layout=fuller, memory=memory, time=self.time(fuller, rig))
        return best


def check_choice(work: Workload, rig: Rig, ranks: int) -> None:
    """Refuse what the recipe asks for where it contradicts itself, the model or the rig.

    Raises:
        UserError: names the key, what it conflicts with, and a value that works.
    """
    choice, shape = work.choice, work.shape
    if rig.gpu is None:
        raise UserError(
            f"rig {rig.name} has no GPU; Hugging Face models are planned for GPUs",
            "plan for a rig with GPUs, for example --on 8xH100 or --on g5.xlarge",
        )
    _check_division(choice, shape.layers, ranks)
    _check_experts(work, ranks)
    _check_tensor(work, rig, ranks)
    _check_offload(work)
    if _is_split(work) and choice.shard == "full":
        raise UserError(
            "layout.shard: full, with tensor, expert or pipeline parallelism: Megatron-Bridge shards optimizer states only",
            "--set layout.shard=optimizer",
        )
    if work.recorded is True:
        _check_recorded(work, ranks)
    if work.precision == "fp8":
        _check_fp8(work, rig)
    if work.weights in ("fp8", "fp8-experts") and shape.family == "gpt_oss":
        raise UserError(
            f"model.weights: {work.weights} experts cannot be made of {shape.name}'s, which have biases",
            "--set model.weights=bf16",
        )


def _is_split(work: Workload) -> bool:
    """Whether the recipe itself asks for a layout that only Megatron-Bridge runs; of shared experts our own engine runs it."""
    choice = work.choice
    sizes = (choice.tensor, choice.pipeline, None if work.shares_experts else choice.expert)
    return any((size or 1) > 1 for size in sizes) or choice.offload == "optimizer"


def _check_division(choice: LayoutChoice, layers: int, ranks: int) -> None:
    tensor, pipeline = choice.tensor or 1, choice.pipeline or 1
    if ranks % (tensor * pipeline):
        product = f"layout.tensor {tensor} x layout.pipeline {pipeline} = {tensor * pipeline}"
        raise UserError(
            f"{product} does not divide the {ranks} GPUs", _divisors("layout.tensor", ranks // math.gcd(ranks, pipeline), tensor)
        )
    if pipeline > layers:
        raise UserError(f"layout.pipeline: {pipeline} stages for {layers} layers", f"--set layout.pipeline={min(layers, ranks)}")


def _check_experts(work: Workload, ranks: int) -> None:
    expert, shape = work.choice.expert or 1, work.shape
    if work.shares_experts and shape.experts is None:
        raise UserError(
            f"model.weights: fp8-experts, and {shape.name} is a dense model without experts", "--set model.weights=fp8"
        )
    if work.shares_experts and work.precision == "fp8":
        raise UserError(
            f"{work.stage}.precision: fp8 with model.weights: fp8-experts, which are computed with in bf16",
            f"--set {work.stage}.precision=bf16",
        )
    if expert == 1:
        return
    if shape.experts is None:
        raise UserError(f"layout.expert: {expert}, and {shape.name} is a dense model without experts", "--set layout.expert=1")
    count = shape.experts.count
    if count % expert:
        near = max(n for n in range(1, expert + 1) if count % n == 0)
        raise UserError(
            f"layout.expert: {expert} does not divide the {count} experts of {shape.name}", f"--set layout.expert={near}"
        )
    pipeline = work.choice.pipeline or 1
    if ranks // pipeline % expert:
        near = math.gcd(expert, ranks // pipeline)
        raise UserError(
            f"layout.expert: {expert} does not divide the {ranks // pipeline} GPUs of a pipeline stage",
            f"--set layout.expert={near}",
        )


def _check_tensor(work: Workload, rig: Rig, ranks: int) -> None:
    tensor, shape = work.choice.tensor or 1, work.shape
    if tensor == 1:
        return
    near = max(n for n in range(1, min(tensor, rig.gpus_per_node) + 1) if shape.heads % n == 0 and ranks % n == 0)
    if shape.heads % tensor:
        raise UserError(
            f"layout.tensor: {tensor} does not divide the {shape.heads} heads of {shape.name}", f"--set layout.tensor={near}"
        )
    if tensor > rig.gpus_per_node:
        raise UserError(
            f"layout.tensor: {tensor} ranks share each matrix, and a node of {rig.name} has {rig.gpus_per_node} GPUs:"
            " between nodes that exchange would take most of the time",
            f"--set layout.tensor={near}",
        )


def _check_offload(work: Workload) -> None:
    choice = work.choice
    if choice.offload == "optimizer" and choice.shard == "none":
        raise UserError(
            "layout.offload: optimizer with layout.shard: none: every rank would keep the same states in CPU memory",
            "--set layout.shard=optimizer",
        )
    if choice.offload == "optimizer" and work.adapter is not None:
        raise UserError(
            "layout.offload: optimizer, and only an adapter is trained: its states are small, and nothing would be saved",
            "--set layout.offload=none",
        )
    if choice.offload == "optimizer" and not work.master:
        raise UserError(
            f"layout.offload: optimizer with {work.stage}.master: false: weights updated in place need their states beside them",
            f"--set {work.stage}.master=true",
        )


def _check_fp8(work: Workload, rig: Rig) -> None:
    if work.choice.shard == "full":
        raise UserError(
            f"layout.shard: full, with {work.stage}.precision fp8: products in fp8 are Megatron-Bridge's, "
            "which shards optimizer states only",
            f"--set layout.shard=optimizer, or --set {work.stage}.precision=bf16",
        )
    assert rig.gpu is not None
    if rig.gpu.capability < (8, 9) or rig.gpu.fp8_tflops is None:
        raise UserError(
            f"{work.stage}.precision: fp8 needs a GPU of capability 8.9 or later; rig {rig.name} has {rig.gpu.name}",
            f"--set {work.stage}.precision=bf16",
        )


def _check_recorded(work: Workload, ranks: int) -> None:
    """Refuse what no recording can hold. Raises UserError."""
    launched = f"--set {work.stage}.graphs=false"
    if _is_split(work) or work.precision == "fp8":
        raise UserError(f"{work.stage}.graphs: true, for a layout or a precision that only Megatron-Bridge runs", launched)
    if work.shares_experts:
        raise UserError(f"{work.stage}.graphs: true, and tokens that travel to shared experts cannot be recorded", launched)
    if ranks > 1 and work.choice.shard not in (None, "none"):
        raise UserError(
            f"{work.stage}.graphs: true with layout.shard: {work.choice.shard}: passes that gather weights from other ranks are"
            " not recorded",
            f"--set layout.shard=none, or {launched}",
        )


def share_of(work: Workload, data: int) -> int:
    """Sequences a step for each data-parallel rank: the batch in whole sequences, the same for all."""
    return math.ceil(max(1, work.batch_tokens // work.sequence) / data)


def micro_batches(work: Workload, share: int, data: int) -> list[int]:
    """Micro-batches that a rank's share can be taken in, the smallest first: the recipe's, or all up to LARGEST_MICRO.

    Raises:
        UserError: the recipe's does not divide the share where it has to, or is more.
    """
    fitting = even_micro_batches(work, share, LARGEST_MICRO)
    given = work.micro_batch
    if given is None:
        return fitting
    if given > share or (share % given and not work.uneven):
        near = max(n for n in fitting if n <= given)
        does = "is more than" if given > share else "does not divide"
        batch = f"{share} sequences of {work.sequence:,} that each of {data} data-parallel ranks does a step"
        raise UserError(f"{work.stage}.micro_batch: {given} {does} the {batch}", f"--set {work.stage}.micro_batch={near}")
    return [given]


def even_micro_batches(work: Workload, share: int, most: int) -> list[int]:
    """Return sizes of micro-batches up to `most`: those that divide the share, or of each number of micro-batches the least."""
    sizes = range(1, min(share, most) + 1)
    # Fine-tuning takes whole micro-batches of its data: a size that does not divide would make the batch another one.
    if not work.uneven:
        return [n for n in sizes if share % n == 0]
    return [n for n in sizes if n == -(-share // -(-share // n))]


def _own(work: Workload, rig: Rig, ranks: int, promising: Promising) -> Iterator[Layout]:
    """FSDP2 over all ranks; frozen experts shared out by `expert` of them."""
    share = share_of(work, ranks)
    shards: list[str] = ["full"] if ranks == 1 else ["full", "optimizer", "none"]
    ways = [work.recorded is True]
    if work.recorded == "auto" and recording_pays(work, rig):
        ways = [True, False]  # launched where there is no room for a recording
    groups = [1]
    if work.shares_experts:
        groups = [work.choice.expert] if work.choice.expert else _expert_groups(work, ranks)
    micros = micro_batches(work, share, ranks)
    chosen = [work.choice.shard] if work.choice.shard else shards
    for recorded, expert, shard in itertools.product(ways, groups, chosen):
        if recorded and ranks > 1 and shard != "none":
            continue  # a recording cannot hold the gathering of weights from other ranks
        # One layout speaks for its kind: the search asks of it alone whether the kind can fit.
        first = Layout(
            ranks, micros[0], -(-share // micros[0]), work.sequence, work.precision, work.compile, "cuda",
            shard=shard, expert=expert, engine=OWN_ENGINE, recorded=recorded,
        )  # fmt: skip
        if promising(first):
            yield from _of_kind(first, micros, share, work.choice)


def _megatron(work: Workload, rig: Rig, ranks: int, promising: Promising) -> Iterator[Layout]:
    """Tensor x expert x pipeline x data."""
    choice, shape = work.choice, work.shape
    # Its distributed optimizer shards states only; who asks for all is asking for our own engine.
    if choice.shard == "full":
        return
    # What no other engine runs needs no second GPU.
    forced = _is_split(work) or work.precision == "fp8"
    # Matrices are split within a node: between nodes their sums, several a layer, would be what a step waits for.
    tensors = [choice.tensor] if choice.tensor else [n for n in (1, 2, 4, 8) if n <= rig.gpus_per_node and shape.heads % n == 0]
    for tensor in tensors:
        for pipeline in [choice.pipeline] if choice.pipeline else _stages(ranks, tensor, shape.layers):
            if ranks % (tensor * pipeline):
                continue
            for expert in [choice.expert] if choice.expert else _expert_groups(work, ranks // pipeline):
                # With nothing split it is a layout that the own engine runs, and that was measured there.
                if ranks // pipeline % expert or (tensor * pipeline * expert == 1 and not forced):
                    continue
                yield from _of_split(work, ranks, tensor, expert, pipeline, promising)


def _of_split(work: Workload, ranks: int, tensor: int, expert: int, pipeline: int, promising: Promising) -> Iterator[Layout]:
    data = ranks // (tensor * pipeline)
    share = share_of(work, data)
    possible = micro_batches(work, share, data)
    micros = possible if work.micro_batch else [n for n in SPLIT_MICRO if n in possible]
    first = Layout(
        ranks, micros[0], -(-share // micros[0]), work.sequence, work.precision, work.compile, "cuda",
        shard=work.choice.shard or "optimizer", tensor=tensor, expert=expert, pipeline=pipeline,
        offload=work.choice.offload or "none", engine=MEGATRON,
    )  # fmt: skip
    if promising(first):
        yield from _of_kind(first, micros, share, work.choice)


def _of_kind(first: Layout, micros: list[int], share: int, choice: LayoutChoice) -> Iterator[Layout]:
    """Yield layouts that differ by micro-batch and recomputation alone."""
    for micro in micros:
        for again in _recompute(choice):
            yield replace(first, micro_batch=micro, accumulation=-(-share // micro), recompute=again)


def _recompute(choice: LayoutChoice) -> list[str]:
    return [choice.recompute] if choice.recompute else ["none", "block"]


def _stages(ranks: int, tensor: int, layers: int) -> list[int]:
    """Numbers of pipeline stages: few enough that each has two layers or more, and even enough that none has twice another's."""
    found = []
    for stages in range(1, ranks // tensor + 1):
        if ranks % (tensor * stages) == 0 and (stages == 1 or layers / stages >= 2 or stages == layers):
            found.append(stages)
    return found


def _expert_groups(work: Workload, ranks: int) -> list[int]:
    """Sizes of expert-parallel groups: powers of two that divide experts and ranks."""
    if work.shape.experts is None:
        return [1]
    count = work.shape.experts.count
    return [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count % n == 0 and ranks % n == 0]


def _divisors(key: str, number: int, asked: int) -> str:
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    others = f", or one of {divisors[:8]}" if len(divisors) > 1 else ""
    return f"--set {key}={max(n for n in divisors if n <= max(1, asked))}{others}"
