"""The entry point: starts up quickly, and turns errors a user can cause into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from windtunnel.recipe import UserError

# As shells have it: 128 and the number of SIGINT.
INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell says of a program that SIGPIPE ended, and so what `| head` leads to elsewhere
FULL = (errno.ENOSPC, errno.EDQUOT)
NEARLY = 0.97  # of an address space that was used up: what did not fit was never had
# torch's threads spin for milliseconds while they wait. Beside another program on the same cores that makes a
# training step up to fifty times slower; so short a spin costs 5 % when there is none. Read when torch is loaded.
SPIN_COUNT = "10000"


class Lacking(UserError):
    """Room on a disk or memory, which were enough for a while."""

    exit_code = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code, quietly where nobody reads on. Unexpected exceptions keep their traceback."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # Or pydantic reads what every installed package offers, in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    as_program = arguments is None
    if as_program:
        _forgiving_streams()
    collecting, output = gc.isenabled(), sys.stdout  # typer puts another in its place when a pipe's reader has gone
    # Imports make many objects that stay and little garbage: looking through them takes a fifth of a refusal's time.
    # A verb switches the collector on again before it works (`verbs.Verb`).
    gc.disable()
    told = False
    try:
        from .verbs import build_app

        build_app()(args=None if arguments is None else list(arguments), prog_name="windtunnel", obj=as_program)
    except Exception as error:
        if (refusal := _refusal(error)) is None:
            raise
        from .output import print_error

        told = isinstance(error, OSError)
        print_error(refusal, as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
        sys.exit(refusal.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        (gc.enable if collecting else gc.disable)()
        if code := _unwritten(output, told):
            sys.exit(code)


def _refusal(error: Exception) -> UserError | None:
    """Return what to say in place of a traceback; None of what nobody expected."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, PermissionError) and error.filename is not None:
        # A path below a folder that may not be entered fails wherever it is first looked at.
        path = os.fsdecode(error.filename)
        return UserError(f"{path}: {error.strerror}", f"name another path, or see who may enter its folders: namei -l {path}")
    if isinstance(error, OSError) and error.errno in FULL:  # without a buffer, print itself fails
        return _full(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "windtunnel").partition(".")[0] != "windtunnel":
        return _missing(error)
    return _little_memory(error)


def _missing(error: ModuleNotFoundError) -> UserError:
    """Return what to say of a package that is not there."""
    import traceback

    who = traceback.extract_tb(error.__traceback__)[-1]
    name = (error.name or "").partition(".")[0]
    return UserError(
        f"the Python package {name} is not installed: {who.filename}:{who.lineno} imports it",
        f"install all that windtunnel needs into the Python that runs it: {sys.executable} -m pip install windtunnel",
    )


def _little_memory(error: Exception) -> Lacking | None:
    """Return what to say where the memory that this process may have was used up, by whatever its libraries raise then."""
    import resource

    said = f"{type(error).__name__}{': ' if str(error) else ''}{str(error).partition(chr(10))[0]}"
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY and (isinstance(error, MemoryError) or _most_addresses() > NEARLY * allowed):
        return Lacking(
            f"the {allowed / 2**20:,.0f} MiB of addresses that the shell's limit allows were used up ({said})",
            "ulimit -v unlimited (or another shell, where a hard limit stands)",
        )
    if isinstance(error, MemoryError):
        return Lacking(f"this machine has no memory left ({said})", "end other programs, or take a machine with more memory")
    return None


def _most_addresses() -> int:
    """Return the bytes of addresses that this process had at most; 0 where the system does not say."""
    try:
        with open("/proc/self/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmPeak:")), 0)
    except OSError:
        return 0


def _forgiving_streams() -> None:
    """Let standard output and error replace what their encoding lacks, and closed ones swallow what is printed.

    A descriptor that was closed would be given to the next file that is opened, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            if number:
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _full(error: OSError) -> Lacking:
    where = os.fsdecode(error.filename) if error.filename is not None else "standard output, or a file being written"
    return Lacking(f"{where}: {error.strerror}", "make room, or write to another disk")


def _unwritten(output: TextIO | None, told: bool) -> int:
    """Return the exit code of output that could not be written, else 0: its reader had gone (`| head`), or its disk is full.

    The rest is then dropped.
    """
    if output is None or output.closed:
        return 0
    code = 0
    try:
        output.flush()
        if sys.stdout is not output and _has_no_reader(output):
            code = PIPE_CLOSED
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:
        if error.errno not in FULL:
            raise
        # Where the disk is full, the refusal that was just printed said so; not twice.
        if not told:
            from .output import print_error

            print_error(_full(error))
        code = 1
    if code:  # or Python tries it once more at its end, and complains
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())
        os.close(nowhere)
    return code


def _has_no_reader(output: TextIO) -> bool:
    import select

    poll = select.poll()
    poll.register(output.fileno(), select.POLLOUT)
    # A pipe whose reader has gone polls as an error, without a write that would raise SIGPIPE.
    return any(event & select.POLLERR for _, event in poll.poll(0))
