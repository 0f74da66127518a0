"""What a run needs only later, or never, does not keep it from its first step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_recipes import write_tiny

CODE = """
import sys
from pathlib import Path
from windtunnel.launch import Options
from windtunnel.launch.prepare import prepare_run
from windtunnel.recipe import load_recipe
from windtunnel.train import train

recipe = load_recipe(Path(sys.argv[1]), ["budget.steps=1"])
with prepare_run(recipe, Options(root=Path(sys.argv[1]).parent / "runs", yes=True), lambda text: None) as run:
    folder = run.path
late = ("sympy", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo", "windtunnel.verify", "transformers")
found = []
code = train(folder, after_step=lambda step, engine: found.extend(name for name in late if name in sys.modules))
sys.exit(f"before the first step's end: {found}" if found else code)
"""


@pytest.mark.end_to_end
def test_a_gpt_takes_its_first_step_without_what_saves_or_judges(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(write_tiny(tmp_path))], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["windtunnel.plan", "windtunnel.run"])
def test_plans_and_runs_are_read_without_http(package: str) -> None:
    code = f"import sys; from {package} import *; sys.exit('http.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
