"""Bits per byte against a direct computation, and the same value over any number of ranks."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from windtunnel.evaluate import validation_loss
from windtunnel.model import GPT, build_model, gpt_shape
from windtunnel.recipe import GPTModel, UserError

VOCAB, BOS = 11, 10
TOKEN_BYTES = np.array([1, 1, 2, 3, 4, 1, 1, 7, 1, 2, 0])


def model() -> GPT:
    shape = gpt_shape(GPTModel(depth=2, aspect=16, head_dim=16, sequence=16), VOCAB)
    built = build_model(shape, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in built.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.3, generator=generator)
    return built


def batches(count: int, padded: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    result = []
    for _ in range(count):
        x = torch.randint(0, VOCAB, (3, 16), generator=generator)
        result.append((x, torch.randint(0, VOCAB, (3, 16), generator=generator)))
    result[-1][1][-1, -padded:] = -1
    return result


def direct(gpt: GPT, data: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Mean nats, and bits per byte, from the logits, token by token."""
    nats, text, size, count = 0.0, 0.0, 0, 0
    with torch.no_grad():
        for x, y in data:
            log_p = F.log_softmax(gpt(x), -1)
            for row in range(x.size(0)):
                for t in range(x.size(1)):
                    target = int(y[row, t])
                    if target < 0:
                        continue
                    loss = -float(log_p[row, t, target])
                    nats, count = nats + loss, count + 1
                    if target != BOS:
                        text, size = text + loss, size + int(TOKEN_BYTES[target])
    return nats / count, text / math.log(2) / size


def test_loss_and_bits_per_byte_equal_the_direct_computation() -> None:
    gpt, data = model(), batches(3)
    loss, bits = direct(gpt, data)
    result = validation_loss(gpt, data, TOKEN_BYTES, "cpu")
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(bits, rel=1e-5)
    assert result.tokens == 3 * 3 * 16 - 5
    assert result.bytes == sum(int(TOKEN_BYTES[y[y >= 0]].sum()) for _, y in data)


def test_uniform_model_over_bytes_has_log2_vocab_bits() -> None:
    gpt = build_model(gpt_shape(GPTModel(depth=1, aspect=16, head_dim=16, sequence=16), 8), seed=0)
    torch.nn.init.zeros_(gpt.head.weight)
    y = torch.randint(0, 8, (2, 16))
    assert validation_loss(gpt, [(y, y)], np.ones(8), "cpu").bits_per_byte == pytest.approx(3.0, rel=1e-6)


def test_the_mode_and_gradients_are_left_alone() -> None:
    gpt = model().train()
    validation_loss(gpt, batches(1), TOKEN_BYTES, "cpu")
    assert gpt.training
    assert all(p.grad is None for p in gpt.parameters())


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="no targets"):
        validation_loss(model(), [], TOKEN_BYTES, "cpu")


def _rank(rank: int, world: int, folder: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    # Two ranks share three batches unevenly; a third has none.
    mine = {0: batches(3)[:2], 1: batches(3)[2:], 2: []}[rank]
    result = validation_loss(model(), mine, TOKEN_BYTES, "cpu")
    Path(folder, f"{rank}.txt").write_text(f"{result.loss!r} {result.bits_per_byte!r} {result.tokens}")
    dist.destroy_process_group()


def test_ranks_agree_with_one_process(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(3, str(tmp_path)), nprocs=3, join=True)
    texts = {(tmp_path / f"{rank}.txt").read_text() for rank in range(3)}
    assert len(texts) == 1
    loss, bits, tokens = texts.pop().split()
    alone = validation_loss(model(), batches(3), TOKEN_BYTES, "cpu")
    assert float(loss) == pytest.approx(alone.loss, rel=1e-9)
    assert float(bits) == pytest.approx(alone.bits_per_byte, rel=1e-9)
    assert int(tokens) == alone.tokens
