"""Files of a model from Hugging Face's hub: looked up, fetched by its own client, gone on with, and compared by hash.

The client keeps what is finished and, while a connection drops, what has arrived; a file that its process left half
fetched it begins again. Here a file goes on where it ended, but for those that come through the client's Xet protocol.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .hub_errors import Say, answer_of, is_of_the_network, passes, refusal, told_wait

WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
BESIDE = ("*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken", "*.py", "LICENSE*")
SECONDS = 20.0
"""What the hub gets to answer."""
AT_ONCE = 8
"""Files at a time: one connection rarely fills a line."""
WAITS = (5.0, 15.0, 60.0, 300.0)
"""Seconds between attempts while nothing arrives; anything that arrives begins them anew."""
TELL = 30.0
"""Seconds between two lines of progress."""
HALF = ".incomplete"


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. sha256 is of files kept outside git, blob git's own hash of the others; None: not told."""

    name: str
    size: int
    sha256: str | None
    blob: str | None

    def is_right(self, path: Path) -> bool:
        """Return whether a file is this one: its size, and its hash where the hub tells one."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return file_hash(path) == self.sha256
        return self.blob is None or _git_hash(path) == self.blob


@dataclass(frozen=True)
class Listing:
    """A model's files on the hub at one revision."""

    identity: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @property
    def source(self) -> str:
        """Say where they are from, in words."""
        return f"huggingface.co/{self.identity} at {self.revision}"


def look_up(identity: str, say: Say = lambda _: None, *, weights: bool = True) -> Listing:
    """Ask the hub which files a model has, again where it answers that it is overloaded.

    Args:
        identity: OWNER/NAME.
        say: told what is waited for.
        weights: False leaves the weights out: config, tokenizer and chat template alone.

    Raises:
        UserError: no such model, a gated one, a refused token, no network, or no weights as safetensors.
    """
    from huggingface_hub import HfApi

    # Somebody sits before the screen: minutes of waiting are for the files themselves.
    waits = iter(WAITS[:3])
    while True:
        try:
            info = HfApi().model_info(identity, files_metadata=True, timeout=SECONDS)
            break
        except Exception as error:  # the hub's own, and those of whichever HTTP client it uses
            wait = next(waits, None) if answer_of(error) is not None and passes(error) else None
            if wait is None:
                raise refusal(identity, error) from None
            time.sleep(told_wait(error, wait, identity, say))
    found = [file for file in info.siblings or [] if _belongs(file.rfilename, weights)]
    if weights and not any(file.rfilename.endswith(".safetensors") for file in found):
        raise UserError(f"fetch: {identity} has no weights as safetensors", "choose a model that has")
    files = (HubFile(f.rfilename, f.size or 0, getattr(f.lfs, "sha256", None), _blob(f)) for f in found)
    return Listing(identity, str(info.sha), tuple(files))


def _belongs(name: str, weights: bool) -> bool:
    """Return whether a file of a repository belongs to its model as transformers reads it."""
    # Other formats and examples lie in folders; a model's own files do not.
    if "/" in name:
        return False
    if any(fnmatch(name, pattern) for pattern in WEIGHTS):
        return weights
    return any(fnmatch(name, pattern) for pattern in BESIDE)


def _blob(file: Any) -> str | None:
    """Return git's hash of a file, where git keeps the file itself."""
    return file.blob_id if file.lfs is None and file.blob_id and len(file.blob_id) == 40 else None


def missing_bytes(listing: Listing, folder: Path) -> int:
    """Return how much is still to be fetched into a folder."""
    return listing.bytes - sum(_have(folder / file.name, file.size) for file in listing.files)


def _have(path: Path, size: int) -> int:
    """Return how many bytes of a file are there, whole or not."""
    # A whole file before a half one: the half may be left over from before it was whole.
    for there in (path, path.with_name(path.name + HALF)):
        if there.is_file():
            return min(size, there.stat().st_size)
    return 0


def download(listing: Listing, folder: Path, say: Say) -> int:
    """Fetch what a folder lacks of a model's files and compare all of them with their hashes; return the bytes fetched.

    No other process may fetch into the folder meanwhile.

    Raises:
        UserError: the hub refuses or cannot be reached for several minutes, the disk is full, or files come damaged twice.
    """
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    # What a killed client left cannot be used again, and would take the room of what is fetched.
    for left in (folder / ".cache" / "huggingface" / "download").glob(f"*{HALF}"):
        left.unlink(missing_ok=True)
    lacking = missing_bytes(listing, folder)
    waiting: queue.SimpleQueue[HubFile] = queue.SimpleQueue()
    # Config and tokenizer come first, so that planning can begin while weights arrive.
    for file in sorted(listing.files, key=lambda file: file.size):
        waiting.put(file)
    ended: queue.SimpleQueue[Exception | HubFile] = queue.SimpleQueue()
    stop = threading.Event()
    # Daemons: an interrupt ends the program at once, not when the files under way are whole.
    for _ in range(min(AT_ONCE, len(listing.files))):
        threading.Thread(target=_work, args=(listing, folder, waiting, ended, stop, say), daemon=True).start()
    try:
        _follow(listing, folder, ended, say)
    except OSError as error:
        raise refusal(listing.identity, error) from None
    except Exception as error:
        if isinstance(error, UserError) or not is_of_the_network(error):
            raise
        raise refusal(listing.identity, error) from None
    finally:
        stop.set()
    return lacking


