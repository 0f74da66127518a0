"""How long judging a round's answers takes: kernels are compiled and run by the verifier, tests run in a sandbox."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from windtunnel.recipe import GRPO, PromptCorpus, Recipe
from windtunnel.rig import Rig

# Of judging an answer; kinds that are not here compare text and take no time to speak of, or are the user's own.
CORE_SECONDS = {"kernel": 1 / 5.8, "code": 1 / 148.1, "math": 1 / 5.2}
CPU_SOURCE = (
    "5.8 kernels and 148 programs a second and core (benchmarks/results/verify-speed-cpu.json), 5.2 mathematical answers"
    " (benchmarks/results/verify-math-cpu.json)"
)


@dataclass(frozen=True)
class Speed:
    """Kernels a second that one machine with a GPU judges, as a file of measurements has it.

    Attributes:
        file: under benchmarks/results.
        entry: in it, by keys and indices.
        what: was judged.
        cores: that were busy with it, where fewer would have judged fewer; None: that was not the limit.
    """

    per_second: float
    file: str
    entry: tuple[str | int, ...]
    what: str
    cores: int | None = None

    def __str__(self) -> str:
        on = "" if self.cores is None else f" by {self.cores} cores"
        return f"{self.per_second:.1f} kernels a second and machine{on}, {self.what} (benchmarks/results/{self.file})"

    def on(self, cores: int) -> float:
        """Return kernels a second on a machine with so many cores."""
        return self.per_second if self.cores is None else self.per_second * min(1.0, cores / self.cores)


# What plans count with: what models write, by the judge as it is.
REPLAYED_KERNELS = Speed(
    3.56, "verify-replay-h100.json", ("foreign", "per_second"), "models' answers to KernelBench at its shapes, not timed"
)
# What they count with where all tasks are the generator's, and no reward is for speed.
GENERATED_KERNELS = Speed(
    14.3, "verify-generated-h100.json", ("four_pairs", "foreign", "per_second"), "right ones to generated tasks, not timed", 24
)
# Of an earlier judge and the easiest of tasks: told beside, as what answers cost at least.
TIMED_KERNELS = Speed(
    3.49, "verify-speed-gpu.json", ("gpu_scaling", 5, "per_second"), "a small right one over and over, run and timed on a GPU"
)
# Answers judged at once by a process that learns.
MOST_WORKERS = 32
# Held-out answers judged at once in fine-tuning.
TUNING_WORKERS = 4
# Workers that share two processes on a GPU, one that runs kernels and one for their references; and the most such pairs.
SHARING, MOST_PAIRS = 4, 4
# GPU memory of such a process between two kernels: its context, and the half GiB that its allocator may keep.
JUDGE_GIB = 1.32


@dataclass(frozen=True)
class Judging:
    """What judging takes.

    Attributes:
        seconds: of a round's answers, had nothing else to be done.
        hidden: the share of it that can pass while other answers are written.
        source: where the figure comes from.
    """

    seconds: float
    hidden: float
    source: str


@dataclass(frozen=True)
class Asked:
    """What a recipe's prompts ask for.

    Attributes:
        subjects: of which there are as many of each; none: those that the judges are `of` share the prompts evenly.
        generated: all are kernel tasks of the generator.
    """

    subjects: tuple[str, ...] = ()
    generated: bool = False


ANYTHING = Asked()


def asked_of(recipe: Recipe) -> Asked:
    """Return what a recipe's prompts ask for."""
    corpus = recipe.data.corpus
    if not isinstance(corpus, PromptCorpus):
        return ANYTHING
    kernels = corpus.kernels
    generated = kernels is not None and not (kernels.problems or kernels.pairs)
    return Asked(() if corpus.exercises is None else tuple(corpus.exercises.subjects), generated)


