"""Check what a run reaches: folders, this machine's network, the publisher of a model."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import tempfile
import uuid
from pathlib import Path

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.recipe import HuggingFaceModel, UserError, find_model

from .storage import advise, cache_folder, file_system, mounts, nearest

# Folders: they can be written, have room, and keep what a checkpoint relies on.

GIB = 2**30
LEAST_GIB = 1.0
LEAST_INODES = 10_000


def _disk(context: Context, say: Say) -> Evidence:
    found = Findings()
    runs, cache, temporary = nearest(context.root), nearest(cache_folder()), Path(tempfile.gettempdir())
    for name, folder in (("runs", runs), ("cache", cache), ("temporary files", temporary)):
        say(f"writing to {folder}")
        problem = _write_and_rename(folder)
        if problem:
            found.problem(f"{folder} ({name}): {problem}", _remedy(name))
            continue
        _room(found, name, folder)
    if os.environ.get("TMPDIR") and not Path(os.environ["TMPDIR"]).is_dir():
        found.problem(f"TMPDIR is {os.environ['TMPDIR']!r}, which is no folder", "unset TMPDIR, or make that folder")
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME"):
        value = os.environ.get(variable)
        if value and not os.access(nearest(Path(value)), os.W_OK | os.X_OK):
            found.problem(f"{variable} is {value}, where nothing can be written", f"unset {variable}, or name another folder")
    free = shutil.disk_usage(runs).free / GIB
    _planned(context, found, free, runs)
    table = mounts()
    kind = file_system(runs, table)
    for warning in advise(runs, cache, table):
        found.warn(warning)
    text = f"{free:,.1f} GiB free at {runs.resolve()}" + (f" ({kind})" if kind else "") + "; files and renames are kept"
    return found.evidence(text, {"free_gib": free, "file_system": kind})


def _remedy(name: str) -> str:
    variable = {"runs": "give another --root", "cache": "set WINDTUNNEL_CACHE to a folder that can be written"}
    return variable.get(name, "set TMPDIR to a folder that can be written")


def _write_and_rename(folder: Path) -> str | None:
    """Do what a checkpoint does (files in a temporary folder: synchronised, locked, renamed); return what went wrong, or None."""
    if not folder.is_dir():
        return "is not a folder"
    made = folder / f".windtunnel-{uuid.uuid4().hex[:8]}"
    final = made.with_name(f"{made.name}-renamed")
    try:
        made.mkdir()
        with open(made / "probe", "wb") as file:
            file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())
            # A run holds its folder by such a lock; some network disks have none.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(final)
        if (final / "probe").stat().st_size != 4096:
            return "what was written does not come back"
    except OSError as error:
        reason = {errno.ENOLCK: "no file locks", errno.ENOTSUP: "no file locks", errno.EDQUOT: "your quota is used up"}
        return f"nothing can be written: {reason.get(error.errno or 0, error.strerror)}"
    finally:
        for path in (made, final):
            shutil.rmtree(path, ignore_errors=True)
    return None


def _room(found: Findings, name: str, folder: Path) -> None:
    free = shutil.disk_usage(folder).free / GIB
    if free < LEAST_GIB:
        what = f"{free:.2f} GiB free at {folder} ({name}), at least {LEAST_GIB:.0f} is needed"
        found.problem(what, _remedy(name), shows="first checkpoint")
    inodes = os.statvfs(folder)
    # btrfs and some network disks count none, and say 0.
    if inodes.f_files and inodes.f_favail < LEAST_INODES:
        found.problem(
            f"{inodes.f_favail:,} more files may be made at {folder} ({name})", "remove files there", shows="first checkpoint"
        )


def _planned(context: Context, found: Findings, free: float, runs: Path) -> None:
    """Require, where this machine is itself a rig that was asked for, that what the plan writes fits."""
    try:
        # Of other rigs' disks this machine knows nothing.
        rigs = [rig for rig in context.rigs if rig.name in ("here", "cpu")]
        plans = [context.plan(rig) for rig in rigs]
    except UserError:
        return  # the checks of recipe, rig and plan say so
    for plan in plans:
        if plan.fits and plan.disk_gib > free:
            what = f"the run on {plan.rig} keeps {plan.disk_gib:,.1f} GiB; {free:,.1f} are free at {runs}"
            found.problem(what, "free some space, or --set checkpoints.keep_hourly=false", shows="first checkpoint")


# The network as ranks use it: this machine to itself, and between machines.

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
    # Programs read either spelling, and some only one.
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
    # One GPU or none is no node of a cluster, unless a scheduler says so: a laptop may be offline.
    in_cluster = context.here.rung in ("node", "cluster") or "SLURM_JOB_ID" in os.environ
    if not outward and in_cluster:
        found.problem("no network interface but lo is up", "bring one up: ip link")
    if not outward:
        text = "this machine has only the interface lo"
        return found.evidence(text, {"interfaces": sorted(up)})
    return found.evidence(f"interfaces {', '.join(outward)}", {"interfaces": sorted(up), "outward": outward})


def interfaces() -> dict[str, bool]:
    """Network interfaces and whether each is up."""
    import psutil

    return {name: facts.isup for name, facts in psutil.net_if_stats().items()}


def _chosen(value: str, names: list[str]) -> list[str]:
    """Return the interfaces that a setting of NCCL's grammar leaves: prefixes, '=' exact names, '^' all but."""
    # docs.nvidia.com, NCCL_SOCKET_IFNAME: a prefix matches, = wants the whole name, ^ excludes.
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


