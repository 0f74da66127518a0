"""What one process of verify_contexts.py does: it makes a CUDA context, uses it, says how long each part took, and ends.

Through the driver alone (ctypes), or through PyTorch as the full stage does. torch is imported only for that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

MiB = 1 << 20
DRIVER = "libcuda.so.1"
KINDS = ("init", "bare", "again", "torch", "full")
ENDINGS = ("exit", "reset", "kill")
PIECE = 1 * MiB
POOL_BYTES, STAGING_BYTES = 1 << 30, 16 * MiB  # as the full stage takes them
AGAIN_SECONDS = 0.8
HELD_SECONDS = 120
REPORT = "CALLS_REPORT"  # where the library of calls.c, if it is loaded, writes what it counted


class Driver:
    """The few functions of CUDA's driver that are timed. They raise RuntimeError with the function's name and code."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)

    def call(self, name: str, *arguments: Any) -> None:
        """Call one; anything but 0 is an error."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gives {code}")

    def primary(self) -> None:
        """The context that PyTorch uses too."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def create(self) -> ctypes.c_void_p:
        """Another context, which becomes the current one."""
        context = ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), 0)
        return context

    def use(self) -> None:
        """Memory, and a fill that has ended."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(PIECE))
        self.call("cuMemsetD8_v2", at, ctypes.c_ubyte(7), ctypes.c_size_t(PIECE))
        self.call("cuCtxSynchronize")

    def used(self) -> int:
        """MiB of the GPU's memory in use, by all processes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return (total.value - free.value) // MiB


