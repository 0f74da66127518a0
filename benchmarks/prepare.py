"""How fast data are prepared: read, checked, tokenized and written, with a tokenizer that is trained on them.

python benchmarks/prepare.py [--megabytes 200] [--documents 50000] [--theses 20000] [--out benchmarks/results/prepare-cpu.json]

text: the lines of Python's standard library in random order, over and over, as files of a megabyte; with a BPE of 8,192
tokens, and with a token a character. questions: generated questions and answers. theses: those that the recipe thesis generates,
with the search for near copies. CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from windtunnel.data import prepare
from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe
from windtunnel.recipe import load_recipe

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG = {
    "model_type": "llama", "vocab_size": 8192, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--theses", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/prepare-cpu.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        os.environ["WINDTUNNEL_CACHE"] = f"{root}/cache"
        measured = {"text": _text(Path(root) / "text", args.megabytes)}
        model = _model(Path(root) / "model")
        sets = [f"model.config={model}", f"data.corpus.arithmetic.documents={args.documents}"]
        measured["questions"] = {"documents": args.documents} | _measure("finetune", sets)
        sets = [f"model.config={model}", "model.weights=bf16", f"data.corpus.generated.records={args.theses}"]
        measured["theses"] = {"documents": args.theses} | _measure("thesis", sets)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    result = {"machine": machine | {"date": datetime.date.today().isoformat()}, **measured}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def _model(folder: Path) -> Path:
    """Write a folder with a config, a tokenizer of 8,192 tokens and a chat template."""
    folder.mkdir()
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(os.__file__).parent.glob("*.py"))[:80]]
    train_bpe(texts, 8192, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    settings = {"eos_token": CHATML_END, "bos_token": CHATML_START, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def _text(folder: Path, megabytes: int) -> dict[str, Any]:
    """Prepare text with each of the two tokenizers that are made on the spot."""
    folder.mkdir()
    size = _write_text(folder, megabytes)
    sets = ["data.corpus.kind=text", f"data.corpus.files=[{folder}/*.txt]"]
    kinds = {"bpe": ["data.tokenizer={kind: bpe, vocab_size: 8192}"], "character": ["data.tokenizer.alphabet=auto"]}
    return {"megabytes": round(size / 1e6, 1)} | {kind: _measure("charlm", [*sets, *more]) for kind, more in kinds.items()}


def _write_text(folder: Path, megabytes: int) -> int:
    """Write as many files of a megabyte, and return their bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lines = [line for path in sources for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)]
    draw, size = random.Random(0), 0
    for number in range(megabytes):
        file, chosen = folder / f"{number:05}.txt", list[str]()
        taken = 0
        while taken < 1_000_000:
            chosen.append(draw.choice(lines))
            taken += len(chosen[-1])
        size += file.write_bytes("".join(chosen).encode())
    return size


def _measure(name: str, sets: list[str]) -> dict[str, Any]:
    recipe = load_recipe(name, sets)
    begun, worked = time.monotonic(), time.process_time()
    tokens = prepare(recipe).tokens
    seconds, cpu = time.monotonic() - begun, time.process_time() - worked
    return {
        "tokens": tokens, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
        "tokens_per_second": round(tokens / seconds), "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()
