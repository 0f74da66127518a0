"""Kernels run by Triton's interpreter on the CPU: in a process of its own, since the interpreter is chosen at import."""

import os
import subprocess
import sys


def passes_interpreted(script: str) -> None:
    """The script's last word must be "all equal"."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip().endswith("all equal"), done.stdout + done.stderr
