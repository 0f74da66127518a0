"""What the process of one candidate on a GPU spends its time on: parts, functions, imports, and programs that it starts.

    python benchmarks/verify_parts.py --kernel relu/plain [--clock]

The full stage, with the clock or without, outside of the sandbox, in forks of a process that holds what the GPU's warm worker
holds. What a fork imports, or has a program do, each candidate pays for: it belongs into the warm worker. The last fork is
profiled.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS = 4
FUNCTIONS = 40


def main() -> int:
    """Load what the worker loads, then do one candidate a few times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="relu/plain", help="one of tests/verify/honest")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: at tiny sizes, by the interpreter")
    parser.add_argument("--clock", action="store_true", help="what is timed too, and so what goes on between timed calls")
    options = parser.parse_args()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before it is imported
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verify"))
    from honest.suite import suite

    from windtunnel.verify import GpuStages, find_task, gpu_sandbox, kernel_sandbox

    source = next(candidate.source for candidate in suite() if candidate.name == options.kernel)
    box = gpu_sandbox() if options.device == "cuda" else kernel_sandbox()
    size = "full" if options.device == "cuda" else "tiny"
    stages = GpuStages(find_task(options.kernel.split("/")[0]), box, box, clock=options.clock, device=options.device, size=size)
    began = time.perf_counter()
    for name in (*box._template.preload, "windtunnel.verify.kernel.child.full"):
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    print(f"the worker's part: {time.perf_counter() - began:.1f} s", flush=True)
    gc.collect()
    gc.freeze()
    codes = []
    for number in range(ROUNDS):
        message = stages._message(stages.plan(), source) | {"turn": 0, "places": 0}
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _one(message, profiled=number == ROUNDS - 1)
            finally:
                sys.stdout.flush()
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return max(map(abs, codes))


def _one(message: dict[str, Any], *, profiled: bool) -> int:
    """In a fork: the candidate, and what was seen."""
    from windtunnel.verify.kernel.child import full
    from windtunnel.verify.sandbox.channel import REPLY_FD, memory_file

    os.chdir(tempfile.mkdtemp())
    os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "triton")
    os.dup2(memory_file("reply", 4 << 30), REPLY_FD)
    known, programs, profile = set(sys.modules), list[str](), cProfile.Profile()
    start = subprocess.Popen.__init__

    def started(self: Any, command: Any, *rest: Any, **more: Any) -> None:
        programs.append(os.path.basename(command if isinstance(command, str) else command[0]))
        start(self, command, *rest, **more)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign, assignment]
    cpu, began = sum(os.times()[:4]), time.perf_counter()
    if profiled:
        profile.enable()
    reply, _ = full.main(message, [])
    profile.disable()
    print(f"\n{time.perf_counter() - began:.3f} s, CPU {sum(os.times()[:4]) - cpu:.3f} s, {len(reply['runs'])} runs;", end=" ")
    print(" ".join(f"{name} {seconds:.3f}" for name, seconds in reply["seconds"].items()), "wrong:", reply.get("wrong"))
    print("imports:", " ".join(sorted(set(sys.modules) - known - {"candidate"})) or "nothing")
    print("programs:", " ".join(programs) or "none")
    if profiled:
        pstats.Stats(profile).sort_stats("cumtime").print_stats(FUNCTIONS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(FUNCTIONS)
    return 0 if reply.get("wrong") is None else 1


if __name__ == "__main__":
    sys.exit(main())
