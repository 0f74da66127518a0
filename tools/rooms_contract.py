"""An import-linter contract: which room of a package may import which, and only through its front door.

A contract of this type holds a table `rooms = ["plan: recipe rig model", ...]`. It is broken by an
import from a room to one that its row does not name, by an import of a room's inner modules from
outside, and by a room without a row. Rows of rooms that do not exist are harmless.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class RoomsContract(Contract):
    """See the module's docstring."""

    package = fields.StringField()
    rooms = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every direct import between two rooms."""
        table = _parse(self.rooms)
        problems = [f"room {room} has no row in the table" for room in _rooms(graph, self.package) if room not in table]
        for importer in sorted(graph.modules):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                problem = _judge(importer, imported, self.package, table)
                if problem:
                    details = graph.get_import_details(importer=importer, imported=imported)
                    lines = ", ".join(f"line {d['line_number']}" for d in details)
                    problems.append(f"{importer} ({lines}): {problem}")
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line a problem."""
        for problem in check.metadata["problems"]:
            output.print_error(f"- {problem}", bold=False)


def _parse(rows: Any) -> dict[str, set[str]]:
    table = {}
    for row in rows:
        room, _, allowed = row.partition(":")
        table[room.strip()] = set(allowed.split())
    return table


def _rooms(graph: ImportGraph, package: str) -> list[str]:
    return sorted(child.removeprefix(f"{package}.") for child in graph.find_children(package))


def _judge(importer: str, imported: str, package: str, table: dict[str, set[str]]) -> str | None:
    source, target = _room(importer, package), _room(imported, package)
    if source is None or target is None or source == target:
        return None
    if target not in table.get(source, set()):
        return f"{source} may not import {target}"
    if imported != f"{package}.{target}":
        return f"imports {imported}, which is private to {target}; import from {package}.{target}"
    return None


def _room(module: str, package: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else None
