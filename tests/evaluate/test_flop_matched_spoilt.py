"""Refinement that is bought, or means nothing, is called out; what was earned is not."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flop_matched_reports import HONEST, made

from windtunnel.evaluate import (
    Measured,
    comparison_remarks,
    weigh,
)
from windtunnel.evaluate.comparison import Trained
from windtunnel.evaluate.flop_matched import matching_gpt
from windtunnel.evaluate.refinement_check import spoilt
from windtunnel.model import GPT, RecursionShape, build_model, gpt_shape, objective_of, train_supervised
from windtunnel.model.shape import GPTShape
from windtunnel.recipe import GPTModel, Recursion

pytestmark = pytest.mark.end_to_end

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


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
        report = json.loads((RESULTS / "flop-matched-h200.json").read_text())["report"]
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
    remarks = dict(comparison_remarks(report))
    assert "58.3 % on the training batches" in remarks["in training"]
    assert "0.040" in remarks["in training"]
    assert json.loads(json.dumps(report.to_json()))["spoilt"][-1]["reasons"] == ["memorised"]


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
    """The extreme preset spoils its first step to look good, and is called out; the same model trained honestly is not. That its
    losses are next to nothing, as those of memorised data may be on one processor and not on another, may be said of it."""
    batch = Batch(6, 3, 1, STEPS)  # a token alone does not tell its target: steps are needed
    ours, other = batch.taught(batch.recursive, preset), batch.taught(batch.plain)
    found = spoilt("the memorised batch", ours.losses, other.loss, batch.uniform, preset)
    assert ours.losses[-1] < 0.5 * batch.uniform  # it was memorised
    reasons = set(found.reasons) if found is not None else set()
    bought = "bought" in reasons
    assert bought == called_out, (ours.losses, other.loss)
    assert called_out or reasons <= {"tiny"}, reasons
    if found is not None and bought:
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
