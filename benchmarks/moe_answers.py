"""Answers of a model whose experts stay in fp8: DeepSeek-V3's true shapes, random weights, seconds of a pass beside the plan's.

    python benchmarks/moe_answers.py --layers 1 --folder /dev/shm --out benchmarks/results/moe-answers-h200.json
    python benchmarks/moe_answers.py --tiny        the same with a tiny model on a CPU

The folder takes the weights in bf16 and in fp8 at its peak, some 42 GB for one layer. What is asked is what `windtunnel predict`
asks: 32 questions of 512 tokens answered together, greedily, by as many ranks as there are GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from moe_fp8 import TINY, machine

from windtunnel.convert import Choice, convert_folder
from windtunnel.generate import GenerationJob, load_source
from windtunnel.model import hf_shape
from windtunnel.plan import load_hf_constants
from windtunnel.plan.answering import plan_answering
from windtunnel.rig import parse_rig


@dataclass(frozen=True)
class Questions:
    """As many as are answered together, each once and to the end."""

    prompts: int
    prompt_tokens: int
    answer_tokens: int
    samples: int = 1
    mean_answer: float = 1.0


def make_model(folder: Path, layers: int, tiny: bool, device: str) -> Path:
    """Write a model of so many layers with random weights and a tokenizer, its experts in fp8; return its folder."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    raw = {**(TINY if tiny else hf_shape("deepseek-v3").raw)}
    raw = {key: value for key, value in raw.items() if key not in ("quantization_config", "auto_map", "architectures")}
    raw |= {"num_hidden_layers": layers, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "bf16")
    del model
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(256)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder / "bf16")
    convert_folder(folder / "bf16", folder / "fp8", Choice(to="fp8"), device=device)
    shutil.rmtree(folder / "bf16")
    return folder / "fp8"


def measure(folder: Path, questions: Questions, device: str, ranks: int, vocabulary: int) -> dict[str, Any]:
    """Return the seconds of a prompt and of a step, each the median of three rounds, and what further rounds repeat.

    Prompts are put together as they arrive, so that batches differ from round to round, and with them a token's last bits: of
    random weights another one may come first then.
    """
    draw = torch.Generator().manual_seed(0)
    length = questions.prompt_tokens
    prompts = [tuple(torch.randint(3, vocabulary, (length,), generator=draw).tolist()) for _ in range(questions.prompts)]
    began = time.monotonic()
    with closing(load_source(folder, device=device, ranks=ranks).generator) as generator:
        loaded = time.monotonic() - began

        def answer(tokens: int) -> tuple[float, list[tuple[int, ...]]]:
            begun = time.perf_counter()
            answers = generator.generate([GenerationJob(prompt, tokens, temperature=0) for prompt in prompts])
            return time.perf_counter() - begun, [tuple(one.tokens) for one in answers]

        answer(2)
        short = statistics.median(answer(1)[0] for _ in range(3))
        whole = [answer(questions.answer_tokens) for _ in range(3)]
    long = statistics.median(seconds for seconds, _ in whole)
    steps = max(len(tokens) for tokens in whole[0][1]) - 1
    pairs = [pair for _, again in whole[1:] for pair in zip(again, whole[0][1], strict=True)]
    return {
        "load_seconds": loaded, "prompts_seconds": short, "prompt_seconds": short / questions.prompts, "steps": steps,
        "step_seconds": (long - short) / max(1, steps), "tokens_per_second": sum(len(t) for t in whole[0][1]) / long,
        "answers_repeated": statistics.mean(one == first for one, first in pairs),
        "tokens_repeated": statistics.mean(sum(map(int.__eq__, one, first)) / len(first) for one, first in pairs),
    }  # fmt: skip


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[1])
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU")
    parser.add_argument("--folder", type=Path, help="where the model lies; otherwise the temporary folder")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device, ranks = ("cpu", 1) if args.tiny else ("cuda", torch.cuda.device_count())
    questions = Questions(4, 16, 8) if args.tiny else Questions(32, 512, 64)
    report: dict[str, Any] = {"machine": machine(), "date": datetime.date.today().isoformat(), "tiny": args.tiny, "cases": []}
    report["asked"] = vars(questions)
    for layers in args.layers:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = make_model(Path(name), layers, args.tiny, device)
            entry: dict[str, Any] = {"layers": layers, "ranks": ranks}
            entry |= measure(folder, questions, device, ranks, 256)
            if not args.tiny:
                rig = parse_rig("H200" if ranks == 1 else f"{ranks}xH200")
                shape, constants = hf_shape(str(folder)), load_hf_constants("H200")
                plan = plan_answering(shape, questions, rig, constants, shared=True, scored=False)
                entry |= {"planned_step_seconds": plan.step_seconds, "planned_prompt_seconds": plan.prompt_seconds,
                          "time_error": plan.step_seconds / entry["step_seconds"] - 1}  # fmt: skip
        report["cases"].append(entry)
        print(json.dumps(entry), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
