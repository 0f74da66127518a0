"""The kinds of corpora that a recipe can name, but for theses. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator, model_validator

from .section import Count, Section

# The generator writes these, and a tokenizer whose alphabet the user gives must have all of them.
ARITHMETIC_ALPHABET = "0123456789+-HBL.\n"
_FILES = "paths or globs, relative to the recipe's folder or the current one; gzip and zstd are read as they are"

_OF_RECORDS = (".jsonl", ".ndjson", ".parquet", ".arrow")


class TextCorpus(Section):
    """The user's own documents: plain text, JSON lines or Parquet."""

    # `kind` is the discriminator: pydantic looks at no other class, and its errors name keys of this one alone.
    kind: Literal["text"] = "text"
    files: list[str] = Field(min_length=1, description=_FILES)
    separator: str | None = Field(
        None, min_length=1, description="splits a plain text file into documents; null: a file is one document"
    )
    format: Literal["auto", "text", "jsonl", "parquet"] = Field(
        "auto", description="what the files are; auto: by their names and first bytes"
    )
    text_key: str = Field(
        "text", min_length=1, description="the key or column that holds a document's text; doc.text is text within doc"
    )
    answer_after: str | None = Field(
        None,
        min_length=1,
        description="what a prompt ends with, such as '=' or 'B': what follows it in a document is the answer, and held-out "
        "documents are answered and judged by exact match; of plain text, documents are then lines, unless separator says "
        "otherwise",
    )

    @model_validator(mode="before")
    @classmethod
    def _lines(cls, data: object) -> object:
        """Make lines of plain text the documents of prompts and answers: a file as one document would have one prompt."""
        if not isinstance(data, dict) or not data.get("answer_after") or data.get("separator") is not None:
            return data
        files = data.get("files")
        names = [str(file).removesuffix(".gz").removesuffix(".zst") for file in (files if isinstance(files, list) else [])]
        records = any(name.endswith(_OF_RECORDS) for name in names)
        plain = data.get("format", "auto") == "text" or (data.get("format", "auto") == "auto" and not records)
        # Before validation, so that the resolved recipe shows the separator that is in use.
        return data | {"separator": "\n"} if plain else data


class ArithmeticCorpus(Section):
    r"""Generated sums over the 17 characters 0-9 + - H B L . newline: 'H12+34B46L\n'."""

    kind: Literal["arithmetic"] = "arithmetic"
    documents: Count = Field(200_000, ge=10, description="sums to make")
    digits: int = Field(3, ge=1, le=9, description="most digits before the decimal point")
    decimals: int = Field(0, ge=0, le=6, description="most digits after the decimal point")
    terms: int = Field(2, ge=2, le=6, description="most numbers in one sum")


class StdlibCorpus(Section):
    """Python's own standard library: real text that every machine has."""

    kind: Literal["stdlib"] = "stdlib"
    megabytes: float = Field(20.0, gt=0, description="stop after this much text")


class SudokuCorpus(Section):
    """Generated Sudoku puzzles, each with one solution; for models that are not causal (model.causal=false)."""

    kind: Literal["sudoku"] = "sudoku"
    box: Literal[2, 3] = Field(3, description="3: 9x9 grids, 2: 4x4 grids")
    puzzles: Count = Field(20_000, ge=10, description="puzzles generated; symmetries of each are drawn anew every epoch")
    grade: Literal["easy", "medium", "hard"] = Field(
        "hard", description="easy: single candidates do; medium: single places too; hard: only with guessing"
    )


class CountedCorpus(Section):
    """Data known only by its size, to plan before it is there."""

    kind: Literal["counted"] = "counted"
    # Enough to plan, which asks for size alone; training refuses such a corpus.
    tokens: Count = Field(50_000_000, ge=1, description="of one epoch")


class KernelTasks(Section):
    """Tasks to write Triton kernels for: generated ones at three levels, and files of others.

    A conversation has the right kernel as its answer; a prompt has the verifier's task under the key `task` of its record,
    for rewards of kind kernel. Which side of the split a task is on depends on its combination of operators alone.
    """

    tasks: int = Field(2000, ge=0, description="generated tasks, shared out evenly over the levels; 0: none")
    levels: list[Literal[1, 2, 3]] = Field(
        [1, 2, 3],
        min_length=1,
        description="1: one operator; 2: two or three fused; 3: longer chains and blocks, as conv-bn-relu or a gated product",
    )
    problems: list[str] = Field(
        default_factory=list,
        description="prompts of others: files or folders of problems in KernelBench's form; they have no answers",
    )
    pairs: list[str] = Field(
        default_factory=list, description="JSON lines or Parquet with PyTorch and Triton in each record, as KernelBook has them"
    )
    held_out: list[str] = Field(
        default_factory=list,
        description="files or folders of problems that are kept for an evaluation: whatever is like one of them is left out",
    )
    plan: bool = Field(True, description="a short plan in words is asked for, and stands before the code of an answer")

    @field_validator("levels")
    @classmethod
    def _each_once(cls, value: list[int]) -> list[int]:
        # Order and repetition mean nothing here: the same levels are to be the same data.
        return sorted(set(value))

    @model_validator(mode="after")
    def _some_source(self) -> KernelTasks:
        if not (self.tasks or self.problems or self.pairs):
            raise ValueError("data.corpus.kernels: tasks=0 and no files; give tasks, problems or pairs")
        return self


