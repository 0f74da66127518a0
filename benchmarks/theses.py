"""How long a million theses take from files to packed tokens, and how much memory: XML and JSON lines.

python benchmarks/theses.py [--records 1000000] [--cores 2] [--folder /tmp] [--out benchmarks/results/theses.json]

Generated theses are written as XML and as JSON lines; each is then prepared by a process of its own on so many cores, with
a tokenizer that is there (as a model's own would be), and exported. Seconds are by the clock and of the processor: on a
machine that does other work as well, the first depends on that work (its load is noted), the second does much less.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil

from windtunnel.data import export_theses, prepare
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.data.theses_make import generated_records, simulate
from windtunnel.recipe import FolderTokenizer, GeneratedTheses, ThesisCorpus, TimeSplit, load_recipe

PHASES = {"looking for changes": "hash the files", "reading theses": "read, check and split", "looking for near": "near copies"}
VOCABULARY = 8192


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=["xml", "jsonl"])
    parser.add_argument("--folder", type=Path, help="where files of about 2.5 KB a record lie; otherwise the temporary folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(Path(options.child))))
        return 0
    found: dict[str, Any] = {"machine": machine(), "records": options.records, "cores": options.cores, "formats": {}}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_tokenizer(folder / "tokenizer")
        for form in options.formats:
            file = folder / f"theses.{form}"
            write_theses(file, options.records)
            command = [sys.executable, __file__, "--child", str(file)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=lambda: on_cores(options.cores)
            )
            found["formats"][form] = json.loads(done.stdout) | {"load_after": os.getloadavg()[0]}
            print(json.dumps(found["formats"][form], indent=1), flush=True)
            file.unlink()
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def machine() -> dict[str, Any]:
    """What was measured on."""
    facts = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "python": platform.python_version()}
    return {**facts, "date": datetime.date.today().isoformat()}


def on_cores(count: int) -> None:
    """Keep this process to the first cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def made(records: int) -> GeneratedTheses:
    """Return what to generate: 400 stocks for a hundred thousand theses."""
    return GeneratedTheses(records=records, tickers=max(20, records // 1000))


def write_theses(file: Path, records: int) -> None:
    """Write generated theses as JSON lines or XML."""
    wanted = made(records)
    xml = file.suffix == ".xml"
    with open(file, "w", encoding="utf-8") as lines:
        if xml:
            lines.write('<?xml version="1.0" encoding="UTF-8"?>\n<stock-theses generated-by="benchmark" version="1">\n')
        for _, record in generated_records(wanted, simulate(wanted, 1)):
            lines.write(as_xml(record) if xml else json.dumps(record) + "\n")
        if xml:
            lines.write("</stock-theses>\n")


def as_xml(record: dict[str, Any]) -> str:
    """Return a record as an element with one child an indicator."""
    fields = {"as-of-date": record["as_of_date"], **{key: record[key] for key in ("reasoning", "support", "action")}}
    children = "".join(f"  <{name}>{escape(value)}</{name}>\n" for name, value in {**fields, **record["indicators"]}.items())
    return f' <thesis ticker="{record["ticker"]}">\n{children} </thesis>\n'


def write_tokenizer(folder: Path) -> None:
    """Train a tokenizer on a few theses, as a folder that transformers reads."""
    folder.mkdir()
    wanted = GeneratedTheses(records=5000)
    texts = (" ".join(map(str, record.values())) for _, record in generated_records(wanted, simulate(wanted, 2)))
    train_bpe(texts, VOCABULARY, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": CHATML_END, "bos_token": CHATML_START}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def measure(file: Path) -> dict[str, Any]:
    """Prepare and export one file, and return seconds by phase and the peak of the memory."""
    recipe = load_recipe("charlm")
    split = TimeSplit(test_start="2025-01-01", validation_days=60)
    tokenizer = FolderTokenizer(path=str(file.parent / "tokenizer"))
    data = recipe.data.model_copy(update={"corpus": ThesisCorpus(files=[str(file)]), "split": split, "tokenizer": tokenizer})
    recipe = recipe.model_copy(update={"data": data})
    marks: list[tuple[str, float, float]] = []

    def note(share: float, what: str) -> None:
        phase = next((name for start, name in PHASES.items() if what.startswith(start)), "render, tokenize and write")
        if not marks or marks[-1][0] != phase:
            marks.append((phase, time.perf_counter(), processor()))

    started, busy = time.perf_counter(), processor()
    with Memory() as memory:
        prepared = prepare(recipe, cache=file.parent / "cache", progress=note)
        marks.append(("pack", time.perf_counter(), processor()))
        packed = prepared.train.sequences(1024)
        marks.append(("export", time.perf_counter(), processor()))
        export_theses(prepared, file.parent / "out")
    phases: dict[str, list[float]] = {}
    edges = [("start", started, busy), *marks, ("end", time.perf_counter(), processor())]
    for (name, clock, used), (_, later, more) in itertools.pairwise(edges):
        before = phases.setdefault(name, [0.0, 0.0])
        phases[name] = [before[0] + later - clock, before[1] + more - used]
    seconds, cpu = time.perf_counter() - started, processor() - busy
    shutil.rmtree(file.parent / "cache")
    shutil.rmtree(file.parent / "out")
    return {
        "file_megabytes": round(file.stat().st_size / 1e6, 1),
        "seconds": round(seconds, 1),
        "processor_seconds": round(cpu, 1),
        "peak_megabytes": round(memory.most / 1e6),
        "theses": prepared.facts["kept"],
        "rejected": prepared.facts["rejected"],
        "train_tokens": prepared.train.count,
        "packed_sequences": packed,
        "phases": {name: {"seconds": round(a, 1), "processor_seconds": round(b, 1)} for name, (a, b) in phases.items()},
    }


def processor() -> float:
    """Seconds of the processor that this process and its children have used, in all their threads."""
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = [(one.ru_utime, one.ru_stime) for one in ended]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            used.append(child.cpu_times()[:2])
    return sum(map(sum, used))


class Memory:
    """Looks twice a second how much memory this process and its children hold, and keeps the most in bytes."""

    def __enter__(self) -> Memory:
        self.most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            held = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    held += process.memory_info().rss
            self.most = max(self.most, held)


if __name__ == "__main__":
    raise SystemExit(main())
