"""What evaluates a run of any kind does not wait for what only some kinds need."""

from __future__ import annotations

import subprocess
import sys


def test_a_gpt_is_evaluated_without_transformers() -> None:
    code = """
import sys
from windtunnel.checkpoint import export_run
from windtunnel.evaluate import evaluate_run
from windtunnel.generate import load_run
from windtunnel.rl import evaluate_trained
sys.exit("transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
