"""Checks for tests of the runner: module-level functions, as checks that run in processes of their own must be."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from windtunnel.check import CheckFailed, Evidence
from windtunnel.recipe import UserError

MARK = "left-behind-by-a-check"
MUCH = 3_000_000


def never(context):
    return False


def divides_too(context):
    return 1 / 0


def passes(context, say):
    say("looking")
    return Evidence("nine of nine", {"number": 9})


def fails(context, say):
    raise CheckFailed("seven")


def fails_softly(context, say):
    raise CheckFailed("x", blocks=False)


def user_error(context, say):
    raise UserError("no file", "give one")


def divides(context, say):
    return 1 / 0


def exits(context, say):
    sys.exit(3)


def interrupts(context, say):
    raise KeyboardInterrupt


def reads_facts(context, say):
    return Evidence(str(context.facts["a"]["number"]))


def warns(context, say):
    return Evidence("it holds", warnings=["mind the gap"])


def cannot_tell(context, say):
    return Evidence("nothing here", absent="a machine with a GPU")


def crashes(context, say):
    ctypes.string_at(0)


def hangs(context, say):
    (context.folder / "hanging").write_text(str(os.getpid()))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", MARK], start_new_session=True)
    time.sleep(300)


def leaves_children(context, say):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", MARK], start_new_session=True)
    return Evidence("left one")


def is_killed(context, say):
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(context, say):
    os._exit(0)


def cannot_be_sent(context, say):
    return Evidence("x", {"function": lambda: 1})


def much(context, say):
    return Evidence("much", {"text": "x" * MUCH})


def prints(context, say):
    print("to stdout")
    return Evidence("printed")


def where(context, say):
    return Evidence("here", {"folder": os.getcwd(), "variable": os.environ.get("SOME_VARIABLE")})
