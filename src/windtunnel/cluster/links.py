"""One rank of an all-reduce over the nodes: python -m windtunnel.cluster.links MEETING RANK WORLD LOCAL BACKEND; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from windtunnel.files import write_json

from .probe import addresses

SECONDS = 80
REPEATS = 5
# Large enough that bandwidth decides and not latency; gloo's go over Ethernet.
BYTES = {"nccl": 256 * 2**20, "gloo": 16 * 2**20}


def main() -> None:
    """Meet the others, reduce a known sum, and measure."""
    meeting, backend = Path(sys.argv[1]), sys.argv[5]
    rank, world, local = (int(text) for text in sys.argv[2:5])
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank % local) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = _store(dist, meeting, rank, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS))
    told = {"ranks": world, "backend": backend, "all_gbs": _measure(dist, torch, None, world, rank, device, BYTES[backend])}
    # Within a node too, over NVLink: where that is slow, the sum over all nodes does not tell which.
    if 1 < local < world:
        groups = [dist.new_group(list(range(first, first + local))) for first in range(0, world, local)]
        told["node_gbs"] = _measure(dist, torch, groups[rank // local], local, rank % local, device, BYTES[backend])
    print(json.dumps(told), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _store(dist: Any, meeting: Path, rank: int, world: int) -> Any:
    """Return the store at which all ranks meet: rank 0 opens it at a free port and writes down where."""
    limit = timedelta(seconds=SECONDS)
    if rank == 0:
        # Port 0: any fixed one may be taken.
        store = dist.TCPStore("0.0.0.0", 0, world, is_master=True, timeout=limit, wait_for_workers=False)
        write_json(meeting, {"addresses": addresses(), "port": store.port}, durable=False)
        return store
    end = time.monotonic() + SECONDS
    while not meeting.exists():
        if time.monotonic() > end:
            raise SystemExit(f"rank 0 did not say within {SECONDS} s where to meet: is {meeting.parent} seen by all nodes?")
        time.sleep(0.1)
    told = json.loads(meeting.read_text(encoding="utf-8"))
    for address in told["addresses"]:
        try:
            return dist.TCPStore(address, told["port"], world, is_master=False, timeout=timedelta(seconds=15))
        except (RuntimeError, ValueError, OSError):  # another name of it, perhaps
            continue
    raise SystemExit(f"no connection to rank 0 at {', '.join(told['addresses'])}, port {told['port']}")


def _measure(dist: Any, torch: Any, group: Any, count: int, rank: int, device: Any, size: int) -> float:
    """Return GB/s of the all-reduce's bus, as nccl-tests counts it; every rank's part arrived, or SystemExit."""
    # First whether the sum is right at all: a broken link may be fast.
    known = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(known, group=group)
    if not bool((known == count * (count + 1) / 2).all()):
        raise SystemExit(f"the all-reduce over {count} ranks gave a wrong sum: {known[0].item()}")
    buffer = torch.zeros(size // 4, device=device)
    dist.all_reduce(buffer, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        dist.all_reduce(buffer, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / REPEATS
    # Bus bandwidth: each byte crosses a ring 2 (n - 1) / n times, so that numbers of different sizes compare.
    return float(2 * (count - 1) / count * size / seconds / 1e9)


if __name__ == "__main__":
    main()
