"""Evaluation of models whose experts several ranks share, held against the same evaluation on one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from hf_runs import base_of, trained

from windtunnel.convert import Choice, convert_folder
from windtunnel.evaluate.subject import run_subject
from windtunnel.evaluate.tuned import evaluate_tuned
from windtunnel.generate import HubRun, folder_decoder, run_decoder
from windtunnel.model import NewRows

pytestmark = pytest.mark.end_to_end

SETS = (
    "model.adapter={rank: 4, targets: attention, alpha: 64}", "model.weights=fp8-experts", "data.validation=0.2",
    "stages.sft.answers={every: 20 steps, prompts: 4, tokens: 6, metric: exact_match}",
    f"data.tokenizer.add={json.dumps(['two', '<action>'])}",
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_two_ranks_measure_what_one_does(tmp_path: Path) -> None:
    base = tmp_path / "fp8"
    convert_folder(base_of(tmp_path / "base", "deepseek_v3"), base, Choice(to="fp8"))
    run = trained(tmp_path, base, *SETS)
    hub = HubRun.open(run)
    alone = run_subject(run, "best", "cpu", None, untuned=True)
    shared = replace(
        alone,
        open=lambda: run_decoder(hub, CPU, ranks=2),
        untuned=(lambda: folder_decoder(base, CPU, new=NewRows.of(hub.tokenizer), ranks=2), "the base"),
    )
    one, two = (evaluate_tuned(subject, progress=lambda share, what: None) for subject in (alone, shared))
    assert one.untuned is not None
    assert two.untuned is not None
    for mine, other in ((one.validation, two.validation), (one.untuned.validation, two.untuned.validation)):
        assert mine.loss == pytest.approx(other.loss, rel=1e-5)
        assert mine.tokens == other.tokens > 0
    assert one.said == two.said


def test_ends_of_a_text_are_scored_alike_by_one_rank_and_two(tmp_path: Path) -> None:
    base = tmp_path / "fp8"
    convert_folder(base_of(tmp_path / "base", "deepseek_v3"), base, Choice(to="fp8"))
    start, ends = [1, 7, 9, 4], [[5, 6, 8], [5, 9], [11]]
    found = []
    for ranks in (1, 2):
        with folder_decoder(base, CPU, ranks=ranks) as decoder, torch.inference_mode():
            found.append(decoder.score_ends(start, ends))
            found.append(decoder.score_ends(start, [[5], [6]]))
            whole = [torch.cat(list(decoder.score([*start, *end]))).log_softmax(-1) for end in ends]
    nats = [-sum(float(p[len(start) + i - 1, token]) for i, token in enumerate(end)) for p, end in zip(whole, ends, strict=True)]
    assert found[0].tolist() == pytest.approx(nats, abs=1e-4)
    assert found[2].tolist() == pytest.approx(found[0].tolist(), abs=1e-5)
    assert found[3].tolist() == pytest.approx(found[1].tolist(), abs=1e-5)
