"""Faults on the way of the weights from the learner to the engine, planted in the functions that publish them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from planting import Plant, Site, group
from sites import CONFIG

SYNC = "GRPO project: weight sync without version, checksum or receipt; half old, half new"
NAMES = "GRPO guide: weight sync under tensor parallelism; engines that report success with wrong weights"
ENGINES = "GRPO guide: each library pins another vLLM"
SCALES = "GRPO project: the trainer's log-probabilities divided by the temperature, the engine's raw"
RESUME = "DeepSeek-V3 guide: checkpoint corruption; GRPO project: jobs that are chained and never resumed"
DROPOUT = "GRPO guide: mismatch of engine and trainer, measured every step"

Weights = Iterator[tuple[str, Any]]


def full(site: Site) -> None:
    """Reinforcement learning of all weights of a small Llama."""
    site.recipe = {
        "name": "synced",
        "model": {"kind": "huggingface", "config": str(site.file("model/config.json", json.dumps(CONFIG))), "sequence": 512},
        "data": {"corpus": {"kind": "counted", "tokens": "1M"}},
        "stages": {"rl": {"prompts": 16, "samples": 4, "prompt_tokens": 64, "answer_tokens": 256}},
        "budget": {"steps": 50},
    }


def adapted(site: Site) -> None:
    """The same with an adapter."""
    full(site)
    assert isinstance(site.recipe, dict)
    site.recipe["model"]["adapter"] = {"rank": 8}


def tied(site: Site) -> None:
    """The same where the head is the table of embeddings."""
    full(site)
    site.file("model/config.json", json.dumps(CONFIG | {"tie_word_embeddings": True}))


def sparse(site: Site) -> None:
    """The same with experts."""
    full(site)
    experts = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
    site.file("model/config.json", json.dumps(CONFIG | experts))


def instead(module: str, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace a function of a module by what `make` makes of it."""

    def plant(site: Site) -> None:
        from importlib import import_module

        owner = import_module(module)
        site.patches.append((owner, name, make(getattr(owner, name))))

    return plant


def weights(change: Callable[[Weights], Weights]) -> Plant:
    """Change what is published: `change` takes the names and tensors and gives others."""
    return instead("windtunnel.rl.sync", "hub_weights", lambda true: lambda job, dtype: change(true(job, dtype)))


def renamed(change: Callable[[str], str]) -> Plant:
    """Change the names of what is published."""
    return weights(lambda given: ((change(name), tensor) for name, tensor in given))


def swapped(one: str, other: str) -> Plant:
    """Exchange two parts of names."""
    pattern = re.compile(f"{re.escape(one)}|{re.escape(other)}")
    return renamed(lambda name: pattern.sub(lambda match: other if match[0] == one else one, name))


def without(part: str) -> Plant:
    """Leave out what has this in its name."""
    return weights(lambda given: ((name, tensor) for name, tensor in given if part not in name))


def frozen(part: str) -> Plant:
    """What has this in its name, or everything, is published again as it was the first time."""

    def make(true: Any) -> Any:
        first: dict[Any, Any] = {}

        def published(job: Any, dtype: Any) -> Weights:
            for name, tensor in true(job, dtype):
                yield name, first.setdefault((name, dtype), tensor) if part in name else tensor

        return published

    return instead("windtunnel.rl.sync", "hub_weights", make)


def other_dtype(given: Weights) -> Weights:
    import torch

    other = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float16}
    return ((name, tensor.to(other[tensor.dtype])) for name, tensor in given)


def turned(given: Weights) -> Weights:
    """A square matrix transposed."""
    return ((name, tensor.T.contiguous() if "o_proj" in name else tensor) for name, tensor in given)


def by_rank(true: Any) -> Any:
    """The adapter's sum without alpha / rank."""

    def merged(base: Any, adapter: Any) -> Any:
        return base.float() + (true(base, adapter) - base.float()) / adapter.scaling["default"]

    return merged


def untied(true: Any) -> Any:
    return lambda job, dtype: true(job, dtype) | {"tie_word_embeddings": False}


def cooled(true: Any) -> Any:
    return lambda job, tokens: true(job, tokens) / 0.7


def same_number(true: Any) -> Any:
    """Every version is called the first."""
    return lambda job, publisher, version, **more: true(job, publisher, 1, **more)


def last_number(true: Any) -> Any:
    """The manifest names the version before."""

    def as_json(made: Any) -> Any:
        return true(made) | {"version": made.version - 1}

    return as_json


def never(true: Any) -> Any:
    """Nothing is ever stale."""
    return lambda *_: None


def any_name(true: Any) -> Any:
    """Folders that are still being written count as versions."""
    return re.compile(r"version-(\d{8,}).*")


def without_checksums(true: Any) -> Any:
    return lambda made: true(made) | {"files": {}}