class Parts:
    """Seconds by part, in order; a part that comes again is added."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def done(self, name: str) -> None:
        """A part ends now and the next one begins."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def work(kind: str, ending: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Do it; the caller ends the process. options: driver (the library's path), device, hold (two pipes or None).

    Returns seconds by part, MiB in use, how many contexts were made, and when all was done, by the clock that all processes
    share.
    """
    parts, found = Parts(), {"contexts": 1}
    if kind in ("torch", "full"):
        found |= _torch(parts, options["device"], whole=kind == "full")
    else:
        found |= _bare(parts, kind, options)
    if ending == "reset":
        Driver(options["driver"]).call("cuDevicePrimaryCtxReset_v2", 0)
        parts.done("reset")
    _report()
    return found | {"parts": parts.seconds, "at": time.perf_counter()}


def hold(options: Mapping[str, Any], ready: int, release: int) -> None:
    """A context that stays until somebody closes the other end of a pipe."""
    signal.alarm(HELD_SECONDS)
    _bare(Parts(), "bare", options)
    os.write(ready, b"R")
    os.read(release, 1)


def _bare(parts: Parts, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    driver = Driver(options["driver"])
    parts.done("library")
    _phase(1)
    driver.call("cuInit", ctypes.c_uint(0))
    parts.done("cuInit")
    if kind == "init":
        return {}
    if kind == "again":
        return _again(parts, driver)
    _phase(2)
    driver.primary()
    parts.done("context")
    _phase(3)
    driver.use()
    parts.done("first use")
    _phase(0)
    return {"gpu_mib": driver.used()}


def _again(parts: Parts, driver: Driver) -> dict[str, Any]:
    """Contexts one after the other in one process: what a lasting process would pay for a fresh one each time."""
    number, began, own = 0, time.perf_counter(), Parts()
    while not number or time.perf_counter() - began < AGAIN_SECONDS:
        context = driver.create()
        own.done("each context")
        driver.use()
        own.done("each first use")
        driver.call("cuCtxDestroy_v2", context)
        own.done("each destroy")
        number += 1
    parts.seconds |= {name: seconds / number for name, seconds in own.seconds.items()}
    return {"contexts": number}


def _torch(parts: Parts, device: str, *, whole: bool) -> dict[str, Any]:
    import torch

    torch.empty(1, device=device)
    parts.done("context")
    torch.ones(8, device=device).sum().item()
    parts.done("first use")
    if whole:
        pool = torch.empty(POOL_BYTES if device == "cuda" else MiB, dtype=torch.uint8, device=device).view(torch.float32)
        pool.fill_(float("nan"))
        _settle(torch, device)
        parts.done("pool")
        torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
        parts.done("pinned memory")
        torch.manual_seed(1)
        torch.randn(1 << 20, device=device).mul(2).sum().item()
        parts.done("drawing")
    if device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"gpu_mib": (total - free) // MiB}


def _settle(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _phase(number: int) -> None:
    """Tells the library of calls.c, where it is loaded, which part the next calls belong to."""
    if REPORT in os.environ:
        ctypes.CDLL(None).calls_phase(number)


def _report() -> None:
    if REPORT in os.environ:
        ctypes.CDLL(None).calls_report(os.environ[REPORT].encode())


# Loaded before all other libraries, this counts and times the calls that CUDA's driver makes into the kernel's part of it.
# The layouts are those of NVIDIA's published headers (nv_escape.h, nvos.h): what is read of a request is the class of an object
# that is made, or the number of a command.
CALLS = r"""
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
struct row { uint32_t phase, kind, what; uint64_t count, total, most; };
static struct row rows[4096];
static unsigned used, now_in;
static volatile int busy;
static uint64_t clock_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void note(uint32_t kind, uint32_t what, uint64_t spent) {
  while (__sync_lock_test_and_set(&busy, 1)) ;
  unsigned at = 0;
  while (at < used && (rows[at].phase != now_in || rows[at].kind != kind || rows[at].what != what)) at++;
  if (at == used && used < 4096) { rows[used].phase = now_in; rows[used].kind = kind; rows[used].what = what; used++; }
  if (at < used) { rows[at].count++; rows[at].total += spent; if (spent > rows[at].most) rows[at].most = spent; }
  __sync_lock_release(&busy);
}
int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  uint32_t kind = (uint32_t)request, what = 0;
  const unsigned char *body = argument;
  if (((request >> 8) & 0xff) == 'F' && body) {
    kind = request & 0xff;
    if (kind == 0xd3) { kind = *(const uint32_t *)body; body = *(unsigned char *const *)(body + 8); }
    if (body && kind == 0x2b) what = *(const uint32_t *)(body + 12);
    if (body && kind == 0x2a) what = *(const uint32_t *)(body + 8);
    kind |= 0x4600;
  }
  uint64_t began = clock_now();
  int result = syscall(SYS_ioctl, fd, request, argument);
  note(kind, what, clock_now() - began);
  return result;
}
void calls_phase(int number) { now_in = number; }
void calls_report(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return;
  for (unsigned at = 0; at < used; at++)
    fprintf(file, "%u %u %u %llu %llu %llu\n", rows[at].phase, rows[at].kind, rows[at].what,
            (unsigned long long)rows[at].count, (unsigned long long)rows[at].total, (unsigned long long)rows[at].most);
  fclose(file);
}
"""
PHASES = ("else", "cuInit", "context", "first use")
ESCAPES = {0x462B: "make", 0x462A: "command", 0x4629: "free", 0x464E: "map", 0x464F: "unmap", 0x4657: "map for DMA",
           0x4627: "make memory", 0x464A: "heap", 0x4634: "share", 0x4658: "unmap for DMA", 0x46CE: "event"}  # fmt: skip
CLASSES = {0x41: "client", 0x80: "device", 0x2080: "subdevice", 0x90F1: "address space", 0xA06C: "channel group",
           0xC86F: "channel", 0xCBC0: "compute engine", 0xC8B5: "copy engine", 0x9067: "context share", 0x40: "GPU memory",
           0x3E: "system memory", 0x50A0: "virtual memory", 0x79: "event", 0xC661: "doorbell", 0x83DE: "debugger"}  # fmt: skip


def read_calls(text: str) -> list[tuple[str, int, float, float]]:
    """(what it is, how often, seconds, longest) of a report, the dearest first."""
    rows = []
    for line in text.splitlines():
        phase, kind, what, count, total, most = map(int, line.split())
        name = ESCAPES.get(kind, f"UVM {kind}" if kind < 1 << 12 else hex(kind))
        detail = CLASSES.get(what, hex(what)) if kind == 0x462B else hex(what) if what else ""
        rows.append((f"{PHASES[phase]}: {name} {detail}".strip(), count, total / 1e9, most / 1e9))
    return sorted(rows, key=lambda row: -row[2])
