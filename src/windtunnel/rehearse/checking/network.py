"""The network as ranks use it: this machine to itself, and between machines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from .context import Context
from .types import RUNGS, Check, Evidence, Findings, Say

_CHOOSERS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_VIRTUAL = ("docker", "veth", "br-", "virbr", "tun", "tap", "cni", "flannel", "cali")


def _localhost(context: Context, say: Say) -> Evidence:
    found = Findings()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        what = f"no connection to 127.0.0.1 is possible: {error.strerror or error}"
        found.problem(what, "bring the interface lo up: ip link set lo up; allow local connections in the firewall")
    name = socket.gethostname()
    for asked in ("localhost", name):
        try:
            socket.getaddrinfo(asked, None)
        except OSError as error:
            fix = f"add the line '127.0.0.1 {asked}' to /etc/hosts"
            found.problem(f"the name {asked!r} has no address ({error.strerror or error}): torchrun cannot meet", fix)
    proxy = next((v for v in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(v)), None)
    exempt = f"{os.environ.get('no_proxy', '')},{os.environ.get('NO_PROXY', '')}"
    if proxy and not any(local in exempt for local in ("localhost", "127.0.0.1", "*")):
        found.warn(f"{proxy} is set and no_proxy does not name localhost: clients of `windtunnel serve` would ask the proxy")
    _meeting_point(found)
    return found.evidence(f"{name} reaches itself at 127.0.0.1 and by its name")


def _meeting_point(found: Findings) -> None:
    """MASTER_ADDR and MASTER_PORT, where a launcher or a shell has set them."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address:
        try:
            socket.getaddrinfo(address, None)
        except OSError:
            found.problem(f"MASTER_ADDR is {address!r}, a name without an address", "unset MASTER_ADDR, or give an address")
    if port is None:
        return
    if not port.isdigit() or not 0 < int(port) < 65536:
        found.problem(f"MASTER_PORT is {port!r}, which is no port", "unset MASTER_PORT, or give one from 1024 to 65535")
        return
    try:
        with socket.create_server(("", int(port))):
            pass
    except OSError as error:
        what = f"MASTER_PORT {port} cannot be opened: {error.strerror or error}"
        found.problem(what, "end the process that has it (ss -ltnp shows it), or choose another port")


def _network(context: Context, say: Say) -> Evidence:
    found, up = Findings(), interfaces()
    outward = sorted(name for name, is_up in up.items() if is_up and name != "lo" and not name.startswith(_VIRTUAL))
    for variable in _CHOOSERS:
        value = os.environ.get(variable)
        if value is None:
            continue
        chosen = _chosen(value, list(up))
        if not chosen:
            fix = f"unset {variable}, or name one of: {', '.join(outward) or 'none is up'}"
            found.problem(f"{variable} is {value!r}; there are only {', '.join(sorted(up)) or 'no interfaces'}", fix)
        elif context.rung == "cluster" and set(chosen) == {"lo"}:
            found.problem(f"{variable} is {value!r}: no other node is reached by it", f"unset {variable}")
    if not outward and here_is_cluster(context):
        found.problem("no network interface but lo is up", "bring one up: ip link")
    if not outward:
        text = "this machine has only the interface lo"
        return found.evidence(text, {"interfaces": sorted(up)})
    return found.evidence(f"interfaces {', '.join(outward)}", {"interfaces": sorted(up), "outward": outward})


def here_is_cluster(context: Context) -> bool:
    """Whether this machine is a node of the kind asked for: one with several GPUs, or one that a scheduler started."""
    return RUNGS.index(context.here.rung) >= RUNGS.index("node") or "SLURM_JOB_ID" in os.environ  # type: ignore[arg-type]


def interfaces() -> dict[str, bool]:
    """Network interfaces and whether each is up."""
    import psutil

    return {name: facts.isup for name, facts in psutil.net_if_stats().items()}


def _chosen(value: str, names: list[str]) -> list[str]:
    """The interfaces that a setting of NCCL's grammar leaves: prefixes, '=' exact names, '^' all but."""
    excluded, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    words = [word.strip() for word in rest.split(",") if word.strip()]
    hits = [name for name in names if any(name == w if exact else name.startswith(w) for w in words)]
    return [name for name in names if name not in hits and name != "lo"] if excluded else hits


def _several(context: Context) -> bool:
    return context.rung in ("node", "cluster")


def _infiniband(context: Context, say: Say) -> Evidence:
    """Ports of InfiniBand or RoCE that are up."""
    root = Path("/sys/class/infiniband")
    states = {port.parent.parent.parent.name: port.read_text().strip() for port in root.glob("*/ports/*/state")}
    if not states:
        return Evidence("no InfiniBand here", absent="rehearse on a node of the cluster")
    found = Findings()
    down = [name for name, state in states.items() if "ACTIVE" not in state]
    if len(down) == len(states):
        found.problem(f"no port is active: {states}", "ask the cluster's operators; ibstat shows more")
    elif down:
        found.warn(f"ports not active: {', '.join(down)}")
    if os.environ.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        found.warn("NCCL_IB_DISABLE is set: nodes would talk over Ethernet; unset it")
    return found.evidence(f"{len(states) - len(down)} of {len(states)} ports active", {"ports": states})


def _cluster(context: Context) -> bool:
    return context.rung == "cluster"


CHECKS = (
    Check("localhost", "processes on this machine can meet by its address and its name", "look at /etc/hosts and lo", _localhost),
    Check(
        "network",
        "the interfaces that ranks are told to use exist",
        "look at ip link and the variables that are named",
        _network,
        rung="node",
        needs=("rig", "machine"),
        applies=_several,
    ),
    Check(
        "infiniband",
        "the fast network between nodes is up",
        "ibstat shows more",
        _infiniband,
        rung="cluster",
        needs=("rig",),
        applies=_cluster,
    ),
)