def impatient(site: Site) -> None:
    """No engine answers within a millisecond."""
    from windtunnel.rl import checks as sync_bench

    site.patches.append((sync_bench, "LIMIT", 0.001))


def dropout(site: Site) -> None:
    site.file("model/config.json", json.dumps(CONFIG | {"attention_dropout": 0.1}))


def other_vllm(site: Site) -> None:
    """A vLLM that knows one model."""
    site.file(
        "packages/vllm/__init__.py",
        "__version__ = '0.26.0'\nclass ModelRegistry:\n  @staticmethod\n  def get_supported_archs(): return ['Fuyu']\n",
    )
    folder = str(site.folder / "packages")
    site.patches.append((sys, "path", [folder, *sys.path]))
    site.environment["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [site.environment.get("PYTHONPATH")])])


def tuned(site: Site) -> None:
    """Fine-tuning of an adapter whose moments are rounded at random."""
    adapted(site)
    assert isinstance(site.recipe, dict)
    site.recipe["stages"] = {"sft": {"batch_tokens": 8192, "states": "bf16"}}


def resumed(change: Callable[[Any], Any]) -> Plant:
    """After an engine was restored, `change` takes something from its job."""

    def make(true: Any) -> Any:
        def restored(engine: Any, *rest: Any) -> Any:
            facts = true(engine, *rest)
            change(engine.job)
            return facts

        return restored

    return instead("windtunnel.train.checkpoints", "restore_engine", make)


def no_moments(job: Any) -> None:
    for _, tensor in job.optimizer.states():
        tensor.zero_()


def no_count(job: Any) -> None:
    job.optimizer.steps = 0


ROOM, SNAPSHOT, WHOLE = "windtunnel.rl", "windtunnel.rl.snapshot", "windtunnel.train.hf.weights"

FAULTS = (
    *group("weights", "weight-sync", adapted)(
        ("the adapter's scale forgotten at merging", NAMES, "canary", instead(WHOLE, "merged", by_rank)),
        ("the base published without its adapter", NAMES, "canary", instead(WHOLE, "merged", lambda true: lambda base, _: base)),
        (
            "names as the adapter's library has them", NAMES, ("lacks", "_proj.weight"),
            renamed(lambda name: name.replace("_proj.", "_proj.base_layer.")),
        ),
    ),
    *group("weights", "weight-sync", tied)(
        ("a tied head not copied", NAMES, ("lacks", "lm_head"), instead("windtunnel.rl.sync", "hub_config", untied)),
    ),
    *group("weights", "weight-sync", sparse)(
        ("an expert's two matrices exchanged", NAMES, "canary", swapped("w1", "w3")),
        ("experts in another order", NAMES, "canary", swapped("experts.0.", "experts.1.")),
    ),
    *group("weights", "weight-sync", full)(
        ("gate and up exchanged", NAMES, "canary", swapped("gate_proj", "up_proj")),
        ("layers in another order", NAMES, "canary", swapped("layers.0.", "layers.1.")),
        ("a matrix transposed", NAMES, "canary", weights(turned)),
        ("norms left out", NAMES, ("lacks", "norm"), without("norm")),
        ("weights in another dtype", NAMES, ("bfloat16", "the engine holds float32"), weights(other_dtype)),
        ("one matrix never published again", SYNC, "canary", frozen("layers.1.self_attn.v_proj")),
        ("a new number for old weights", SYNC, "canary", frozen("")),
        ("a number that does not grow", SYNC, "version 1 after version 1", instead(ROOM, "publish_weights", same_number)),
        ("a number behind the weights", SYNC, ("holds version", "asked for"), instead(SNAPSHOT, "_as_json", last_number)),
        ("an old version taken for fresh", SYNC, "answers by an old version", instead(ROOM, "require_fresh", never)),
        ("a half-written version under its name", SYNC, "half-written", instead(SNAPSHOT, "_FOLDER", any_name)),
        ("files without checksums", SYNC, "no checksum", instead(SNAPSHOT, "_as_json", without_checksums)),
        ("the learner's temperature", SCALES, "canary", instead("windtunnel.rl.canary", "score", cooled)),
        ("an engine that does not answer", SYNC, ("did not answer", "was ended"), impatient),
        ("dropout in the learner alone", DROPOUT, "attention_dropout", dropout),
    ),
    *group("weights", "tuning-checkpoint", tuned)(
        ("moments that begin again", RESUME, "step 5: loss", resumed(no_moments)),
        ("a count of updates that begins again", RESUME, ("step 5", "resumed"), resumed(no_count)),
    ),
    *group("weights", "tuning-export", tuned)(
        ("an export without the adapter", NAMES, "canary", instead(WHOLE, "merged", lambda true: lambda base, _: base)),
    ),
    *group("weights", "engine", full)(
        ("a vLLM that does not have the model", ENGINES, "LlamaForCausalLM", other_vllm),
    ),
)  # fmt: skip
