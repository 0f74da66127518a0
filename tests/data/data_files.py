"""What files of data hold, as training reads them."""

from __future__ import annotations

import json
from pathlib import Path

from windtunnel.data.conversations import ConversationReader
from windtunnel.data.corpus import corpus_files, listed_files, read_documents
from windtunnel.recipe import ConversationCorpus, TextCorpus

LINE = json.dumps({"text": "Good."}) + "\n"
"""One record of text."""


def read(path: Path, separator: str | None = None, **options: str) -> list[str]:
    """Return the documents of a file or folder of text; more keys of its corpus by name."""
    files = corpus_files(TextCorpus(files=[str(path)], **options))  # type: ignore[arg-type]
    return [text for file in files for batch in read_documents(file, separator) for text in batch.documents()]


def conversations(name: str) -> list[list[str]]:
    """Return what each conversation of a file says, turn by turn."""
    read = ConversationReader(ConversationCorpus(files=[name])).read(listed_files([name]))
    return [[message["content"] for message in one.messages] for one in read]
