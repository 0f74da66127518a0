"""Runs code that nobody trusts: a fresh child of a warm worker for each candidate, locked in as far as the kernel allows."""

from .channel import note
from .devices import gpu_devices
from .layers import Layers
from .types import Job, Limits, MiB, Outcome, Runner
from .worker import Sandbox

__all__ = ["Job", "Layers", "Limits", "MiB", "Outcome", "Runner", "Sandbox", "gpu_devices", "note"]