def judges_gib(kinds: Collection[str], rig: Rig, most: int = MOST_WORKERS) -> float:
    """Return the GiB that judges of these kinds, at most so many at once, keep on a learner's GPU while it learns."""
    if "kernel" not in kinds or rig.gpu is None:
        return 0.0
    return 2 * JUDGE_GIB * max(1, min(MOST_PAIRS, min(rig.cpu_cores, most) // SHARING))


def judge_metric(metric: str, answers: int, rig: Rig) -> float:
    """Return the seconds of judging so many held-out answers of fine-tuning by a metric, one process judging."""
    seconds = answers * CORE_SECONDS.get(metric, 0.0) / max(1, min(rig.cpu_cores, TUNING_WORKERS))
    return max(seconds, answers / REPLAYED_KERNELS.per_second) if metric == "kernel" and rig.gpu is not None else seconds


def judge_answers(stage: GRPO, rig: Rig, processes: int, answers: int | None = None, asked: Asked = ANYTHING) -> Judging:
    """Return what judging answers takes, all of them as dear as a right one, which goes through every check.

    Of a round that is every answer's own judgement, and those of cross checks. Kernels are run on a GPU where the rig has one,
    at the speed of one machine. That GPU is also a learner's or an engine's, so that nothing of it is counted as hidden; work
    on CPU cores passes while other answers are written.

    processes: that judge, each its own answers. answers: how many; None: those of a round.
    """
    again = cross_checks(stage, processes) if answers is None else 0.0
    answers = stage.prompts * stage.samples if answers is None else answers
    cores = max(1, min(rig.cpu_cores * rig.nodes, MOST_WORKERS * processes))
    # A kernel that several rewards look at is judged once.
    subjects = asked.subjects or tuple(dict.fromkeys(source.of for source in stage.sources if source.of is not None))
    shares = {
        (source.kind, source.of, source.key if source.kind == "kernel" else i): 1.0
        if source.of is None
        else subjects.count(source.of) / len(subjects)
        for i, source in enumerate(stage.sources)
    }
    kinds = [kind for kind, _, _ in shares]
    judgements: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for (kind, _, _), share in shares.items():
        judgements[kind] += answers * share
    for first, share in _first_judges(stage, subjects).items():
        judgements[first] += again * share
    core_seconds = sum(count * CORE_SECONDS.get(kind, 0.0) for kind, count in judgements.items())
    seconds, hidden, sources = core_seconds / cores, 1.0, [CPU_SOURCE] if core_seconds else []
    if "kernel" in kinds and rig.gpu is not None:
        fast = asked.generated and not any(source.speed for source in stage.sources)
        speed = GENERATED_KERNELS if fast else REPLAYED_KERNELS
        on_gpus = judgements["kernel"] / (speed.on(rig.cpu_cores) * rig.nodes)
        seconds, hidden, sources = max(seconds, on_gpus), 0.0, [*sources, f"{speed}; not counted with: {TIMED_KERNELS}"]
    if again and sources:
        sources.append(f"of {answers:,} answers {again:,.0f} more judgements for stages.rl.cross_check={stage.cross_check:g}")
    free = sorted({kind for kind in kinds if kind not in CORE_SECONDS})
    if free:
        sources.append(f"the time of {', '.join(free)} is not counted")
    return Judging(seconds, hidden, "; ".join(sources) or "nothing judges yet")


def cross_checks(stage: GRPO, processes: int) -> float:
    """Return the judgements of a round that cross checks ask for, were every answer accepted: another way, for another prompt."""
    if not stage.cross_check:
        return 0.0
    return 2 * max(stage.cross_check * stage.prompts * stage.samples, float(processes))


def _first_judges(stage: GRPO, subjects: tuple[str, ...]) -> dict[str, float]:
    """Return the share of prompts whose first judge, which cross checks ask again, is of a kind."""
    found: dict[str, float] = {}
    for subject in subjects or (None,):
        first = next((source for source in stage.sources if source.of in (None, subject)), None)
        if first is not None:
            found[first.kind] = found.get(first.kind, 0.0) + 1 / max(1, len(subjects))
    return found
