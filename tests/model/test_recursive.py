"""Recursive GPTs: recursion and objective as defined, the plain GPT as a special case, detaching, recomputing, micro-batches."""

import math
from dataclasses import replace

import pytest
import torch
from random_models import tokens
from recursive_reference import composite, random_model, recursive_shape, step_losses
from torch import Tensor

from windtunnel.model import Objective, RecursiveGPT, build_model, objective_of, train_supervised
from windtunnel.model.shape import RecursionShape
from windtunnel.recipe import Recursion

R = RecursionShape
VARIANTS: dict[str, tuple[R, dict[str, object]]] = {
    "layerwise": (R("layerwise", 2, 1, 3), {}),
    "layerwise, cycles, swiglu": (R("layerwise", 1, 2, 2), {"mlp": "swiglu", "kv_heads": 4}),
    "layerwise, last cycle": (R("layerwise", 2, 2, 2, "last"), {"mlp": "swiglu"}),
    "two latents": (R("two_latent", 2, 1, 3), {"mlp": "swiglu", "mlp_ratio": 4.0, "qk_gain": 1.0}),
    "two latents, last cycle, not causal": (R("two_latent", 2, 2, 2, "last"), {"causal": False}),
    "looped": (R("looped", 2, 1, 3), {}),
    "looped, last cycle": (R("looped", 1, 3, 2, "last"), {"mlp": "swiglu"}),
}


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def equal_weights(steps: int, **changes: object) -> Objective:
    fields: dict[str, object] = {"improvement_reward": 0.0, "detach_from": 10**6, "updates": "once", **changes}
    return Objective(tuple([1 / steps] * steps), **fields)  # type: ignore[arg-type]


