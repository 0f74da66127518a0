"""What a check may ask about: the recipe, the rigs, this machine, and what was planned and prepared so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from windtunnel.recipe import Recipe

from .core import Rung

if TYPE_CHECKING:  # types only: the rooms that own them have checks, and so import this one
    from torch import Tensor

    from windtunnel.data import CorpusFile, PreparedData
    from windtunnel.launch import Forker
    from windtunnel.model import GPT
    from windtunnel.plan import Plan
    from windtunnel.rig import Rig


class Context(Protocol):
    """What `rehearse` hands to every check. It travels to the process of the check; what is made there stays there.

    Whatever derives from the recipe raises UserError where the recipe cannot be loaded, so checks that use it
    need the check `recipe`; the same holds for `rigs` and the check `rig`.

    Attributes:
        source: name or file of the recipe. overrides: 'key.path=value'.
        folder: for whatever a check writes; it is removed afterwards.
        root: where runs will be written; it need not exist yet.
        resume: the run folder to be resumed. sbatch: the batch script that will start the job.
        facts: by name, the facts of every check that passed so far.
        forker: starts programs in milliseconds, for a check that says so (`forks`) in a process of its own; None: start them
            by the interpreter.
    """

    # Typed as a protocol, not a base class: `rehearse` builds it, and rooms below `rehearse` may not import that.
    source: str
    overrides: tuple[str, ...]
    folder: Path
    root: Path
    resume: Path | None
    sbatch: Path | None
    facts: dict[str, dict[str, Any]]
    forker: Forker | None

    @property
    def loaded(self) -> Recipe:
        """The recipe with all its stages."""

    @property
    def stages(self) -> tuple[Recipe, ...]:
        """The recipe of each stage, in order; of a recipe without stages, itself."""

    @property
    def recipe(self) -> Recipe:
        """What is trained in the end: the recipe, or its last stage's."""

    @property
    def resolved(self) -> Recipe:
        """The recipe as the target would train it: depth 'auto' made a number."""

    @property
    def scale(self) -> Recipe:
        """The scale model of a GPT recipe, on an excerpt of the text."""

    @property
    def small_config(self) -> Path:
        """A Hugging Face model's config.json made small, in a file that a recipe can name."""

    @property
    def seed(self) -> int:
        """The recipe's seed."""

    @property
    def is_gpt(self) -> bool:
        """Whether the model is a GPT of our own; else it is a Hugging Face model."""

    @property
    def has_data(self) -> bool:
        """Whether the recipe names data that can be read, not only its size."""

    @property
    def has_text(self) -> bool:
        """Whether that data is text; puzzles are not."""

    @property
    def has_puzzles(self) -> bool:
        """Whether the data are puzzles."""

    @property
    def rigs(self) -> tuple[Rig, ...]:
        """The rigs to be ready for, the target last."""

    @property
    def rig(self) -> Rig:
        """The target."""

    @property
    def rung(self) -> Rung:
        """The highest rung asked for; 'cluster' when the rigs are not known."""

    @property
    def here(self) -> Rig:
        """This machine."""

    @property
    def device(self) -> str:
        """What a scale model runs on here: 'cuda' or 'cpu'."""

    @property
    def prepared(self) -> PreparedData:
        """The scale model's data as training prepares it; of other models, an excerpt of the recipe's own."""

    def plan(self, rig: Rig | None = None) -> Plan:
        """Return the recipe's plan for a rig (None: the target), with the corpus as the check `data` found it."""

    def plans(self, rig: Rig | None = None) -> list[Plan]:
        """Return the plans of all stages, in order."""

    def corpus_files(self) -> list[CorpusFile]:
        """Return the files of a text corpus; none where the data is of another kind."""

    def rows(self, vocab: int) -> int:
        """Return the rows of the model's token tables, when its tokenizer has `vocab` tokens."""

    def network(self, compute: str = "float32", device: str = "cpu") -> GPT:
        """Return the scale model of a GPT recipe with its first weights."""

    def batch(self, rows: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Return tokens and targets (rows, sequence) of the scale model's first micro-batch."""
