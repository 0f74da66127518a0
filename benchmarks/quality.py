"""Validation loss of windtunnel's GPT and karpathy/nanochat's after the same steps on the same tokens, on a CPU.

    PEER=folder python benchmarks/quality.py --out benchmarks/results/quality-cpu.json

Python's standard library as text, BPE. Both get the learning rates of nanochat's rules, the same
batches in the same order and the same schedule; each has its own model and optimizer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from windtunnel.data import BatchLoader, ValidationBatches, prepare
from windtunnel.model import build_gpt, derive, gpt_shape
from windtunnel.recipe import load_recipe
from windtunnel.train import MuonAdamW, Scalars

DEPTH, SEQUENCE, ROWS, VOCAB = 4, 256, 8, 1024


def schedule(step: int, steps: int) -> float:
    """Warm-up over 5 %, then linear warm-down over the last 65 % to 5 %."""
    warm = min(1.0, (step + 1) / (0.05 * steps))
    down = max(0.0, (step / steps - 0.35) / 0.65)
    return warm * (1 - 0.95 * down)


def ours(recipe: Any, vocab: int) -> tuple[torch.nn.Module, Any]:
    model = build_gpt(gpt_shape(recipe.model, vocab), seed=0)
    optimizer = MuonAdamW(model, derive(recipe, vocab))
    return model, lambda scale: optimizer.step(Scalars(scale, 0.95, 0.0))


def peer(recipe: Any, vocab: int) -> tuple[torch.nn.Module, Any]:
    sys.path.insert(0, os.environ["PEER"])
    from nanochat.gpt import GPT, GPTConfig

    torch.manual_seed(0)
    heads = DEPTH * 64 // 128
    config = GPTConfig(
        sequence_len=SEQUENCE,
        vocab_size=vocab,
        n_layer=DEPTH,
        n_head=heads,
        n_kv_head=heads,
        n_embd=DEPTH * 64,
        window_pattern="L",
    )
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    model.init_weights()
    scale = math.sqrt(SEQUENCE * ROWS / 2**19)
    optimizer = model.setup_optimizer(
        unembedding_lr=0.008 * scale, embedding_lr=0.3 * scale, matrix_lr=0.02 * scale, scalar_lr=0.5 * scale
    )

    def update(factor: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.step()
        model.zero_grad(set_to_none=True)

    return model, update


def run(build: Any, recipe: Any, data: Any, steps: int) -> dict[str, Any]:
    model, update = build(recipe, data.tokenizer.vocab)
    layout = {"sequence": SEQUENCE, "micro_batch": ROWS, "accumulation": 1, "rank": 0, "world": 1, "seed": 0}
    began, losses = time.monotonic(), []
    with BatchLoader(data.train, **layout) as loader:
        for step in range(steps):
            x, y = loader.next_batch()
            loss = model(x, y)
            loss.backward()
            update(schedule(step, steps))
            losses.append(loss.item())
    seconds = time.monotonic() - began
    model.eval()
    with torch.no_grad():
        batches = ValidationBatches(data.validation, sequence=SEQUENCE, micro_batch=ROWS, limit=65536)
        scores = [(model(x, y).item(), int((y >= 0).sum())) for x, y in batches]
    validation = sum(loss * n for loss, n in scores) / sum(n for _, n in scores)
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "validation_loss": validation, "seconds": seconds, "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    keys = [f"model.depth={DEPTH}", f"model.sequence={SEQUENCE}", "data.corpus.kind=stdlib", "data.corpus.megabytes=4"]
    keys += ["data.tokenizer.kind=bpe", f"data.tokenizer.vocab_size={VOCAB}", "data.validation=0.05"]
    recipe = load_recipe("charlm", [*keys, f"stages.pretrain.batch_tokens={SEQUENCE * ROWS}"])
    with tempfile.TemporaryDirectory() as cache:
        data = prepare(recipe, cache=Path(cache))
        results = {name: run(build, recipe, data, args.steps) for name, build in (("ours", ours), ("peer", peer))}
    report = {
        "what": "validation loss after the same steps on the same tokens, CPU, fp32",
        "date": datetime.date.today().isoformat(),
        "versions": {"torch": torch.__version__},
        "shapes": {"depth": DEPTH, "sequence": SEQUENCE, "rows": ROWS, "vocab": data.tokenizer.vocab, "steps": args.steps},
        **results,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, result in results.items():
        size, loss = f"{result['parameters']:,} parameters", f"{result['validation_loss']:.4f}"
        print(f"{name}: {size}, validation loss {loss}, {result['seconds']:.0f} s")


if __name__ == "__main__":
    main()
