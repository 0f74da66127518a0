"""What a GPU machine is asked about judging kernels, one step after the other and within a time: both suites, then the speed.

    python benchmarks/verify_gpu.py --out FOLDER [--seconds 270]

The suites (attacks.py, `suites.json` and `suites.log` in FOLDER) have more than half of the time, the speed (verify_speed.py,
`speed.json` and `speed.log`) the rest; each writes its file as it goes along, and is ended with all that it started when its time
is over. Nothing else should use the GPU meanwhile. Exit code 1 when a step did not end well; what it printed says why.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SUITES_SHARE = 0.58
SUITES_CALLS = "20"  # timed of each candidate, where in use it is up to 60: the medians are the less sure, and more are timed
SPARE_SECONDS = 8.0  # of each step: those under way are waited for, and workers are ended


def main() -> int:
    """Both steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=270.0, help="for all of it")
    parser.add_argument("--pretend", action="store_true", help=argparse.SUPPRESS)  # the motions on the interpreter
    parser.add_argument("--every", type=int, default=1, help="of the suites every n-th candidate alone, to try it")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="candidates under way, at most")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    more = ["--pretend"] if options.pretend else []
    suites = ["run", "--gpu", "--workers", str(options.workers), "--every", str(options.every), "--calls", SUITES_CALLS, *more]
    codes = [step("suites", ["attacks.py", *suites], options.out, SUITES_SHARE * options.seconds)]
    counts = [str(number) for number in (1, 2, 4, 8, 16, 32) if number < options.workers]
    speed = ["--gpu", "--workers", *counts, str(options.workers), *more]
    left = options.seconds - (time.monotonic() - began)
    codes.append(step("speed", ["verify_speed.py", *speed], options.out, left))
    return max(codes)


def step(name: str, command: list[str], out: Path, seconds: float) -> int:
    """Run one of the programs here; 0 when it ended well."""
    minutes = max(0.1, (seconds - SPARE_SECONDS) / 60)
    whole = [
        sys.executable,
        str(HERE / command[0]),
        *command[1:],
        "--minutes",
        f"{minutes:.3f}",
        "--out",
        str(out / f"{name}.json"),
    ]
    print(f"== {name}: at most {seconds:.0f} s: {' '.join(command)}", flush=True)
    began = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(whole, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its workers end themselves when it is gone
            process.wait()
            code = 1
            print(f"   it was ended after {seconds:.0f} s; what it wrote until then stands", flush=True)
    print((out / f"{name}.log").read_text(errors="replace")[-1500:])
    print(f"-- {name}: {'well' if code == 0 else f'NOT WELL ({code})'}, {time.monotonic() - began:.0f} s", flush=True)
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
