"""A recipe on a machine that may have nothing: its run comes from the mirror, with files named where they are here."""

from pathlib import Path

import pytest
from tiny_recipes import write_tiny

from windtunnel.launch import bring_job, stand_again
from windtunnel.mirror import Keeper, Lease, LeaseTaken, Mirror, Place, Store
from windtunnel.recipe import Recipe, UserError, load_recipe
from windtunnel.run import RunFolder, list_runs


def recipe_in(folder: Path, store: Path) -> Recipe:
    """The same recipe as a machine has it: its text lies in that machine's own folder."""
    folder.mkdir()
    recipe = load_recipe(write_tiny(folder), [f"checkpoints.mirror=file://{store}"])
    corpus = recipe.data.corpus.model_copy(update={"files": [str(folder / "text.txt")]})  # type: ignore[union-attr]
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"corpus": corpus})})


def mirrored(run: RunFolder, store: Path) -> None:
    """Bring a run into its mirror as training does, and let the lease go."""
    place = Store(Place.parse(f"file://{store}/{run.path.name}"))
    lease = Lease.acquire(place, print, seconds=5.0)
    keeper = Keeper(lease, seconds=3600.0)
    Mirror(run.path, place, lease, keeper).sync()
    keeper.close()
    lease.release()


def test_a_recipe_that_never_ran_begins(tmp_path: Path) -> None:
    assert not stand_again(recipe_in(tmp_path / "here", tmp_path / "store"), tmp_path / "runs", print)


def test_a_run_stands_on_an_empty_disk_and_names_this_machines_files(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first, second = recipe_in(tmp_path / "first", store), recipe_in(tmp_path / "second", store)
    with RunFolder.create(tmp_path / "first" / "runs", first, rig={"name": "here"}) as before:
        before.finish("done", "budget.steps")
        mirrored(before, store)
    with RunFolder.create(tmp_path / "first" / "runs", first, rig={"name": "here"}) as run:
        run.update(before={"run": before.path.name, "hours": 1.0, "dollars": 2.0})
        mirrored(run, store)
    root = tmp_path / "second" / "runs"
    assert stand_again(second, root, print)
    # The newest run, and the one whose weights and gates it asks for.
    assert {found.path.name for found in list_runs(root)} == {run.path.name, before.path.name}
    for name in (run.path.name, before.path.name):
        assert RunFolder.open(root / name).recipe.data.corpus.files == [str(tmp_path / "second" / "text.txt")]  # type: ignore[union-attr]
    RunFolder.open(root / run.path.name, second)  # the same training, by its recipe
    assert stand_again(second, root, print)


def test_a_run_by_its_address_comes_with_the_one_before_it_and_says_where_that_one_is_missing(tmp_path: Path) -> None:
    store, told = tmp_path / "store", []
    recipe = recipe_in(tmp_path / "first", store)
    with RunFolder.create(tmp_path / "first" / "runs", recipe, rig={"name": "here"}) as before:
        before.finish("done", "budget.steps")
    with RunFolder.create(tmp_path / "first" / "runs", recipe, rig={"name": "here"}) as run:
        run.update(before={"run": before.path.name, "hours": 1.0, "dollars": 2.0})
        mirrored(run, store)
    address, alone, both = f"file://{store}/{run.path.name}/", tmp_path / "alone", tmp_path / "both"
    assert bring_job(address, alone, told.append) == alone / run.path.name
    assert any(before.path.name in text and "holds no run" in text for text in told)
    with RunFolder.open(before.path) as again:
        mirrored(again, store)
    assert bring_job(address, both, told.append) == both / run.path.name
    assert {found.path.name for found in list_runs(both)} == {run.path.name, before.path.name}


def test_a_state_that_was_left_behind_gives_way_to_the_mirrors(tmp_path: Path) -> None:
    store = tmp_path / "store"
    recipe = recipe_in(tmp_path / "here", store)
    root = tmp_path / "runs"
    with RunFolder.create(root, recipe, rig={"name": "here"}) as run:
        run.update(summary={"step": 7})
        mirrored(run, store)
        run.update(summary={"step": 3})  # as it is here: another machine has gone on
    assert stand_again(recipe, root, print)
    assert RunFolder.open(run.path).manifest["summary"] == {"step": 7}
    (left,) = (root / ".left").iterdir()
    assert RunFolder.open(left).manifest["summary"] == {"step": 3}
    assert [found.path for found in list_runs(root)] == [run.path]


def test_a_run_that_another_machine_trains_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    recipe = recipe_in(tmp_path / "here", store)
    with RunFolder.create(tmp_path / "runs", recipe, rig={"name": "here"}) as run:
        mirrored(run, store)
    lease = Lease.acquire(Store(Place.parse(f"file://{store}/{run.path.name}")), print, seconds=5.0)
    keeper = Keeper(lease, seconds=0.4)
    with pytest.raises((UserError, LeaseTaken), match="is in use: process"):
        stand_again(recipe, tmp_path / "elsewhere", print)
    keeper.close()
