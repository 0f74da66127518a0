"""A kernel for a user's module: a model is asked, every answer is verified, the fastest that is right comes back with proof."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel import __version__
from windtunnel.recipe import UserError
from windtunnel.verify import Task, Verdict, candidate_of

if TYPE_CHECKING:
    from windtunnel.generate import Generator
    from windtunnel.verify import KernelVerifier, Verifiers

MOST_WAITING = 1 << 16  # candidates: all of them may wait, since the caller has them in memory anyway
MOST_CANDIDATE = 1_000_000  # bytes of a file with an answer
HOST_CODE = "read its host code before you use it: what was judged is what it launches, not what else it does"
PLAIN = "the model has no chat template, so it was asked in plain text"


@dataclass(frozen=True)
class Sampling:
    """How a model is asked. samples: answers. tokens: most of one. Others as of `windtunnel.generate.GenerationJob`."""

    samples: int = 16
    tokens: int = 2048
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Candidate:
    """One answer. name: unique. text: the whole answer. cut: it ended at the most tokens that it might have."""

    name: str
    text: str
    cut: bool = False

    @property
    def source(self) -> str:
        """The code in it."""
        return candidate_of(self.text)


@dataclass(frozen=True)
class Judged:
    """A candidate with its verdict. twins: names of others with the same code."""

    candidate: Candidate
    verdict: Verdict
    twins: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Its median time on a GPU with a cold cache; None where it was not timed."""
        cold = self.verdict.evidence.get("gpu", {}).get("cold")
        return None if cold is None else float(cold["median"])

    @property
    def launches(self) -> int:
        """Kernels that one call launches, at a tiny size."""
        kernels: Mapping[str, int] = self.verdict.evidence.get("kernels", {}).get("launches", {})
        return sum(int(number) for number in kernels.values())


@dataclass(frozen=True)
class Optimized:
    """What came of it. best: of those that are right the fastest; where nothing was timed the one with the fewest launches."""

    task: Task
    judged: tuple[Judged, ...]
    best: Judged | None
    plans: str | None = None
    remarks: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> int:
        """Answers that were judged."""
        return sum(1 + len(one.twins) for one in self.judged)

    @property
    def right(self) -> int:
        """Return those that are right."""
        return sum(1 + len(one.twins) for one in self.judged if one.verdict.accepted)

    @property
    def unknown(self) -> int:
        """Return those about which nothing is known."""
        return sum(1 + len(one.twins) for one in self.judged if one.verdict.infrastructure)

    def reasons(self) -> list[tuple[str, int, str]]:
        """Return (reason, answers, the first one's message), the commonest first, of all that are not right."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for one in self.judged:
            if not one.verdict.accepted:
                counts[one.verdict.reason] += 1 + len(one.twins)
                first.setdefault(one.verdict.reason, one.verdict.message)
        return [(reason, count, first[reason]) for reason, count in counts.most_common()]

    def proof(self) -> dict[str, Any] | None:
        """Return what is known of the best one, as plain JSON values."""
        if self.best is None:
            return None
        from importlib.metadata import version

        evidence = self.best.verdict.evidence
        source = self.best.candidate.source
        return {
            "candidate": self.best.candidate.name,
            "sha256": hashlib.sha256(source.encode()).hexdigest(),
            "cases": evidence.get("cases", []),
            "errors": evidence.get("errors", {}),
            "share_of_work_in_kernels": evidence.get("share"),
            "times": evidence.get("gpu", {}),
            "not_judged": evidence.get("left", []),
            "host_code": HOST_CODE,
            "stages_seconds": dict(self.best.verdict.times),
            "made_with": {"windtunnel": __version__, **{name: version(name) for name in ("torch", "triton")}},
        }

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {
            "task": self.task.name,
            "answers": self.answers,
            "right": self.right,
            "unknown": self.unknown,
            "timed": self.best is not None and self.best.seconds is not None,
            "best": None if self.best is None else {"source": self.best.candidate.source, **(self.proof() or {})},
            "reasons": [{"reason": reason, "answers": count, "message": text} for reason, count, text in self.reasons()],
            "candidates": [
                {"name": one.candidate.name, "twins": list(one.twins), "cut": one.candidate.cut, "verdict": one.verdict.as_json()}
                for one in self.judged
            ],
            "remarks": list(self.remarks),
            "asked": dict(self.asked),
        }

    def write(self, folder: Path) -> None:
        """Write kernel.py, plan.json and proof.json of the best one, and every candidate with the verdicts beside it.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            (folder / "candidates").mkdir(parents=True, exist_ok=True)
            for one in self.judged:
                (folder / "candidates" / f"{one.candidate.name}.py").write_text(one.candidate.source, encoding="utf-8")
            (folder / "verdicts.json").write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            # With the sizes and kinds of inputs that it was judged by.
            (folder / "reference.py").write_text(self.task.source, encoding="utf-8")
            if self.best is not None:
                (folder / "kernel.py").write_text(self.best.candidate.source, encoding="utf-8")
                (folder / "proof.json").write_text(json.dumps(self.proof(), indent=1) + "\n", encoding="utf-8")
            if self.plans is not None:
                (folder / "plan.json").write_text(self.plans + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written ({error.strerror})", "name a folder that can be made") from None


def ask(generator: Generator, reference: str, sampling: Sampling) -> tuple[list[Candidate], list[str]]:
    """Ask a model for kernels; what is to be known of it besides.

    Raises:
        UserError: the model's context is too short for the prompt, or generation fails.
    """
    from windtunnel.data import task_prompt
    from windtunnel.generate import GenerationFailed, GenerationJob

    prompt, remarks = task_prompt(reference, plan=True), []
    try:
        ids = generator.text.chat([{"role": "user", "content": prompt}])
    # A base model has no chat template, and can still go on with a text.
    except UserError:
        ids, remarks = generator.text.encode(prompt + "\n\n"), [PLAIN]
    room = generator.context - len(ids)
    if room < 1:
        raise UserError(
            f"the prompt with this module has {len(ids):,} tokens, and the model's context {generator.context:,}",
            "take a model with a longer context, or a smaller module",
        )
    tokens = min(sampling.tokens, room)
    if tokens < sampling.tokens:
        remarks.append(f"answers have at most {tokens:,} tokens: the model's context is {generator.context:,}")
    jobs = [
        GenerationJob(tuple(ids), tokens, sampling.temperature, seed=sampling.seed + number) for number in range(sampling.samples)
    ]
    try:
        said = generator.generate(jobs)
    except GenerationFailed as error:
        raise UserError(f"the model gave no answers: {error}", "fewer --samples or --tokens need less memory") from None
    return [Candidate(f"{n:03d}", one.text, one.finish == "length") for n, one in enumerate(said)], remarks


def read_candidates(folder: Path) -> list[Candidate]:
    """Read answers from a folder's .py, .md and .txt files, in the order of their names.

    Raises:
        UserError: there are none, or one cannot be read.
    """
    from windtunnel.verify import read_text

    if not folder.is_dir():
        raise UserError(f"--candidates {folder}: there is no such folder", "name a folder with a file for each candidate")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".py", ".md", ".txt") and path.is_file())
    if not files:
        raise UserError(f"--candidates {folder}: holds no .py, .md or .txt file", "one file for each candidate")
    names = Counter(path.stem for path in files)
    return [
        Candidate(path.stem if names[path.stem] == 1 else path.name, read_text(str(path), MOST_CANDIDATE, f"--candidates {path}"))
        for path in files
    ]


