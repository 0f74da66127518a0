"""SIGTERM ends a check wherever it comes."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from waiting import until

from windtunnel.rehearse.conduct import sigterm_interrupts


class Terminated:
    """Gets SIGTERM while it is finalized, where Python throws away what is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def finalized() -> None:
    Terminated()
    until(lambda: False, "it was lost")


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: False, "it was lost")


def test_a_signal_that_comes_where_nothing_can_be_raised_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    handler, shown = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        finalized()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert sys.unraisablehook is shown
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_that_comes_elsewhere_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        terminated()


def test_what_else_a_finalizer_raises_is_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("here")

    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(lost.exc_type))
    with sigterm_interrupts():
        Failing()
    assert seen == [ValueError]
