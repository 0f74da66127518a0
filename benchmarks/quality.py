"""Validation loss of windtunnel's GPT and karpathy/nanochat's after the same steps on the same tokens.

    PEER=folder python benchmarks/quality.py --out build/measured/quality.json
    PEER=folder python benchmarks/quality.py --device cuda --depth 8 --sequence 1024 --rows 64 --vocab 8192 \
        --steps 400 --seeds 3 --megabytes 60 --packages torch --out benchmarks/results/quality-h200.json

Text is the source of Python's standard library and of installed packages, BPE. The sides see the
same batches in the same order; each has its own model, initial weights, optimizer, rates and
schedules, as its own training command would set them for this batch (nanochat's: the formulas of
scripts/base_train.py). The side `peer-calm` is nanochat with one change: see DIFFERENCES.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import random
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from windtunnel.data import BatchLoader, ValidationBatches, prepare
from windtunnel.model import build_model, derive, gpt_shape
from windtunnel.recipe import load_recipe
from windtunnel.train import MuonAdamW
from windtunnel.train.schedule import scalars

VALIDATION_TOKENS = 2**18
SEPARATOR = "\n#-8<-\n"
SIDES = ("ours", "peer", "peer-calm")
DIFFERENCES = [
    "peer only: smear (a gate mixes in the token before), backout (the middle layer is subtracted before the head)",
    "peer only: Muon rows brought to one norm before orthogonalisation, and the update to a fixed norm after it",
    "Muon's rate: 0.02 x sqrt(batch / 2^19) (peer), 0.02 (ours)",
    "peer: token and value tables, and their optimizer states, in bf16 on GPUs; ours in fp32",
    "Muon's momentum: 0.85 to 0.97 over 400 steps, then to 0.90 (peer); 0.85 to the recipe's over 300, then to 0.90 (ours)",
    "weight decay: the same rule, ours at most 0.56",
    "the peer's rate for smear and backout is 0.2 whatever the batch, where all its other rates fall with sqrt(batch / 2^19);"
    " peer-calm scales it too",
]


@dataclass(frozen=True)
class Shapes:
    """What both sides share. A step is `rows` sequences."""

    depth: int
    sequence: int
    rows: int
    steps: int
    device: str

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.rows * self.sequence


@dataclass(frozen=True)
class Side:
    """A model in training: `loss` is what is trained (maybe compiled), `model` what is scored."""

    model: torch.nn.Module
    loss: Callable[..., torch.Tensor]
    update: Callable[[int], object]


def ours(recipe: Any, vocab: int, shapes: Shapes, seed: int) -> Side:
    """As `windtunnel train` does it."""
    compute = torch.bfloat16 if shapes.gpu else torch.float32
    model = build_model(gpt_shape(recipe.model, vocab), device=shapes.device, compute=compute, seed=seed)
    rates, stage = derive(recipe, vocab), recipe.pretrain
    optimizer = MuonAdamW(model, rates, compiled=shapes.gpu)

    def update(step: int) -> None:
        momentum, decay = stage.optimizer.momentum, rates.weight_decay.value
        now = scalars(stage.schedule, momentum=momentum, weight_decay=decay, step=step, progress=step / shapes.steps)
        optimizer.step(now)

    return Side(model, model, update)


def peer(vocab: int, shapes: Shapes, seed: int, calm: bool) -> Side:
    """As nanochat's scripts/base_train.py does it with --total-batch-size, --num-iterations and --window-pattern L."""
    sys.path.insert(0, os.environ["PEER"])
    from nanochat.gpt import GPT, GPTConfig

    def build(depth: int) -> Any:
        dim = -(-depth * 64 // 128) * 128
        heads = {"n_head": dim // 128, "n_kv_head": dim // 128}
        shape = {"sequence_len": shapes.sequence, "vocab_size": vocab, "n_layer": depth, "n_embd": dim}
        with torch.device("meta"):
            return GPT(GPTConfig(**shape, **heads, window_pattern="L"))

    def scaling(model: Any) -> int:
        counts = model.num_scaling_params()
        return int(counts["transformer_matrices"] + counts["lm_head"])

    torch.manual_seed(seed)
    model = build(shapes.depth)
    model.to_empty(device=shapes.device)
    model.init_weights()
    batch = math.sqrt(shapes.tokens / 2**19)
    decay = 0.28 * batch * scaling(build(12)) / scaling(model)
    rates = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "matrix_lr": 0.02, "scalar_lr": 0.5}
    optimizer = model.setup_optimizer(**{name: rate * batch for name, rate in rates.items()}, weight_decay=decay)
    if calm:
        group = next(g for g in optimizer.param_groups if any(p is model.smear_lambda for p in g["params"]))
        group["initial_lr"] *= batch

    def update(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * peer_rate(step, shapes.steps)
            if group["kind"] == "muon":
                group["momentum"] = peer_momentum(step, shapes.steps)
                group["weight_decay"] = decay * 0.5 * (1 + math.cos(math.pi * step / shapes.steps))
        optimizer.step()
        model.zero_grad(set_to_none=True)

    return Side(model, torch.compile(model, dynamic=False) if shapes.gpu else model, update)


def peer_rate(step: int, steps: int) -> float:
    """get_lr_multiplier of base_train.py with its defaults."""
    if step < 40:
        return (step + 1) / 40
    down = round(0.65 * steps)
    left = min(1.0, (steps - step) / down)
    return left + (1 - left) * 0.05


def peer_momentum(step: int, steps: int) -> float:
    """get_muon_momentum of base_train.py."""
    down = round(0.65 * steps)
    if step < 400:
        return 0.85 + 0.12 * step / 400
    return 0.97 - 0.07 * max(0.0, (step - (steps - down)) / down)


def run(name: str, recipe: Any, data: Any, shapes: Shapes, seed: int) -> dict[str, Any]:
    """Train one side and score it: mean loss in nats a token of the validation split's beginning."""
    vocab = data.tokenizer.vocab
    side = ours(recipe, vocab, shapes, seed) if name == "ours" else peer(vocab, shapes, seed, name == "peer-calm")
    layout = {"sequence": shapes.sequence, "micro_batch": shapes.rows, "accumulation": 1, "rank": 0, "world": 1}
    losses = []
    with BatchLoader(data.train, **layout, seed=seed, device=shapes.device) as loader:
        for step in range(shapes.steps):
            loss = side.loss(*loader.next_batch())
            loss.backward()
            side.update(step)
            losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    return {
        "parameters": sum(p.numel() for p in side.model.parameters()),
        "validation_loss": score(side.model, data, shapes),
        "train_loss": [statistics.fmean(losses[i : i + 10]) for i in range(0, shapes.steps, 10)],
    }


@torch.no_grad()
def score(model: torch.nn.Module, data: Any, shapes: Shapes) -> float:
    model.eval()
    batches = ValidationBatches(
        data.validation, sequence=shapes.sequence, micro_batch=shapes.rows, limit=VALIDATION_TOKENS, device=shapes.device
    )
    counted = [(model(x, y).item(), int((y >= 0).sum())) for x, y in batches]
    return sum(loss * n for loss, n in counted if n) / sum(n for _, n in counted)


def write_corpus(path: Path, megabytes: float, packages: list[str]) -> None:
    """Python files of the standard library and of packages in an order drawn once, until there is enough text."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [f for f in library.rglob("*.py") if "-packages" not in str(f.relative_to(library))]
    for name in packages:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise SystemExit(f"--packages {name}: no such package is installed")
        files += [f for folder in found.submodule_search_locations for f in Path(folder).rglob("*.py")]
    random.Random(0).shuffle(files := sorted(set(files)))
    size = 0
    with open(path, "w", encoding="utf-8") as out:
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue  # tests of encodings are not UTF-8
            if text and "\0" not in text and SEPARATOR not in text and size < megabytes * 1e6:
                out.write(text + SEPARATOR)
                size += len(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name, default in (("depth", 4), ("sequence", 256), ("rows", 8), ("vocab", 1024), ("steps", 200), ("seeds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--packages", nargs="*", default=[], help="their source joins the corpus")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of our recipe")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    shapes = Shapes(args.depth, args.sequence, args.rows, args.steps, args.device)
    torch.set_float32_matmul_precision("high" if shapes.gpu else "highest")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        write_corpus(corpus, args.megabytes, args.packages)
        keys = [f"model.depth={args.depth}", f"model.sequence={args.sequence}", "data.corpus.kind=text", "data.validation=0.02"]
        keys += [f"data.corpus.files=['{corpus}']", f"data.corpus.separator={json.dumps(SEPARATOR)}"]
        keys += ["data.tokenizer.kind=bpe", f"data.tokenizer.vocab_size={args.vocab}"]
        recipe = load_recipe("charlm", [*keys, f"stages.pretrain.batch_tokens={shapes.tokens}", *args.set])
        data = prepare(recipe, cache=Path(folder))
        report = {
            "what": "validation loss after the same steps on the same tokens, each side as its own command trains",
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name() if shapes.gpu else platform.processor() or "cpu",
            "precision": "bf16" if shapes.gpu else "fp32",
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "shapes": {**vars(shapes), "vocab": data.tokenizer.vocab, "tokens": shapes.tokens},
            "text": {"megabytes": data.bytes / 1e6, "packages": args.packages, "train_tokens": data.train.count},
            "epochs": shapes.tokens * shapes.steps / data.train.count,
            "differences": DIFFERENCES,
            "set": args.set,
            "sides": {name: {"runs": []} for name in args.sides},
        }
        for seed in range(args.seeds):
            for name in args.sides:
                result = {"seed": seed, **run(name, recipe, data, shapes, seed)}
                print(f"{name} seed {seed}: {result['validation_loss']:.4f}", flush=True)
                add(report["sides"][name], result)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(report, indent=1) + "\n")


def add(side: dict[str, Any], result: dict[str, Any]) -> None:
    """Keep a run and the mean over seeds so far."""
    side["runs"].append(result)
    found = [r["validation_loss"] for r in side["runs"]]
    side["validation_loss"] = statistics.fmean(found)
    side["spread"] = max(found) - min(found)


if __name__ == "__main__":
    main()
