"""One node's part of a Ray cluster, and what the cluster has.

python -m windtunnel.cluster.ray_node head|worker ADDRESS GPUS   becomes `ray start`, until it is ended
python -m windtunnel.cluster.ray_node watch ADDRESS              prints what there is, as JSON, whenever it has changed
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from typing import NoReturn

NODE = "slurm-"
"""Before a node's name: a resource by which Ray's nodes are known as Slurm names them."""
LOOK_SECONDS = 1.0


def main() -> None:
    """Do what the command line says."""
    role, address = sys.argv[1:3]
    if role == "watch":
        watch(address)
    start(role, address, int(sys.argv[3]))


def start(role: str, address: str, gpus: int) -> NoReturn:
    """Become `ray start` on this node, with all CPUs that Slurm gives it."""
    host, _, port = address.rpartition(":")
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    cpus = os.environ.get("SLURM_CPUS_ON_NODE") or str(os.cpu_count() or 1)
    place = os.environ.get("TMPDIR", "/tmp")
    os.makedirs(place, exist_ok=True)
    own = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={place}/ray", "--include-dashboard=false"]
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", *(["--head", *own] if role == "head" else [f"--address={address}"]),
        f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--resources={json.dumps({NODE + name: 1})}", "--block",
        "--disable-usage-stats", "--dashboard-agent-listen-port=0",
    ]  # fmt: skip
    os.execv(command[0], command)


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
