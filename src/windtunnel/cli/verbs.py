"""The typer application and its verbs, each imported when it is called: a refusal waits for no other verb, the list for none."""

from __future__ import annotations

import gc
import math
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from windtunnel.recipe import UserError

STOPPED = 3
EPILOG = (
    "Exit codes: 0 done, 1 a gate or check failed, 2 bad input, 3 stopped by budget or signal, with a checkpoint if any step was "
    "done. "
    "RECIPE is a shipped recipe (charlm) or a .yaml file."
)

# Verb -> the first sentence of its help. Its module and function have its name; `verify` builds a group of commands.
VERBS = {
    "recipe": "Print a recipe as it is resolved, or all keys that a recipe may have.",
    "plan": "Show what the recipe would take, and where each number comes from.",
    "check": ("Prove what can be proven before GPUs are rented: environment, data, model, plan, budget, checkpoint, launcher."),
    "rehearse": (
        "Prove the recipe here before GPUs are rented: check, then train, kill, resume, evaluate and serve its scale model."
    ),
    "prepare": "Read, check, split and tokenize a recipe's data here, so that training starts at once.",
    "preview": "Show conversations as the model is trained on them: decoded, with what is learned set apart.",
    "fetch": "Bring a model's weights, config and tokenizer to this machine, where recipes find it by its name.",
    "convert": "Convert a model's weights from fp8 or fp4 with block scales to bf16, exactly, or from bf16 to fp8.",
    "train": "Train within the budget.",
    "launch": "Train on another machine, over ssh, under Slurm, or rented through SkyPilot; or write a job for Megatron-Bridge.",
    "evaluate": "Bits per byte, right answers with their interval, and samples; or FLOPs-matched baselines of a recursive run.",
    "backtest": "Trade predicted actions on daily prices, with costs, and say what they earned beside buying and holding.",
    "predict": "Predict the actions of new theses, with probabilities and the time each took.",
    "optimize": "Ask a model for a kernel in a module's place: the fastest answer that is right, with its proof.",
    "serve": "Serve /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics and a page at /.",
    "watch": "Show one screen: progress, loss, throughput, dollars, warnings.",
    "logs": "Print what a run's processes printed.",
    "stop": "Ask a run to save a checkpoint and end, and wait until it has.",
    "fetch-run": "Bring a copy of a run home from a mirror or another machine, also while it still trains there.",
    "runs": "List the runs under --root, the newest first.",
    "prices": "List the prices that plans use, with their age; with --update bring them up to date from a file or an address.",
    "ledger": "Show what all runs have cost beside their plans, against budgets, and what stopping now would save.",
    "compare": "Show how the recipes of runs differ, what each reached and spent, best checkpoints, and losses on one picture.",
    "clean": "List prepared data in the cache, with size and age; with --older remove it.",
    "export": "Write weights only: safetensors, the model's shape, its tokenizer and checksums, enough to use it anywhere.",
    "verify": "Judge a model's answer.",
}

# Verbs that load torch, which takes 0.6 GiB of addresses; with less it ends by whatever it happens to be at.
WITH_TORCH = ("rehearse", "prepare", "train", "evaluate", "predict", "optimize", "serve", "export", "convert")
LEAST_ADDRESSES = 2**30

OF_PYDANTIC = (
    ("Value error, ", ""),
    (", unable to parse string as an integer", ""),
    (", unable to parse string as a number", ""),
    ("Input should be a valid integer", "expected a whole number"),
    ("Input should be a valid number", "expected a number"),
    ("Input should be greater than or equal to", "expected at least"),
    ("Input should be less than or equal to", "expected at most"),
    ("Input should be", "expected"),
)


