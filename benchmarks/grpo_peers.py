"""The loss of reinforcement learning beside TRL's GRPOTrainer: the same batch, the same weights, losses and gradients in fp32.

    grpo_peers.py --verl verl/trainer/ppo/core_algos.py --out benchmarks/results/grpo-peers-cpu.json

Answers of different lengths, some cut, to prompts of different lengths, with advantages, log-probabilities of before, of a
reference and of a sampler. TRL pads, this package packs. It needs `pip install trl` (1.16), perhaps in an interpreter of its own.
verl's formulas are read from its source: of them the loss and its derivatives in the tokens' log-probabilities are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO
from windtunnel.rl import Reward, Sample, answer_means, micro_batches
from windtunnel.train import HFJob, Ranks, build_hf

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "initializer_range": 0.2,
    "max_position_embeddings": 128, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ANSWERS, MOST = 12, 24
TEMPERATURE = 0.7
OLD, REFERENCE, SAMPLER = 0.15, 0.3, 0.4
"""Nats by which log-probabilities of before, of the reference and of the sampler differ from the policy's."""
CASES: dict[str, dict[str, Any]] = {
    "one update": {},
    "several updates, clip-higher": {"updates": 2, "clip": 0.1, "clip_higher": 0.18},
    "KL to a reference": {"updates": 2, "kl": 0.05, "reference": True},
    "truncated importance sampling": {"updates": 2, "mismatch": "truncate", "mismatch_cap": 1.2},
    "IcePop": {"updates": 2, "mismatch": "mask", "mismatch_band": (0.7, 1.4)},
    "truncated answers masked": {"mask": True},
}
LOSSES = ("grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo")
SPREAD = ("KL to a reference", "truncated importance sampling", "IcePop")
"""Of GSPO TRL spreads these terms of a token over its answer, through their product with the answer's ratio; verl does not."""
VERL = {"dapo": ("vanilla", "token-mean"), "grpo": ("vanilla", "seq-mean-token-mean"), "gspo": ("gspo", "seq-mean-token-mean"),
        "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"), "cispo": ("cispo", "token-mean"),
        "sapo": ("sapo", "seq-mean-token-mean")}  # fmt: skip
"""Its name of a loss, and of how tokens are put together."""


