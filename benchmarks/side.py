"""One side of a training-throughput comparison: builds a trainer, then times steps when told to.

Protocol: prints READY when compiled and warm; for every line on stdin runs that many steps and
prints a JSON line with their seconds, from an idle GPU to an idle GPU; at end of input prints peak
memory and leaves. The peer waits for the GPU after each step because its training script does; ours
reads its losses later.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

VOCAB, SEQUENCE, ACCUMULATION = 32768, 2048, 4


def ours(depth: int, batch: int, precision: str, seed: int, recorded: bool = False) -> Callable[[], torch.Tensor]:
    """Return a step of our trainer on random tokens read through its own loader; recorded: its passes are a CUDA graph."""
    import numpy as np

    from windtunnel.data import BatchLoader, TokenFile
    from windtunnel.model import CudaRecorder, Replay, build_model, derive, gpt_shape
    from windtunnel.model.fp8 import enable_fp8
    from windtunnel.recipe import load_recipe
    from windtunnel.train.gpt import PlainLoss, Work
    from windtunnel.train.optimizer import MuonAdamW, Scalars

    recipe = load_recipe("charlm", [f"model.depth={depth}", f"model.sequence={SEQUENCE}"])
    device = torch.device("cuda")
    model = build_model(gpt_shape(recipe.model, VOCAB), device=device, compute=torch.bfloat16, seed=seed)
    if precision == "fp8":
        enable_fp8(model)
    optimizer = MuonAdamW(model, derive(recipe, VOCAB), compiled=True)
    model.compile()
    folder = Path(tempfile.mkdtemp())
    tokens = np.random.default_rng(seed).integers(0, VOCAB, batch * SEQUENCE * ACCUMULATION * 8 + 1, dtype=np.uint16)
    tokens.tofile(folder / "train.bin")
    file = TokenFile(folder / "train.bin", "uint16", len(tokens))
    loader = BatchLoader(
        file, sequence=SEQUENCE, micro_batch=batch, accumulation=ACCUMULATION, rank=0, world=1, seed=seed, device=device
    )
    work = Work(model, optimizer, loader, batch * SEQUENCE * ACCUMULATION)
    passes = PlainLoss(Replay(CudaRecorder() if recorded else None))

    def step() -> torch.Tensor:
        sums, _ = passes(work, lambda _: optimizer.step(Scalars(1.0, 0.95, 0.1)), None)
        return sums[0] / work.batch_tokens

    return step


def peer(depth: int, batch: int, precision: str, seed: int) -> Callable[[], torch.Tensor]:
    """A step of nanochat's base training script on random tokens that are already on the GPU."""
    from nanochat.gpt import GPT, GPTConfig

    torch.manual_seed(seed)
    dim = depth * 64
    dim = -(-dim // 128) * 128
    heads = {"n_head": dim // 128, "n_kv_head": dim // 128}
    config = GPTConfig(sequence_len=SEQUENCE, vocab_size=VOCAB, n_layer=depth, n_embd=dim, window_pattern="L", **heads)
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cuda")
    model.init_weights()
    if precision == "fp8":
        from nanochat.fp8 import Float8LinearConfig, convert_to_float8_training

        def eligible(module: torch.nn.Module, _: str) -> bool:
            sides = (module.in_features, module.out_features)
            return all(n % 16 == 0 for n in sides) and min(sides) >= 128

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("tensorwise"), module_filter_fn=eligible)
    compiled = torch.compile(model, dynamic=False)
    optimizer = model.setup_optimizer(unembedding_lr=0.008, embedding_lr=0.3, weight_decay=0.28)
    x = torch.randint(0, VOCAB, (batch, SEQUENCE), device="cuda")
    y = torch.randint(0, VOCAB, (batch, SEQUENCE), device="cuda")

    def step() -> torch.Tensor:
        torch.cuda.synchronize()
        for _ in range(ACCUMULATION):
            loss = compiled(x, y)
            value = loss.detach()
            (loss / ACCUMULATION).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        value.item()
        torch.cuda.synchronize()
        return value

    return step


def profile(step: Callable[[], torch.Tensor]) -> list[dict[str, float | str]]:
    """GPU milliseconds by kernel over one step, largest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    rows = sorted(recorded.key_averages(), key=lambda e: -e.self_device_time_total)
    total = {"kernel": "total", "ms": sum(e.self_device_time_total for e in rows) / 1e3, "calls": sum(e.count for e in rows)}
    return [total] + [{"kernel": e.key[:160], "ms": e.self_device_time_total / 1e3, "calls": e.count} for e in rows[:60]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=["ours", "peer"], required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--recorded", action="store_true", help="of ours: passes are CUDA graphs")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--nondeterministic", action="store_true", help="let ours use kernels whose last bits vary")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if args.side == "ours":
        from windtunnel.model import deterministic

        deterministic(not args.nondeterministic)
    options = {"recorded": True} if args.recorded else {}
    step = {"ours": ours, "peer": peer}[args.side](args.depth, args.batch, args.precision, seed=0, **options)
    started = time.perf_counter()
    losses = [step().item() for _ in range(3)]
    torch.cuda.synchronize()
    print("READY", json.dumps({"warm_up_seconds": time.perf_counter() - started, "losses": losses}), flush=True)
    for line in sys.stdin:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        torch.cuda.synchronize()
        print(json.dumps({"seconds": time.perf_counter() - begin, "loss": loss.item()}), flush=True)
    final = {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}
    if args.profile:
        final["profile"] = profile(step)  # type: ignore[assignment]
    print(json.dumps(final), flush=True)


if __name__ == "__main__":
    main()
