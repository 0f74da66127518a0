"""A snapshot as one terminal screen, drawn with rich."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from rich import box
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .snapshot import Snapshot
from .text import chain, count, dollars, duration, number, share, sparkline

MOST_ALERTS = 4
_STYLES = {"info": "cyan", "warn": "yellow", "bad": "bold red"}
_SIGNS = {"info": "i", "warn": "!", "bad": "✗"}


def console_on(stream: Any) -> Console:
    """Return a console that draws on a terminal which need not be standard output; rich asks only that for its size."""

    class OfStream(Console):
        @property
        def size(self) -> ConsoleDimensions:
            with contextlib.suppress(OSError, ValueError):
                columns, lines = os.get_terminal_size(stream.fileno())
                if columns and lines:
                    return ConsoleDimensions(columns, lines)
            return super().size

        @size.setter
        def size(self, new: tuple[int, int]) -> None:
            raise NotImplementedError

    return OfStream(file=stream)


def screen(now: Snapshot, width: int) -> RenderableType:
    """Return the whole view, at most 100 columns wide and some 15 lines high."""
    # Borders and padding; longer lines than 100 are hard to read.
    inner = min(width, 100) - 4
    parts: list[RenderableType] = [
        _progress(now, inner),
        *_silence(now),
        Text(""),
        _figures(now),
        Text(""),
        _curve(now, inner),
        *_supervision(now, inner),
    ]
    if now.alerts:
        parts += [Text(""), *_alerts(now)]
    title = Text(now.title or "windtunnel", style="bold", overflow="ellipsis", no_wrap=True)
    title.truncate(inner - 4, overflow="ellipsis")
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, width=inner + 4, padding=(0, 1))


def _progress(now: Snapshot, width: int) -> RenderableType:
    of = f" of {now.goal:,}" if now.goal else ""
    percent = f"  {100 * now.progress:.1f} %" if now.progress is not None else ""
    left = Text.assemble((now.phase, "green"), f"  step {now.step:,}{of}{percent}")
    right = Text(f"elapsed {duration(now.elapsed)}   ETA {duration(now.eta)}", justify="right")
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    bar = ProgressBar(total=1.0, completed=now.progress or 0.0, width=width)
    return Group(line, bar)


def _silence(now: Snapshot) -> list[RenderableType]:
    if now.silent is None:
        return []
    words = f"! nothing has moved for {duration(now.silent)}: no step, no line. `windtunnel logs` shows the last ones"
    return [Text(words, style="bold yellow")]


def _figures(now: Snapshot) -> Table:
    memory = "-" if now.memory_gib is None else f"{now.memory_gib:.1f}"
    if now.memory_gib is not None and now.memory_limit_gib:
        memory += f" of {now.memory_limit_gib:.1f} GiB ({100 * now.memory_gib / now.memory_limit_gib:.0f} %)"
    elif now.memory_gib is not None:
        memory += " GiB"
    budget = "-" if now.dollars_budget is None else dollars(now.dollars_budget)
    table = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 3, None, 4):  # labels are shown whole, whatever the width
        table.add_column(ratio=ratio, no_wrap=True)
    rows = [
        ("loss", number(now.loss), "tokens/s", count(now.tokens_per_second)),
        ("validation", number(now.validation), "MFU", share(now.mfu)),
        ("answers right", share(now.answers), "memory", memory)
        if now.answers is not None
        else ("bits per byte", number(now.bpb), "memory", memory),
        (
            "gradient norm",
            number(now.gradient_norm, 3),
            "GPU busy",
            "-" if now.gpu_utilisation is None else f"{now.gpu_utilisation:.0f} %",
        ),
        ("spent", dollars(now.dollars), "data wait", share(now.data_wait)),
        ("forecast", dollars(now.dollars_forecast), "budget", budget),
    ]
    for a, b, c, d in rows:
        table.add_row(Text(a, style="dim"), _value(a, b, now), Text(c, style="dim"), Text(d))
    return table


def _value(label: str, text: str, now: Snapshot) -> Text:
    # As the band of dollars: a percent over the budget is a wavering forecast.
    over = label == "forecast" and now.dollars_budget is not None and (now.dollars_forecast or 0.0) > now.dollars_budget * 1.01
    return Text(text, style="bold red" if over else "bold")


def _curve(now: Snapshot, width: int) -> Text:
    label = "loss  "
    return Text.assemble((label, "dim"), (sparkline(now.losses, width - len(label)) if now.losses else "no steps yet", "cyan"))


def _supervision(now: Snapshot, width: int) -> list[RenderableType]:
    """Return what a recursive model's steps lose (nats, held-out bits per byte), and whether each is below the one before."""
    if len(now.step_losses) < 2:
        return []
    table = Table.grid(padding=(0, 2), expand=False)
    rows = (("loss by step", now.step_losses), ("validation", now.validation_steps), ("bits per byte", now.bpb_steps))
    for title, losses in rows:
        if losses:
            order = ("in order", "green") if sorted(losses, reverse=True) == losses else ("not in order", "bold red")
            refined = 100 * (losses[0] - losses[-1]) / losses[0] if losses[0] else 0.0
            table.add_row(
                Text(title, style="dim"),
                Text(chain(losses, 6 if width > 90 else 2)),
                Text(f"refined {refined:.1f} %"),
                Text(*order),
            )
    return [Text(""), table]


def _alerts(now: Snapshot) -> list[RenderableType]:
    shown: list[RenderableType] = []
    hidden = len(now.alerts) - MOST_ALERTS
    for level, message, advice in now.alerts[-MOST_ALERTS:]:
        style = _STYLES.get(level, "yellow")
        line: Any = Text.assemble((f"{_SIGNS.get(level, '!')} {message}", style), (f". {advice}" if advice else "", "dim"))
        shown.append(line)
    if hidden > 0:
        shown.append(Text(f"... and {hidden} earlier", style="dim"))
    return shown
