"""A run's copy in an object store, made while it trains, and runs brought home from there. No torch; fsspec on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .store import Place, StoreError

if TYPE_CHECKING:
    from .afar import ask_to_stop, is_trained, look, read_log, run_url, runs_in
    from .follow import Following, bring_run, newest_mirrored
    from .lease import Keeper, Lease, LeaseTaken
    from .restore import fetch_run
    from .snapshot import newest_snapshot
    from .store import Store
    from .sync import STATE, Mirror, read_database

__all__ = [
    "STATE",
    "Following",
    "Keeper",
    "Lease",
    "LeaseTaken",
    "Mirror",
    "Place",
    "Store",
    "StoreError",
    "ask_to_stop",
    "bring_run",
    "fetch_run",
    "is_trained",
    "look",
    "newest_mirrored",
    "newest_snapshot",
    "read_database",
    "read_log",
    "run_url",
    "runs_in",
]

__getattr__ = lazy(__name__)
