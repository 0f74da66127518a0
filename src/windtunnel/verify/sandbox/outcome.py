"""From how a child ended to what the verifiers are told."""

from __future__ import annotations

import os
import signal as signals
from typing import Any

from .channel import BadReply, Kept, read_phase, read_reply, read_spans
from .types import Limits, MiB, Outcome, Status

MEMORY_WORDS = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")


def infrastructure(detail: str) -> Outcome:
    """Return the outcome that says: the machinery failed, nothing is known about the candidate."""
    return Outcome("infrastructure", detail)


def judge_end(end: dict[str, Any], reply: int, log: int, limits: Limits, *, keep: bool = False) -> Outcome:
    """Return the outcome of a job.

    end: what the worker saw. keep: whether the buffers are left where they are.
    """
    if end["ended"] == "setup":
        return infrastructure(f"the child could not lock itself in: {end['word'] or 'it died before'}")
    code = os.waitstatus_to_exitcode(end["status"])
    # The child shares the place in the file with the judge: where it stands is how much was printed.
    printed = min(max(os.lseek(log, 0, os.SEEK_CUR), 0), limits.log_bytes)
    text = os.pread(log, printed, 0).decode("utf-8", "replace")
    common: dict[str, Any] = {
        "log": text,
        "log_full": printed >= limits.log_bytes,
        "phase": read_phase(reply),
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "wall_seconds": end["wall"],
        "cpu_seconds": end["cpu"],
        "peak_bytes": end["peak"],
    }
    # What the worker saw counts before any reply: a candidate may have written one and gone on.
    stopped = _stopped(end, code, limits)
    if stopped:
        return Outcome(*stopped, **common)
    if code < 0:
        return Outcome("killed", f"crashed with {_signal_name(-code)}", **common)
    full = common["log_full"]
    try:
        answer = _kept(reply, common) if keep else read_reply(reply)
    except BadReply as error:
        return Outcome("exited", f"the reply was tampered with: {error}", **common)
    if answer is None:
        if full:
            return Outcome("output", f"printed more than {limits.log_bytes:,} bytes", **common)
        return Outcome("exited", f"ended with exit code {code} and without a reply", **common)
    return _reply(answer[0], answer[1], full, limits, common)


def _signal_name(number: int) -> str:
    """Return the name of any signal: Python has names for those alone that have one, and a process may send itself another."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kept(reply: int, common: dict[str, Any]) -> tuple[dict[str, Any], tuple[bytes, ...]] | None:
    """Return the message alone; the buffers' places go into the outcome."""
    found = read_spans(reply)
    if found is None:
        return None
    common["kept"] = Kept(os.dup(reply), found[1])
    return found[0], ()


def _reply(body: dict[str, Any], buffers: tuple[bytes, ...], full: bool, limits: Limits, common: dict[str, Any]) -> Outcome:
    # Written by our own code in the child, or by the candidate in its place.
    kind, message = body.get("kind"), body.get("reply")
    if not isinstance(message, dict):
        return Outcome("exited", "the reply was tampered with: no message", **common)
    if kind == "reply":
        return Outcome("finished", "", message=message, buffers=buffers, **common)
    said = message.get("error", "")
    error = said[:2000] if isinstance(said, str) else ""
    if kind == "output":
        return Outcome("output", error, message=message, **common)
    if full:
        return Outcome("output", f"printed more than {limits.log_bytes:,} bytes", message=message, **common)
    if any(word in error for word in MEMORY_WORDS):
        return Outcome("memory", f"needs more than {limits.memory_bytes // MiB} MiB: {error}", message=message, **common)
    return Outcome("raised", error, message=message, **common)


def _stopped(end: dict[str, Any], code: int, limits: Limits) -> tuple[Status, str] | None:
    if end["ended"] == "timeout":
        return "timeout", f"did not end within {limits.wall_seconds:g} s"
    if end["ended"] == "idle":
        return "timeout", f"used no CPU time for {limits.idle_seconds:g} s"
    if end["ended"] == "memory":
        return "memory", f"used more than {limits.memory_bytes // MiB} MiB"
    if end["ended"] == "disk":
        return "output", f"wrote more than {limits.file_bytes // MiB} MiB of files"
    if code in (-signals.SIGKILL, -signals.SIGXCPU):
        # The kernel counts CPU time by whole ticks where it looks at the limit, exactly in what is read afterwards: on a busy
        # machine the two are far apart. Who was killed for memory had some.
        near = end["cpu"] >= 0.95 * limits.cpu_seconds
        slim = end["cpu"] >= 0.5 * limits.cpu_seconds and end["peak"] < 0.5 * limits.memory_bytes
        if code == -signals.SIGXCPU or near or slim:
            return "timeout", f"used more than {limits.cpu_seconds:g} s of CPU time"
        return "memory", "was killed by the kernel, which was out of memory"
    return None
