"""Gathers kernels that nobody here wrote, with their tasks, into one file that can be carried to another machine.

    python benchmarks/foreign_gather.py --llmkernel CHECKOUT --out foreign.jsonl.gz

Each line: source, name, task (a module in KernelBench's form), answer, their checksum, and what its own evaluation on a GPU said.
The file is other people's code: it is carried and judged, never committed.

--llmkernel: the git folder of https://github.com/Alisehen/LLMKernel: answers of language models to KernelBench. Of each task the
last answer that its own evaluation found right, and with --wrong the last that it found wrong.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Foreign:
    """One answer. right: what its own evaluation on a GPU said, None where there was none. commit: of the checkout."""

    source: str
    name: str
    task: str
    answer: str
    right: bool | None
    commit: str

    @property
    def sha256(self) -> str:
        """Of the answer's text."""
        return hashlib.sha256(self.answer.encode()).hexdigest()


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llmkernel", type=Path)
    parser.add_argument("--wrong", action="store_true", help="answers too that their own evaluation refused")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = list(of_llmkernel(given.llmkernel, wrong=given.wrong)) if given.llmkernel else []
    write(found, given.out)
    print(f"{len(found)} answers, {given.out.stat().st_size:,} bytes")


def write(answers: list[Foreign], path: Path) -> None:
    """Write one line of JSON for each."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for answer in answers:
            file.write(json.dumps(asdict(answer)) + "\n")


def read(path: Path) -> list[Foreign]:
    """Return what `write` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Foreign(**json.loads(line)) for line in file]


def of_llmkernel(checkout: Path, *, wrong: bool = False) -> Iterator[Foreign]:
    """Yield one answer of each task that has one found right, and one of each that has one found wrong where asked."""
    commit = git(checkout, "rev-parse", "HEAD").strip()
    paths = set(git(checkout, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    last: dict[tuple[str, bool], str] = {}
    for path in sorted(paths):
        parts = path.split("/")
        if parts[0] != "results" or len(parts) != 5 or parts[3] != "evaluation" or not path.endswith(".json"):
            continue
        said = json.loads(git(checkout, "show", f"HEAD:{path}"))
        name = "/".join(parts[1:3])
        code = f"results/{name}/code/{Path(said.get('candidate_file', '')).name}"
        if code in paths:
            last[name, bool(said.get("runnable"))] = code
    for (name, right), code in sorted(last.items()):
        task = f"KernelBench/{name}.py"
        if task in paths and (right or wrong):
            texts = (git(checkout, "show", f"HEAD:{path}") for path in (task, code))
            yield Foreign("Alisehen/LLMKernel", name, *texts, right, commit)


def git(checkout: Path, *words: str) -> str:
    """Return what git says of a checkout."""
    return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
