"""Packages that import a name when it is first used: what goes wrong meanwhile is said."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

PACKAGE = """
from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .inner import kept, lost

__getattr__ = lazy(__name__)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lazy_here"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_here"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_an_attribute_that_is_missing_inside_an_import_is_named(package: Path) -> None:
    (package / "inner.py").write_text("import math\nkept = math.no_such_thing\nlost = 2\n")
    with pytest.raises(ImportError, match="no_such_thing") as failed:
        exec("from lazy_here import lost", {})
    assert failed.value.name == "lazy_here.inner"
    assert isinstance(failed.value.__cause__, AttributeError)


def test_names_that_are_there_are_imported_and_others_are_no_attribute(package: Path) -> None:
    (package / "inner.py").write_text("kept = 1\n")
    found = importlib.import_module("lazy_here")
    assert found.kept == 1
    assert not hasattr(found, "other")
    with pytest.raises(ImportError, match="lost"):
        exec("from lazy_here import lost", {})
