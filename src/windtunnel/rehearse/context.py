"""What checks share, and what a rehearsal adds: the recipe and the rigs, this machine, and what is made once, on first use."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import RUNGS, Check, Rung
from windtunnel.check import Context as CheckContext
from windtunnel.plan import Plan, make_plan, resolve
from windtunnel.recipe import (
    CountedCorpus,
    GPTModel,
    HuggingFaceModel,
    PromptCorpus,
    Recipe,
    SudokuCorpus,
    TextCorpus,
    UserError,
    load_recipe,
    scale_model,
    stage_recipe,
)
from windtunnel.rig import Rig, cpu_cores, detect_rig, parse_rig

from .excerpt import excerpted
from .scale import small_config

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.data import CorpusFile, PreparedData
    from windtunnel.evaluate import EvaluationReport
    from windtunnel.launch import Forker
    from windtunnel.model import GPT

    from .following import Ended


STEPS_BEYOND = 12
# Made again from the disk's cache in every process: memory maps do not travel.
_STAYS_HERE = ("prepared",)


@dataclass
class Context(CheckContext):
    """What was asked to be checked, and what is known so far; `windtunnel.check.Context` says what checks may use of it.

    Attributes:
        source: a recipe's name or file. overrides: 'key.path=value'. on: names of the rigs to be ready for, the target last.
        folder: for whatever a check writes; it is removed after a check, kept after a rehearsal.
        root: where runs will be written; it need not exist yet.
        resume: a run folder to be gone on with. sbatch: a batch script to start it with.
        steps: of the scale model; None: by rule. given: the recipe itself, where there is no source to load it from.
        facts: of every check that passed so far, by its name.
    """

    source: str
    overrides: tuple[str, ...] = ()
    on: tuple[str, ...] = ("8xH100",)
    folder: Path = Path()
    root: Path = Path("runs")
    resume: Path | None = None
    sbatch: Path | None = None
    steps: int | None = None
    given: Recipe | None = None
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    forker: Forker | None = field(default=None, repr=False)
    _plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict, repr=False)

    @cached_property
    def loaded(self) -> Recipe:
        """Return the recipe with all its stages. Raises UserError when it cannot be loaded."""
        return self.given or load_recipe(self.source, self.overrides)

    @cached_property
    def stages(self) -> tuple[Recipe, ...]:
        """Return the recipe of each stage, in order; of a recipe without stages, itself. Raises UserError."""
        if not self.loaded.staged:
            return (self.loaded,)
        return tuple(stage_recipe(self.loaded, stage.name) for stage in self.loaded.training)

    @property
    def recipe(self) -> Recipe:
        """Return what is trained in the end: the recipe, or its last stage's. Raises UserError when it cannot be loaded."""
        return self.stages[-1]

    @cached_property
    def rigs(self) -> tuple[Rig, ...]:
        """Return the rigs to be ready for. Raises UserError when a name is no rig."""
        return tuple(parse_rig(name) for name in self.on)

    @property
    def rig(self) -> Rig:
        """Return the target: the last of the rigs, as in `windtunnel plan`."""
        return self.rigs[-1]

    @property
    def rung(self) -> Rung:
        """Return the highest rung asked for; 'cluster' when the rigs are not known."""
        try:
            # A rig that cannot be read hides no check: whatever a cluster needs is looked at then.
            return RUNGS[max(RUNGS.index(rig.rung) for rig in self.rigs)]  # type: ignore[arg-type]
        except UserError:
            return "cluster"

    @cached_property
    def here(self) -> Rig:
        """Return this machine, as detected once."""
        return detect_rig(self.folder)

    @property
    def device(self) -> str:
        """Return what a scale model runs on here."""
        return "cuda" if self.here.gpu else "cpu"

    @property
    def seed(self) -> int:
        """Return the recipe's seed."""
        return self.recipe.seed

    @property
    def is_gpt(self) -> bool:
        """Return whether the model is a GPT of our own (else a Hugging Face model)."""
        return isinstance(self.recipe.model, GPTModel)

    @property
    def has_data(self) -> bool:
        """Return whether the recipe names data that can be read, not only its size."""
        return not isinstance(self.recipe.data.corpus, CountedCorpus)

    @property
    def has_text(self) -> bool:
        """Return whether the data that can be read is text: puzzles are not."""
        return self.has_data and not self.has_puzzles

    @property
    def has_puzzles(self) -> bool:
        """Return whether the recipe's data are puzzles."""
        return isinstance(self.recipe.data.corpus, SudokuCorpus)

    @cached_property
    def resolved(self) -> Recipe:
        """Return the recipe as the target would train it: depth 'auto' made a number. Raises UserError."""
        return resolve(self.recipe, self.rig) if self.is_gpt else self.recipe

    @cached_property
    def scale(self) -> Recipe:
        """Return the scale model, with an excerpt of the user's text. Raises UserError where the recipe cannot be made small."""
        if self.recipe.rl is not None:
            from .policy import policy_scale

            return policy_scale(self)
        if not self.is_gpt:
            from .tuning import tuning_scale

            return tuning_scale(self)
        whole = self.recipe
        with contextlib.suppress(UserError):  # the check of the plan will say it
            # The ratio of heads to key/value heads depends on the depth that the target gets.
            whole = self.resolved
        return self.excerpted(scale_model(whole, steps=self.steps))

    @cached_property
    def small_stages(self) -> Recipe:
        """Return the scale model of all stages of a recipe whose last one is of kind rl. Raises UserError."""
        from .policy import policy_stages

        return policy_stages(self)

    @cached_property
    def prepared(self) -> PreparedData:
        """Return the data as training prepares it: a GPT's scale model's, of other models an excerpt. Raises UserError."""
        from windtunnel.data import prepare

        return prepare(self.scale if self.is_gpt else self.excerpted(self.recipe))

    @cached_property
    def small_config(self) -> Path:
        """Return a Hugging Face model's config.json made small, in a file that a recipe can name. Raises UserError."""
        from windtunnel.files import write_atomic
        from windtunnel.model import hf_shape

        model = self.recipe.model
        assert isinstance(model, HuggingFaceModel)
        folder = self.folder / "scale-model"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "config.json"
        # Several processes may want it at once.
        write_atomic(path, json.dumps(small_config(hf_shape(model.config).raw)), durable=False)
        return path

    def rows(self, vocab: int) -> int:
        """Return how many rows the model's token tables have when its tokenizer has `vocab` tokens."""
        from windtunnel.model import hf_shape, recipe_shape

        model = self.recipe.model
        if isinstance(model, HuggingFaceModel):
            return hf_shape(model.config).vocab
        return recipe_shape(self.scale, vocab).padded_vocab

    def network(self, compute: str = "float32", device: str = "cpu") -> GPT:
        """Return the scale model of a GPT recipe with its first weights; `compute` names a torch dtype."""
        import torch

        from windtunnel.model import build_model, recipe_shape

        shape = recipe_shape(self.scale, self.prepared.tokenizer.vocab)
        return build_model(shape, device=torch.device(device), compute=getattr(torch, compute), seed=self.seed)

    def batch(self, rows: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Return tokens and targets (rows, sequence): the scale model's first micro-batch."""
        import torch

        from windtunnel.data import BatchLoader

        loader = BatchLoader(
            self.prepared.train, sequence=self.scale.gpt.sequence, micro_batch=rows, accumulation=1, rank=0, world=1,
            seed=self.seed, device=torch.device(device),
        )  # fmt: skip
        with loader:
            x, y = loader.next_batch()
            return x, y

    def corpus_files(self) -> list[CorpusFile]:
        """Return the files of a text corpus; none where the data is of another kind. Raises UserError."""
        from windtunnel.data import corpus_files

        corpus = self.recipe.data.corpus
        return list(corpus_files(corpus)) if isinstance(corpus, TextCorpus) else []

    def plan(self, rig: Rig | None = None) -> Plan:
        """Return the recipe's plan for a rig (the target), of the corpus as the check of the data found it. Raises UserError."""
        return self.plans(rig)[-1]

    def plans(self, rig: Rig | None = None) -> list[Plan]:
        """Return the plan of every stage, in order; one where the recipe has none. Raises UserError."""
        rig = rig or self.rig
        whole = self.facts.get("data", {}).get("whole") or {}
        vocab, tokens = whole.get("vocabulary"), whole.get("train_tokens")
        made = []
        for recipe in self.stages:
            # A plan that was made before the data were read knew no vocabulary: it must not be the answer afterwards.
            key = (recipe.stage, rig.name, vocab, tokens)
            if key not in self._plans:
                self._plans[key] = make_plan(recipe, rig, vocab, corpus_tokens=tokens)
            made.append(self._plans[key])
        return made

    def excerpted(self, recipe: Recipe) -> Recipe:
        """Return the recipe with an excerpt where its files are large. Raises UserError."""
        return excerpted(recipe, self.folder)

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties lie in __dict__ too: what was made once travels along, and need not be made again.
        return {name: value for name, value in self.__dict__.items() if name not in _STAYS_HERE}


def _free_cores() -> int:
    """Return how many cores are not busy now, at least one: a small model is several times slower on threads that wait."""
    try:
        busy = os.getloadavg()[0]
    except OSError:
        busy = 0.0
    return max(1, round(cpu_cores() - busy))


@dataclass
class Rehearsal(Context):
    """A rehearsal under way: what its checks share, and what its stages add.

    Attributes:
        run: the run that was killed and resumed. reference: the one that was not. before: of the stage that it begins with.
        threads: of a training process on the CPU; one number for all, since it decides the order of sums.
        uninterrupted: how the reference ended, where it was trained beside another run.
        resumed_from: the step the killed run went on from. memory: (step, GiB) of each training process and its children.
    """

    run: Path | None = None
    reference: Path | None = None
    before: Path | None = None
    uninterrupted: Ended | None = None
    resumed_from: int = 0
    threads: int = field(default_factory=_free_cores)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    evaluation: EvaluationReport | None = None

    @cached_property
    def prepared(self) -> PreparedData:
        """Return the scale model's data. Raises UserError."""
        from windtunnel.data import prepare

        return prepare(self.scale) if trains_here(self) else super().prepared

    @cached_property
    def steps_beyond(self) -> int:
        """Return how many steps a run takes beyond the resumed checkpoint."""
        from .tuning import BEYOND

        return BEYOND if trains_real_model(self) or self.recipe.rl is not None else STEPS_BEYOND

    @cached_property
    def side_by_side(self) -> bool:
        """Return whether two training processes have room beside each other: tiny policies on a CPU of several cores."""
        return self.recipe.rl is not None and self.here.gpu is None and cpu_cores() > 1

    @property
    def environment(self) -> dict[str, str]:
        """Return what the environment of its training processes has besides this one's."""
        # On a GPU the host's threads do not decide the order of sums.
        given = self.here.gpu is not None or "OMP_NUM_THREADS" in os.environ
        threads = max(1, self.threads // 2) if self.side_by_side else self.threads
        return {} if given else {"OMP_NUM_THREADS": str(threads)}

    @property
    def recipe_file(self) -> Path:
        """Return the scale model as a recipe that `windtunnel train` takes."""
        return self.folder / "scale.yaml"


def is_gpt(context: Context) -> bool:
    """Return whether the scale model of the recipe can be trained here: it is a GPT, on data that is there."""
    return context.is_gpt and context.has_data


def has_text(context: Context) -> bool:
    """Return whether the scale model can be trained here and its data are text."""
    return is_gpt(context) and context.has_text


def trains_here(context: Context) -> bool:
    """Return whether there is a scale model to train here: of a GPT, of fine-tuning or of a policy, on data that is there."""
    return context.has_data and (context.recipe.rl is None or learns_policy(context))


def learns_policy(context: Context) -> bool:
    """Return whether reinforcement learning can be rehearsed here: of a Hugging Face model, on prompts that are there."""
    return context.recipe.rl is not None and not context.is_gpt and isinstance(context.recipe.data.corpus, PromptCorpus)


def precedes_policy(context: Context) -> bool:
    """Return whether reinforcement learning can be rehearsed here, and stages that train come before it."""
    return learns_policy(context) and len(context.stages) > 1


def trains_real_model(context: Context) -> bool:
    """Return whether the scale model is the recipe's own model: one that fine-tunes, is here, and is small."""
    from .tuning import uses_real_model

    return trains_here(context) and context.recipe.rl is None and not context.is_gpt and uses_real_model(context.recipe)


# A stage runs here: it starts processes of its own, follows them, and leaves what it made for the next stages.
Stage: Callable[..., Check] = partial(Check, apart=False, applies=trains_here)
