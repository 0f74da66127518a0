"""Tell whether the newest run was stopped because its machine is to be taken away: python -m windtunnel.remote.taken ROOT."""

from __future__ import annotations

import sys

from windtunnel.run import interrupted, list_runs


def main() -> int:
    """Return 0 where it was, 1 where it ended by itself, by its budget or at somebody's wish."""
    newest = next(iter(list_runs(sys.argv[1])), None)
    return 0 if newest is not None and newest.status == "stopped" and interrupted(newest.reason) else 1


if __name__ == "__main__":
    sys.exit(main())
