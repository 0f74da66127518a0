"""Checks by themselves, on real data and models: what they accept and what they catch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windtunnel.recipe import UserError, load_recipe, scale_model
from windtunnel.rehearse import CheckFailed
from windtunnel.rehearse.corpus import data, leaked
from windtunnel.rehearse.environment import environment
from windtunnel.rehearse.modelling import model
from windtunnel.rehearse.planning import plan_here, plan_target
from windtunnel.rehearse.state import Rehearsal
from windtunnel.rig import parse_rig


def say(text: str) -> None:
    """Nothing."""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def rehearsal(folder: Path, *sets: str, on: str = "8xH100") -> Rehearsal:
    recipe = load_recipe("charlm", sets)
    here = parse_rig("here")
    return Rehearsal(recipe, scale_model(recipe), folder, here, [parse_rig(on)])


def test_environment_here(tmp_path: Path) -> None:
    made = rehearsal(tmp_path)
    evidence = environment(made, say)
    assert "Python 3." in evidence.text
    assert dict(made.environment)["torch"]


def test_environment_names_all_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.rehearse.environment.DISK_GIB", 1e9)
    monkeypatch.setattr("windtunnel.rehearse.environment.PYTHONS", ((4, 0), (4, 1)))
    with pytest.raises(CheckFailed, match=r"Python 3.*GiB free"):
        environment(rehearsal(tmp_path), say)


def test_plans(tmp_path: Path) -> None:
    made = rehearsal(tmp_path)
    assert plan_here(made, say).numbers["fits"] is True
    assert plan_target(made, made.targets[0], say).numbers["dollars"] > 1
    assert list(made.plans) == ["8xH100"]


def test_a_target_that_is_too_small_fails_with_what_would_do(tmp_path: Path) -> None:
    made = rehearsal(tmp_path, "model.depth=64", on="RTX4090")
    with pytest.raises(CheckFailed, match="does not fit") as caught:
        plan_target(made, made.targets[0], say)
    assert "--set model.depth=" in (caught.value.remedy or "")
    # That the whole recipe does not fit this machine is no failure: the scale model does.
    assert "only the scale model" in plan_here(made, say).text


def test_data_of_sums(tmp_path: Path) -> None:
    made = rehearsal(tmp_path)
    evidence = data(made, say)
    assert evidence.numbers["documents_in_both_splits"] == 0
    assert evidence.numbers["vocabulary"] == 18
    assert made.data is not None


def test_missing_text_is_an_error_with_a_fix(tmp_path: Path) -> None:
    made = rehearsal(
        tmp_path, "data.corpus.kind=text", f"data.corpus.files=[{tmp_path}/none.txt]", "data.tokenizer.alphabet=auto"
    )
    with pytest.raises(UserError, match=r"none\.txt"):
        data(made, say)


def test_text_is_read_whole_and_trained_on_in_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = np.array(["plan", "train", "evaluate", "serve", "kill", "resume"])
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("\n\n".join(" ".join(rng.choice(words, 60)) for _ in range(4000)))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.txt"))
    made = rehearsal(
        tmp_path,
        "data.corpus.kind=text",
        f"data.corpus.files=['{tmp_path}/[0-9].txt']",
        r'data.corpus.separator="\n\n"',
        "data.tokenizer.alphabet=auto",
    )
    evidence = data(made, say)
    assert "MB read" in evidence.text
    assert made.corpus is not None
    assert made.corpus[1] > 0.9 * size
    assert made.data is not None
    assert 1.0e6 < made.data.tokens < 2.2e6
    assert made.data.documents > 1000


def test_documents_in_both_splits_are_found(tmp_path: Path) -> None:
    made = rehearsal(tmp_path)
    data(made, say)
    assert made.data is not None
    assert not leaked(made.data)
    assert len(leaked(replace(made.data, train=made.data.validation))) > 500


def test_model_starts_at_ln_v_and_learns(tmp_path: Path) -> None:
    made = rehearsal(tmp_path)
    data(made, say)
    numbers = model(made, say).numbers
    assert numbers["first_loss"] == pytest.approx(numbers["ln_vocabulary"], abs=0.02)
    assert numbers["losses"][-1] < numbers["losses"][0] - 0.3


def test_a_tensor_without_gradient_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.model import GPT

    made = rehearsal(tmp_path)
    data(made, say)
    trunk = GPT.trunk

    def detached(self, embedded, extras):
        return trunk(self, embedded.detach(), extras)

    monkeypatch.setattr(GPT, "trunk", detached)
    with pytest.raises(CheckFailed, match=r"no gradient reaches embedding\.weight"):
        model(made, say)


@pytest.mark.parametrize(
    ("sets", "heads", "kv"),
    [
        (("model.depth=12",), 3, None),
        (("model.depth=12", "model.kv_heads=6"), 3, 3),
        (("model.depth=12", "model.kv_heads=3"), 4, 2),
        (("model.depth=24", "model.kv_heads=3"), 4, 1),
        (("model.kv_heads=2",), 3, 1),
    ],
)
def test_scale_model_keeps_the_ratio_of_query_to_key_heads(sets: tuple[str, ...], heads: int, kv: int | None) -> None:
    from windtunnel.model import gpt_shape

    small = scale_model(load_recipe("charlm", sets))
    shape = gpt_shape(small.model, 18)
    assert (shape.heads, small.model.kv_heads) == (heads, kv)
    assert shape.dim == 32 * heads
