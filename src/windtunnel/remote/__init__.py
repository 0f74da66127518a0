"""Other machines: a job brought there, started, looked at and brought home. Over ssh, or rented through SkyPilot; no torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .host import Address, Host
    from .jobs import How, attach, fetch, launch_from_mirror, launch_recipe, status
    from .keeping import Kept, find, keep, relaunch
    from .sky import (
        PROVIDERS,
        Rented,
        compare_with_schema,
        own_mirror,
        refused_by_cloud,
        require_credentials,
        require_spot,
        run_and_keep,
        start_command,
        write_job,
    )

__all__ = [
    "PROVIDERS",
    "Address",
    "Host",
    "How",
    "Kept",
    "Rented",
    "attach",
    "compare_with_schema",
    "fetch",
    "find",
    "keep",
    "launch_from_mirror",
    "launch_recipe",
    "own_mirror",
    "refused_by_cloud",
    "relaunch",
    "require_credentials",
    "require_spot",
    "run_and_keep",
    "start_command",
    "status",
    "write_job",
]

__getattr__ = lazy(__name__)