def main() -> None:
    """Compare every loss in every case, and write the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--verl", type=Path, required=True, help="core_algos.py of its source distribution")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for loss in LOSSES:
            for name, given in CASES.items():
                if loss == "gspo" and name in SPREAD:
                    continue
                row = {"loss": loss, "case": name, **compare(loss, given, Path(folder))}
                print(json.dumps(row), flush=True)
                rows.append(row)
    formulas = load_verl(arguments.verl)
    beside = [
        {"loss": loss, "case": name, **compare_formulas(formulas, loss, given)}
        for loss in LOSSES
        for name, given in CASES.items()
    ]
    print(*map(json.dumps, beside), sep="\n")
    import transformers
    import trl

    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}
    largest = {key: max(row[key] for row in rows) for key in ("loss_difference", "gradient_difference")}
    apart = {key: max(row[key] for row in beside if not row["differs"]) for key in ("loss_difference", "gradient_difference")}
    content = {
        "benchmark": "grpo_peers", "date": datetime.now(UTC).date().isoformat(), "machine": platform.machine(),
        "versions": versions, "answers": ANSWERS, "temperature": TEMPERATURE, "largest": largest, "rows": rows,
        "verl": {"source": arguments.verl.parts[-5], "largest": apart, "rows": beside},
    }  # fmt: skip
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def compare(loss: str, given: dict[str, Any], folder: Path) -> dict[str, float]:
    """Return both losses, and how far losses and gradients are apart, relative to their sizes."""
    job, samples, stage, old, reference = asked(loss, given)
    mine, gradients = ours(job, samples, stage, old, reference)
    theirs, expected = peers(job, samples, stage, old, reference, folder)
    apart = max(
        float((gradients[name] - other).norm() / other.norm()) for name, other in expected.items() if float(other.norm()) > 1e-8
    )
    return {
        "ours": mine,
        "trl": theirs,
        "loss_difference": abs(mine - theirs) / max(abs(theirs), 1e-3),
        "gradient_difference": apart,
    }


def asked(loss: str, given: dict[str, Any]) -> tuple[HFJob, list[Sample], GRPO, list[Any], list[Any]]:
    """Return what a case is of: a policy, answers, the stage, and log-probabilities of the old and the reference policy."""
    options = {key: value for key, value in given.items() if key != "mask"}
    stage = GRPO(name="rl", loss=loss, answer_tokens=MOST, temperature=TEMPERATURE, **({"mismatch": "ignore"} | options))
    job = learner()
    samples = answers(masked=bool(given.get("mask")))
    old, reference, sampler = others(job, samples, stage)
    samples = [replace(sample, log_probabilities=drawn) for sample, drawn in zip(samples, sampler, strict=True)]
    return job, samples, stage, old, reference


def learner() -> HFJob:
    """Return a tiny policy in fp32."""
    job = build_hf(
        CONFIG, lora=None, weights="bf16", master=True, states="fp32", recompute="none", compile=False, shard="full",
        ranks=Ranks(0, 1, torch.device("cpu"), None), sequence=64, seed=3, compute=torch.float32,
    )  # fmt: skip
    job.network.temperature = TEMPERATURE
    return job


def answers(*, masked: bool) -> list[Sample]:
    """Return answers of different lengths with advantages; of those that were cut NaN, where they are masked."""
    draw = np.random.default_rng(5)
    made = []
    for i in range(ANSWERS):
        length = int(draw.integers(3, MOST + 1)) if i % 4 else MOST
        ids, tokens = draw.integers(3, 512, int(draw.integers(2, 12))), draw.integers(3, 512, length)
        advantage, cut = float(draw.normal()), length == MOST
        made.append(
            Sample(
                Prompt(i, ids, "", None, {}), 0, tokens, np.zeros(length, np.float32), "", cut, 0, Reward(0.0, (0.0,), False),
                math.nan if cut and masked else advantage,
            )
        )  # fmt: skip
    return made


def others(job: HFJob, samples: list[Sample], stage: GRPO) -> tuple[list[Any], list[Any], list[Any]]:
    """Return each answer's log-probabilities of before, of a reference and of a sampler: the policy's own, disturbed."""
    draw, policy = np.random.default_rng(6), [np.zeros(len(sample.tokens), np.float32) for sample in samples]
    batches = packed(samples, stage)
    for batch, found in zip(batches, job.score(batches), strict=True):
        flat, at = found.reshape(-1), batch.objective.owner  # type: ignore[union-attr]
        for number in {int(i) for i in at.tolist() if i >= 0}:
            policy[number] = flat[at == number].numpy().copy()
    noise = [[(p + size * draw.normal(size=len(p))).astype(np.float32) for p in policy] for size in (OLD, REFERENCE, SAMPLER)]
    return noise[0], noise[1], noise[2]


def packed(samples: list[Sample], stage: GRPO) -> list[Any]:
    """Pack answers into several micro-batches."""
    return micro_batches(samples, stage, sequence=64, rows=2, fixed=False, device=torch.device("cpu"))


def ours(job: HFJob, samples: list[Sample], stage: GRPO, old: list[Any], reference: list[Any]) -> tuple[float, dict[str, Any]]:
    """Return this package's loss and gradients, as `HFJob.step` has them."""
    batches = filled(job, packed(samples, stage), stage, old, reference)
    taken: dict[str, Any] = {}

    def take() -> None:
        taken.update({name: p.grad.detach().clone() for name, p in job.trained.items() if p.grad is not None})

    before = {name: p.detach().clone() for name, p in job.trained.items()}
    sums = job.step(batches, 256, 0.0, before_update=take)
    with torch.no_grad():
        for name, parameter in job.trained.items():
            parameter.copy_(before[name])
    share = float(sums[1])
    return float(sums[0]) / share, {name: gradient * 256 / share for name, gradient in taken.items()}


def filled(job: HFJob, batches: list[Any], stage: GRPO, old: list[Any], reference: list[Any]) -> list[Any]:
    """Give the losses the log-probabilities that they compare with, and return the batches."""
    for batch in batches:
        objective: Any = batch.objective
        more = {}
        for name, values, wanted in (("old", old, stage.updates > 1), ("reference", reference, stage.reference)):
            if wanted:
                flat = torch.zeros(objective.owner.numel())
                for number in {int(i) for i in objective.owner.tolist() if i >= 0}:
                    flat[objective.owner == number] = torch.from_numpy(values[number])
                more[name] = flat
        objective.tokens = replace(objective.tokens, **more)
    if stage.loss == "gspo" and stage.updates > 1:  # as before every update of a round but the first
        for batch, now in zip(batches, job.score(batches), strict=True):
            one: Any = batch.objective
            one.tokens = replace(one.tokens, moved=answer_means(now.reshape(-1) - one.tokens.old, one.owner))
    return batches


