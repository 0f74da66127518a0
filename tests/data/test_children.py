"""Work in processes of their own: the same results in order, errors as they were raised, and no process left over."""

from __future__ import annotations

import contextlib
import operator
import re
from functools import partial
from pathlib import Path

import psutil
import pytest

from windtunnel.data.children import Children, in_processes, processes_for
from windtunnel.data.corpus import CorpusFile, listed_files
from windtunnel.recipe import UserError


def test_results_come_in_order_whatever_the_number_of_processes() -> None:
    items = [b"x" * size for size in (1, 3_000_000, 0, 7, 70_000, 5)]
    for processes in (1, 3):
        assert list(in_processes(len, items, processes)) == [(item, len(item)) for item in items]


def test_what_is_printed_by_the_work_does_not_come_between_the_results() -> None:
    assert [made for _, made in in_processes(print, ["some", "words"], 2)] == [None, None]


def test_errors_are_raised_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere") as caught:
        list(in_processes(listed_files, [["nowhere.txt"]], 2))
    assert caught.value.fix
    with pytest.raises(ZeroDivisionError) as failed:
        list(in_processes(partial(operator.floordiv, 1), [1, 0], 2))
    assert any("Traceback" in note for note in failed.value.__notes__)
    with pytest.raises(re.error):
        list(in_processes(re.compile, ["a", "("], 2))
    assert CorpusFile("a", 1) == next(in_processes(partial(CorpusFile, "a"), [1], 2))[1]


def test_a_killed_process_is_reported_and_none_is_left() -> None:
    with Children(len, 1) as children:
        assert children.run("four") == 4
        children.kill()
        with pytest.raises(UserError, match="has ended"):
            children.run("more")
    assert all(child.returncode is not None for child in children._all)


def test_a_reader_that_stops_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}  # other tests' own, in the same process
    with contextlib.closing(in_processes(len, iter("x" * 100), 2)) as made:
        assert next(made) == ("x", 1)
        begun = {child.pid for child in psutil.Process().children()} - before
        assert begun
    assert not begun & {child.pid for child in psutil.Process().children()}


def test_little_work_is_done_here() -> None:
    assert processes_for(1_000_000) == 1
    assert processes_for(1_000_000, worth=1) >= 1
