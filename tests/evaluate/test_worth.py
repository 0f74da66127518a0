"""The worth of recursion: twins of the same FLOPs, the exponent, verdicts, and refinement that is bought."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from windtunnel.evaluate import (
    Comparison,
    Length,
    Measured,
    Member,
    WorthReport,
    weigh,
    worth_columns,
    worth_members,
    worth_remarks,
    worth_rows,
)
from windtunnel.evaluate.worth import Trained
from windtunnel.evaluate.worth_fit import Phi, Plain, Recurrent, fit_phi, resamples
from windtunnel.evaluate.worth_spoilt import spoilt
from windtunnel.evaluate.worth_twins import matching_gpt
from windtunnel.model import GPT, RecursionShape, build_model, gpt_shape, objective_of, train_supervised
from windtunnel.model.shape import GPTShape
from windtunnel.recipe import GPTModel, Recipe, Recursion, UserError, load_recipe, phase_recipe

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LENGTH = Length(100, 4096, "fp32")


def recipe_of(name: str, *sets: str) -> Recipe:
    recipe = load_recipe(name, sets)
    return phase_recipe(recipe, recipe.phases[-1].name) if recipe.phases else recipe


# --- twins ---


@pytest.mark.parametrize(
    ("name", "sets", "vocab"),
    [
        ("trm", (), 8193),
        ("trm", ("model.depth=4", "model.aspect=32", "model.head_dim=32", "model.sequence=128"), 300),
        ("trm", ("model.depth=1", "model.aspect=16", "model.head_dim=16", "model.sequence=32"), 18),
        ("trm", ("trm.scheme=looped", "trm.loops=3", "trm.supervision=1", "model.depth=6", "model.value_embeddings=true"), 8193),
        ("trm", ("model.kv_heads=2", "model.mlp=relu2"), 50_000),
        ("trm", ("trm.cycles=3", "trm.gradient_cycles=last", "trm.loops=6", "trm.supervision=8", "model.depth=3"), 4096),
        ("trm-sudoku", (), 11),
    ],
)
def test_twins_have_the_same_flops_or_the_same_blocks(name: str, sets: tuple[str, ...], vocab: int) -> None:
    recipe = recipe_of(name, *sets)
    own, same_parameters, between, same_flops, *fewer = worth_members(recipe, vocab, LENGTH)
    assert abs(same_flops.shape.flops_per_token / own.shape.flops_per_token - 1) <= 0.03
    assert replace(own.shape, recursion=None) == replace(same_parameters.shape, recursion=None)
    flops = [m.shape.flops_per_token for m in (same_parameters, between, same_flops)]
    assert flops == sorted(flops)
    for plain in (same_parameters, between, same_flops):
        assert plain.recurrences == 1
    for member in fewer:
        assert 1 < member.recurrences < own.recurrences
        assert replace(member.shape, recursion=None) == replace(own.shape, recursion=None)
    assert len({m.name for m in (own, same_parameters, between, same_flops, *fewer)}) == 4 + len(fewer)


def test_members_share_data_seed_length_and_rules() -> None:
    recipe = recipe_of("trm", "trm.preset=extreme", "trm.ema=0.99", "layout.recompute=step")
    members = worth_members(recipe, 300, LENGTH)
    for member in members:
        # What is written to a run folder must be a recipe that can be read.
        again = Recipe.model_validate(member.recipe.model_dump(mode="json"))
        assert again.data == recipe.data
        assert again.seed == recipe.seed
        assert again.budget.steps == 100
        assert again.stages.pretrain.batch_tokens == 4096
        assert again.stages.pretrain.optimizer.clip == recipe.stages.pretrain.optimizer.clip
        assert again.trm is not None  # averaged weights for all
        assert again.trm.ema == 0.99
        # The preset's low rate is the recursion's; a plain model has a plain recipe's.
        assert again.stages.pretrain.optimizer.matrix_lr == (None if member.kind == "plain" else 0.0005)


def test_rates_that_the_recipe_names_are_everyones() -> None:
    recipe = recipe_of("trm", "stages.pretrain.optimizer.matrix_lr=0.004", "trm.preset=extreme")
    assert {m.recipe.stages.pretrain.optimizer.matrix_lr for m in worth_members(recipe, 300, LENGTH)} == {0.004}


def trained_tokens(recipe: Recipe) -> int:
    return (recipe.budget.steps or 0) * (recipe.stages.pretrain.batch_tokens or 0)


@pytest.mark.parametrize(("rows", "ranks", "parts"), [(16, 1, 8), (12, 1, 6), (16, 4, 4), (7, 1, 7), (3, 1, 3), (2, 2, 1)])
def test_all_make_as_many_updates_as_the_run_or_as_many_as_whole_sequences_allow(rows: int, ranks: int, parts: int) -> None:
    recipe = recipe_of("trm-sudoku", "trm.supervision=8", "checkpoints.every=50 steps")
    own, *others = worth_members(recipe, 11, Length(100, rows * 81, "fp32", ranks))
    assert (own.updates, own.recipe.stages.pretrain.batch_tokens) == (800, rows * 81)
    for member in others:
        stage, whole = member.recipe.stages.pretrain, member.name == "same-flops-whole-batches"
        assert trained_tokens(member.recipe) == trained_tokens(own.recipe)
        assert (stage.batch_tokens or 0) % (81 * ranks) == 0
        cut = (member.recipe.budget.steps or 0) // 100
        if member.kind == "plain":
            assert cut == (1 if whole else parts)
            assert member.updates == 100 * cut
        else:
            assert member.updates <= own.updates
        # As often as the run's, in tokens.
        assert stage.validate_every.steps == 200 * cut
        assert member.recipe.checkpoints.every.steps == 50 * cut
        assert stage.schedule.warmup_steps == 40 * cut
    twice = [m.shape for m in others if m.name.startswith("same-flops")]
    assert len(twice) == (2 if parts > 1 else 1)
    assert len(set(twice)) == 1


def test_what_the_verdict_takes_is_trained_first() -> None:
    members = worth_members(recipe_of("trm-sudoku"), 11, Length(100, 16 * 81, "fp32"))
    comparison = Comparison(Path(), members, Length(100, 16 * 81, "fp32"), True, None, 1.0, ())
    names = [m.name for m in comparison.by_weight]
    assert names[:4] == ["recursive", "same-flops", "same-flops-whole-batches", "same-parameters"]
    assert sorted(names) == sorted(m.name for m in members)


def test_an_update_a_batch_leaves_batches_as_they_are() -> None:
    members = worth_members(recipe_of("trm"), 300, Length(100, 8192, "fp32"))
    assert {m.recipe.stages.pretrain.batch_tokens for m in members} == {8192}
    assert {m.updates for m in members} == {100}


def test_plain_models_are_refused() -> None:
    with pytest.raises(UserError, match="no recursion to weigh"):
        worth_members(recipe_of("charlm", "model.depth=2"), 20, LENGTH)
    once = recipe_of("trm", "trm.scheme=looped", "trm.loops=1", "trm.supervision=1")
    with pytest.raises(UserError, match="applies its blocks once"):
        worth_members(once, 20, LENGTH)


# --- phi ---

TARGETS = np.full(400, 50.0)


def synthetic(
    phi: float, noise: float = 0.02, sizes: tuple[float, ...] = (1e6, 3e6, 1e7, 3e7)
) -> tuple[list[Plain], list[Recurrent]]:
    """Losses of the paper's form in 400 units, with the units' own difficulty and independent noise."""
    dice = np.random.default_rng(3)
    hard = dice.normal(0, 0.3, len(TARGETS))

    def nats(parameters: float) -> np.ndarray:
        loss = 1.7 + 400 * parameters**-0.35
        return (loss + hard + dice.normal(0, noise, len(TARGETS))) * TARGETS

    plain = [Plain(n, nats(n)) for n in sizes]
    recurrent = [Recurrent(r, 2e5, 8e5, nats(2e5 + r**phi * 8e5)) for r in (2, 4, 12)]
    return plain, recurrent


@pytest.mark.parametrize("phi", [0.2, 0.46, 0.8])
def test_a_known_phi_is_found_again(phi: float) -> None:
    plain, recurrent = synthetic(phi)
    found = fit_phi(plain, recurrent, TARGETS, resamples(400))
    assert found.bound == "="
    assert found.value == pytest.approx(phi, abs=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low < phi < found.high
    assert found.high - found.low < 0.15
    assert list(found.equivalent) == [2, 4, 12]


def test_outside_the_plain_models_there_is_a_bound() -> None:
    worse = fit_phi(*synthetic(-0.4), TARGETS, resamples(400))
    assert worse.value == pytest.approx(0, abs=1e-6)  # the smallest plain model is the blocks once
    assert (worse.bound, worse.low) == ("<=", None)
    assert "worse than the smallest" in worse.words
    better = fit_phi(*synthetic(0.9, sizes=(1e6, 1.5e6, 2e6)), TARGETS, resamples(400))
    assert (better.bound, better.high) == (">=", None)
    assert better.value is not None
    assert better.value < 0.9


def test_what_the_data_do_not_tell_is_not_told() -> None:
    plain, recurrent = synthetic(0.5)
    assert fit_phi(plain[:2], recurrent, TARGETS, resamples(400)).value is None
    assert fit_phi(plain, [], TARGETS, resamples(400)).value is None
    turned = [Plain(p.parameters, q.nats) for p, q in zip(plain, reversed(plain), strict=True)]
    found = fit_phi(turned, recurrent, TARGETS, resamples(400))
    assert found.value is None
    assert "no curve" in found.words
    # Noise as large as the differences: no interval that pretends otherwise.
    wide = fit_phi(*synthetic(0.5, noise=5.0), TARGETS, resamples(400))
    assert wide.low is None or wide.high is None or wide.high - wide.low > 0.5


# --- reports ---


def made(losses: dict[str, list[float]], solved: dict[str, float] | None = None) -> tuple[list[Member], dict[str, Measured]]:
    """Members and measurements with given losses by step; differences between models vary little over units."""
    dice = np.random.default_rng(0)
    hard = dice.normal(0, 0.5, 300)
    base = gpt_shape(GPTModel(depth=2, aspect=16, head_dim=16, sequence=32, value_embeddings=False), 20)
    recipe = recipe_of("trm")
    members, measured = [], {}
    for i, (name, steps) in enumerate(losses.items()):
        kind = "run" if not i else "recurrent" if name.startswith("recurrence") else "plain"
        shape = base if kind == "plain" else replace(base, recursion=RecursionShape("layerwise", 1, 1, len(steps)))
        if kind == "plain" and name != "same-parameters":
            shape = replace(
                base, layers={"between": 4, "same-flops": 8}[name], windows=(32,) * {"between": 4, "same-flops": 8}[name]
            )
        members.append(Member(name, kind, name, recipe, shape))  # type: ignore[arg-type]
        nats = np.stack([(loss + hard + dice.normal(0, 0.05, 300)) * 40 for loss in steps])
        right = None if solved is None else (dice.random(300) < solved[name]).astype(float)
        measured[name] = Measured(nats, np.full(300, 40.0), nats[-1], np.full(300, 80.0), right)
    return members, measured


def report_on(losses: dict[str, list[float]], solved: dict[str, float] | None = None, preset: str = "honest") -> WorthReport:
    members, measured = made(losses, solved)
    return weigh(members, measured, run="test", units="documents", preset=preset, uniform=math.log(20))


HONEST = {"recursive": [2.2, 2.1, 2.0], "same-parameters": [2.1], "between": [1.95], "same-flops": [1.8], "recurrence-2": [2.05]}


def test_the_verdict_is_of_equal_flops() -> None:
    report = report_on(HONEST)
    assert "the plain model is better by 0.20 nats" in report.verdict
    assert "does not pay" in report.verdict
    assert not report.spoilt
    pays = report_on({**HONEST, "same-flops": [2.3]})
    assert "the recursive model is better by 0.30 nats" in pays.verdict
    assert pays.verdict.endswith("here recursion pays.")
    same = report_on({**HONEST, "same-flops": [2.0]})
    assert "cannot be told" in same.verdict


def test_a_gain_may_come_of_more_updates() -> None:
    members, measured = made({**HONEST, "same-flops": [2.3]}, None)
    members[0] = replace(members[0], recipe=recipe_of("trm", "trm.updates=each", "trm.supervision=3"))
    report = weigh(members, measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    assert "better by 0.30 nats" in report.verdict
    assert report.verdict.endswith("here recursion, or its 3 updates for each of the plain one's, pays.")


@pytest.mark.parametrize("whole", [1.7, 2.4])
def test_the_verdict_is_against_the_better_twin_and_phi_without_the_other(whole: float) -> None:
    members, measured = made({**HONEST, "same-flops": [2.3]}, None)
    before = weigh(members, measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    twin = next(m for m in members if m.name == "same-flops")
    again = replace(twin, name="same-flops-whole-batches")
    nats = measured["same-flops"].nats + 40 * (whole - 2.3)
    measured[again.name] = replace(measured["same-flops"], nats=nats)
    report = weigh([*members, again], measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    expected = "the plain model is better by 0.30" if whole < 2 else "the recursive model is better by 0.30"
    assert expected in report.verdict
    assert report.phi == before.phi


def test_models_that_have_only_memorised_get_no_verdict() -> None:
    """On held-out data a larger model that has memorised is worse: that is no merit of the smaller."""
    report = report_on({name: [loss + 5 for loss in losses] for name, losses in HONEST.items()})
    assert report.verdict.startswith("No verdict")
    assert "pays" not in report.verdict


def test_differences_are_paired() -> None:
    """Units differ by far more than models do; the interval of a difference is that of the models alone."""
    row = next(r for r in report_on(HONEST).rows if r.name == "same-flops")
    assert row.behind.value == pytest.approx(-0.2, abs=0.02)
    assert row.behind.high - row.behind.low < 0.03
    assert row.loss.high - row.loss.low > 0.08


def test_puzzles_are_judged_by_what_is_solved() -> None:
    solved = {"recursive": 0.8, "same-parameters": 0.1, "between": 0.2, "same-flops": 0.3, "recurrence-2": 0.5}
    report = report_on(HONEST, solved)
    assert "percentage points of puzzles solved" in report.verdict
    assert "here recursion pays" in report.verdict
    assert "solved" in worth_columns(report)
    assert report.rows[0].bits_per_byte is None


def test_a_report_is_json_and_fits_a_terminal() -> None:
    report = report_on(HONEST)
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["models"][0]["step_losses"] == pytest.approx([2.2, 2.1, 2.0], abs=0.1)
    rows = worth_rows(report)
    widths = [max(len(row[i]) for row in [worth_columns(report), *rows]) for i in range(len(rows[0]))]
    assert sum(widths) + 3 * len(widths) <= 100
    assert worth_remarks(report)[0][0] == "verdict"


def test_refinement_is_bought_where_the_first_step_is_spoilt() -> None:
    uniform = math.log(100)
    assert spoilt("here", [9.99, 0.5, 0.28], 0.2, uniform, "extreme") is not None
    # Below the promise, or earned against the plain model, or a first step that is as good as it: nothing to call out.
    assert spoilt("here", [2.2, 2.1, 2.0], 2.1, uniform, "honest") is None
    assert spoilt("here", [2.6, 2.2, 2.0], 2.5, uniform, "honest") is None
    assert spoilt("here", [4.0, 3.0, 1.0], 4.2, uniform, "extreme") is None
    # The last step has caught up with the plain model and no more.
    words = spoilt("here", [3.0, 2.4, 2.09], 2.1, uniform, "honest")
    assert words is not None
    assert "0.5 % better" in words.words


@pytest.mark.parametrize(
    ("preset", "steps", "plain"),
    [
        ("extreme", [9.6, 5.6, 5.1, 5.0], 4.9),  # 48 %: below its promise
        ("extreme", [5.9, 4.9, 4.6, 4.5], 4.4),
        ("aggressive", [5.0, 4.6, 4.4, 4.3], 4.2),  # 14 %
        ("moderate", [4.9, 4.7, 4.6, 4.5], 4.4),  # 8 %: its promise is below what is asked of others
        ("honest", [5.0, 4.6, 4.4, 4.3], 4.2),
    ],
)
def test_presets_that_promise_more_are_not_questioned_less(preset: str, steps: list[float], plain: float) -> None:
    found = spoilt("here", steps, plain, math.log(8192), preset)
    assert found is not None
    assert found.reasons == ("bought",)
    assert spoilt("here", [plain, *steps[1:-1], 0.7 * plain], plain, math.log(8192), preset) is None  # honestly earned


def test_refinement_of_what_is_memorised_means_nothing() -> None:
    """12 random documents by heart: better than the plain model of the same parameters, far behind that of the same FLOPs."""
    uniform, steps = math.log(7), [1.2235, 0.6254, 0.5381, 0.5315]
    found = spoilt("the training batches", steps, 1.1843, uniform, "extreme", held_out=3.6269, same_flops=0.0425)
    assert found is not None
    assert found.reasons == ("bought", "memorised")
    for words in ("56.6 % on the training batches is bought", "memorised", "3.63 on held-out data", "loses 0.043 there", "0.531"):
        assert words in found.words
    # Nothing is bought where the first step is as good as the plain model: memorised is what it is.
    honest = spoilt("the training batches", steps, 1.3, uniform, "honest", held_out=3.6269, same_flops=0.0425)
    assert honest is not None
    assert honest.reasons == ("memorised",)
    assert "bought" not in honest.words
    # Held-out data say as much as the training batches do: the plain model of the same FLOPs is the verdict's.
    assert spoilt("the training batches", steps, 1.3, uniform, "honest", held_out=0.6, same_flops=0.0425) is None
    # Whatever little there is of it.
    assert spoilt("the training batches", [0.54, 0.53], 0.6, uniform, "honest", held_out=3.6, same_flops=0.04) is not None


def test_a_percentage_of_nothing_is_called_that() -> None:
    tiny = spoilt("here", [0.0010, 0.0003, 0.0003], 0.015, math.log(100), "extreme")
    assert tiny is not None
    assert tiny.reasons == ("tiny",)
    assert "nearly nothing: 0.0010 nats" in tiny.words or "nearly nothing: 0.001 nats" in tiny.words
    worse = spoilt("held-out data", [6.0, 5.0, 3.6], 6.5, math.log(7), "honest")
    assert worse is not None
    assert worse.reasons == ("unlearnt",)
    assert "3.60 nats, knowing nothing 1.95" in worse.words


@pytest.mark.parametrize("kind", ["text", "sudoku"])
def test_committed_runs_are_not_called_out(kind: str) -> None:
    """Honest runs, one that is worse than its plain models and one that is far better."""
    if kind == "text":
        report = json.loads((RESULTS / "worth-h200.json").read_text())["report"]
        own, plain = (next(m for m in report["models"] if m["name"] == name) for name in ("recursive", "same-parameters"))
        same = next(m for m in report["models"] if m["name"] == "same-flops")
        uniform, held_out, steps = report["uniform"], own["step_losses"], own["trained"]["losses"]
        plain_held_out, plain_loss, same_loss = plain["loss"]["value"], *(m["trained"]["losses"][0] for m in (plain, same))
    else:
        models = json.loads((RESULTS / "sudoku-h200.json").read_text())["results"]
        curves, twin = models["recursive"]["curves"], models["plain"]["curves"]
        uniform, held_out = math.log(10), [curves[f"validation_loss_step_{i}"][-1][1] for i in range(16)]
        late = np.median([loss for _, loss in curves["loss"][-12:]])
        steps = [*held_out[:-1], float(late)]
        plain_held_out, plain_loss = twin["validation_loss"][-1][1], float(np.median([loss for _, loss in twin["loss"][-12:]]))
        same_loss = plain_loss
    assert spoilt("held-out data", held_out, plain_held_out, uniform, "honest") is None
    found = spoilt(
        "the training batches", steps, plain_loss, uniform, "honest", held_out=held_out[-1], same_flops=same_loss
    )  # fmt: skip
    assert found is None


def test_a_report_never_shows_refinement_on_training_batches_alone() -> None:
    members, measured = made({name: [loss + 5 for loss in losses] for name, losses in HONEST.items()})
    losses = {"recursive": (1.2, 0.7, 0.5), "same-parameters": (1.3,), "same-flops": (0.04,)}
    trained = {m.name: Trained(m.name, 100, 1.0, losses.get(m.name, (0.6,))) for m in members}
    report = weigh(members, measured, run="test", units="documents", preset="honest", uniform=math.log(20), trained=trained)
    assert "On its training batches the plain model loses 0.040 nats, the recursive one 0.500." in report.verdict
    assert [item.reasons for item in report.spoilt][-1] == ("memorised",)
    remarks = dict(worth_remarks(report))
    assert "58.3 % on the training batches" in remarks["in training"]
    assert "0.040" in remarks["in training"]
    assert json.loads(json.dumps(report.to_json()))["spoilt"][-1]["reasons"] == ["memorised"]


def test_as_many_digits_as_set_steps_apart() -> None:
    report = report_on(HONEST)
    own = replace(report.rows[0], step_losses=(6.10341, 6.10333, 6.10329, 6.10318))
    words = dict(worth_remarks(replace(report, rows=(own, *report.rows[1:]))))["by step"]
    assert words.startswith("6.10341 > 6.10333 > 6.10329 > 6.10318 nats")


# --- a batch that is memorised ---


STEPS = 120


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for each other on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch_units(model: GPT, x: torch.Tensor, y: torch.Tensor) -> Measured:
    """One random batch; every row is a unit."""
    with torch.no_grad():
        found = model(x, y, reduction="none")[None] if model.shape.recursion is None else model.step_losses(x, y)  # type: ignore[operator]
    nats = found.double().sum(-1).numpy()
    counts = np.full(len(x), float(x.shape[1]))
    return Measured(nats, counts, nats[-1], counts)


def memorise(shape: GPTShape, trm: Recursion | None, x: torch.Tensor, y: torch.Tensor, steps: int, rate: float) -> Measured:
    model = build_model(shape, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        if trm is None:
            model(x, y).backward()
        else:
            train_supervised(model, [(x, y)], objective_of(trm.resolved), scale=1 / y.numel())  # type: ignore[arg-type]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return batch_units(model, x, y)


@dataclass(frozen=True)
class Batch:
    """A random batch, and models of one size that are taught it: as many as there are questions about them."""

    vocab: int
    seed: int
    layers: int
    steps: int

    @property
    def uniform(self) -> float:
        return math.log(self.vocab)

    @property
    def model(self) -> GPTModel:
        return GPTModel(
            depth=self.layers, aspect=32 // self.layers, head_dim=16, sequence=64, value_embeddings=False, mlp="swiglu"
        )

    @property
    def recursive(self) -> GPTShape:
        return replace(self.plain, recursion=RecursionShape("layerwise", 2, 1, 4))

    @property
    def plain(self) -> GPTShape:
        return gpt_shape(self.model, self.vocab)

    @property
    def same_flops(self) -> GPTShape:
        return gpt_shape(matching_gpt(self.model, self.vocab, self.recursive.flops_per_token), self.vocab)

    def taught(self, shape: GPTShape, preset: str | None = None) -> Measured:
        """On the batch, at the end of its training."""
        generator = torch.Generator().manual_seed(self.seed)
        x, y = (torch.randint(0, self.vocab, (4, 64), generator=generator) for _ in range(2))
        trm = None if preset is None else Recursion(preset=preset, loops=2, supervision=4)  # type: ignore[arg-type]
        return memorise(shape, trm, x, y, self.steps, 0.01)


@pytest.mark.parametrize(("preset", "called_out"), [("extreme", True), ("honest", False)])
def test_a_memorised_random_batch(preset: str, called_out: bool, one_thread: None) -> None:
    """The extreme preset spoils its first step to look good, and is called out; the same model trained honestly is not."""
    batch = Batch(6, 0, 1, STEPS)  # a token alone does not tell its target: steps are needed
    ours, other = batch.taught(batch.recursive, preset), batch.taught(batch.plain)
    found = spoilt("the memorised batch", ours.losses, other.loss, batch.uniform, preset)
    assert ours.losses[-1] < 0.5 * batch.uniform  # it was memorised
    assert (found is not None) == called_out, (ours.losses, other.loss)
    if found is not None:
        assert "bought by spoiling supervision step 0" in found.words


@pytest.mark.parametrize(
    "batch", [Batch(6, 0, 1, 50), Batch(6, 1, 1, 45), Batch(100, 0, 1, 30), Batch(100, 1, 1, 25), Batch(100, 2, 2, 20)], ids=str
)
def test_whatever_random_batch_is_memorised_is_called_out(batch: Batch, one_thread: None) -> None:
    """How far it has got, which seed, how many words: no refinement of the extreme preset on it stands there alone."""
    ours = batch.taught(batch.recursive, "extreme").losses
    plain, same = batch.taught(batch.plain).loss, batch.taught(batch.same_flops).loss
    assert ours[-1] < min(0.5 * batch.uniform, 0.9 * ours[0])  # it was memorised, and is refined
    held_out = batch.uniform + 1.0  # what is random cannot be known
    found = spoilt("the memorised batch", ours, plain, batch.uniform, "extreme", held_out=held_out, same_flops=same)
    assert found is not None, (ours, plain, same)
    assert "memorised" in found.reasons
    assert f"{held_out:.2f} on held-out data" in found.words
    assert "The plain model of the same FLOPs loses" in found.words
    assert same < ours[-1]  # which is what it says
    spoils = ours[0] > plain + 0.01 * batch.uniform
    assert ("bought" in found.reasons) == spoils, (ours, plain)


def test_phi_keeps_its_json() -> None:
    assert Phi(None, "=", None, None, {2: 3.0}, "why").to_json()["equivalent"] == {"2": 3.0}
