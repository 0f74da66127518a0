"""JSON of others is read as the standard library reads it, but for what is nested without end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thesis_files import recipe_of, spread

from windtunnel.data import prepare
from windtunnel.recipe import ThesisCorpus, UserError
from windtunnel.recipe.reading import DEEPEST, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(VALUES)
def test_what_is_not_deep_is_read_as_json_reads_it(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a": ', "}")])
def test_depth_is_counted_and_not_the_number_of_lists(opened: str, closed: str) -> None:
    parse_json(opened * DEEPEST + "1" + closed * DEEPEST)
    parse_json(json.dumps([[[1]], {"a": 2}] * 10 * DEEPEST))
    for depth in (DEEPEST + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 200 deep"):
            parse_json((opened * depth + "1" + closed * depth).encode())


@pytest.mark.parametrize("key", ["ticker", "as_of_date", "action", "reasoning", "indicators", "other"])
def test_a_nested_record_is_refused_with_its_line(tmp_path: Path, key: str) -> None:
    lines = [json.dumps(record) for record in spread(300)]
    lines[7] = f'{{"{key}": {"[" * 100_000}{"]" * 100_000}, {lines[7][1:]}'
    (tmp_path / "theses.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"theses\.jsonl:8: not JSON: nested more than 200 deep"):
        prepare(recipe_of(ThesisCorpus(files=[str(tmp_path / "theses.jsonl")])), cache=tmp_path / "cache")
