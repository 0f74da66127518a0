"""Compare what vLLM and transformers make of one exported folder: greedy tokens and their log-probabilities.

    python benchmarks/vllm_export.py FOLDER [--dtype bfloat16] [--tokens 64] [--out FILE]

Runs where vLLM is, with a GPU or with vLLM's build for CPUs, and xxhash; windtunnel need not be installed beside them, its src
folder is found from here. Both sides answer the same prompts through windtunnel's generators, vLLM through the adapter that
`windtunnel serve --backend vllm` uses, and both score what transformers wrote. Where tokens differ, the margin is how much
likelier, to transformers, its own token was than vLLM's: rounding decides where it is next to nothing.
Prints JSON; exit code 0 where every difference is within --margin, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

QUESTIONS = [
    "What is 12 + 30?",
    "Name three colours.",
    "Who wrote Hamlet?",
    "Write one sentence about rain.",
    "What is the capital of France?",
    "Count from one to five.",
    "Translate 'good morning' into German.",
    "Why is the sky blue?",
]


def main() -> int:
    """Run both sides and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16", help="of both sides: bfloat16, float16 or float32")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--context", type=int, default=1024, help="vLLM's max_model_len")
    parser.add_argument("--memory", type=float, default=0.5, help="vLLM's share of a GPU's memory")
    parser.add_argument(
        "--margin", type=float, default=0.25, help="nats: a larger one where tokens differ is a failure (bf16 logits: 1/8)"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, where there is no GPU

    import torch
    import transformers
    import vllm

    prompts, wanted = by_transformers(given)
    found = by_vllm(given, prompts, [ids for ids, _ in wanted])
    shape = json.loads((given.folder / "config.json").read_text(encoding="utf-8"))
    result = {
        "what": "vLLM beside transformers on an exported folder: greedy answers, and log-probabilities of transformers' answers",
        "folder": given.folder.name,
        "model": {key: shape.get(key) for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")},
        "dtype": given.dtype,
        **compare([p for _, p in wanted], *found),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    result["agrees"] = result["largest_margin"] <= given.margin
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["agrees"] else 1


def machine() -> str:
    """Return the GPU's name, or the CPU's architecture and cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def by_transformers(given: argparse.Namespace) -> tuple[list[tuple[int, ...]], list[tuple[tuple[int, ...], Any]]]:
    """Return the prompts, and transformers' own greedy answers with (t, vocab) log-probabilities where each token stands."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(given.folder, dtype=getattr(torch, given.dtype)).to(device).eval()
    prompts, wanted = [], []
    for question in QUESTIONS:
        if tokenizer.chat_template:
            talk = [{"role": "user", "content": question}]
            ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
        else:
            ids = tokenizer.encode(question)
        with torch.inference_mode():
            # Only the tokens that the folder says end a text: how likely they are is not made less here.
            made = model.generate(
                torch.tensor([ids], device=device), max_new_tokens=given.tokens, do_sample=False, pad_token_id=0,
                repetition_penalty=1.0,
            )[0, len(ids) :].tolist()  # fmt: skip
            logits = model(torch.tensor([[*ids, *made]], device=device)).logits[0, len(ids) - 1 : -1]
        prompts.append(tuple(ids))
        wanted.append((tuple(made), logits.float().log_softmax(-1).cpu()))
    return prompts, wanted


def by_vllm(given: argparse.Namespace, prompts: list[tuple[int, ...]], answers: list[tuple[int, ...]]) -> tuple[Any, Any, Any]:
    """Return transformers' answers, vLLM's greedy ones, and vLLM's log-probabilities of transformers' tokens."""
    from windtunnel.generate import GenerationJob
    from windtunnel.generate.vllm_adapter import load_vllm

    extra: dict[str, Any] = {}
    import torch

    if torch.cuda.is_available():
        extra["gpu_memory_utilization"] = given.memory
    generator = load_vllm(
        given.folder, slots=8, queue=0, dtype=given.dtype, max_model_len=given.context, enforce_eager=True, **extra
    )
    try:
        made = generator.generate([GenerationJob(prompt, given.tokens, temperature=0) for prompt in prompts])
        both = [(*prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
        scored = generator.generate([GenerationJob(ids, 0, temperature=0, logprobs=0, score_prompt=True) for ids in both])
        ends = generator.text.ends
    finally:
        generator.close()
    mine = [tuple(token for token in answer if token not in ends) for answer in answers]
    infos = [
        [info.log_probability for info in done.prompt_infos][len(prompt) :] for prompt, done in zip(prompts, scored, strict=True)
    ]
    return mine, [done.tokens for done in made], (answers, infos)


def compare(logs: list[Any], mine: Any, theirs: Any, scored: Any) -> dict[str, Any]:
    """Compare tokens and log-probabilities.

    Args:
        logs: of each answer of transformers', its log-probabilities (t, vocab).
        mine: transformers' tokens without end tokens. theirs: vLLM's.
        scored: transformers' tokens with end tokens, and vLLM's log-probability of each.
    """
    margins, tokens, differences = [], 0, []
    for log, own, other in zip(logs, mine, theirs, strict=True):
        tokens += len(own)
        at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
        if at is not None:
            margins.append(float(log[at, own[at]] - log[at, other[at]]))
        elif len(own) != len(other):  # one of them ended where the other went on
            at = min(len(own), len(other))
            rest = (own if len(own) > len(other) else other)[at]
            margins.append(abs(float(log[at].max() - log[at, rest])) if at < len(log) else float("inf"))
    for log, answer, values in zip(logs, *scored, strict=True):
        differences += [abs(float(log[i, token]) - value) for i, (token, value) in enumerate(zip(answer, values, strict=True))]
    return {
        "prompts": len(mine),
        "tokens": tokens,
        "answers_alike": sum(tuple(a) == tuple(b) for a, b in zip(mine, theirs, strict=True)),
        "margins_where_they_differ": [round(margin, 5) for margin in margins],
        "largest_margin": max(margins, default=0.0),
        "scored_tokens": len(differences),
        "mean_difference_of_log_probabilities": sum(differences) / len(differences),
        "largest_difference_of_log_probabilities": max(differences),
    }


if __name__ == "__main__":
    sys.exit(main())
