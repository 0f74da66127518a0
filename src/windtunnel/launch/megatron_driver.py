"""One step of a Megatron-Bridge job under torchrun: check, import, train or export. Reads job.json and parameters.json beside it.

    torchrun --nproc-per-node 8 megatron_driver.py check

`windtunnel launch` writes a copy of this file into the job's folder, where it needs nothing of windtunnel: only Python 3.12
and megatron-bridge 0.6, such as NVIDIA's NeMo container has. Every step runs under the same layout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEPS = ("check", "import", "train", "export")
SHOWN = 5


def main() -> None:
    """Run the step that the command line names."""
    step = sys.argv[1] if len(sys.argv) == 2 else ""
    if step not in STEPS:
        sys.exit(f"error: name one of {', '.join(STEPS)}")
    job = json.loads((HERE / "job.json").read_text(encoding="utf-8"))
    {"check": check, "import": import_weights, "train": train, "export": export}[step](job)


def provider_of(job: dict[str, Any], *, load_weights: bool) -> tuple[Any, Any]:
    """Return the bridge for the model, and what builds it in the job's layout."""
    import torch
    from megatron.bridge import AutoBridge

    layout = job["layout"]
    bridge = AutoBridge.from_hf_pretrained(job["model"], dtype=torch.bfloat16)
    provider = bridge.to_megatron_provider(load_weights=load_weights)
    provider.tensor_model_parallel_size = layout["tensor"]
    provider.pipeline_model_parallel_size = layout["pipeline"]
    provider.pipeline_model_parallel_layout = layout["stages"] if layout["pipeline"] > 1 else None
    provider.expert_model_parallel_size = layout["expert"]
    provider.expert_tensor_parallel_size = 1
    provider.sequence_parallel = layout["tensor"] > 1
    provider.seq_length = job["sequence"]
    provider.params_dtype = provider.pipeline_dtype = torch.bfloat16
    provider.mtp_num_layers = None  # modules for further tokens are not trained
    provider.calculate_per_token_loss = True  # the mean over all learned tokens of a step, not of means of micro-batches
    if layout["recompute"]:
        provider.recompute_granularity, provider.recompute_method, provider.recompute_num_layers = "full", "uniform", 1
    return bridge, provider


def build(job: dict[str, Any], *, load_weights: bool) -> tuple[Any, list[Any]]:
    """Return the bridge and this rank's part of the model, compared with what was planned."""
    bridge, provider = provider_of(job, load_weights=load_weights)
    provider.finalize()
    provider.initialize_model_parallel(seed=job["seed"])
    model = provider.provide_distributed_model(wrap_with_ddp=False)
    compare(job, model)
    return bridge, model


