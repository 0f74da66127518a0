"""Causal language models in training: the same losses as transformers', whatever is recomputed, accumulated or frozen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hf_models import MODELS, VOCAB, batch, full, job_of, losses_of, weights_of
from transformers import AutoConfig, AutoModelForCausalLM

from windtunnel.model import hf_shape
from windtunnel.model.hf_families import FAMILIES
from windtunnel.recipe import LoRA, UserError


def theirs(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """transformers' own model, attention step by step, with the given weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight", *(name for name, _ in model.named_buffers())}
    return model


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_transformers(name: str) -> None:
    x, y = batch()
    with job_of(name) as job:
        model = theirs(MODELS[name], weights_of(job))
        assert job.parameters.total == job.parameters.trained == sum(p.numel() for p in model.parameters())
        losses, total = job.network(x, y)
        total.backward()
        reference = F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten(), reduction="none")
        reference.sum().backward()
        torch.testing.assert_close(losses.flatten(), reference, rtol=1e-4, atol=1e-4)
        ours = {key: p.grad for key, p in job.network.model.named_parameters()}
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(full(ours[key]), parameter.grad, rtol=1e-3, atol=1e-4, msg=key)
        assert float(total.detach()) == pytest.approx(float(reference.detach().sum()), rel=1e-5)
        norms = [
            torch.stack([g.norm() for g in gradients if g is not None]).norm()
            for gradients in ([full(g) for g in ours.values() if g is not None], [p.grad for p in model.parameters()])
        ]
        assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-5)


def test_every_family_is_held_against_transformers() -> None:
    assert {config["model_type"] for config in MODELS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lora", [None, LoRA(rank=8)], ids=["full", "lora"])
def test_losses_fall_in_bf16(name: str, lora: LoRA | None) -> None:
    with job_of(name, lora=lora, compute=torch.bfloat16) as job:
        losses = losses_of(job, 8, rate=3e-3 if lora is None else 1e-2)
    assert losses[0] == pytest.approx(torch.log(torch.tensor(VOCAB)).item(), abs=0.3)
    assert losses[-1] < losses[0] - (0.5 if lora is None else 0.02)


def test_bf16_weights_without_a_master_copy_learn_as_well() -> None:
    with job_of("llama", compute=torch.bfloat16) as job:
        reference = losses_of(job, 10)
    for states in ("fp32", "bf16", "int8"):
        with job_of("llama", master=False, states=states, compute=torch.bfloat16) as job:
            assert {p.dtype for p in job.network.parameters()} == {torch.bfloat16}
            assert {t.dtype for _, t in job.optimizer.states()} <= {torch.bfloat16, torch.int8, torch.uint8, torch.float32}
            assert losses_of(job, 10)[-1] == pytest.approx(reference[-1], abs=0.15)


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["full", "lora"])
def test_computing_blocks_again_changes_no_gradient(lora: LoRA | None) -> None:
    x, y = batch()
    gradients = []
    for recompute in ("none", "block"):
        with job_of("qwen3_moe", lora=lora, recompute=recompute) as job:
            job.network(x, y)[1].backward()
            gradients.append({n: full(p.grad) for n, p in job.network.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_batch_in_parts_makes_the_same_step() -> None:
    x, y = batch()
    y = y.clone()
    y[0, :9] = -1  # targets are missing unevenly
    outcomes = []
    for rows in (4, 2, 1):
        with job_of("olmo2") as job:
            parts = [(x[i : i + rows], y[i : i + rows]) for i in range(0, 4, rows)]
            sums = [job.step(iter(parts), y.numel(), 1e-3) for _ in range(3)]
            outcomes.append((torch.stack(sums), weights_of(job)))
    assert outcomes[0][0][0, 1] == (y >= 0).sum()
    for sums, weights in outcomes[1:]:
        torch.testing.assert_close(sums, outcomes[0][0], rtol=1e-5, atol=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, outcomes[0][1][name], rtol=1e-4, atol=2e-5)


def test_weights_depend_on_the_seed_alone() -> None:
    made = []
    for seed, lora in ((1, None), (1, LoRA(rank=4)), (2, None)):
        with job_of("qwen2", seed=seed, lora=lora) as job:
            made.append({name.replace(".base_layer", ""): w.float() for name, w in weights_of(job).items()})
    for name, weight in made[0].items():
        assert torch.equal(weight, made[1][name]), name
        if weight.std() > 0:
            assert not torch.equal(weight, made[2][name]), name


def test_phases_are_told_in_order() -> None:
    told: list[str] = []
    x, y = batch(2)
    with job_of("llama") as job:
        job.step([(x, y), (x, y)], y.numel() * 2, 1e-3, told.append)
        assert all(p.grad is None for p in job.network.parameters())
    assert told == ["forward", "backward", "forward", "backward", "optimizer"]


def test_attention_is_causal_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    plain = F.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((kwargs["attn_mask"] is None, kwargs["is_causal"]))
        return plain(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    x, y = batch()
    with job_of("qwen2") as job:
        job.network(x, y)
    assert seen == [(True, True)] * 2


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_adapters_alone_are_trained(name: str, targets: str, tmp_path: Any) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps(MODELS[name]))
    x, y = batch()
    lora = LoRA(rank=4, targets=targets)
    with job_of(name) as job:
        without = job.network(x, y)[0]
    with job_of(name, lora=lora, compute=torch.float32) as job:
        assert job.parameters.trained == hf_shape(str(tmp_path)).lora_parameters(4, targets)
        torch.testing.assert_close(job.network(x, y)[0], without, rtol=0, atol=0)  # B is zero at first
        before = weights_of(job)
        losses_of(job, 3, rate=1e-2)
        for key, weight in weights_of(job).items():
            assert torch.equal(weight, before[key]) == (".lora_" not in key), key


def test_adapters_are_fp32_beside_a_bf16_base() -> None:
    with job_of("llama", lora=LoRA(rank=4), compute=torch.bfloat16) as job:
        kinds = {(".lora_" in name, p.dtype, p.requires_grad) for name, p in job.network.named_parameters()}
    assert kinds == {(True, torch.float32, True), (False, torch.bfloat16, False)}


@pytest.mark.parametrize(
    ("config", "chosen", "message"),
    [
        ({"model_type": "no_such_model"}, {}, "cannot build no_such_model"),
        (MODELS["llama"] | {"hidden_size": "wide"}, {}, "cannot build llama"),
        (MODELS["llama"] | {"hidden_size": 65}, {}, "cannot build llama"),
        (MODELS["gpt_oss"], {"attention": "split"}, "attention: split has no attention sinks"),
        (MODELS["gemma2"], {"attention": "split"}, "attention: split has no capped scores"),
        (MODELS["llama"], {"sequence": 65}, "max_position_embeddings"),
        (MODELS["llama"], {"weights": "int4", "lora": LoRA()}, "int4"),
        (MODELS["llama"], {"weights": "fp8"}, "without an adapter"),
    ],
)
def test_what_cannot_be_trained_is_refused(config: dict[str, Any], chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught, job_of(config, **chosen):
        pass
    assert caught.value.fix