class Telling:
    """What every command does with wrong options."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and where an option lacks its argument say what that may be; where it is a wrong one, which."""
        given = list(args)  # parsing takes them out
        try:
            found: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
            self._refuse_endless(ctx)
            self._refuse_two_files(ctx, given)
            return found
        except Exception as error:
            wrong = _argument_of(getattr(error, "param", None), given)
            if wrong is not None:
                error.message = _in_words(error.message, wrong)  # type: ignore[attr-defined]
            name = getattr(error, "option_name", None)
            option = next((each for each in self.params if name in each.opts), None)
            if option is not None and "requires an argument" in str(getattr(error, "message", "")):
                error.message = f"Option '{name}' requires an argument. {getattr(option, 'help', None) or ''}"  # type: ignore[attr-defined]
            raise

    def _refuse_endless(self, ctx: Any) -> None:
        """Refuse nan and inf, which are numbers to Python and none to a plan."""
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter("expected a number", ctx=ctx, param=option)

    def _refuse_two_files(self, ctx: Any, given: list[str]) -> None:
        """Refuse a second file for an option that takes one: the first would silently be neither read nor written."""
        for option in self.params:
            if getattr(option, "metavar", None) != "FILE" or getattr(option, "multiple", True):
                continue
            files = list(dict.fromkeys(_arguments_of(option, given)))
            if len(files) > 1:
                raise typer.BadParameter(f"it takes one file (got {' and '.join(map(repr, files))})", ctx=ctx, param=option)


class Verb(Telling, TyperCommand):
    """A command that works with the garbage collector on, which is off during start-up."""

    def invoke(self, ctx: Any) -> Any:
        """Note that parsing is over: what start-up made stays for good, and is not looked through again."""
        collect_from_here()
        if self.name == "train" and ctx.obj:  # until it is supervised, and before what takes long to import
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, _stop)
        if self.name in WITH_TORCH:
            _refuse_few_addresses()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            # typer ends all of them as it ends Ctrl-C. With its name another signal came, before there was anything to save.
            if str(interrupt) in ("", "SIGINT"):
                raise
            print(f"{interrupt}: ended before there was anything to save", file=sys.stderr)
            raise typer.Exit(STOPPED) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _refuse_few_addresses() -> None:
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESSES:
        raise UserError(
            f"this shell allows a process {allowed / 2**20:,.0f} MiB of addresses, and torch alone takes most of "
            f"{LEAST_ADDRESSES / 2**20:,.0f} MiB",
            "ulimit -v unlimited (or another shell, where a hard limit stands)",
        )


def _argument_of(option: Any, given: list[str]) -> str | None:
    """Return what was given to an option last, in either form; None where there is nothing."""
    return (_arguments_of(option, given) or [""])[-1] or None


def _arguments_of(option: Any, given: list[str]) -> list[str]:
    """Return all that was given to an option, in either form."""
    found = []
    for at, text in enumerate(given):
        name, equals, value = text.partition("=")
        if name in getattr(option, "opts", ()) and name.startswith("-"):
            found.append(value if equals else "".join(given[at + 1 : at + 2]))
    return found


def _in_words(message: str, wrong: str) -> str:
    """Return pydantic's complaint about an option in the words that recipes' errors have, with the value."""
    # The same mistake in a recipe and in an option is told in the same words.
    for theirs, ours in OF_PYDANTIC:
        message = message.replace(theirs, ours)
    return message if repr(wrong) in message else f"{message.rstrip('.')} (got {wrong!r})"


class VerbGroup(Telling, TyperGroup):
    """The same for a verb with commands of its own."""

    def invoke(self, ctx: Any) -> Any:
        """Do as `Verb.invoke` does, before the command is parsed."""
        collect_from_here()
        return super().invoke(ctx)


class Verbs(TyperGroup):
    """All verbs. Only one that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that is called, by its name, in the place of its entry in the list."""
        if args[:2] == ["rig", "prices"]:  # of a rig, as it is also called
            args = args[1:]
        if args and args[0] in VERBS:
            self.add_command(load_verb(args[0]), args[0])
        return super().resolve_command(ctx, args)


def collect_from_here() -> None:
    """Switch the garbage collector on for what is made from now on."""
    # Frozen: the thousands of objects of the schema and of typer stay to the end, and need not be looked through again.
    gc.freeze()
    gc.enable()


def load_verb(name: str) -> Any:
    """Import a verb's module and make its command."""
    own = name.replace("-", "_")
    module = import_module(f".{own}", __package__)
    if name == "verify":
        return get_command(module.build(VerbGroup))
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name, cls=Verb)(getattr(module, own))
    return get_command(app)


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
        app.command(name, help=summary, short_help=summary)(_listed)  # the list of them wraps it, where it would cut help short
    return app


def _top(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from windtunnel import __version__

        typer.echo(f"windtunnel {__version__}")
        raise typer.Exit


def _listed() -> None:
    """Stands for each verb in the list of them until it is called."""
    raise AssertionError("a verb that is called is loaded first")
