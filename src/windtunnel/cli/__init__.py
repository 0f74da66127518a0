"""The command line: one file a verb. Each parses, calls a room, prints; heavy imports wait until then."""

from .start import main

__all__ = ["main"]
