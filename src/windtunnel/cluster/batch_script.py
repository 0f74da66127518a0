"""Slurm batch scripts: read as sbatch reads them, with everything that it would refuse or silently ignore."""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.recipe import UserError

from .sbatch_options import FLAGS, SHORT, VALUES

UNLIMITED = ("UNLIMITED", "INFINITE", "-1")
_MOST_BYTES = 4 << 20  # sbatch refuses larger scripts


@dataclass
class BatchScript:
    """A batch script.

    Attributes:
        options: long name -> value ('' for a flag), as in force. lines: the line each stands in.
        commands: the rest of the script. problems, warnings: (what, fix).
    """

    path: Path
    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> int | None:
        """Nodes asked for; the least of a range."""
        value = self.options.get("nodes")
        return int(value.split("-")[0]) if value and re.fullmatch(r"\d+(-\d+)?", value) else None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of each node; None where the script does not say."""
        # Whichever is given; --gpus is of the whole job.
        for name, split in (("gpus-per-node", 1), ("gres", 1), ("gpus", self.nodes or 1)):
            count = _gpus(self.options.get(name, ""), name == "gres")
            if count is not None:
                return count[1] // split
        per_task = _gpus(self.options.get("gpus-per-task", ""), False)
        tasks = self.options.get("ntasks-per-node") or self.options.get("ntasks") or "1"
        return per_task[1] * int(tasks) if per_task and tasks.isdigit() else None

    @property
    def gpu_kind(self) -> str | None:
        """The kind of GPU asked for, such as 'h100'."""
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            found = _gpus(self.options.get(name, ""), name == "gres")
            if found and found[0]:
                return found[0]
        return None

    @property
    def seconds(self) -> float | None:
        """The time limit; None where there is none."""
        return parse_time(self.options.get("time", ""))


def read_batch_script(path: Path) -> BatchScript:
    """Read a script and judge its #SBATCH lines.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise UserError(f"batch script {path} cannot be read: {error.strerror}", "name an existing file with --sbatch") from None
    except UnicodeDecodeError:
        raise UserError(f"batch script {path} is not text in UTF-8", "name a shell script with --sbatch") from None
    script = BatchScript(path)
    if not text.startswith("#!"):
        script.problems.append((f"{path}:1: sbatch needs a first line such as #!/bin/bash", "begin with: #!/bin/bash"))
    if "\r" in text:
        script.problems.append((f"{path}: lines end with a carriage return, which sbatch refuses", f"sed -i 's/\\r$//' {path}"))
    if len(raw) > _MOST_BYTES:
        script.problems.append((f"{path}: {len(raw) / 2**20:.1f} MiB; sbatch takes 4", "keep data out of the script"))
    for number, line in enumerate(text.replace("\r", "").split("\n"), start=1):
        _line(script, number, line)
    return script


def parse_time(text: str) -> float | None:
    """Seconds of Slurm's time formats: minutes, minutes:seconds, h:m:s, days-hours[:minutes[:seconds]]; None: no limit."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return float((int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)


def _line(script: BatchScript, number: int, line: str) -> None:
    where = f"{script.path}:{number}"
    # sbatch stops reading options at the first command, without a word.
    if line.startswith("#SBATCH") and not script.commands:
        _options(script, number, line.removeprefix("#SBATCH"))
    elif line.startswith("#SBATCH"):
        what = f"{where}: {line.strip()} stands after the first command, where sbatch ignores it"
        script.problems.append((what, "move it to the top of the script"))
    elif line.startswith("#"):
        word = re.match(r"#+\s*([A-Za-z]+)\s+-", line)
        # #SBTACH and # SBATCH are comments to Slurm, and the option that stands there is silently missing.
        if word and difflib.SequenceMatcher(None, word[1].upper(), "SBATCH").ratio() > 0.7 and not line.startswith("##"):
            script.problems.append(
                (f"{where}: {line.strip()} is a comment for sbatch", "write it as: #SBATCH " + line[word.end() - 1 :])
            )
    elif line.strip():
        script.commands.append(line)


def _options(script: BatchScript, number: int, text: str) -> None:
    where = f"{script.path}:{number}"
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        script.problems.append((f"{where}: {error}", "close the quotation marks"))
        return
    if not text[:1].isspace() or not words:
        script.problems.append((f"{where}: #SBATCH{text} names no option", "for example: #SBATCH --nodes=1"))
        return
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            if not re.match(r"-[A-Za-z]", word):
                script.problems.append((f"{where}: {word!r} is no option", "write --option=value, without blanks around ="))
                continue
            name, value = SHORT.get(word[1], ""), word[2:].removeprefix("=")
            equals = value
        if name in VALUES and not equals:
            value = waiting.pop(0) if waiting else ""
            if value == "=":  # --nodes = 2
                value += f" {waiting.pop(0)}" if waiting else ""
        _option(script, number, word, name, value)


def _option(script: BatchScript, number: int, word: str, name: str, value: str) -> None:
    where = f"{script.path}:{number}"
    if name not in VALUES and name not in FLAGS:
        near = difflib.get_close_matches(word.partition("=")[0], [f"--{known}" for known in (*VALUES, *FLAGS)], n=1)
        script.problems.append(
            (f"{where}: sbatch has no option {word.partition('=')[0]}", f"did you mean {near[0]}?" if near else "man sbatch")
        )
        return
    problem = value_problem(name, value)
    if problem is not None:
        script.problems.append((f"{where}: {problem[0]}", problem[1]))
        # With a variable in it the value is wrong, but the option was meant, and others are judged beside it.
        if "$" not in value:
            return
    if script.options.get(name, value) != value:
        script.warnings.append(f"{where}: --{name}={value} replaces {script.options[name]} of line {script.lines[name]}")
    script.options[name], script.lines[name] = value, number


def value_problem(name: str, value: str) -> tuple[str, str] | None:
    """Return what is wrong with the value of an option that sbatch has, and the fix; None where nothing is."""
    pattern, example = VALUES.get(name, ("", ""))
    if name in VALUES and "$" in value:
        return f"{value} is not expanded in #SBATCH lines", "write it out; %j is the job's number, %u the user"
    if name in VALUES and not re.fullmatch(pattern, value):
        said = f"{value!r} is not what --{name} takes" if value else f"--{name} needs a value"
        return said, f"for example: --{name}={example}"
    return None


def _gpus(value: str, gres: bool) -> tuple[str, int] | None:
    """Return (kind or '', count) of 'h100:8', '8', or for gres 'gpu:h100:8'; None where there is none."""
    for part in value.split(","):
        words = part.split(":")
        if gres and words[0] != "gpu":
            continue
        words = words[1:] if gres else words
        if not words or not words[-1]:
            if gres:
                return "", 1
            continue
        count = re.fullmatch(r"\d+", words[-1])
        kind = words[0] if len(words) > 1 or not count else ""
        return kind, int(count[0]) if count else 1
    return None
