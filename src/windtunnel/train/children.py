"""Processes that compute, started from a server that has imported everything and done nothing."""

from __future__ import annotations

import multiprocessing
from typing import Any


def child_context(preload: str) -> Any:
    """A multiprocessing context for processes that need a module; the import begins now, in the background.

    A fork of this process would have threads' locks without the threads, in which products hang or crash, and
    perhaps a GPU that it cannot use. Where there is no such server every process imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    forkserver.ensure_running()
    return context
