"""What the machine is doing while it trains: GPU utilisation and memory, sampled beside the step loop."""

from __future__ import annotations

import contextlib
import threading

import torch


class GpuMonitor:
    """Samples the utilisation of this process's GPUs through NVML once a second. Silent without NVML or GPUs."""

    def __init__(self, devices: int, period: float = 1.0) -> None:
        self._devices, self._period = devices, period
        self._samples: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-monitor", daemon=True)
        if devices:
            self._thread.start()

    def utilisation(self) -> float | None:
        """Mean percent since the last call; None when nothing was sampled."""
        with self._lock:
            samples, self._samples = self._samples, []
        return sum(samples) / len(samples) if samples else None

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()

    def _sample(self) -> None:
        # Utilisation is worth showing where it can be had; nothing depends on it.
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._devices)]
            while not self._stop.wait(self._period):
                values = [float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
                with self._lock:
                    self._samples = [*self._samples, sum(values) / len(values)][-600:]


def memory(device: torch.device) -> tuple[float, float] | None:
    """(peak GiB reserved by this process, GiB the GPU has), or None on a CPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) / 2**30, total / 2**30
