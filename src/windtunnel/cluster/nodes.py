"""All nodes looked at before training: what each reported, in one table, and which are bad."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.files import write_json

from .job import JobSpec
from .probe import CLOCK, addresses

MOST_SKEW = 5.0
"""Seconds between clocks above which leases, budgets and the order of files can no longer be trusted."""
WARN_SKEW = 1.0
# The driver and a desktop take some hundreds; more is another program.
MOST_USED_MIB = 1024
"""Of a GPU's memory, used by somebody else."""
SLOW = 0.5
"""A node whose link has less than this share of the nodes' median is slow."""
_OWN = "node"
_SHARED = "shared"
_LINK = "link"
"""Of one among several nodes: it fails on all where one of them hangs."""


@dataclass
class NodeVerdict:
    """One node.

    Attributes:
        problems: (kind, what): of the node's own; 'shared' is what every node may have for the same reason, as a model that is
            nowhere; 'link' what fails together with other nodes.
        warnings: what is worth knowing. cells: for the table.
    """

    node: str
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """All that is wrong, in words."""
        return "; ".join(what for _, what in self.problems)


def judge(spec: JobSpec, nodes: Sequence[str], reports: Mapping[str, Mapping[str, Any]]) -> list[NodeVerdict]:
    """Return what is wrong with each node, from what they reported; one without a report did not answer."""
    usual = _usual(list(reports.values()))
    verdicts = []
    for node in nodes:
        verdict = NodeVerdict(node)
        report = reports.get(node)
        if report is None:
            verdict.problems.append((_OWN, "gave no answer: srun did not start there, or Python did not"))
        else:
            _gpus(spec, report, verdict)
            _places(spec, report, verdict)
            _clock(report, verdict)
            _same(report, usual, verdict)
            _links(report, usual, verdict)
        verdicts.append(verdict)
    _blame(verdicts)
    return verdicts


def _blame(verdicts: Sequence[NodeVerdict]) -> None:
    """Take the failed links of nodes off them that only waited for others; where all failed alike, no node is to blame."""
    # One node that hangs makes the all-reduce fail on every node. A node with a fault of its own explains that; without one,
    # and where all failed, it is their common network, and other nodes would fail as well.
    failed = [verdict for verdict in verdicts if any(kind == _LINK for kind, _ in verdict.problems)]
    others = [verdict for verdict in verdicts if any(kind != _LINK for kind, _ in verdict.problems)]
    if not failed or (not others and len(failed) < len(verdicts)):
        return
    first = next(what for kind, what in failed[0].problems if kind == _LINK)
    for verdict in failed:
        links = [what for kind, what in verdict.problems if kind == _LINK]
        verdict.problems = [problem for problem in verdict.problems if problem[0] != _LINK]
        if others:
            verdict.warnings.append(f"{links[0]}, beside {', '.join(other.node for other in others)}")
        else:
            verdict.problems.append((_SHARED, f"the nodes cannot reduce together: {first}"))


def everywhere(verdicts: Sequence[NodeVerdict]) -> str | None:
    """Return what every node has for a reason of their common environment, which other nodes would not mend; None: nothing."""
    shared = [{what for kind, what in verdict.problems if kind == _SHARED} for verdict in verdicts]
    common = set.intersection(*shared) if shared else set()
    return "; ".join(sorted(common)) or None


def table(verdicts: Sequence[NodeVerdict]) -> list[str]:
    """Return the lines of a table of the nodes."""
    names = ["node", *dict.fromkeys(name for verdict in verdicts for name in verdict.cells), "verdict"]
    rows = [names]
    for verdict in verdicts:
        told = f"BAD: {verdict.why}" if verdict.problems else "; ".join(["ok", *verdict.warnings])
        rows.append([verdict.node, *(verdict.cells.get(name, "-") for name in names[1:-1]), told])
    wide = [max(len(row[i]) for row in rows) for i in range(len(names) - 1)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, wide, strict=False)), row[-1]]) for row in rows]