class Exercises(Section):
    """Generated exercises, each with its right answer: what a recipe for reasoning runs on before there are files.

    Records have the key `subject`, by which rewards know which prompts are theirs; those of code have `tests`.
    """

    count: Count = Field(6000, ge=20, description="exercises, shared out evenly over the subjects")
    subjects: list[Literal["mathematics", "general", "code"]] = Field(
        ["mathematics", "general", "code"],
        min_length=1,
        description="mathematics: sums, stories, equations, the result in \\boxed{}; general: lists of words, letters, days, who "
        "is taller, the answer in <answer>; code: functions over lists of numbers, with tests",
    )

    @field_validator("subjects")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        return list(dict.fromkeys(value))


class UserCorpus(Section):
    """A corpus that a package of the user's offers: derive from it, give `kind` its name, add keys, and yield documents.

    The class is found through the entry point group `windtunnel.corpora` (see docs/add-a-recipe.md).
    """

    kind: str

    def documents(self) -> Iterator[str]:
        """Yield the documents, the same ones in the same order every time."""
        raise NotImplementedError

    # A plan needs the size before anything is read; a class that cannot tell costs it only that number.
    def expected_bytes(self) -> float | None:
        """Return about how many bytes the documents have, for `windtunnel plan`; None: not known before they are made."""
        return None


class Conversational(Section):
    """The template of conversations, what is learned of them, and what becomes of those that are too long."""

    template: Literal["auto", "model", "chatml", "alpaca", "plain"] = Field(
        "auto", description="the chat template; model: the tokenizer's own; auto: that one, or chatml where it has none"
    )
    system: str | None = Field(None, min_length=1, description="system message of conversations that have none")
    loss: Literal["answers", "last", "all"] = Field(
        "answers",
        description="what is learned: the assistant's turns, the last of them, or every token; a message's own "
        "'train' (true, false) or 'weight' (0, 1) comes first",
    )
    overlong: Literal["drop", "truncate", "refuse"] = Field(
        "drop", description="conversations longer than model.sequence: left out, cut at their end, or an error; always counted"
    )


class ConversationCorpus(Conversational):
    """Conversations to fine-tune on: JSON lines, Parquet, a folder that Hugging Face datasets saved, or generated questions.

    A record holds `messages` ({role, content}), `prompt` and `completion`, ShareGPT's `conversations` ({from, value}),
    or Alpaca's `instruction`, `input` and `output`.
    """

    kind: Literal["conversations"] = "conversations"
    files: list[str] = Field(default_factory=list, description=f"{_FILES}; a folder saved by Hugging Face datasets too")
    arithmetic: ArithmeticCorpus | None = Field(
        None, description="generated sums, asked and answered; used where no files are given"
    )
    kernels: KernelTasks | None = Field(None, description="tasks to write Triton kernels for, each with a kernel that is right")
    exercises: Exercises | None = Field(None, description="generated exercises in mathematics, reasoning and code, with answers")
    format: Literal["auto", "messages", "completion", "sharegpt", "alpaca"] = Field(
        "auto", description="what a record holds; auto: by the keys of the first one"
    )
    malformed: Literal["refuse", "drop"] = Field(
        "refuse", description="records that cannot be read as a conversation: an error, or left out and counted"
    )

    @model_validator(mode="after")
    def _some_source(self) -> ConversationCorpus:
        alone = [name for name in ("kernels", "exercises") if getattr(self, name) is not None]
        if not self.files and self.arithmetic is None and not alone:
            raise ValueError("data.corpus: conversations come from files, arithmetic, kernels or exercises; give one of them")
        if len(alone) > 1 or (alone and (self.files or self.arithmetic is not None)):
            raise ValueError(f"data.corpus: {alone[0]} stand alone; mix them with others by kind: mixture")
        # KernelBench's problems come without right kernels, and a conversation without an answer teaches nothing.
        if self.kernels is not None and self.kernels.problems:
            raise ValueError("data.corpus.kernels.problems have no answers to learn; give them where kind is prompts")
        return self


class PromptCorpus(Section):
    """Prompts with answers for reinforcement learning: JSON lines, Parquet, saved datasets, or generated."""

    kind: Literal["prompts"] = "prompts"
    files: list[str] = Field(default_factory=list, description=f"{_FILES}; a folder saved by Hugging Face datasets too")
    arithmetic: ArithmeticCorpus | None = Field(None, description="generated sums instead of files")
    kernels: KernelTasks | None = Field(None, description="tasks to write Triton kernels for, instead of files")
    exercises: Exercises | None = Field(
        None, description="generated exercises in mathematics, reasoning and code, instead of files"
    )
    # Data sets agree on no name for the prompt; the usual ones are tried in a fixed order.
    prompt_key: str | None = Field(
        None, min_length=1,
        description="key of the prompt, text or messages, or outer.inner; null: prompt, messages, question, problem and others",
    )  # fmt: skip
    answer_key: str | None = Field(
        None, min_length=1,
        description="key of the right answer, or outer.inner; null: answer, ground_truth, reward_model.ground_truth, solution "
        "and others, if there",
    )  # fmt: skip
    template: Literal["auto", "model", "chat", "chatml", "alpaca", "plain"] = Field(
        "auto",
        description="the chat template; plain: the prompt as it stands; model: the tokenizer's own; chat: that one, or chatml "
        "where it has none; auto: as the recipe's conversations before it were written, else the tokenizer's own, or plain",
    )
    system: str | None = Field(None, min_length=1, description="system message of prompts that have none")
    prompt_tokens: Count | None = Field(None, ge=1, description="longer prompts are left out and counted; null: none is")

    @model_validator(mode="after")
    def _one_source(self) -> PromptCorpus:
        generated = (self.arithmetic, self.kernels, self.exercises)
        # Exactly one, where conversations may have several: a reward belongs to one kind of prompt.
        if sum((bool(self.files), *(one is not None for one in generated))) != 1:
            raise ValueError("data.corpus: prompts come from files, arithmetic, kernels or exercises; give one of them")
        return self
