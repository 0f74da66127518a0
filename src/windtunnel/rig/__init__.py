"""Rigs: what to train on. A catalog with dated prices, names such as '8xH100', and detection. No torch."""

from .catalog import Catalog, instance_names, load_catalog, prices_file, user_file
from .detect import PROVIDER, cpu_cores, detect_rig, measure_cpu_gflops
from .nvml import InstalledGPU, are_shared, installed_gpus, visible
from .parse import parse_rig, spot_interruptions
from .prices import OLD_DAYS, Update, age_days, update_prices
from .types import GPU, Price, Rig, processor_of

__all__ = [
    "GPU",
    "OLD_DAYS",
    "PROVIDER",
    "Catalog",
    "InstalledGPU",
    "Price",
    "Rig",
    "Update",
    "age_days",
    "are_shared",
    "cpu_cores",
    "detect_rig",
    "installed_gpus",
    "instance_names",
    "load_catalog",
    "measure_cpu_gflops",
    "parse_rig",
    "prices_file",
    "processor_of",
    "spot_interruptions",
    "update_prices",
    "user_file",
    "visible",
]