def optimize_module(
    verifiers: Verifiers, tasks: Sequence[Task], candidates: Callable[[str], tuple[list[Candidate], list[str]]],
    say: Callable[[str], None] = lambda _: None,
) -> Optimized:  # fmt: skip
    """Verify candidates for a module and choose the best that is right.

    The first task of the module that can be used counts; see `windtunnel.verify.tasks_of_module`. `candidates` gives answers, and
    what is to be known besides, from the reference's text.

    Raises:
        UserError: no task can be used, or the verifier does not work here.
    """
    from windtunnel.verify import Pool, record_kernel

    say("running the reference")
    verifier, remarks = _prepared(verifiers, tasks)
    task = verifier.task
    made, known = candidates(task.source)
    remarks += known
    grouped: dict[str, list[Candidate]] = {}
    # A model that has found its answer repeats it, and judging takes seconds to minutes: equal code is judged once.
    for one in made:
        grouped.setdefault(one.source, []).append(one)
    say(f"verifying {len(grouped)} candidates")
    with Pool(verifiers.workers, MOST_WAITING) as pool:
        futures = [pool.submit(verifier, source, wait=True) for source in grouped]
        verdicts = [future.result() for future in futures]
    judged = tuple(
        Judged(some[0], verdict, tuple(one.name for one in some[1:]))
        for some, verdict in zip(grouped.values(), verdicts, strict=True)
    )
    right = [one for one in judged if one.verdict.accepted]
    # Either all of them were timed or, without a GPU, none: then launches decide.
    best = min(right, key=lambda one: (one.seconds or 0.0, one.launches), default=None)
    plans = None
    if best is not None:
        say("recording its launch plan")
        recorder, trusted = verifiers.pool("compiler"), verifiers.pool("kernel")
        recording, wrong = record_kernel(best.candidate.source, verifier.preparation.task, recorder, trusted)
        plans = None if recording is None else recording.model_dump_json()
        remarks += [] if wrong is None else [f"its launches at full size could not be recorded: {wrong.message}"]
        if best.seconds is None:
            chosen = f"; of {len(right)} that are right this one has the fewest launches" if len(right) > 1 else ""
            remarks.append(f"nothing was timed: there is no GPU here{chosen}")
            remarks.append(
                "only tiny sizes were judged: loops over blocks run once or twice there; judge it on a GPU before you use it"
            )
        remarks.append(f"its kernels are right; {HOST_CODE}")
    return Optimized(task, judged, best, plans, tuple(remarks))


def _prepared(verifiers: Verifiers, tasks: Sequence[Task]) -> tuple[KernelVerifier, list[str]]:
    """Return the verifier of the first task that can be used, and what is weaker about it than should be."""
    from windtunnel.verify import ReferenceBroken

    problem: UserError | None = None
    for task in tasks:
        verifier = verifiers.of_task(task)
        try:
            verifier.prepare()
        except UserError as error:
            problem = problem or error  # the first task's: others are made of it
            continue
        except ReferenceBroken as error:
            raise UserError(f"the verifier does not work here: {error}", "windtunnel verify selftest says more") from None
        alone = not {"tiny_ragged"} & set(verifier.preparation.task.sizes)
        text = "judged at one size alone: name sizes at module level (ROWS = 64) or in TASK['sizes'], so that others can be tried"
        return verifier, [text] if alone else []
    assert problem is not None
    raise problem
