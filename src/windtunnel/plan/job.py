"""Every step of training a Hugging Face model, from the download to the evaluation: hours, dollars and disk, and the total.

What needs no GPU is priced twice: on the rig, whose GPUs then wait, and on a machine without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from windtunnel.model import HFShape, download_rate, hub_id, weights_folder
from windtunnel.recipe import MEGATRON, HuggingFaceModel, Recipe
from windtunnel.rig import Rig, load_catalog

from .answering import Answering, plan_answering
from .constants import HFConstants, load_hf_constants
from .cost import THESIS_TOKENS
from .hf_work import PROMPT_TOKENS, read_shape
from .judging import asked_of, judge_answers
from .rollout import EnginePlan, plan_engines
from .text import count_text, counted, dollars_text, hours_text, seconds_text
from .types import Plan

HERE = "here"
JOB_COLUMNS = ("step", "what it does", "time", "on the rig", "elsewhere", "disk")
# Most tokens of an answer, where the recipe does not say.
ANSWER_TOKENS = 512
PREDICTIONS = (1_000, 10_000)
# Dollars from which on another machine is worth the trouble.
LEAST_SAVING = 1.0
CONVERT_GBS_PER_CORE = 0.23
CONVERT_CORES = 16
CONVERT_SOURCE = "0.23 GB of fp8 a second and core (benchmarks/results/convert-cpu.json), at most 16"
# Tokens a second: of short questions and answers, and of theses, each of which has hundreds.
PREPARE_TOKENS, PREPARE_THESES = 94_000.0, 1_600_000.0
PREPARE_SOURCE = "tokens a second, measured on two busy cores (benchmarks/results/prepare-cpu.json)"
BACKTEST_SECONDS = 5.0
BACKTEST_SOURCE = "1,000 predictions on 700 days of 200 tickers took 4.9 s on two busy cores, picture and files included"
ENGINE_SOURCE = "arithmetic with the rates of vLLM on one H200, as for engines of reinforcement learning"
OWN_SOURCE = "by `windtunnel evaluate` and `predict` themselves; arithmetic, not measured"


@dataclass(frozen=True)
class Questions:
    """What an engine is asked for when a model is judged or used (see rollout.Asked)."""

    prompts: int
    answer_tokens: int
    engine_weights: str
    samples: int = 1
    prompt_tokens: int = PROMPT_TOKENS
    mean_answer: float = 0.5
    engine_tensor: int | None = None
    engine_memory: float = 0.9


@dataclass(frozen=True)
class Step:
    """One step of the whole job.

    Attributes:
        name: download, convert, prepare, a stage's, evaluate, backtest, export, predict. does: what, with numbers.
        needs_gpu: False: a machine without GPUs does it as well.
        hours, dollars: on the rig; None: it cannot be done there, or no price is known.
        elsewhere_hours, elsewhere_dollars: on the machine without GPUs; None: it needs the rig.
        disk_bytes: what it adds to the disk.
        counted: part of the total; what is used again and again is not.
        source: where the figures come from; of a stage that does not fit, what would.
        fits: False: the rig cannot do it, `does` says by how much, and it has no hours and no dollars.
    """

    name: str
    does: str
    needs_gpu: bool
    hours: float | None
    dollars: float | None
    elsewhere_hours: float | None
    elsewhere_dollars: float | None
    disk_bytes: float
    source: str
    counted: bool = True
    fits: bool = True


@dataclass(frozen=True)
class Job:
    """All steps on a rig, and the machine without GPUs that stands beside it. advice: where to download, how to bring it over."""

    recipe: str
    rig: str
    elsewhere: str
    steps: tuple[Step, ...]
    advice: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the rig can do every counted step. Where it cannot, the totals are of those that it can."""
        return all(step.fits for step in self.steps if step.counted)

    @property
    def hours(self) -> float:
        """Of all counted steps, one after the other on the rig."""
        return sum(step.hours or 0.0 for step in self._summed)

    @property
    def dollars(self) -> float | None:
        """Of all counted steps on the rig."""
        return _sum(step.dollars for step in self._summed)

    @property
    def shared_hours(self) -> float:
        """The same with what needs no GPU done elsewhere."""
        return sum(_first(step.elsewhere_hours, step.hours) or 0.0 for step in self._summed)

    @property
    def shared_dollars(self) -> float | None:
        """The same in dollars."""
        return _sum(_first(step.elsewhere_dollars, step.dollars) for step in self._summed)

    @property
    def disk_bytes(self) -> float:
        """What all counted steps leave on the disk together."""
        return sum(step.disk_bytes for step in self._summed)

    @property
    def _summed(self) -> list[Step]:
        return [step for step in self.steps if step.counted and step.fits]

    def to_json(self) -> dict[str, Any]:
        """Return stable keys: `steps`, `total`, `elsewhere`, `advice`."""
        total = {
            "fits": self.fits, "hours": self.hours, "dollars": self.dollars, "hours_elsewhere": self.shared_hours,
            "dollars_elsewhere": self.shared_dollars, "disk_bytes": self.disk_bytes,
        }  # fmt: skip
        return {"steps": [asdict(s) for s in self.steps], "total": total, "elsewhere": self.elsewhere, "advice": self.advice}

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row a step under JOB_COLUMNS, the total after those that count."""
        counted = [_row(step) for step in self.steps if step.counted]
        name = "total" if self.fits else "the others"
        dollars = dollars_text(self.dollars), dollars_text(self.shared_dollars)
        total = (name, "", hours_text(self.hours), *dollars, _size(self.disk_bytes))
        return [*counted, total, *(_row(step) for step in self.steps if not step.counted)]

    def remarks(self) -> list[tuple[str, str]]:
        """Return (label, text): where the figures come from, and the advice."""
        named = {step.name: step.source for step in self.steps if step.source}
        return [*named.items(), *(("note", text) for text in self.advice)]


def plan_job(recipe: Recipe, rig: Rig, stages: Sequence[tuple[str, Plan]]) -> Job | None:
    """Plan all steps of a recipe that tunes a Hugging Face model; None of other recipes. What does not fit has no hours.

    stages: name and plan of each stage that trains, in order.
    """
    model = recipe.model
    tunes = isinstance(model, HuggingFaceModel) and (recipe.sft is not None or recipe.rl is not None)
    if not tunes or rig.gpu is None:
        return None
    assert isinstance(model, HuggingFaceModel)
    return _Steps(recipe, model, rig, stages).job()


class _Steps:
    """The steps of one recipe on one rig."""

    def __init__(self, recipe: Recipe, model: HuggingFaceModel, rig: Rig, stages: Sequence[tuple[str, Plan]]) -> None:
        self.recipe, self.model, self.rig, self.stages = recipe, model, rig, stages
        self.shape: HFShape = read_shape(model)
        self.c: HFConstants = load_hf_constants(rig.gpu.name if rig.gpu else "")
        self.elsewhere = load_catalog().elsewhere
        self.price = self.elsewhere.price.price().middle() or 0.0
        # Fewer bytes than bf16 would take: published in fp8 or fp4, which not every engine reads.
        self.coded = self.shape.published_bytes < 2.0 * self.shape.parameters

    def job(self) -> Job:
        """Put them together."""
        trained = [self._stage(name, plan) for name, plan in self.stages]
        before = [self._download(), *([self._convert()] if self.coded else []), self._prepare()]
        predicted = [self._answers("predict", count, 1, counted=False) for count in PREDICTIONS]
        steps = (*before, *trained, self._evaluate(), *self._backtest(), self._export(), *predicted)
        where = (
            f"{self.elsewhere.name} with {self.elsewhere.cpu_cores} cores, ${self.price:.2f}/h ({self.elsewhere.price.source})"
        )
        return Job(self.recipe.name, self.rig.name, where, steps, tuple(self._advice(steps)))

    def _step(self, name: str, does: str, hours: float, disk: float, source: str, *, elsewhere: float | None = None) -> Step:
        """Return a step of so many hours on the rig, and `elsewhere` on a machine without GPUs; None: it needs the rig."""
        dollars = None if self.rig.dollars_per_hour is None else hours * self.rig.dollars_per_hour
        there = None if elsewhere is None else elsewhere * self.price
        return Step(name, does, elsewhere is None, hours, dollars, elsewhere, there, disk, source)

    def _download(self) -> Step:
        size, note = self.shape.published_bytes, self.rig.download_note
        rate = self.rig.download_gbs * 1e9
        folder = weights_folder(self.model.config)
        measured = download_rate() if self.rig.name == HERE else None
        if self.rig.name == HERE and folder is not None:
            return self._step("download", f"here already: {folder}", 0.0, 0.0, "", elsewhere=0.0)
        if measured is not None:
            rate, note = measured[0], f"{measured[0] / 1e9:.2g} GB/s measured here ({measured[1]})"
        there = size / (self.elsewhere.download_gbs * 1e9) / 3600
        source = f"its files' sizes; {note}; no GPU is needed"
        return self._step("download", f"{_size(size)} from the hub", size / rate / 3600, size, source, elsewhere=there)

    def _convert(self) -> Step:
        whole = 2.0 * self.shape.parameters
        if self.stages[0][1].layout.engine != MEGATRON:
            does = "nothing: fp8 files are read as they are"
            source = f"a bf16 copy, if wanted, is {_size(whole)} and takes {hours_text(self._converting(self.rig.cpu_cores))}"
            return self._step("convert", does, 0.0, 0.0, source, elsewhere=0.0)
        there = self._converting(self.elsewhere.cpu_cores)
        source = f"{CONVERT_SOURCE}; disk at {self.c.load_gbs:g} GB/s read and {self.c.save_gbs:g} GB/s written, assumed"
        return self._step(
            "convert", f"fp8 to bf16, {_size(whole)}", self._converting(self.rig.cpu_cores), whole, source, elsewhere=there
        )

    def _converting(self, cores: int) -> float:
        """Hours: computing, or reading and writing."""
        size = self.shape.published_bytes
        computing = size / (CONVERT_GBS_PER_CORE * 1e9 * min(cores, CONVERT_CORES))
        return max(computing, self._copying(size)) / 3600

    def _copying(self, size: float) -> float:
        """Seconds of reading so many bytes and writing the model in bf16."""
        return size / (self.c.load_gbs * 1e9) + 2.0 * self.shape.parameters / (self.c.save_gbs * 1e9)

    def _prepare(self) -> Step:
        # A stage of kind rl has prompts of its own.
        every = [plan.corpus_tokens for i, (_, plan) in enumerate(self.stages) if i == 0 or plan.method == "grpo"]
        tokens = None if None in every else sum(found or 0.0 for found in every)
        if tokens is None:
            return self._step("prepare", "the data, once they are there", 0.0, 0.0, "their size is not known yet", elsewhere=0.0)
        rate = PREPARE_THESES if self.recipe.data.corpus.kind == "theses" else PREPARE_TOKENS
        hours, source = tokens / rate / 3600, f"{rate:,.0f} {PREPARE_SOURCE}"
        return self._step("prepare", f"{count_text(tokens)} tokens", hours, 4.0 * tokens, source, elsewhere=hours)

    def _stage(self, name: str, plan: Plan) -> Step:
        if not plan.fits:
            short = plan.peak_gib > plan.limit_gib
            does = f"does not fit: {plan.peak_gib:,.1f} of {plan.limit_gib:.1f} GiB a GPU" if short else "cannot be done there"
            return _impossible(name, does, f"{'; '.join(plan.reasons)}{_least(plan)}", counted=True)
        # The model and its data are in each stage's plan, and on the disk once.
        own = max(0.0, plan.disk_gib * 2**30 - self.shape.published_bytes - 4.0 * (plan.corpus_tokens or 0.0))
        # Held-out answers and validations are in the plan's hours.
        source = f"the plan above, ±{plan.error['time']:.0%}; disk: checkpoints"
        return self._step(name, f"{counted(plan.steps, 'step')}, {count_text(plan.tokens)} tokens", plan.hours, own, source)

    def _evaluate(self) -> Step:
        return self._answers("evaluate", self.recipe.evaluation.exact_match_problems, 2, counted=True)

    def _backtest(self) -> list[Step]:
        """Predicted actions traded on prices, where the recipe asks for that: a CPU's work, of seconds."""
        if self.recipe.evaluation.backtest is None:
            return []
        does = f"{self.recipe.evaluation.exact_match_problems:,} predictions traded on daily prices"
        hours = BACKTEST_SECONDS / 3600
        return [self._step("backtest", does, hours, 0.0, BACKTEST_SOURCE, elsewhere=hours)]

    def _answers(self, name: str, prompts: int, models: int, *, counted: bool) -> Step:
        """Answers of so many models (2: the untuned one too) to as many prompts each: by what `windtunnel evaluate` uses.

        A model that it cannot hold is answered for by vLLM's engines on all GPUs.
        """
        policy = self.recipe.rl
        asked = self.recipe.sft.answers if self.recipe.sft is not None else None
        longest = policy.answer_tokens if policy is not None else asked.tokens if asked is not None else ANSWER_TOKENS
        assert self.rig.gpu is not None
        theses = self.recipe.data.corpus.kind == "theses"
        questions = Questions(max(1, prompts), longest, "bf16")
        if theses:
            questions = replace(questions, prompt_tokens=max(1, round(THESIS_TOKENS - questions.mean_answer * longest)))
        shared = self.model.weights == "fp8-experts"
        twice = "tuned and untuned, " if models > 1 else ""
        does = f"{prompts:,} answers, {twice}at most {longest:,} tokens"
        own = plan_answering(self.shape, questions, self.rig, self.c, shared=shared, scored=theses)
        if own.fits:
            starting, answering, source = self.c.process_seconds, own.seconds, _own(own, questions, models)
        else:
            eight = self.model.weights.startswith("fp8") and self.rig.gpu.fp8_tflops is not None
            questions = replace(questions, engine_weights="fp8" if eight else "bf16")
            engine = plan_engines(self.shape, questions, self.rig, self.rig.gpus, self.c)
            if not engine.fits:
                return _impossible(name, f"{does}: {questions.engine_weights} weights do not fit", ENGINE_SOURCE, counted=counted)
            starting, answering, source = self.c.engine_start_seconds, engine.seconds, _engines(engine, questions, models)
        seconds = models * (starting + self.shape.published_bytes / (self.c.load_gbs * 1e9) + answering)
        if policy is not None and counted:
            about = replace(asked_of(self.recipe), generated=False)  # an evaluation times kernels
            judging = judge_answers(policy, self.rig, 1, models * prompts, about)
            seconds, source = (
                seconds + judging.seconds,
                f"{source}; judging {hours_text(judging.seconds / 3600)}: {judging.source}",
            )
        step = self._step(name, does, seconds / 3600, 0.0, source)
        return step if counted else Step(**{**asdict(step), "counted": False})

    def _export(self) -> Step:
        whole = 2.0 * self.shape.parameters
        trained = f"adapter merged, {_size(whole)} in bf16" if self.model.adapter is not None else f"{_size(whole)} in bf16"
        hours = self._copying(self.shape.published_bytes) / 3600
        source = f"disk at {self.c.load_gbs:g} GB/s read and {self.c.save_gbs:g} GB/s written, assumed; no GPU is needed"
        if self.model.adapter is not None:
            source += "; the adapter alone is megabytes, and serves beside the model as it was downloaded"
        return self._step("export", trained, hours, whole, source, elsewhere=hours)

    def _advice(self, steps: Sequence[Step]) -> list[str]:
        """Say where to download and how it comes to the rig, where that saves something."""
        free, whole = self.rig.disk_free_gib, sum(step.disk_bytes for step in steps if step.counted)
        found = []
        if free is not None and free * 2**30 < whole:
            found.append(f"all steps leave {_size(whole)} on the disk, {_size(free * 2**30)} are free on {self.rig.name}")
        saved = sum((s.dollars or 0.0) - (s.elsewhere_dollars or 0.0) for s in steps if s.counted and not s.needs_gpu)
        if saved < LEAST_SAVING:
            return found
        name = hub_id(self.model.config) or self.model.config
        prepared = next(
            (f", windtunnel train RECIPE --stage {s.name}" for s in self.recipe.stages.values() if s.kind == "prepare"), ""
        )
        return [
            *found,
            f"elsewhere is {self.elsewhere.name}, ${self.price:.2f}/h, or a login node; there first: windtunnel fetch {name} --to"
            f" FOLDER{prepared}; that is ${saved:,.2f} less, and no GPU waits",
            "bring it over by a disk or file system that both mount, or an object store beside the rig (copying to the rig at"
            f" {self.rig.download_gbs:g} GB/s takes as long as downloading there); then windtunnel fetch {name} --to FOLDER"
            " --verify",
        ]


