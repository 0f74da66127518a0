"""Refuses text that would cost the parser much before it is parsed: its memory and stack are the judge's own."""

from __future__ import annotations

import io
import tokenize

LONGEST = 100_000  # characters
MOST_TOKENS = 30_000
MOST_TOKENS_A_LINE = 3_000  # of one logical line: a dictionary of configurations is one
DEEPEST = 40  # brackets, or levels of indentation
LONGEST_RUN = 20  # operators in a row, as in - - - - 1
MOST_BRANCHES = 200  # elif and else: each lies inside the one before
LONGEST_CHAIN = 100  # of a.b.c or a + b + c within one logical line
LONGEST_FORMAT = 2_000  # characters of one f-string, which the parser parses again
LONGEST_NUMBER = 100  # characters
MOST_LAMBDAS = 60  # of one logical line, since each may lie in a default of the one before
CLOSING = frozenset(")]}")


def too_much(source: str) -> str | None:
    """Return why this text is not even parsed, or None. Text that is no Python at all is left to the parser to say so."""
    if len(source) > LONGEST:
        return f"it has {len(source):,} characters; {LONGEST:,} are read"
    if "\0" in source:
        return "it holds a zero byte"
    try:
        return _count(source)
    except (tokenize.TokenError, SyntaxError, IndentationError, ValueError):
        return None if len(source) < 20_000 and max(map(source.count, "([{")) <= DEEPEST else "it cannot be split into tokens"


def _count(source: str) -> str | None:
    tokens = line = run = brackets = branches = indent = chain = lambdas = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        tokens, line = tokens + 1, line + 1
        text, kind = token.string, token.type
        if kind == tokenize.NEWLINE:
            line = chain = lambdas = 0
        elif kind in (tokenize.INDENT, tokenize.DEDENT):
            indent += 1 if kind == tokenize.INDENT else -1
        elif kind == tokenize.OP:
            brackets += 1 if text in ("(", "[", "{") else -1 if text in CLOSING else 0
            chain = 0 if text in (",", ":", "=") else chain + (text not in CLOSING)
        elif kind == tokenize.STRING and len(text) > LONGEST_FORMAT and "f" in text[:3].lower():
            return f"line {token.start[0]} holds an f-string of {len(text):,} characters"
        elif kind == tokenize.NUMBER and len(text) > LONGEST_NUMBER:
            return f"line {token.start[0]} holds a number of {len(text):,} characters"
        lambdas += text == "lambda" and kind == tokenize.NAME
        branches += text in ("elif", "else") and kind == tokenize.NAME
        prefix = (kind == tokenize.OP and text in ("-", "+", "~", "*", "**")) or text in ("not", "lambda", "await")
        run = run + 1 if prefix else 0
        limits = (
            (tokens, MOST_TOKENS, "tokens"),
            (line, MOST_TOKENS_A_LINE, "tokens in one line"),
            (brackets, DEEPEST, "nested brackets"),
            (indent, DEEPEST, "levels of indentation"),
            (run, LONGEST_RUN, "operators in a row"),
            (branches, MOST_BRANCHES, "branches"),
            (chain, LONGEST_CHAIN, "operators chained in one expression"),
            (lambdas, MOST_LAMBDAS, "lambdas in one line"),
        )
        for number, most, what in limits:
            if number > most:
                return f"line {token.start[0]} has more than {most:,} {what}"
    return None
