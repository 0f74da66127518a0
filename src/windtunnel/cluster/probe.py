"""What a node says about itself before training: python -m windtunnel.cluster.probe JOB FOLDER, once on each node through srun.

The report, NODE.json in the folder, is written at once and again when the links between GPUs or nodes have been measured: a node
that hangs is then known by what it came to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from windtunnel.files import write_json

from .job import SlurmJob

PACKAGES = ("windtunnel", "torch", "numpy", "transformers", "tokenizers", "ray", "vllm", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
CLOCK = "clock.json"
LINKS = "links.json"
LINK_SECONDS = 100.0
ASKED = 5  # how often the clock is asked: the quickest answer counts
_GPU_FIELDS = (
    "index", "name", "memory.used", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending", "remapped_rows.pending",
    "remapped_rows.failure",
)  # fmt: skip
# NVIDIA's driver reports a broken GPU as an Xid (docs.nvidia.com/deploy/xid-errors).
_XID = re.compile(r"\[\s*(\d+(?:\.\d+)?)\].*NVRM: Xid \(([^)]+)\): (\d+)")
GIB = 2**30


def main() -> int:
    """Report this node."""
    job, folder = SlurmJob.open(Path(sys.argv[1])), Path(sys.argv[2])
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    report = look(job, folder)
    file = folder / f"{node}.json"
    # Before measuring, which may hang: the report then says so.
    write_json(file, {**report, "node": node, "phase": "measuring links"}, durable=False)
    links = measure_links(job, folder)
    write_json(file, {**report, "node": node, "phase": "done", "links": links}, durable=False)
    return 0


def look(job: SlurmJob, folder: Path) -> dict[str, Any]:
    """Return what can be seen of this node without the others."""
    spec = job.spec
    temporary = Path(os.environ.get("TMPDIR", spec.temporary))
    with contextlib.suppress(OSError):
        temporary.mkdir(parents=True, exist_ok=True)
    return {
        "host": socket.gethostname(),
        "arch": platform.machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "temporary": _folder(temporary),
        "root": _folder(Path(spec.root)),
        "models": {model: model_state(Path(model)) for model in spec.models},
        "gpus": gpus() if spec.gpus_per_node else None,
        "clock": clock(folder),
    }


def gpus(run: Callable[..., str] | None = None) -> dict[str, Any]:
    """Return what nvidia-smi says of each GPU, and grave errors of the kernel's log within the last hour.

    Keys: gpus (field -> text), problem (why there is no answer, or None), xid (list of texts; None: the log may not be read).
    """
    ask = run or _ask
    try:
        text = ask("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits")
    except OSError as error:
        return {"gpus": [], "problem": str(error), "xid": None}
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    told = [dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(_GPU_FIELDS)]
    # A GPU that has fallen off the bus makes nvidia-smi print a sentence in place of a row.
    odd = [", ".join(row) for row in rows if len(row) != len(_GPU_FIELDS)]
    return {"gpus": told, "problem": odd[0] if odd else None, "xid": recent_xids(ask)}


def recent_xids(ask: Callable[..., str]) -> list[str] | None:
    """Return the driver's errors in the kernel's log within the last hour; None where it may not be read."""
    try:
        text = ask("dmesg")
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return None
    found = [match for line in text.splitlines() if (match := _XID.search(line))]
    return [f"Xid {match[3]} of {match[2]}" for match in found if uptime - float(match[1]) < 3600]


def model_state(folder: Path) -> dict[str, Any]:
    """Return what is missing of a model's folder, and a checksum over names and sizes of its files."""
    if not folder.is_dir():
        return {"problem": "is not there", "files": ""}
    # Names and sizes alone: reading hundreds of GB on every node would take longer than the check may.
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    listed: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
            listed |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    lacking = sorted(name for name in listed if not sizes.get(name))
    problem = f"lacks {len(lacking)} of {len(listed)} files, {lacking[0]} first" if lacking else None
    if "config.json" not in sizes:
        problem = "has no config.json"
    return {"problem": problem, "files": hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:12]}


def clock(folder: Path) -> dict[str, float | str]:
    """Return how far this node's clock is ahead of the job's, and how sure that is, in seconds."""
    try:
        served = json.loads((folder / CLOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {"problem": f"the folder of the job cannot be read: {error}"}
    problem = "the node of the batch step cannot be reached"
    for address in served["addresses"]:
        with contextlib.suppress(OSError, ValueError):
            looks = [_look_at_clock(address, served["port"]) for _ in range(ASKED)]
            # The quickest answer: what delays a packet only makes the offset less certain (as NTP does).
            offset, trip = min(looks, key=lambda look: look[1])
            return {"offset": offset, "uncertain": trip / 2}
    return {"problem": f"{problem}: {', '.join(served['addresses'])}, port {served['port']}"}


def measure_links(job: SlurmJob, folder: Path) -> dict[str, Any]:
    """Reduce over all GPUs, or over all nodes where there is none; returns GB/s, or what went wrong."""
    # One task a node, so the task's number is the node's.
    node, nodes = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    local = max(1, job.spec.gpus_per_node)
    world = nodes * local
    if world == 1:
        return {"skipped": "one rank"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "windtunnel.cluster.links", str(folder / LINKS), str(node * local + i), str(world), str(local),
             "nccl" if job.spec.gpus_per_node else "gloo"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )
        for i in range(local)
    ]  # fmt: skip
    limit, told = time.monotonic() + LINK_SECONDS, []
    for number, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=max(1.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            told.append({"problem": f"no all-reduce within {LINK_SECONDS:.0f} s (GPU {number})"})
            continue
        lines = [line for line in out.splitlines() if line.startswith("{")]
        last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        told.append(json.loads(lines[-1]) if lines else {"problem": last[:300]})
    failed = [one for one in told if "problem" in one]
    return failed[0] if failed else told[0]


def addresses() -> list[str]:
    """Return under what names and numbers other nodes may reach this one."""
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(name, None, family=socket.AF_INET)]
    return list(dict.fromkeys(found))


def _look_at_clock(address: str, port: int) -> tuple[float, float]:
    """Return (seconds that this clock is ahead, seconds that the question took)."""
    with socket.create_connection((address, port), timeout=5.0) as connection:
        before = time.time()
        connection.sendall(b"?")
        there = float(connection.recv(64).decode())
        after = time.time()
    # The other's time is taken to be that of the middle of the question.
    return (before + after) / 2 - there, after - before


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _folder(path: Path) -> dict[str, Any]:
    """Return what is free in a folder in GiB, and why nothing can be written to it, or None."""
    probe = path / f".windtunnel-{uuid.uuid4().hex[:8]}"
    try:
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
        return {"path": str(path), "free_gib": shutil.disk_usage(path).free / GIB, "problem": None}
    except OSError as error:
        return {"path": str(path), "free_gib": 0.0, "problem": error.strerror or str(error)}


def _ask(program: str, *arguments: str) -> str:
    """Return what a program prints. Raises OSError with what it said where it fails or hangs."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except FileNotFoundError:
        raise OSError(f"{program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{program} did not answer within 20 s") from None
    if done.returncode:
        raise OSError(f"{program}: {((done.stdout + done.stderr).strip().splitlines() or ['failed'])[0][:300]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
