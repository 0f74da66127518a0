"""How to start a process that computes: quickly where a fork is safe, from a clean server elsewhere."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any


def child_context(preload: str) -> Any:
    """Return a multiprocessing context whose processes need not import everything anew.

    A fork of a process with one thread is a copy of it. One of a process with several has their locks without
    the threads, so that products hang or crash in it: there a server is forked that has imported `preload` and
    done nothing. A process that computed, communicated or used a GPU has several.

    Args:
        preload: name of a module, imported before the first process starts.
    """
    methods = multiprocessing.get_all_start_methods()
    if "fork" in methods and _threads() == 1:
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    forkserver.ensure_running()  # it imports while the caller goes on
    return context


def _threads() -> int:
    """Count this process's threads, those that Python knows nothing of included; 0 where that cannot be told."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0
