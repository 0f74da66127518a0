"""The entry point: starts up quickly, and turns errors a user can cause into messages and exit codes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from windtunnel.recipe import UserError

INTERRUPTED = 130
# torch's threads spin for milliseconds while they wait. Beside another program on the same cores that makes a
# training step up to fifty times slower; so short a spin costs 5 % when there is none. Read when torch is loaded.
SPIN_COUNT = "10000"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code. Unexpected exceptions keep their traceback."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # Or pydantic reads what every installed package offers, in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    collecting = gc.isenabled()
    # Imports make many objects that stay and little garbage: looking through them takes a fifth of a refusal's time.
    # A verb switches the collector on again before it works (`verbs.Verb`).
    gc.disable()
    try:
        from .app import build_app

        build_app()(args=None if arguments is None else list(arguments), prog_name="windtunnel")
    except UserError as error:
        from .output import print_error

        print_error(error, as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        (gc.enable if collecting else gc.disable)()
