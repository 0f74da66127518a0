"""One node's part of a Ray cluster, and what the cluster has.

python -m windtunnel.cluster.ray_node head|worker ADDRESS GPUS   runs `ray start` until it is ended
python -m windtunnel.cluster.ray_node watch ADDRESS              prints what there is, as JSON, whenever it has changed
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .job import TEMPORARY

NODE = "slurm-"
"""Before a node's name: a resource by which Ray's nodes are known as Slurm names them."""
LOOK_SECONDS = 1.0
END_SECONDS = 8.0
"""For Ray to end; Slurm kills what a cancelled job has left after 30 s by default, and then nothing is cleaned."""


def main() -> None:
    """Do what the command line says."""
    role, address = sys.argv[1:3]
    if role == "watch":
        watch(address)
    command = start_command(role, address, int(sys.argv[3]))
    # Its process is Ray's own then, and ends with it.
    if role == "head":  # whoever started it cleans up
        os.execv(command[0], command)
    sys.exit(serve(command))


def serve(command: list[str]) -> int:
    """Run a node's Ray until it ends or this process is told to, and remove the job's temporary folder; returns its exit code."""
    told = False

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True

    # Slurm cancels a step with TERM, an interactive srun with INT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None and not told:
        time.sleep(LOOK_SECONDS / 4)
    end_process(child, END_SECONDS)
    remove_temporary()
    return 0 if told else child.returncode


def end_process(process: subprocess.Popen[Any], seconds: float) -> None:
    """End a process that still runs: SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    process.kill()
    process.wait()


def remove_temporary() -> None:
    """Remove this job's temporary folder on this node."""
    place, job = Path(os.environ.get("TMPDIR", "")), os.environ.get("SLURM_JOB_ID")
    if job and place.name == f"{TEMPORARY}{job}":
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(LOOK_SECONDS)
        shutil.rmtree(place, ignore_errors=True)  # what processes that were just ending still wrote


def start_command(role: str, address: str, gpus: int) -> list[str]:
    """Return the command that runs Ray on this node, with all CPUs that Slurm gives it, until it is ended."""
    host, _, port = address.rpartition(":")
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    cpus = os.environ.get("SLURM_CPUS_ON_NODE") or str(os.cpu_count() or 1)
    place = os.environ.get("TMPDIR", "/tmp")
    os.makedirs(place, exist_ok=True)
    own = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={place}/ray", "--include-dashboard=false"]
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", *(["--head", *own] if role == "head" else [f"--address={address}"]),
        f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--resources={json.dumps({NODE + name: 1})}", "--block",
        # Nothing is reported to anybody outside, and no fixed port is opened.
        "--disable-usage-stats", "--dashboard-agent-listen-port=0",
    ]  # fmt: skip


def watch(address: str) -> NoReturn:
    """Print the names, CPUs and GPUs of the cluster's nodes whenever they have changed; ends with the cluster."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    told = ""
    while True:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        names = sorted(key.removeprefix(NODE) for resources in alive for key in resources if key.startswith(NODE))
        cpus, gpus = (int(sum(resources.get(kind, 0) for resources in alive)) for kind in ("CPU", "GPU"))
        text = json.dumps({"nodes": names, "cpus": cpus, "gpus": gpus})
        if text != told:
            print(text, flush=True)
            told = text
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
