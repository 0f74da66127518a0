"""Sampling follows the distribution it is asked for, row by row."""

import pytest
import torch

from windtunnel.model import choose, top_log_probabilities

LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.15, 0.3, 0.1]))


def frequencies(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, draws: int = 20_000) -> torch.Tensor:
    """Shares of the tokens over evenly spread draws."""
    n = torch.full((draws,), 1.0)
    uniform = (torch.arange(draws) + 0.5) / draws
    tokens = choose(LOGITS.expand(draws, -1), n * temperature, n * top_p, (n * top_k).long(), uniform)
    return torch.bincount(tokens, minlength=5) / draws


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0.05, 0.4, 0.15, 0.3, 0.1]),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 99}, [0.05, 0.4, 0.15, 0.3, 0.1]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.75}, [0, 8 / 17, 3 / 17, 6 / 17, 0]),
        ({"top_p": 1e-6}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.0025 / 0.285, 0.16 / 0.285, 0.0225 / 0.285, 0.09 / 0.285, 0.01 / 0.285]),
        ({"top_p": 0.6, "top_k": 1}, [0, 1, 0, 0, 0]),
    ],
)
def test_frequencies(arguments: dict, expected: list[float]) -> None:
    torch.testing.assert_close(frequencies(**arguments), torch.tensor(expected, dtype=torch.float32), atol=2e-3, rtol=0)


def test_rows_do_not_touch_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 100, generator=generator) * 3
    temperature = torch.rand(64, generator=generator) * 2 * (torch.arange(64) % 3 > 0)
    top_p, top_k = torch.rand(64, generator=generator), torch.randint(0, 9, (64,), generator=generator)
    uniform = torch.rand(64, generator=generator)
    together = choose(logits, temperature, top_p, top_k, uniform)
    for i in range(64):
        row = slice(i, i + 1)
        assert choose(logits[row], temperature[row], top_p[row], top_k[row], uniform[row]) == together[i]


def test_a_draw_that_rounds_to_one_is_the_last_kept_token() -> None:
    one = torch.ones(1)
    assert choose(LOGITS[None], one, one * 0.6, torch.zeros(1, dtype=torch.long), one).item() == 3
    assert choose(LOGITS[None], one, one, torch.zeros(1, dtype=torch.long), one).item() == 4


def test_top_log_probabilities() -> None:
    own, values, ids = top_log_probabilities(LOGITS[None] + 7, torch.tensor([2]), 2)
    torch.testing.assert_close(own.exp(), torch.tensor([0.15]))
    torch.testing.assert_close(values.exp(), torch.tensor([[0.4, 0.3]]))
    assert ids.tolist() == [[1, 3]]
