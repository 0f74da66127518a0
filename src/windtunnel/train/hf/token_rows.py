"""Rows of new tokens that are trained beside frozen tables, under the names that peft gives them (its TrainableTokens).

Embedding and head stay whole and frozen; what they hold of the new tokens is passed over.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from windtunnel.model import NewRows
from windtunnel.recipe import UserError

from ..shards import fill

NAME = "token_adapter"


class TokenRows(nn.Module):
    """The rows [first, end) of a table, of `width` channels, on 'meta' as long as the model is."""

    def __init__(self, new: NewRows, width: int) -> None:
        super().__init__()
        self.first, self.end = new.first, new.end
        rows = nn.Parameter(torch.empty(new.end - new.first, width, device="meta"))
        self.trainable_tokens_delta = nn.ParameterDict({"default": rows})

    @property
    def rows(self) -> nn.Parameter:
        """Return the rows, (n, C)."""
        rows: nn.Parameter = self.trainable_tokens_delta["default"]
        return rows

    def embed(self, tokens: Tensor, embedded: Tensor, scale: Any) -> Tensor:
        """Return what the table made of the tokens (B, T, C), with the new tokens' rows in place.

        Args:
            tokens: (B, T) int64.
            embedded: (B, T, C), whose places of new tokens are passed over.
            scale: what the embedding multiplies its rows with; None: nothing.
        """
        at = tokens - self.first
        rows = F.embedding(at.clamp(0, self.end - self.first - 1), self.rows.to(embedded.dtype))
        # Looked up with every token, in place by a mask: shapes that depend on the batch could not be compiled.
        new = (tokens >= self.first) & (tokens < self.end)
        return torch.where(new[..., None], rows if scale is None else rows * scale.to(rows.dtype), embedded)

    @torch.no_grad()
    def begin(self, table: Tensor) -> None:
        """Take over the rows of a whole table (V, C)."""
        fill(self.rows, table[self.first : self.end].to(self.rows.device))

    @staticmethod
    def of(module: nn.Module) -> TokenRows | None:
        """Return the rows trained beside a table."""
        return getattr(module, NAME, None)


def train_rows(model: PreTrainedModel, new: NewRows) -> None:
    """Put trained rows beside embedding and head, in place: two sets, where they are not tied.

    Raises:
        UserError: the embedding is of a kind that is not known here.
    """
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    # A class of its own that scales its rows has the factor as a buffer, as Gemma's have.
    if type(embedding) is not nn.Embedding and not hasattr(embedding, "embed_scale"):
        raise UserError(
            f"data.tokenizer.add: new tokens cannot be trained under an adapter in a {type(embedding).__name__}",
            "--set model.adapter=null, or --set data.tokenizer.add=[]",
        )
    setattr(embedding, NAME, TokenRows(new, embedding.weight.size(1)))
    # Tied tables stay tied: one set of rows gets both gradients.
    tied = head.weight is embedding.weight
    setattr(head, NAME, getattr(embedding, NAME) if tied else TokenRows(new, head.weight.size(1)))


def rows_beside(model: nn.Module) -> dict[int, TokenRows]:
    """Return the trained rows of each table, by the id of its weight."""
    found = ((module, TokenRows.of(module)) for module in model.modules())
    return {id(module.weight): rows for module, rows in found if rows is not None}