def _own(own: Answering, questions: Questions, models: int) -> str:
    rate = questions.prompts * questions.mean_answer * questions.answer_tokens / max(own.seconds, 1e-9)
    gpus = "one GPU" if own.ranks == 1 else f"{own.ranks} GPUs that share the experts in fp8"
    return (
        f"on {gpus}, {own.at_once} at once: {rate:,.0f} tokens/s, answers half as long as the most; {OWN_SOURCE}; loading"
        f" {'twice' if models > 1 else 'once'}"
    )


def _engines(engine: EnginePlan, questions: Questions, models: int) -> str:
    engines = engine.gpus // engine.tensor
    tokens = questions.prompts * questions.mean_answer * questions.answer_tokens
    rate = tokens / max(engine.seconds, 1e-9)
    gpus = f"{engine.tensor} GPU{'s' if engine.tensor > 1 else ''}"
    many = f"{engines} engines of {gpus}" if engines > 1 else f"one engine on {gpus}"
    return (
        "`windtunnel evaluate` itself cannot hold the model; exported, behind vLLM:"
        f" {many}, {questions.engine_weights} weights: {rate:,.0f} tokens/s, answers half as long as the most; {ENGINE_SOURCE};"
        f" starting and loading {'twice' if models > 1 else 'once'}"
    )


