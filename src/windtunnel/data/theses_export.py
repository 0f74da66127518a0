"""Prepared theses as files for others: JSON lines, rejects, prices, and a folder that Hugging Face datasets loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.files import fsync_folder, write_json
from windtunnel.recipe import UserError

from .children import in_processes, processes_for
from .packing import ConversationFile
from .samples import batches
from .theses import PRICES, REJECTS, SPLITS, Rejected
from .theses_sort import Refusal

if TYPE_CHECKING:
    import pyarrow

    from .prepared import PreparedData

DATASET = "dataset"  # the folder for datasets.load_from_disk
COLUMNS = (
    "uid", "ticker", "as_of_date", "reasoning", "support", "action", "indicators", "instruction", "input", "output",
    "source_file",
)  # fmt: skip
_ROWS = 8_192


def export_theses(prepared: PreparedData, folder: Path, sequence: int | None = None) -> list[Path]:
    """Write prepared theses into a folder, which is made; return what was written.

    train.jsonl, validation.jsonl and test.jsonl, theses.jsonl with all three, rejects.jsonl, of generated theses
    prices.parquet, and dataset/ for `datasets.load_from_disk`, in which the indicators are JSON text. Theses longer than a packed
    `sequence`, which training leaves out, are written among the rejects; None: tokens are not known.

    Raises:
        UserError: the folder holds something else, or cannot be written.
    """
    require_empty(folder)
    try:
        return _write(prepared, folder.absolute(), sequence)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written: {error.strerror}", "name another place, or free some space") from None


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds something, before anything is prepared for it. Raises UserError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder}: there is something already", "name a new folder, or empty it")


def _write(prepared: PreparedData, folder: Path, sequence: int | None) -> list[Path]:
    # A name of its own until all of it is there.
    temporary = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        names = [f"{name}.jsonl" for name in SPLITS] + [REJECTS] + ([PRICES] if prepared.prices is not None else [])
        for name in names:
            shutil.copyfile(prepared.folder / name, temporary / name)
        if sequence is not None:
            _leave_out(prepared, temporary, sequence)
        with open(temporary / "theses.jsonl", "wb") as whole:
            for name in SPLITS:
                with open(temporary / f"{name}.jsonl", "rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
        dataset = temporary / DATASET
        dataset.mkdir()
        for name in SPLITS:
            _write_split(temporary / f"{name}.jsonl", dataset / name, name, prepared.checksum)
        write_json(dataset / "dataset_dict.json", {"splits": list(SPLITS)})
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            # An empty folder that is there may be a mount or have permissions of its own, so it is filled, not replaced.
            for made in temporary.iterdir():
                os.rename(made, folder / made.name)
        else:
            os.rename(temporary, folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [folder / name for name in (*names, "theses.jsonl", DATASET)]


def _leave_out(prepared: PreparedData, folder: Path, sequence: int) -> None:
    """Move the theses that training leaves out from train.jsonl to the rejects."""
    assert isinstance(prepared.train, ConversationFile)
    left = np.ones(prepared.train.samples, dtype=bool)
    left[prepared.train.packing(sequence).order] = False
    if not left.any():
        return
    lengths = np.diff(prepared.train.starts)
    reason = f"longer than model.sequence={sequence}, and left out of training"
    with (
        open(prepared.folder / "train.jsonl", "rb") as lines,
        open(folder / "train.jsonl", "wb") as kept,
        open(folder / REJECTS, "a", encoding="utf-8") as rejects,
    ):
        for number, line in enumerate(lines):
            if not left[number]:
                kept.write(line)
                continue
            record = json.loads(line)
            why = Rejected(reason, f"{lengths[number]:,} tokens")
            rejects.write(Refusal.of(number, record["source_file"], record, why).line)


def _write_split(theses: Path, folder: Path, split: str, checksum: str) -> None:
    """Write a split's lines as `Dataset.save_to_disk` does: an Arrow stream, and what it is in two JSON files."""
    import pyarrow

    folder.mkdir()
    schema = pyarrow.schema([(name, pyarrow.string()) for name in COLUMNS])
    name = "data-00000-of-00001.arrow"
    with (
        open(theses, "rb") as lines,
        pyarrow.OSFile(str(folder / name), "wb") as file,
        pyarrow.ipc.new_stream(file, schema) as stream,
        closing(in_processes(rows_of, batches(lines, _ROWS), processes_for(theses.stat().st_size))) as made,
    ):
        for _, rows in made:
            stream.write_batch(rows)
    features = {column: {"dtype": "string", "_type": "Value"} for column in COLUMNS}
    write_json(
        folder / "dataset_info.json", {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    )
    state: dict[str, Any] = {
        "_data_files": [{"filename": name}],
        "_fingerprint": checksum[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_json(folder / "state.json", state)


def rows_of(lines: Sequence[bytes]) -> pyarrow.RecordBatch:
    """Return lines of JSON as rows of text."""
    import pyarrow

    records = [json.loads(line) for line in lines]
    for record in records:
        record["indicators"] = json.dumps(record["indicators"], ensure_ascii=False)
    columns = [pyarrow.array([record[name] for record in records], pyarrow.string()) for name in COLUMNS]
    return pyarrow.RecordBatch.from_arrays(columns, names=list(COLUMNS))
