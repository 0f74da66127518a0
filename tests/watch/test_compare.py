"""Runs beside each other: what differs, what they reached, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_watch_report import Page

from windtunnel.cli.start import main
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder
from windtunnel.watch import different_keys, draw_comparison, read_result

BATCH = 1024


def run(root: Path, depth: int, losses: list[float], status: str = "done", data: str = "abc") -> Path:
    recipe = load_recipe("charlm", [f"model.depth={depth}", "budget.steps=40"])
    plan = {
        "model": f"GPT of depth {depth}", "method": "pretrain", "params": 10**depth, "derived_tokens": 12 * 10**depth,
        "layout": {"batch_tokens": BATCH}, "hours": 2.0, "dollars": 4.0, "dollars_per_hour": 2.0, "tokens_per_second": 1000.0,
    }  # fmt: skip
    made = RunFolder.create(root, recipe, rig={}, plan=plan)
    with Metrics(made.metrics_path) as metrics:
        for number, loss in enumerate(losses, start=1):
            metrics.log(10 * number, {"loss": loss, "validation_loss": loss, "dollars": 0.5 * number, "tokens_per_second": 900.0})
    made.spent_path.write_text(json.dumps({"seconds": 3600.0, "dollars": 2.0}))
    (made.checkpoints_dir / "step-00000010").mkdir()
    made.update(data={"checksum": data})
    made.finish(status, "budget.steps: 40 steps done")  # type: ignore[arg-type]
    made.close()
    return made.path


def test_a_result_has_the_best_losses_and_what_was_spent_beside_the_plan(tmp_path: Path) -> None:
    result = read_result(run(tmp_path, 4, [3.0, 2.0, 2.5, 1.9, 2.2, 2.1, 2.4]))
    assert (result.steps, result.tokens, result.loss) == (70, 70 * BATCH, 1.9)
    assert [score.step for score in result.best] == [40, 20, 60, 50, 70]
    assert result.scaling == 10**4
    assert (result.hours, result.dollars, result.planned_hours, result.planned_dollars) == (1.0, 2.0, 2.0, 4.0)
    assert result.curves["tokens"][0] == (10 * BATCH, 3.0)
    assert result.curves["dollars"][-1] == (3.5, 2.4)
    kept = {score.step: score.kept for score in read_result(run(tmp_path, 4, [1.0])).best}
    assert kept == {10: True}


def test_only_keys_that_differ_are_shown(tmp_path: Path) -> None:
    results = [read_result(run(tmp_path, depth, [3.0, 2.0])) for depth in (2, 4)]
    assert different_keys(results) == [("model.depth", [2, 4])]
    assert different_keys(results[:1]) == []


def test_the_picture_is_drawn_or_refused(tmp_path: Path) -> None:
    results = [read_result(run(tmp_path, depth, [3.0, 2.0])) for depth in (2, 4)]
    draw_comparison(results, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text()
    assert "<svg" in text
    draw_comparison(results, tmp_path / "both.html")
    page = Page((tmp_path / "both.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert [one["name"] for one in json.loads(page.data[0])["runs"]] == [result.name for result in results]
    for part in ("2 runs", "2.0000", results[0].name):
        assert part in page.text
    with pytest.raises(UserError, match="drawn as"):
        draw_comparison(results, tmp_path / "both.gif")
    with pytest.raises(UserError, match="nothing to draw"):
        draw_comparison([read_result(run(tmp_path, 2, []))], tmp_path / "none.png")


def verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_differences_are_written_as_in_a_recipe_in_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of(name: str, embeddings: str, separator: str) -> str:
        corpus = '{kind: text, files: [a.txt], separator: "' + separator + '"}'
        sets = [f"model.value_embeddings={embeddings}", f"data.corpus={corpus}"]
        made = RunFolder.create(tmp_path / name, load_recipe("charlm", sets), rig={}, plan={})
        made.close()
        return str(made.path)

    code, out, _ = verb(capsys, "compare", of("a", "true", r"\n"), of("b", "false", r"\n\n"))
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["model.value_embeddings"] == ["true", "false"]
    assert rows["data.corpus.separator"] == [r"'\n'", r"'\n\n'"]


def test_each_picture_that_is_asked_for_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [tmp_path / "a.svg", tmp_path / "b.html"]
    plots = [text for path in pictures for text in ("--plot", str(path))]
    code, out, _ = verb(capsys, "compare", str(run(tmp_path, 2, [3.0, 2.0])), *plots)
    assert code == 0
    assert all(path.stat().st_size and f"wrote {path}" in out for path in pictures)


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(run(tmp_path, depth, losses)) for depth, losses in ((4, [3.0, 2.4]), (5, [2.9, 2.2]), (6, [2.8, 2.1, 2.05]))]
    code, out, _ = verb(capsys, "compare", *paths)
    assert code == 0
    missing = [word for word in ("differences", "model.depth", "best validations", "planned $", "2.0500") if word not in out]
    assert missing == []
    code, out, _ = verb(capsys, "plan", "charlm", "--on", "8xH100", "--set", "budget.dollars=90", "--fit", *paths, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["law"]["runs"] == 3
    assert found["buys"][0]["dollars"] <= 90.01
    code, out, _ = verb(capsys, "plan", "--fit", *paths, "--on", "8xH100", "--set", "budget.dollars=90")
    assert (code, "what the budget buys: charlm on 8xH100" in out) == (0, True)
    assert "of other data" not in out
    code, out, _ = verb(capsys, "plan", "charlm", "--set", "data.corpus.digits=2", "--on", "8xH100", "--fit", *paths)
    assert (code, "charlm is of other data than the runs (data.corpus.digits differ)" in out) == (0, True)
    other = str(run(tmp_path, 4, [2.0], data="xyz"))
    code, _, err = verb(capsys, "plan", "charlm", "--fit", *paths, "nosuch")
    assert (code, "no runs: nosuch" in err) == (2, True)
    code, _, err = verb(capsys, "plan", "--fit", *paths, other)
    assert (code, "trained on other data" in err) == (2, True)
    code, _, err = verb(capsys, "plan", "charlm", "trm")
    assert (code, "plan takes one recipe" in err) == (2, True)