def compare(job: dict[str, Any], model: list[Any]) -> None:
    """Stop unless this rank holds exactly the names and shapes of parameters.json."""
    from megatron.core import parallel_state

    stage = parallel_state.get_pipeline_model_parallel_rank()
    # By pipeline stage: tensor-parallel ranks of a stage have the same names and shapes.
    expected = {
        name: tuple(shape) for name, shape in json.loads((HERE / "parameters.json").read_text(encoding="utf-8"))[stage].items()
    }
    found = dict(shapes_of(model[0]))
    wrong = [
        f"{name}: planned {expected.get(name, 'none')}, built {found.get(name, 'none')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if wrong and not job["any_shapes"]:
        shown = "\n  ".join(wrong[:SHOWN])
        sys.exit(
            f"error: {len(wrong)} of {len(expected)} parameters of pipeline stage {stage} are not as planned:\n  {shown}\n"
            '  fix: use megatron-bridge 0.6, or set "any_shapes": true in job.json to go on all the same'
        )
    if parallel_state.get_data_parallel_rank() == 0 and parallel_state.get_tensor_model_parallel_rank() == 0:
        print(f"stage {stage}: {len(expected)} parameters are as planned", flush=True)


def shapes_of(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of a module's parameters and routers' biases, without wrappers' prefixes."""
    named = [*module.named_parameters(), *((n, b) for n, b in module.named_buffers() if n.endswith("router.expert_bias"))]
    found = []
    for name, tensor in named:
        # Each wrapper (DDP, mixed precision) puts its own before the names.
        while name.startswith("module."):
            name = name.removeprefix("module.")
        found.append((name, tuple(tensor.shape)))
    return found


def check(job: dict[str, Any]) -> None:
    """Build the model without its weights, which takes a minute, and compare it with the plan."""
    build(job, load_weights=False)


def import_weights(job: dict[str, Any]) -> None:
    """Read Hugging Face's files into Megatron's checkpoint; weights in fp8 blocks are decoded on the way."""
    bridge, model = build(job, load_weights=True)
    bridge.save_megatron_model(model, str(HERE / "imported"), hf_tokenizer_path=job["model"])


def train(job: dict[str, Any]) -> None:
    """Fine-tune from the imported weights, or go on from the newest checkpoint."""
    from megatron.bridge.training.finetune import finetune
    from megatron.bridge.training.gpt_step import forward_step

    finetune(config_of(job), forward_step)


def config_of(job: dict[str, Any]) -> Any:
    """Return Megatron-Bridge's configuration of the job."""
    from megatron.bridge.data.builders import GPTSFTDatasetConfig
    from megatron.bridge.data.packing import PackedSequenceSpecs
    from megatron.bridge.training.config import (
        CheckpointConfig,
        ConfigContainer,
        DistributedDataParallelConfig,
        LoggerConfig,
        OptimizerConfig,
        RNGConfig,
        SchedulerConfig,
        TokenizerConfig,
        TrainingConfig,
        ValidationConfig,
    )

    steps, rate, sharded = job["steps"], job["learning_rate"], job["layout"]["shard"]
    data = HERE / "data"
    return ConfigContainer(
        model=provider_of(job, load_weights=False)[1],
        train=TrainingConfig(train_iters=steps, global_batch_size=job["batch_sequences"], micro_batch_size=1),
        validation=ValidationConfig(eval_interval=job["validate_every"], eval_iters=job["validation_batches"]),
        optimizer=OptimizerConfig(
            optimizer="adam", lr=rate["peak"], min_lr=rate["final"], weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
            clip_grad=1.0, bf16=True, use_distributed_optimizer=sharded,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="WSD" if rate["decay_steps"] < steps else "linear", lr_decay_iters=steps,
            lr_warmup_iters=rate["warmup_steps"], lr_wsd_decay_iters=rate["decay_steps"], lr_wsd_decay_style="linear",
        ),
        ddp=DistributedDataParallelConfig(
            # Sums in fp32 and over tokens, as the package's own engine does: losses of both can be compared.
            use_distributed_optimizer=sharded, grad_reduce_in_fp32=True, overlap_grad_reduce=True, check_for_nan_in_grad=True,
            average_in_collective=False,
        ),
        dataset=GPTSFTDatasetConfig(
            dataset_root=str(data), seq_length=job["sequence"], seed=job["seed"], do_test=False, enable_offline_packing=True,
            offline_packing_specs=PackedSequenceSpecs(
                packed_sequence_size=job["sequence"], packed_train_data_path=str(data / "training.idx.parquet"),
                packed_val_data_path=str(data / "validation.idx.parquet"), tokenizer_model_name=job["model"],
            ),
            dataset_kwargs={"pad_to_max_length": True},
        ),
        logger=LoggerConfig(log_interval=1, tensorboard_dir=str(HERE / "tensorboard")),
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=job["model"]),
        checkpoint=CheckpointConfig(
            pretrained_checkpoint=str(HERE / "imported"), save=str(HERE / "checkpoints"), load=str(HERE / "checkpoints"),
            save_interval=job["save_every"], ckpt_format="torch_dist", fully_parallel_save=True,
        ),
        rng=RNGConfig(seed=job["seed"]),
        mixed_precision="bf16_mixed",
    )  # fmt: skip


def export(job: dict[str, Any]) -> None:
    """Write the newest checkpoint as Hugging Face's files."""
    bridge, provider = provider_of(job, load_weights=False)
    provider.finalize()
    provider.initialize_model_parallel(seed=job["seed"])
    layout = job["layout"]
    overrides = {
        "tensor_model_parallel_size": layout["tensor"],
        "pipeline_model_parallel_size": layout["pipeline"],
        "expert_model_parallel_size": layout["expert"],
        "expert_tensor_parallel_size": 1,
    }
    model = bridge.load_megatron_model(str(HERE / "checkpoints"), mp_overrides=overrides, wrap_with_ddp=False)
    bridge.save_hf_pretrained(model, str(HERE / "exported"), distributed_save=True)


if __name__ == "__main__":
    main()