# A token where a model lies behind one, or the model in the local cache.

# Publishers whose models ask for a signed licence: every download needs a token.
GATED = ("meta-llama/", "google/gemma", "mistralai/", "bigcode/", "nvidia/llama")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads it


def _credentials(context: Context, say: Say) -> Evidence:
    found, name = Findings(), _repository(context)
    assert name is not None
    cached = cached_snapshot(name)
    token, where = _token(found)
    offline = next((v for v in _OFFLINE if os.environ.get(v, "").upper() in _YES), None)
    gated = name.lower().startswith(GATED)
    if cached is None and offline:
        fix = f"unset {offline}, or fetch it first: hf download {name}"
        found.problem(f"{offline} forbids the network, and {name} is not in the cache {hub_cache()}", fix)
    elif cached is None and gated and token is None:
        fix = f"accept its licence at huggingface.co/{name}, then: hf auth login, or HF_TOKEN=hf_..."
        found.problem(f"{name} needs a token, and there is neither HF_TOKEN nor a saved one", fix)
    text = f"{name}: " + (
        f"in the cache at {cached}" if cached else "from huggingface.co" + (f", with the token of {where}" if token else "")
    )
    return found.evidence(text, {"repository": name, "gated": gated, "cached": cached is not None, "token": token is not None})


def _token(found: Findings) -> tuple[str | None, str]:
    """Return the token and where it stands; it is never shown."""
    for variable in _TOKENS:
        value = os.environ.get(variable)
        if value is not None:
            return _looked_at(found, value, variable), variable
    file = Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").expanduser()
    try:
        return _looked_at(found, file.read_text(encoding="utf-8").rstrip("\n"), str(file)), str(file)
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        found.problem(f"the token in {file} cannot be read: {error}", "hf auth login")
        return None, ""


def _looked_at(found: Findings, value: str, where: str) -> str | None:
    # As the hub gives them out; a token with a line end copied along is refused there with an error about headers.
    if not re.fullmatch(r"hf_[A-Za-z0-9]{20,}|hf_oauth_\S+|hf_jwt_\S+", value):
        why = (
            "is empty" if not value.strip() else "has blanks around it" if value != value.strip() else "does not look like hf_..."
        )
        found.problem(f"the token of {where} {why}", "hf auth login, or copy it again from huggingface.co/settings/tokens")
        return None
    return value


def cached_snapshot(name: str) -> Path | None:
    """Return the folder of a repository's snapshot with a config.json in the local cache."""
    folder = hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    return next(iter(sorted(path.parent for path in folder.glob("*/config.json"))), None)


def hub_cache() -> Path:
    """Return where huggingface_hub keeps what it fetched."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named).expanduser() if named else _home() / "hub"


def _home() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(shared) / "huggingface").expanduser()


def _repository(context: Context) -> str | None:
    """Return the id on Hugging Face that the recipe's model names; None where it is a file or a built-in name."""
    model = context.recipe.model
    if not isinstance(model, HuggingFaceModel) or find_model(model.config) is not None:
        return None
    return model.config if re.fullmatch(r"[\w.-]+/[\w.-]+", model.config) and not model.config.endswith(".json") else None


def _remote(context: Context) -> bool:
    return _repository(context) is not None


CHECKS = (
    Check(
        "disk",
        "runs, cache and temporary files can be written, are kept, and have room",
        "free some space, or name other folders: --root, WINDTUNNEL_CACHE, TMPDIR",
        _disk,
        limit=30.0,
    ),
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
    Check(
        "credentials",
        "what the model's publisher asks for is there",
        "hf auth login",
        _credentials,
        needs=("recipe",),
        applies=_remote,
    ),
)  # fmt: skip
