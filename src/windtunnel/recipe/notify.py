"""Whom to tell what happens to a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from .section import Section


class Notify(Section):
    """Whom to tell what happens to a run: a web hook, a command of yours, or both."""

    webhook: str | None = Field(
        None,
        description="an address that gets JSON by POST, as Slack, Mattermost and Discord take it; 'env:NAME': the variable NAME "
        "holds it, so that it does not stand in the run's folder",
    )
    command: str | None = Field(
        None,
        min_length=1,
        description="run by the shell for each event: its words in $WINDTUNNEL_EVENT, all of it as JSON on stdin",
    )
    on: list[Literal["bands", "gates", "end"]] = Field(
        ["bands", "gates", "end"],
        description="warnings of health bands and of the budget; gates that were judged; the end of a run, however it comes",
    )

    track: list[Literal["wandb", "mlflow", "trackio"]] = Field(
        [], description="trackers that get the metrics, warnings and the recipe, with their own variables and credentials"
    )
    project: str = Field("windtunnel", min_length=1, max_length=128, description="what trackers keep the run under")

    @field_validator("webhook")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://", "env:")):
            raise ValueError("expected an address that begins with https:// or http://, or env:NAME")
        return value
