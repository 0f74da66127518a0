"""Rigs: what to train on. A catalog with dated prices, names such as '8xH100', and detection. No torch."""

from .catalog import Catalog, gpu_names, instance_names, load_catalog, user_file
from .detect import cpu_cores, detect_rig, measure_cpu_gflops
from .parse import parse_rig
from .types import GPU, Price, Rig

__all__ = [
    "GPU",
    "Catalog",
    "Price",
    "Rig",
    "cpu_cores",
    "detect_rig",
    "gpu_names",
    "instance_names",
    "load_catalog",
    "measure_cpu_gflops",
    "parse_rig",
    "user_file",
]
