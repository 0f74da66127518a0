"""The entry point: collects the verbs and turns errors a user can cause into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from windtunnel.recipe import UserError

from . import check, evaluate, export, plan, rehearse, runs, serve, train, verify, watch
from .output import print_error

INTERRUPTED = 130
# torch's threads spin for milliseconds while they wait. Beside another program on the same cores that makes a
# training step up to fifty times slower; so short a spin costs 5 % when there is none. Read when torch is loaded.
SPIN_COUNT = "10000"

EPILOG = (
    "Exit codes: 0 done, 1 a gate or check failed, 2 bad input, 3 stopped by budget or signal with a checkpoint. "
    "RECIPE is a shipped recipe (charlm) or a .yaml file."
)


def build_app() -> typer.Typer:
    """All verbs as one typer application."""
    app = typer.Typer(
        name="windtunnel",
        help="Plan, check, rehearse, train, evaluate and serve language models without wasting rented GPUs.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        # Plain help: rich's takes a quarter of a second to import.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_top)
    app.command("plan")(plan.plan)
    app.command("check")(check.check)
    app.command("rehearse")(rehearse.rehearse)
    app.command("train")(train.train)
    app.command("evaluate")(evaluate.evaluate)
    app.command("serve")(serve.serve)
    app.command("watch")(watch.watch)
    app.command("runs")(runs.runs)
    app.command("export")(export.export)
    app.add_typer(verify.build(), name="verify")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code. Unexpected exceptions keep their traceback."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    try:
        build_app()(args=None if arguments is None else list(arguments), prog_name="windtunnel")
    except UserError as error:
        print_error(error, as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _top(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from windtunnel import __version__

        typer.echo(f"windtunnel {__version__}")
        raise typer.Exit