def _impossible(name: str, does: str, source: str, *, counted: bool) -> Step:
    return Step(name, does, True, None, None, None, None, 0.0, source, counted, fits=False)


def _least(plan: Plan) -> str:
    """Return the least other rig, or the least change, with which a stage that does not fit would."""
    rigs = [option for option in plan.alternatives if "--rig " in option.change]
    least = next((option for option in (*rigs, *plan.alternatives)), None)
    return "" if least is None else f"; what fits: {least.change} ({least.why})"


def _row(step: Step) -> tuple[str, ...]:
    time = "" if step.hours is None else _time(step.hours) if step.hours else "-"
    there = "" if step.elsewhere_dollars is None else dollars_text(step.elsewhere_dollars)
    on_rig = "" if step.hours is None else dollars_text(step.dollars)
    return (step.name, step.does, time, on_rig, there, _size(step.disk_bytes) if step.disk_bytes >= 1e6 else "")


def _time(hours: float) -> str:
    return hours_text(hours) if hours * 60 >= 1 else seconds_text(hours * 3600)


def _size(size: float) -> str:
    """Write bytes in decimal units, as hubs and disks do."""
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if size >= unit:
            return f"{size / unit:,.3g} {name}"
    return f"{size / 1e6:,.0f} MB"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _sum(values: Any) -> float | None:
    found = list(values)
    return None if None in found else sum(found)
