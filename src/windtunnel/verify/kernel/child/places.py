"""Which kernels a candidate launched, by name and line. Imports triton."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

from windtunnel.verify.kernel.child.load import kernel_place


def note_places(launched: set[str]) -> None:
    """Adds the place of every kernel that the interpreter launches from now on."""
    original = interpreter.InterpretedFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched.add(kernel_place(self))
        return original(self, *args, **kwargs)

    interpreter.InterpretedFunction.run = run
