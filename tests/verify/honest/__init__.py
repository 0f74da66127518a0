"""Honest Triton solutions of every generated task, in many styles. None of them may be refused."""
