"""Make a picture of terminal output: `tmux capture-pane -e -p -t PANE | python tools/terminal_svg.py TITLE > docs/x.svg`."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text

COLUMNS = 100


def main() -> None:
    """Read text with colour codes on standard input, write SVG on standard output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in sys.stdin.read().rstrip().splitlines():
        console.print(Text.from_ansi(line.rstrip()), soft_wrap=True)
    sys.stdout.write(console.export_svg(title=sys.argv[1]))


if __name__ == "__main__":
    main()
