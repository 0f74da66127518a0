"""Candidates that cheat, each in a way of its own. None of them may be accepted."""
