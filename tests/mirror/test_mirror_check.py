"""The check of a mirror's store, as `windtunnel check` runs it, against a real S3 server and a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from s3_server import Tap

from windtunnel.check import CheckFailed
from windtunnel.mirror import Place, Store
from windtunnel.mirror.checks import CHECKS, probe
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import NOTICE_VARIABLE

(CHECK,) = CHECKS


def context(mirror: str | None, gib: float = 0.5) -> SimpleNamespace:
    recipe = load_recipe("charlm", [f"checkpoints.mirror={mirror}"] if mirror else [])
    return SimpleNamespace(recipe=recipe, rigs=["a rig"], plan=lambda _: SimpleNamespace(fits=True, checkpoint_gib=gib))


def test_it_applies_only_where_there_is_a_mirror() -> None:
    assert not CHECK.applies(context(None))
    assert CHECK.applies(context("s3://runs/x"))


def test_the_store_is_measured_and_left_as_it_was(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTICE_VARIABLE, raising=False)
    evidence = CHECK.run(context("s3://runs/checked"), print)
    assert evidence.facts["up_bytes_per_second"] > 0
    assert evidence.warnings == ()
    assert Store(Place.parse("s3://runs/checked")).sizes("") == {}
    monkeypatch.setenv(NOTICE_VARIABLE, "runpod")
    (warning,) = CHECK.run(context("s3://runs/checked", gib=1e6), print).warnings
    assert "runpod gives 5 s notice" in warning


@pytest.mark.parametrize(("mirror", "how", "says"), [("s3://not-ours/x", "open", "bucket"), ("s3://runs/x", "cut", "cannot")])
def test_what_cannot_be_used_is_named(tap: Tap, mirror: str, how: str, says: str) -> None:
    tap.turn(how)
    with pytest.raises(UserError, match=says):
        CHECK.run(context(mirror), print)


def test_a_folder_needs_room_for_two_checkpoints(tmp_path: Path) -> None:
    assert CHECK.run(context(f"file://{tmp_path}/new"), print).facts["checkpoint_gib"] == 0.5
    with pytest.raises(CheckFailed, match="two checkpoints"):
        CHECK.run(context(f"file://{tmp_path}/new", gib=1e6), print)


def test_a_store_that_gives_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Place.parse(f"file://{tmp_path}/s"))
    monkeypatch.setattr(store, "get", lambda key: b"")
    with pytest.raises(UserError, match=r"does not read back|is not what was written"):
        probe(store)
