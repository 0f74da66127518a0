"""The typer application: what stands above the verbs."""

from __future__ import annotations

import typer

from .verbs import VERBS, Verbs, listed

EPILOG = (
    "Exit codes: 0 done, 1 a gate or check failed, 2 bad input, 3 stopped by budget or signal with a checkpoint. "
    "RECIPE is a shipped recipe (charlm) or a .yaml file."
)


def build_app() -> typer.Typer:
    """Return all verbs as one typer application."""
    app = typer.Typer(
        name="windtunnel",
        cls=Verbs,
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
    for name, summary in VERBS.items():
        app.command(name, help=summary, short_help=summary)(listed)  # the list of them wraps it, where it would cut help short
    return app


def _top(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from windtunnel import __version__

        typer.echo(f"windtunnel {__version__}")
        raise typer.Exit
