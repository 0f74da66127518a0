"""Errors that a user can cause. Everything else is a bug and keeps its traceback."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: says what is wrong, where, and what would be accepted. The CLI exits with 2.

    Args:
        message: names the file, key or value and what was expected.
        fix: one sentence with the command, key or value that would work.
    """

    exit_code = 2

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class MissingModel(UserError):
    """The files of a model that is known by its name are not on this machine; another one may have them.

    Args:
        message: as of UserError.
        fix: likewise.
        name: the model's, as `windtunnel fetch` takes it.
    """

    def __init__(self, message: str, fix: str | None, name: str) -> None:
        super().__init__(message, fix)
        self.name = name

    @property
    def lacks(self) -> tuple[str, str]:
        """What training here would not begin without, and the command that brings it."""
        return "the model's weights", f"windtunnel fetch {self.name}"


class GateFailed(UserError):
    """A gate or check did not hold: a report was printed. The CLI exits with 1."""

    exit_code = 1