def train(model: torch.nn.Module, batches: list[tuple[Tensor, Tensor]], objective: Objective, **options: object) -> object:
    assert isinstance(model, RecursiveGPT)
    targets = sum(int((y >= 0).sum()) for _, y in batches)
    model.zero_grad(set_to_none=True)
    return train_supervised(model, batches, objective, scale=1 / targets, **options)  # type: ignore[arg-type]


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def assert_same(mine: dict[str, Tensor], other: dict[str, Tensor], rtol: float = 1e-8) -> None:
    assert mine.keys() == other.keys()
    for name, a in mine.items():
        torch.testing.assert_close(a, other[name], rtol=rtol, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("detach_from", [0, 1, 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_are_those_of_the_definition(variant: str, detach_from: int) -> None:
    recursion, changes = VARIANTS[variant]
    shape = recursive_shape(recursion=recursion, **changes)
    model = random_model(shape)
    x, y = tokens(shape)
    steps = recursion.supervision
    raw = [5.0**i for i in range(steps)]
    objective = Objective(tuple(w / sum(raw) for w in raw), 1.5, detach_from, "once")
    sums = train(model, [(x, y)], objective)
    w = weights_of(model)
    losses = step_losses(shape, w, x, y, steps, detach_from)
    total = composite(losses, objective)
    total.backward()
    torch.testing.assert_close(sums.losses / sums.targets, torch.stack(losses).detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(sums.objective / sums.targets, total.detach(), rtol=1e-9, atol=0)
    assert_same(gradients(model), {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in w.items()})
    each = model.step_losses(x, y)
    assert each.shape == (steps, *x.shape)
    torch.testing.assert_close(each.sum((1, 2)) / (y >= 0).sum(), torch.stack(losses).detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(model(x, y), losses[-1].detach(), rtol=1e-9, atol=0)


def test_a_block_that_norms_its_normed_input_again_changes_nothing_to_speak_of() -> None:
    shape = recursive_shape(recursion=R("layerwise", 2, 1, 4))
    model = random_model(shape)
    x, y = tokens(shape)
    once, twice = (torch.stack(step_losses(shape, weights_of(model), x, y, 4, twice=t)) for t in (False, True))
    torch.testing.assert_close(once, twice, rtol=1e-5, atol=0)


@pytest.mark.parametrize("changes", [{}, {"mlp": "swiglu"}, {"value_embeddings": True, "kv_heads": 2, "window": "SL"}])
def test_looped_once_is_the_plain_gpt_bit_for_bit(changes: dict[str, object]) -> None:
    shape = recursive_shape(**changes)
    plain = random_model(shape, torch.float32)
    looped = random_model(replace(shape, recursion=R("looped", 1, 1, 1)), torch.float32)
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in looped.named_parameters()]
    x, y = tokens(shape)
    assert torch.equal(plain(x), looped(x))
    (plain(x, y, "sum") * 0.25).backward()
    plain_gradients = gradients(plain)
    assert isinstance(looped, RecursiveGPT)
    train_supervised(looped, [(x, y)], equal_weights(1), scale=0.25)
    for name, gradient in gradients(looped).items():
        assert torch.equal(gradient, plain_gradients[name]), name
    first, again = build_model(shape, seed=5), build_model(replace(shape, recursion=R("looped", 1, 1, 1)), seed=5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_loss_is_that_of_a_uniform_guess_after_every_step(variant: str) -> None:
    recursion, changes = VARIANTS[variant]
    shape = recursive_shape(vocab=200, recursion=recursion, **changes)
    x, y = tokens(shape)
    model = build_model(shape, seed=2)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert isinstance(model, RecursiveGPT)
    for losses in model.step_losses(x, y):
        assert (losses.sum() / (y >= 0).sum()).item() == pytest.approx(math.log(200), abs=0.02)


@pytest.mark.parametrize("detach_from", [0, 1, 2, 9])
def test_no_gradient_passes_where_states_are_detached(detach_from: int) -> None:
    """Only the last step's loss counts: what it sends back into the first step tells whether the way was cut."""
    recursion, steps = R("layerwise", 1, 1, 4), 4
    shape = recursive_shape(recursion=recursion)
    model = random_model(shape)
    x, y = tokens(shape)
    train(model, [(x, y)], Objective((0.0, 0.0, 0.0, 1.0), 0.0, detach_from, "once"))
    whole = gradients(model)
    # The same, with the steps before the cut done without any gradient.
    assert isinstance(model, RecursiveGPT)
    model.zero_grad(set_to_none=True)
    inputs = model.read(x)
    carry = model.begin(inputs)
    for i in range(steps):
        # A cut after any step i >= detach_from that is not the last: the last of these cuts decides.
        with torch.set_grad_enabled(i == steps - 1 or detach_from >= steps - 1):
            carry = model.advance(inputs, carry)
    loss = torch.nn.functional.cross_entropy(model.logits(model.answer(carry)).flatten(0, 1), y.flatten(), ignore_index=-1)
    (loss / steps).backward()
    assert_same(whole, gradients(model))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("recompute", ["step", "block"])
def test_recomputing_changes_nothing(variant: str, recompute: str) -> None:
    recursion, changes = VARIANTS[variant]
    shape = recursive_shape(recursion=recursion, **changes)
    results = []
    for how in ("none", recompute):
        model = random_model(shape, recompute=how)
        sums = train(model, [tokens(shape)], equal_weights(recursion.supervision, improvement_reward=1.0, detach_from=1))
        results.append((sums.losses, gradients(model)))
    assert torch.equal(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1], rtol=1e-12)


@pytest.mark.parametrize("recompute", ["none", "step", "block"])
def test_recomputing_keeps_less(recompute: str) -> None:
    shape = recursive_shape(recursion=R("layerwise", 2, 1, 3))
    model = random_model(shape, recompute=recompute)
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    x, _ = tokens(shape)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        inputs = model.read(x)  # type: ignore[union-attr]
        carry = model.begin(inputs)  # type: ignore[union-attr]
        kept.clear()
        for _ in range(3):
            carry = model.advance(inputs, carry)  # type: ignore[union-attr]
    state = x.numel() * shape.dim * 8
    applications = shape.applications
    most = {"none": 1e9, "block": 4 * applications * state, "step": 6 * state}[recompute]
    assert sum(kept.values()) <= most
    if recompute == "none":
        assert sum(kept.values()) > 8 * applications * state


@pytest.mark.parametrize("updates", ["once", "each"])
def test_micro_batches_change_nothing_without_the_reward(updates: str) -> None:
    shape = recursive_shape(recursion=R("layerwise", 2, 1, 3))
    model = random_model(shape)
    x, y = tokens(shape, 4)
    results = []
    for cuts in ([4], [1, 3], [1, 1, 1, 1]):
        batches = list(zip(x.split(cuts), y.split(cuts), strict=True))
        sums = train(model, batches, equal_weights(3, updates=updates, detach_from=1 if updates == "once" else 0))
        assert sums.sequences == 4
        results.append((sums.losses, gradients(model)))
    for losses, gradient in results[1:]:
        torch.testing.assert_close(losses, results[0][0], rtol=1e-10, atol=0)
        assert_same(gradient, results[0][1], rtol=1e-7)


def test_an_update_after_each_step_sees_that_steps_loss_alone_and_new_weights() -> None:
    shape = recursive_shape(recursion=R("two_latent", 1, 1, 3), mlp="swiglu")
    model, plain = random_model(shape), random_model(shape)
    batches = [tokens(shape, 2, seed) for seed in (1, 2)]
    seen: list[dict[str, Tensor]] = []

    def update(i: int) -> None:
        seen.append(gradients(model))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad  # type: ignore[operator]
        model.zero_grad(set_to_none=True)

    sums = train(model, batches, equal_weights(3, updates="each"), after_step=update)
    # By hand: carries of detached states, one plain gradient of plain cross-entropy a step.
    assert isinstance(plain, RecursiveGPT)
    targets = sum(int((y >= 0).sum()) for _, y in batches)
    carries: list[tuple[Tensor, ...] | None] = [None, None]
    losses = []
    for i in range(3):
        plain.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64)
        for j, (x, y) in enumerate(batches):
            inputs = plain.read(x)
            carry = plain.advance(inputs, plain.begin(inputs) if carries[j] is None else carries[j])  # type: ignore[arg-type]
            logits = plain.logits(plain.answer(carry))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")
            (loss / targets).backward()
            total += loss.detach()
            carries[j] = tuple(t.detach() for t in carry)
        losses.append(total)
        assert_same(seen[i], gradients(plain), rtol=1e-7)
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.05 * p.grad  # type: ignore[operator]
    torch.testing.assert_close(sums.losses, torch.stack(losses), rtol=1e-9, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_more_or_fewer_steps_when_the_model_is_used(variant: str) -> None:
    recursion, changes = VARIANTS[variant]
    shape = recursive_shape(recursion=recursion, **changes)
    model = random_model(shape)
    assert isinstance(model, RecursiveGPT)
    x, y = tokens(shape)
    wanted = torch.stack(step_losses(shape, weights_of(model), x, y, recursion.supervision + 2)).detach()
    longer = model.step_losses(x, y, recursion.supervision + 2)
    torch.testing.assert_close(longer.sum((1, 2)) / (y >= 0).sum(), wanted, rtol=1e-9, atol=0)
    torch.testing.assert_close(model(x, y, supervision=1), wanted[0], rtol=1e-9, atol=0)
    model.supervision = 2
    torch.testing.assert_close(model(x, y), wanted[1], rtol=1e-9, atol=0)
    tokens_chosen, halting = model.solve_steps(x, 2)
    assert halting is None
    assert torch.equal(tokens_chosen[1], model(x).argmax(-1))


def test_a_later_token_changes_nothing_before_it_unless_nothing_is_causal() -> None:
    for causal in (True, False):
        shape = recursive_shape(recursion=R("layerwise", 2, 1, 2), causal=causal)
        model = random_model(shape)
        x, _ = tokens(shape)
        other = x.clone()
        other[:, -1] = (other[:, -1] + 1) % shape.vocab
        assert torch.equal(model(x)[:, :-1], model(other)[:, :-1]) == causal


def test_halting_head_is_taught_whether_the_whole_sequence_is_right() -> None:
    shape = recursive_shape(vocab=3, recursion=R("two_latent", 1, 1, 2, halting=True), causal=False, sequence=8, depth=1)
    model = random_model(shape)
    assert isinstance(model, RecursiveGPT)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    x, _ = tokens(shape, 6)
    chosen, halting = model.solve_steps(x)
    assert halting is not None
    # Targets that the model hits in the first half of the batch and misses at one place in the rest; one has no target.
    y = chosen[-1].clone()
    y[3:, 2] = (y[3:, 2] + 1) % 3
    y[3, 2] = -1
    objective = equal_weights(2, detach_from=0)
    sums = train(model, [(x, y)], objective)
    right = ((chosen == y) | (y < 0)).all(-1)
    assert sums.solved.tolist() == right.sum(1).tolist()
    assert right[1].tolist() == [True] * 4 + [False] * 2
    each = torch.nn.functional.binary_cross_entropy_with_logits(halting, right.double(), reduction="none").sum(1)
    torch.testing.assert_close(sums.halting, each, rtol=1e-6, atol=0)
    assert sums.judged.tolist() == ((halting > 0) == right).sum(1).tolist()
    cross_entropy = model.step_losses(x, y).sum((1, 2)) / (y >= 0).sum()
    expected = ((cross_entropy + 0.5 * each / 6) / 2).sum() / 2
    torch.testing.assert_close(sums.objective / sums.targets, expected, rtol=1e-6, atol=0)
    assert model.halt_weight.grad is not None
    assert model.halt_weight.grad.abs().sum() > 0


def test_objective_of_a_recipe() -> None:
    section = Recursion(weight_base=5.0, improvement_reward=1.0, detach_from=2, updates="once")
    objective = objective_of(section.resolved)
    assert objective.weights == pytest.approx((1 / 156, 5 / 156, 25 / 156, 125 / 156))
    assert (objective.improvement_reward, objective.detach_from, objective.updates) == (1.0, 2, "once")
    assert objective_of(section.resolved, 2).weights == pytest.approx((1 / 6, 5 / 6))
    huge = objective_of(section.model_copy(update={"weight_base": 1e30, "supervision": 64}).resolved)
    assert sum(huge.weights) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["layerwise, cycles, swiglu", "two latents", "looped"])
def test_compiled_on_the_cpu_is_one_graph_for_all_blocks_and_gives_the_same(variant: str) -> None:
    recursion, changes = VARIANTS[variant]
    shape = recursive_shape(recursion=recursion, depth=4, **changes)
    results = []
    for compiled in (False, True):
        model = random_model(shape, torch.float32)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if compiled:
            model.compile()
        sums = train(model, [tokens(shape)], equal_weights(recursion.supervision, improvement_reward=1.0, detach_from=1))
        results.append((sums.losses, gradients(model)))
    # A loop's state is the embeddings themselves, or has a gradient, or was detached: a graph each, however often it runs.
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == (3 if recursion.scheme == "looped" else 1)
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)
