"""Make a picture of terminal output: `tmux capture-pane -e -p -t PANE | python tools/terminal_svg.py TITLE [FIRST] > x.svg`."""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console
from rich.text import Text

COLUMNS = 100


def main() -> None:
    """Read text with colour codes on standard input, write SVG on standard output.

    What comes before the first line that matches the pattern FIRST, if given, is left out.
    """
    lines = [Text.from_ansi(line.rstrip()) for line in sys.stdin.read().rstrip().splitlines()]
    if len(sys.argv) > 2:
        lines = lines[next(i for i, line in enumerate(lines) if re.search(sys.argv[2], line.plain)) :]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in lines:
        console.print(line, soft_wrap=True)
    sys.stdout.write(console.export_svg(title=sys.argv[1]))


if __name__ == "__main__":
    main()
