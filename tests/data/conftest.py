"""What tests of conversations share."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_folders import FORGETS, LIKE_SMOL, MARKED, small_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tokenizers: like SmolLM2's, with generation blocks, one that forgets, and one without a template."""
    root = tmp_path_factory.mktemp("tokenizers")
    for name, template in (("smol", LIKE_SMOL), ("marked", MARKED), ("forgets", FORGETS), ("none", None)):
        small_folder(root / name, template)
    return root