def _follow(listing: Listing, folder: Path, ended: queue.SimpleQueue[Exception | HubFile], say: Say) -> None:
    """Wait until every file has come, telling how far it is. Raises what ended a worker."""
    whole = begun = listing.bytes - missing_bytes(listing, folder)
    start = told = time.monotonic()
    done = 0
    while done < len(listing.files):
        try:
            # In short looks: in between it is told how far everything is.
            came = ended.get(timeout=1.0)
        except queue.Empty:
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                whole = max(whole, listing.bytes - missing_bytes(listing, folder))
                say(_progress(whole, listing.bytes, (whole - begun) / (told - start)))
            continue
        if isinstance(came, Exception):
            raise came
        done += 1


def _progress(have: int, all_of_it: int, rate: float) -> str:
    text = f"{have / 1e9:,.1f} of {all_of_it / 1e9:,.1f} GB, {rate / 1e6:,.0f} MB/s"
    return text + (f", {(all_of_it - have) / rate / 60:,.0f} min left" if rate > 0 and have < all_of_it else "; comparing hashes")


def _work(
    listing: Listing,
    folder: Path,
    waiting: queue.SimpleQueue[HubFile],
    ended: queue.SimpleQueue[Exception | HubFile],
    stop: threading.Event,
    say: Say,
) -> None:
    """Fetch files until there are none left; whatever ends it is for the main thread."""
    while not stop.is_set():
        try:
            file = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            _fetch_right(listing, file, folder, stop, say)
        except Exception as error:
            ended.put(error)
            return
        ended.put(file)


def _fetch_right(listing: Listing, file: HubFile, folder: Path, stop: threading.Event, say: Say) -> None:
    """Fetch a file unless it is there, compare it, and fetch it once more where it came damaged. Raises UserError."""
    path = folder / file.name
    # A second time, as a line may garble a file once; after that it is the hub's copy.
    for _ in range(2):
        if not path.is_file():
            _fetch_patiently(listing, file, path, stop, say)
        if file.is_right(path):
            return
        path.unlink()
    raise UserError(
        f"fetch: {file.name} of {listing.identity} came damaged, twice", "run the same command again: only that file is fetched"
    )


def _fetch_patiently(listing: Listing, file: HubFile, path: Path, stop: threading.Event, say: Say) -> None:
    """Fetch a file, over and over while the network is away for minutes. Raises what does not pass with time."""
    waits = iter(WAITS)
    while True:
        had = _have(path, file.size)
        try:
            _fetch_file(listing, file, path)
            return
        except Exception as error:
            if not passes(error):
                raise
            # Whatever arrived shows that the line works: patience begins anew.
            if _have(path, file.size) > had:
                waits = iter(WAITS)
            wait = next(waits, None)
            if wait is None or stop.wait(told_wait(error, wait, file.name, say)):
                raise


def _fetch_file(listing: Listing, file: HubFile, path: Path) -> None:
    """Fetch a file through the hub's client, going on behind the bytes that are there."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    address = hf_hub_url(listing.identity, file.name, revision=listing.revision)
    half = path.with_name(path.name + HALF)
    # Of another revision, whose file was larger.
    if half.is_file() and half.stat().st_size > file.size:
        half.unlink()
    # Xet's own protocol is several times faster, and begins a file again.
    by_xet = _has_xet() and get_hf_file_metadata(address).xet_file_data is not None
    if file.sha256 is None or (by_xet and not half.exists()):
        hf_hub_download(listing.identity, file.name, revision=listing.revision, local_dir=path.parent)
        return
    with open(half, "ab") as opened:
        http_get(address, opened, resume_size=opened.tell(), headers=build_hf_headers(), expected_size=file.size)
    half.rename(path)


def _has_xet() -> bool:
    """Return whether the client would use Xet."""
    from importlib.util import find_spec

    from huggingface_hub import constants

    return find_spec("hf_xet") is not None and not constants.HF_HUB_DISABLE_XET


def compare_hashes(folder: Path, files: Iterable[HubFile], say: Say) -> list[str]:
    """Return the names of files that are missing or not what they should be; reads every byte."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = list(files)
    say(f"reading {sum(file.size for file in wanted) / 1e9:,.2f} GB to compare hashes")
    # Hashing lets other threads run, and one core hashes slower than a disk reads.
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        right = list(pool.map(lambda file: file.is_right(folder / file.name), wanted))
    return [file.name for file, held in zip(wanted, right, strict=True) if not held]


def file_hash(path: Path) -> str:
    """Return a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_hash(path: Path) -> str:
    """Return git's hash of a file: of its length and content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def check_room(folder: Path, needed: int) -> None:
    """Refuse a download for which there is no room. Raises UserError."""
    # A little more, as other programs write too.
    free, wanted = shutil.disk_usage(folder).free, int(1.02 * max(0, needed))
    if free < wanted:
        raise UserError(
            f"fetch: {wanted / 1e9:,.2f} GB are still to come into {folder.parent}, {free / 1e9:,.2f} GB are free there",
            "free some space, or name a folder on a larger disk: --to FOLDER, or WINDTUNNEL_MODELS for all models",
        )