def read_reports(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the nodes have reported so far."""
    found = {}
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            report = json.loads(path.read_text(encoding="utf-8"))
            # clock.json and links.json lie beside the reports.
            if "phase" in report:
                found[report["node"]] = report
    return found


def waited_for(nodes: Sequence[str], reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which nodes are not done, and what each is at, in words."""
    silent = [node for node in nodes if node not in reports]
    at = [f"{node}: {reports[node]['phase']}" for node in nodes if node in reports and reports[node]["phase"] != "done"]
    return "; ".join([*([f"an answer of {', '.join(silent)}"] if silent else []), *at]) or "srun to end"


@contextlib.contextmanager
def serve_clock(folder: Path, now: Callable[[], float] = time.time) -> Iterator[None]:
    """Tell this process's time to the nodes that ask; where to ask stands in the folder."""
    # All nodes ask within the same second.
    with socket.create_server(("0.0.0.0", 0), backlog=256) as server:
        write_json(folder / CLOCK, {"addresses": addresses(), "port": server.getsockname()[1]}, durable=False)
        threading.Thread(target=_answer, args=(server, now), name="clock", daemon=True).start()
        yield
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _answer(server: socket.socket, now: Callable[[], float]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2.0)
            if connection.recv(1):
                connection.sendall(repr(now()).encode())


def _gpus(spec: JobSpec, report: Mapping[str, Any], verdict: NodeVerdict) -> None:
    told = report.get("gpus")
    if not spec.gpus_per_node or told is None:
        verdict.cells["GPUs"] = "none asked"
        return
    found, bad = told["gpus"], verdict.problems
    verdict.cells["GPUs"] = f"{len(found)} x {found[0]['name']}" if found else "none"
    if not told["problem"] and len(found) < spec.gpus_per_node:
        bad.append((_OWN, f"{len(found)} GPUs, {spec.gpus_per_node} are asked for"))
    bad += [(_OWN, fault) for fault in gpu_faults(told)]
    for gpu in found:
        if _number(gpu["memory.used"]) > MOST_USED_MIB:
            bad.append((_OWN, f"GPU {gpu['index']}: {gpu['memory.used']} MiB are in use by somebody else"))
    if told["xid"]:
        bad.append((_OWN, f"{told['xid'][-1]} in the kernel's log within the last hour"))
    elif told["xid"] is None:
        verdict.warnings.append("the kernel's log may not be read: no look at Xids")


def gpu_faults(told: Mapping[str, Any]) -> list[str]:
    """Return what is broken about a node's GPUs, of what `probe.gpus` told; who uses their memory is no fault of theirs."""
    bad = [str(told["problem"])] if told["problem"] else []
    for gpu in told["gpus"]:
        name = f"GPU {gpu['index']}"
        if _number(gpu["ecc.errors.uncorrected.volatile.total"]) > 0:
            bad.append(f"{name}: {gpu['ecc.errors.uncorrected.volatile.total']} memory errors that were not corrected")
        for field_, what in (("retired_pages.pending", "pages to retire"), ("remapped_rows.pending", "rows to remap"),
                             ("remapped_rows.failure", "rows that cannot be remapped")):  # fmt: skip
            if gpu[field_].lower() in ("yes", "1"):
                bad.append(f"{name}: {what}; it needs a reset")
        if any("lost" in text.lower() or text == "ERR!" for text in gpu.values()):
            bad.append(f"{name}: is lost, as nvidia-smi says")
    return bad


def _places(spec: JobSpec, report: Mapping[str, Any], verdict: NodeVerdict) -> None:
    temporary, root = report["temporary"], report["root"]
    verdict.cells["free GiB"] = f"{temporary['free_gib']:,.0f} node, {root['free_gib']:,.0f} runs"
    if temporary["problem"]:
        verdict.problems.append((_OWN, f"{temporary['path']}: nothing can be written: {temporary['problem']}"))
    elif temporary["free_gib"] < spec.local_gib:
        what = f"{temporary['free_gib']:.1f} GiB free at {temporary['path']}, {spec.local_gib:g} are needed"
        verdict.problems.append((_OWN, what))
    if root["problem"]:
        verdict.problems.append((_SHARED, f"{root['path']}: nothing can be written: {root['problem']}"))
    elif root["free_gib"] < spec.disk_gib:
        verdict.problems.append((_SHARED, f"the run keeps {spec.disk_gib:,.1f} GiB, and {root['path']} has less free"))
    for model, state in report["models"].items():
        verdict.cells["model"] = state["problem"] or "whole"
        if state["problem"]:
            verdict.problems.append((_SHARED, f"model {model} {state['problem']}"))


def _clock(report: Mapping[str, Any], verdict: NodeVerdict) -> None:
    told = report["clock"]
    if "problem" in told:
        verdict.cells["clock"] = "unknown"
        verdict.problems.append((_OWN, told["problem"]))
        return
    # A question's way there and back may hide half of its time: only what is beyond that is sure.
    offset, sure = told["offset"], max(0.0, abs(told["offset"]) - told["uncertain"])
    verdict.cells["clock"] = f"{offset:+.3f} s"
    if sure > MOST_SKEW:
        way = "ahead" if offset > 0 else "behind"
        verdict.problems.append((_OWN, f"its clock is {abs(offset):,.1f} s {way} of the first node's (timedatectl set-ntp true)"))
    elif sure > WARN_SKEW:
        verdict.warnings.append(f"its clock differs by {offset:+.1f} s")


def _usual(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what most nodes have: versions, processor, models' files, and the median of their links."""

    def most(values: Sequence[Any]) -> Any:
        # The majority is right about versions: one node that was updated late is the odd one.
        return Counter(values).most_common(1)[0][0] if values else None

    packages = {name for report in reports for name in report["versions"]}
    speeds = [report["links"]["node_gbs"] for report in reports if "node_gbs" in report.get("links", {})]
    return {
        "versions": {name: most([report["versions"].get(name) for report in reports]) for name in packages},
        "arch": most([report["arch"] for report in reports]),
        "models": {
            name: most([r["models"][name]["files"] for r in reports]) for name in (reports[0]["models"] if reports else {})
        },
        "node_gbs": statistics.median(speeds) if speeds else None,
    }


def _same(report: Mapping[str, Any], usual: Mapping[str, Any], verdict: NodeVerdict) -> None:
    own = report["versions"]
    verdict.cells["python"] = own["python"]
    if report["arch"] != usual["arch"]:
        verdict.problems.append((_OWN, f"its processor is {report['arch']}, the others' {usual['arch']}"))
    for name, version in sorted(usual["versions"].items()):
        if own.get(name) != version:
            verdict.problems.append((_OWN, f"{name} {own.get(name, 'is missing')}, the others have {version or 'none'}"))
    for model, files in usual["models"].items():
        state = report["models"][model]
        if not state["problem"] and state["files"] != files:
            verdict.problems.append((_OWN, f"model {model} has other files or sizes than on the other nodes"))


def _links(report: Mapping[str, Any], usual: Mapping[str, Any], verdict: NodeVerdict) -> None:
    links = report.get("links")
    if links is None:
        verdict.cells["links"] = "unknown"
        verdict.problems.append((_LINK, f"did not end while {report['phase']}"))
    elif "problem" in links:
        verdict.cells["links"] = "failed"
        verdict.problems.append((_LINK, f"all-reduce: {links['problem']}"))
    elif "skipped" in links:
        verdict.cells["links"] = links["skipped"]
    else:
        inner = f", {links['node_gbs']:.1f} within" if "node_gbs" in links else ""
        verdict.cells["links"] = f"{links['all_gbs']:.1f} GB/s {links['backend']} x {links['ranks']}{inner}"
        if usual["node_gbs"] and links.get("node_gbs", usual["node_gbs"]) < SLOW * usual["node_gbs"]:
            verdict.problems.append(
                (_OWN, f"{links['node_gbs']:.1f} GB/s between its GPUs, the nodes' median is {usual['node_gbs']:.1f}")
            )


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    return 0.0  # [N/A], of a GPU that has no such counter
