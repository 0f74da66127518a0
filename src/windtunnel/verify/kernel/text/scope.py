"""Where in a candidate a check is: which names there are and what may be done with them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from windtunnel.verify.kernel.text.built import on_self


@dataclass(frozen=True)
class Scope:
    """Where the check is. seen: names that can be read; local: those of this function; fresh: those of them that hold only what
    it made, whose contents may be changed; numbers: those that hold numbers and the like; tallies: those that hold lists of
    numbers; built: attributes of `self` whose contents may be changed in __init__.

    constructing: inside __init__ or at module level. drawing: and never while forward runs, so that tensors of constants may be
    made and filled there. top: at module level, which runs
    once. own: the name of `self`.
    """

    local: frozenset[str]
    seen: frozenset[str] = frozenset()
    constructing: bool = False
    own: str = ""
    fresh: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    tallies: frozenset[str] = frozenset()
    built: frozenset[str] = frozenset()
    top: bool = False
    drawing: bool = False

    def may_change(self, node: ast.expr) -> bool:
        """Whether what this stands for may be changed in its place: the function's own, or in __init__ what it put on self."""
        if isinstance(node, ast.Name) and node.id in self.fresh:
            return True
        return self.top or (self.constructing and on_self(node, self.own) in self.built)


def within(scope: Scope, names: frozenset[str]) -> Scope:
    """The scope of a lambda or comprehension that binds these names."""
    own = "" if scope.own in names else scope.own
    return replace(scope, local=scope.local | names, seen=scope.seen | names, own=own)
