"""Packed documents train as they would alone: no position sees another document, and each counts its own positions."""

from __future__ import annotations

import pytest
import torch
from hf_models import MODELS, VOCAB, job_of

from windtunnel.data import Batch

LENGTHS = (9, 14, 5)


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, VOCAB, (length + 1,), generator=generator) for length in LENGTHS]


def packed() -> Batch:
    """All documents in one sequence, padded by 4."""
    found = documents()
    pad = torch.zeros(4, dtype=torch.int64)
    tokens = torch.cat([*(d[:-1] for d in found), pad])
    targets = torch.cat([*(d[1:] for d in found), pad - 1])
    positions = torch.cat([*(torch.arange(n) for n in LENGTHS), torch.arange(4)])
    names = torch.cat([*(torch.full((n,), i) for i, n in enumerate(LENGTHS)), torch.full((4,), len(LENGTHS))])
    return Batch(tokens[None], targets[None], positions[None], names[None])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recompute", ["none", "block"])
def test_packed_documents_are_as_alone(model: str, recompute: str) -> None:
    tokens = sum(LENGTHS)
    with job_of(model, recompute=recompute) as job:
        together = job.step([packed()], tokens, 0.0)
    with job_of(model, recompute=recompute) as job:
        alone = job.step([(d[None, :-1], d[None, 1:]) for d in documents()], tokens, 0.0)
    assert together[1] == alone[1] == tokens
    torch.testing.assert_close(together[[0, 2]], alone[[0, 2]], rtol=1e-4, atol=1e-6)
