"""Sentences that plans of all kinds say."""

from __future__ import annotations

from .cost import EPOCHS_ASK, EPOCHS_WARN


def epoch_warnings(epochs: float | None) -> list[str]:
    """What to say about repeating the data so often."""
    if epochs is None or epochs <= EPOCHS_WARN:
        return []
    repeated = f"{epochs:.1f} epochs over the data: past {EPOCHS_WARN:.0f} repeated data is worth less and less"
    beyond = f"; past {EPOCHS_ASK:.0f} it is worth almost nothing, confirm with --yes" if epochs > EPOCHS_ASK else ""
    return [f"{repeated}{beyond} (Muennighoff et al. 2023)"]