def peers(
    job: HFJob, samples: list[Sample], stage: GRPO, old: list[Any], reference: list[Any], folder: Path
) -> tuple[float, dict[str, Any]]:
    """Return TRL's loss and gradients of transformers' own model with the same weights."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    from windtunnel.train import plain_model

    model = plain_model(job, torch.float32)
    high = stage.clip if stage.clip_higher is None else stage.clip_higher
    config = GRPOConfig(
        output_dir=str(folder / "trl"), loss_type={"gspo": "grpo"}.get(stage.loss, stage.loss), beta=stage.kl, epsilon=stage.clip,
        epsilon_high=1 + high if stage.loss == "cispo" else high, temperature=TEMPERATURE, max_completion_length=MOST,
        per_device_train_batch_size=ANSWERS, num_generations=2, gradient_accumulation_steps=1, report_to=[],
        use_cpu=True, bf16=False,
        mask_truncated_completions=False,
    )  # fmt: skip
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    trainer: Any = GRPOTrainer.__new__(GRPOTrainer)
    prepare_trainer(trainer, config, model)
    object.__setattr__(trainer, "importance_sampling_level", "sequence" if stage.loss == "gspo" else "token")
    inputs = padded(samples, old, reference, stage)
    trainer.use_vllm = "importance_sampling_ratio" in inputs
    model.train()
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def prepare_trainer(trainer: Any, config: Any, model: Any) -> None:
    """Give a GRPOTrainer that was not constructed what its loss reads: a tokenizer and a data set are not needed for it."""
    from collections import defaultdict

    from accelerate import Accelerator

    values = {
        "args": config, "model": model, "accelerator": Accelerator(cpu=True), "loss_type": config.loss_type, "beta": config.beta,
        "epsilon_low": config.epsilon, "epsilon_high": config.epsilon_high, "temperature": config.temperature,
        "max_completion_length": config.max_completion_length, "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None, "aux_loss_enabled": False, "vllm_importance_sampling_correction": True,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, "model_kwarg_keys": set(),
        "_metrics": {mode: defaultdict(list) for mode in ("train", "eval")}, "use_liger_kernel": False,
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(trainer, name, value)


def padded(samples: list[Sample], old: list[Any], reference: list[Any], stage: GRPO) -> dict[str, Any]:
    """Return the batch as TRL has it: prompts padded on the left, answers on the right."""
    width = max(len(sample.prompt.ids) for sample in samples)
    shape = (len(samples), MOST)
    prompts, prompt_mask = torch.zeros((len(samples), width), dtype=torch.int64), torch.zeros((len(samples), width)).long()
    tokens, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    given = {name: torch.zeros(shape) for name in ("old_per_token_logps", "ref_per_token_logps", "sampler")}
    for row, sample in enumerate(samples):
        count, length = len(sample.prompt.ids), len(sample.tokens)
        prompts[row, width - count :], prompt_mask[row, width - count :] = torch.from_numpy(sample.prompt.ids), 1
        tokens[row, :length], mask[row, :length] = torch.from_numpy(sample.tokens), 1
        both = zip(given, (old, reference, [s.log_probabilities for s in samples]), strict=True)
        for name, values in both:
            given[name][row, :length] = torch.from_numpy(values[row])
    masked = torch.tensor([math.isnan(sample.advantage) for sample in samples])
    mask = mask * (~masked[:, None]).long()  # as mask_truncated_completions has it
    inputs: dict[str, Any] = {
        "prompt_ids": prompts, "prompt_mask": prompt_mask, "completion_ids": tokens, "completion_mask": mask,
        "advantages": torch.tensor([0.0 if math.isnan(sample.advantage) else sample.advantage for sample in samples]),
        "num_items_in_batch": mask.sum(), "ref_per_token_logps": given["ref_per_token_logps"],
        "old_per_token_logps": given["old_per_token_logps"] if stage.updates > 1 else None,
    }  # fmt: skip
    ratio = torch.exp(given["old_per_token_logps"] - given["sampler"])
    if stage.mismatch == "truncate":  # as vllm_importance_sampling_mode token_truncate has it
        inputs["importance_sampling_ratio"] = ratio.clamp(max=stage.mismatch_cap)
    elif stage.mismatch == "mask":  # as token_mask
        low, high = stage.mismatch_band
        inputs["importance_sampling_ratio"] = ratio.masked_fill((ratio < low) | (ratio > high), 0.0)
    return inputs


def load_verl(file: Path) -> Any:
    """Return verl's module of formulas, without the parts of verl that those do not use."""
    from importlib.util import module_from_spec, spec_from_file_location
    from types import ModuleType, SimpleNamespace
    from unittest.mock import MagicMock

    class Config(SimpleNamespace):
        def get(self, name: str, other: Any) -> Any:
            return getattr(self, name, other)

    sums = ModuleType("verl.utils.torch_functional")
    sums.masked_sum = lambda values, mask: (values * mask).sum()  # type: ignore[attr-defined]
    sums.masked_mean = lambda values, mask: (values * mask).sum() / mask.sum()  # type: ignore[attr-defined]
    names = ("omegaconf", "verl", "verl.trainer", "verl.trainer.config", "verl.utils", "verl.utils.import_utils", "verl.workers",
             "verl.workers.config")  # fmt: skip
    sys.modules.update({name: MagicMock() for name in names} | {sums.__name__: sums})
    sys.modules["verl"].utils.torch_functional = sys.modules["verl.utils"].torch_functional = sums
    sys.modules["verl.utils.import_utils"].deprecated = lambda _: lambda function: function
    sys.modules["verl.workers.config"].ActorConfig = Config
    sys.modules["verl.trainer.config"].AlgoConfig = type("AlgoConfig", (), {})
    spec = spec_from_file_location("verl_core_algos", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differs(stage: GRPO, *, masked: bool) -> str:
    """Say where verl's formula is another one; empty where it is the same."""
    if stage.kl:
        return "verl's k3 is not multiplied by the ratio"
    if stage.loss == "cispo" and stage.updates > 1:
        return "verl's weight is at least 1 - clip too"
    return "verl's mean over answers leaves masked ones out" if masked and stage.loss not in ("dapo", "cispo") else ""


def compare_formulas(verl: Any, loss: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return both losses and how far they and their derivatives are apart; `differs`: verl has another formula there."""
    job, samples, stage, old, reference = asked(loss, given)
    shape = (len(samples), MOST)
    mine, slopes, now = torch.zeros(()), torch.zeros(shape), torch.zeros(shape)
    batches = filled(job, packed(samples, stage), stage, old, reference)
    share = sum(batch.objective.share for batch in batches)
    for batch, new in zip(batches, job.score(batches), strict=True):
        objective, flat = batch.objective, new.reshape(-1)
        losses, slope = objective(flat, torch.arange(len(flat)))
        mine = mine + losses.sum() / share
        for number in {int(i) for i in objective.owner.tolist() if i >= 0}:
            at, length = objective.owner == number, len(samples[number].tokens)
            slopes[number, :length], now[number, :length] = slope[at] / share, flat[at]
    inputs = padded(samples, old, reference, stage)
    new, mask = now.requires_grad_(), inputs["completion_mask"]
    before = inputs["old_per_token_logps"] if stage.updates > 1 else now.detach()
    high = stage.clip if stage.clip_higher is None else stage.clip_higher
    config = sys.modules["verl.workers.config"].ActorConfig(
        clip_ratio=stage.clip, clip_ratio_low=stage.clip, clip_ratio_high=high, clip_ratio_c=1e9, tau_pos=1.0, tau_neg=1.05,
        policy_loss=sys.modules["verl.workers.config"].ActorConfig(tau_pos=1.0, tau_neg=1.05), global_batch_info={},
    )  # fmt: skip
    kind, together = VERL[loss]
    theirs, _ = verl.get_policy_loss_fn(kind)(
        before, new, inputs["advantages"][:, None].expand(shape), mask, together, config, inputs.get("importance_sampling_ratio")
    )
    if stage.kl:
        each = verl.kl_penalty(new, inputs["ref_per_token_logps"], "k3")
        theirs = theirs + stage.kl * verl.agg_loss(each, mask, together)
    (expected,) = torch.autograd.grad(theirs, new)
    told = float(theirs.detach())
    return {
        "differs": differs(stage, masked=bool(given.get("mask"))), "ours": float(mine), "verl": told,
        "loss_difference": abs(float(mine) - told) / max(abs(told), 1e-3),
        "gradient_difference": float((slopes - expected).norm() / expected.norm()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
