"""The excerpt of theses that a rehearsal is made with."""

from __future__ import annotations

import json
from pathlib import Path

from windtunnel.data import prepare
from windtunnel.recipe import BPETokenizer, GeneratedTheses, ThesisCorpus, TimeSplit, load_recipe
from windtunnel.rehearse.excerpt import thesis_records, write_lines


def test_an_excerpt_has_theses_of_every_split_from_all_over_its_period(tmp_path: Path) -> None:
    charlm = load_recipe("charlm")
    corpus = ThesisCorpus(generated=GeneratedTheses(records=2000, tickers=10))
    data = charlm.data.model_copy(
        update={"corpus": corpus, "split": TimeSplit(test_start="2025-01-01"), "tokenizer": BPETokenizer(vocab_size=300)}
    )
    whole = prepare(charlm.model_copy(update={"data": data}), cache=tmp_path / "cache")
    write_lines(thesis_records(whole, 300_000), tmp_path / "excerpt.jsonl")
    days = [json.loads(line)["as_of_date"] for line in (tmp_path / "excerpt.jsonl").read_text().splitlines()]
    assert 0.5 < (tmp_path / "excerpt.jsonl").stat().st_size / 300_000 < 1.1
    corpus = ThesisCorpus(files=[str(tmp_path / "excerpt.jsonl")])
    fewer = charlm.model_copy(update={"data": data.model_copy(update={"corpus": corpus})})
    kept = prepare(fewer, cache=tmp_path / "cache").facts["kept"]
    assert min(kept.values()) >= 20
    assert days[0] < "2020-03"
    assert days[-1] > "2025-05"
