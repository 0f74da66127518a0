"""Rows of a model's token tables for tokens that were added to its tokenizer: which they are, and what they begin as.

Torch is imported where a table is filled alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

ROWS_AT_ONCE = 4096
"""Rows of a table that are added up together: a table in fp64 would be four times itself."""


class Vocabulary(Protocol):
    """A tokenizer, as far as rows go; see `windtunnel.data.Tokenizer`."""

    new_ids: tuple[int, ...]
    new_pieces: tuple[tuple[int, ...], ...]

    @property
    def known_ids(self) -> tuple[tuple[int, int], ...]:
        """Return the spans of the ids that are tokens and not new."""


@dataclass(frozen=True)
class NewRows:
    """Rows of new tokens.

    Attributes:
        first, end: the rows [first, end) are theirs; tables have `end` rows at least.
        known: spans [first, end) of the rows that belong to tokens of the model's own; what lies between and behind is padding.
        pieces: of each new row, the rows that it begins as the mean of; none: all known rows.
    """

    first: int
    end: int
    known: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tokenizer: Vocabulary) -> NewRows | None:
        """Return the rows of a tokenizer's new tokens; None where it has none."""
        new = tokenizer.new_ids
        return cls(new[0], new[-1] + 1, tokenizer.known_ids, tokenizer.new_pieces) if new else None

    @classmethod
    def parse(cls, told: dict[str, Any]) -> NewRows:
        """Return the rows whose fields JSON has carried, as lists where tuples were."""
        return cls(told["first"], told["end"], tuple(map(tuple, told["known"])), tuple(map(tuple, told["pieces"])))

    def means(self, table: Tensor) -> Tensor:
        """Return what the new rows of a table (V, C) begin as, (n, C) in its dtype.

        A mean row scores no better than its pieces do on average, so that it takes little from the others' probabilities: that
        of a mean of logits is at most the mean of their probabilities. A row of zeros could take nearly all.
        """
        import torch

        whole = self._mean(table) if not all(self.pieces) else None
        # In fp64: a mean of bf16 rows would be off by more than the rows differ.
        rows = [table[list(pieces)].double().mean(0) if pieces else whole for pieces in self.pieces]
        return torch.stack([row for row in rows if row is not None]).to(table.dtype)

    def begin(self, table: Tensor) -> Tensor:
        """Return a table (V, C) with the new tokens' first rows in place; the table itself stays as it was."""
        import torch

        # Tables are often padded, and then have room for the new rows already.
        grown = table.new_empty(max(0, self.end - table.size(0)), table.size(1))
        whole = torch.cat([table, grown])
        whole[self.first : self.end] = self.means(table)
        return whole

    def _mean(self, table: Tensor) -> Tensor:
        """Return the mean of the known rows in fp64."""
        import torch

        total = torch.zeros(table.size(1), dtype=torch.float64, device=table.device)
        for first, end in self.known:
            for start in range(first, end, ROWS_AT_ONCE):
                total += table[start : min(start + ROWS_AT_ONCE, end)].sum(0, dtype=torch.float64)
        return total / sum(end - first for first, end in self.known)


def with_rows(config: Mapping[str, Any], new: NewRows | None) -> dict[str, Any]:
    """Return a config.json's mapping whose vocabulary has room for the new tokens."""
    if new is None:
        return dict(config)
    # Models of text and images keep the text model's keys in an object of their own.
    made = {key: with_rows(value, new) if key == "text_config" and value else value for key, value in config.items()}
    if isinstance(rows := made.get("vocab_size"), int):
        made["vocab_size"] = max(rows, new.end)
    return made
