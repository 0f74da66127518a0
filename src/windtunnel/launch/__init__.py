"""Starting jobs: on this machine, in this process or through torchrun."""

from .local import run_training
from .orphans import stop_with_parent
from .prepare import Options, prepare_run

__all__ = ["Options", "prepare_run", "run_training", "stop_with_parent"]
