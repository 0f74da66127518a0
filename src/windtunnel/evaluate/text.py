"""Text from a model in fixed batches: greedy answers and seeded samples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from windtunnel.data import Tokenizer
from windtunnel.model import GPT, KVCache, choose, extend

CHUNK = 512


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy. top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@torch.inference_mode()
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_tokens: int,
    *,
    sampling: Sampling | None = None,
    stop: str = "",
    batch: int = 64,
) -> list[str]:
    """Continue each prompt, which BOS is put before.

    A text ends at BOS, after any of the characters of `stop`, at max_tokens, or when the context is full.
    Prompts that are longer than the context lose their beginning.

    Args:
        model: to sample from.
        tokenizer: of the model's data.
        prompts: one text each.
        max_tokens: to generate for each prompt, at most.
        sampling: temperature and the like; None: always the likeliest token.
        stop: characters after which a text is over; they are part of the result.
        batch: sequences decoded together.
    """
    sampling = sampling or Sampling()
    # Longest first: what is decoded together then has about the same length.
    ids = [[int(i) for i in tokenizer.encode(p, bos=True)][-model.shape.sequence :] for p in prompts]
    order = sorted(range(len(prompts)), key=lambda i: -len(ids[i]))
    results = [""] * len(prompts)
    for first in range(0, len(order), batch):
        part = order[first : first + batch]
        draws = [random.Random(f"{sampling.seed}:{i}") for i in part]
        texts = _batch(model, tokenizer, [ids[i] for i in part], max_tokens, sampling, set(stop), draws)
        for i, text in zip(part, texts, strict=True):
            results[i] = text
    return results


def _batch(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    max_tokens: int,
    sampling: Sampling,
    stop: set[str],
    draws: list[random.Random],
) -> list[str]:
    device = model.head.weight.device
    count = len(prompts)
    cache = KVCache(model, count, max(map(len, prompts)) + max_tokens)
    logits = _prefill(model, prompts, cache)
    made: list[list[int]] = [[] for _ in prompts]
    live = torch.arange(count, device=device)

    def column(value: float | int) -> torch.Tensor:
        return torch.full((len(live),), value, device=device)

    for _ in range(max_tokens):
        rows = live.tolist()
        uniform = torch.tensor([draws[row].random() for row in rows], device=device)
        tokens = choose(logits, column(sampling.temperature), column(sampling.top_p), column(sampling.top_k), uniform)
        going = []
        for position, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if token == tokenizer.bos:
                continue
            made[row].append(token)
            room = len(prompts[row]) + len(made[row]) <= cache.capacity
            if room and not stop & set(tokenizer.piece(token).decode("utf-8", "replace")):
                going.append(position)
        if not going:
            break
        live, tokens = live[going], tokens[going]
        logits = extend(model, tokens[:, None], live, cache)
    return [tokenizer.decode(tokens) for tokens in made]


def _prefill(model: GPT, prompts: list[list[int]], cache: KVCache) -> torch.Tensor:
    """Feed the prompts, those of equal length together; the logits after each (N, vocab)."""
    device = model.head.weight.device
    logits = torch.empty((len(prompts), model.shape.vocab), device=device)
    rows_of: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(len(prompt), []).append(row)
    for length, rows in rows_of.items():
        slots = torch.tensor(rows, device=device)
        tokens = torch.tensor([prompts[row] for row in rows], device=device)
        for at in range(0, length, CHUNK):
            logits[slots] = extend(model, tokens[:, at : at + CHUNK], slots, cache)
    return logits
