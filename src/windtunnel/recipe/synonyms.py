"""What others call a recipe's keys and values: nanoGPT's and nanochat's words, Hugging Face's, DeepSpeed's.

Nothing here is accepted in a recipe. A refusal names the key or value that means the same, and how it differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

STAGE = "stages.NAME"
_WIDTH = ("model.aspect", "the width is aspect x model.depth")
_DEPTH = ("model.depth", "")
_SEQUENCE = ("model.sequence", "tokens")
_MICRO = (f"{STAGE}.micro_batch", "sequences per rank and forward pass; all of a step: batch_tokens")
_BATCH = (f"{STAGE}.batch_tokens", "tokens of a step over all ranks: accumulation and ranks follow from it")
_STEPS = ("budget.steps", "optimizer steps")
_RATE = (f"{STAGE}.optimizer.matrix_lr", "others are derived from it; when fine-tuning learning_rate")
_WARMUP = (f"{STAGE}.schedule.warmup_steps", "")
_FINAL = (f"{STAGE}.schedule.final", "a share of the peak")
_CLIP = (f"{STAGE}.optimizer.clip", "")
_EVERY = (f"{STAGE}.validate_every", "with its unit: '250 steps' or '10 min'")
_SAVE = ("checkpoints.every", "with its unit: '250 steps' or '1 h'")
_SEEN = (f"{STAGE}.validation_tokens", "")
_DTYPE = (f"{STAGE}.precision", "auto, fp32, bf16 or fp8")
_VOCAB = ("data.tokenizer.vocab_size", "of kind bpe; characters count themselves")
_KV = ("model.kv_heads", "")
_HEADS = ("model.head_dim", "there are aspect x depth / head_dim heads")
_LORA = ("model.adapter.rank", "")
_GPUS = ("--gpus, or the rig of plan --on", "the machine's GPUs are found")
_AGAIN = ("layout.recompute", "none or block")
_SHARD = ("layout.shard", "none, optimizer or full")
_TRACK = ("notify.track", "[wandb], [mlflow] or [trackio]")
_FOLDER = ("--root, or $WINDTUNNEL_RUNS", "the folder of all runs")
_FILES = ("data.corpus.files", "with data.corpus.kind: text")

KEYS: dict[str, tuple[str, str]] = {
    "n_embd": _WIDTH, "d_model": _WIDTH, "dim": _WIDTH, "hidden_size": _WIDTH, "width": _WIDTH, "model_dim": _WIDTH,
    "aspect_ratio": ("model.aspect", ""),
    "n_layer": _DEPTH, "n_layers": _DEPTH, "num_layers": _DEPTH, "num_hidden_layers": _DEPTH, "layers": _DEPTH,
    "n_head": _HEADS, "n_heads": _HEADS, "num_heads": _HEADS, "num_attention_heads": _HEADS, "heads": _HEADS,
    "n_kv_head": _KV, "num_key_value_heads": _KV, "num_kv_heads": _KV,
    "block_size": _SEQUENCE, "seq_len": _SEQUENCE, "seq_length": _SEQUENCE, "sequence_length": _SEQUENCE,
    "sequence_len": _SEQUENCE, "max_seq_len": _SEQUENCE, "max_seq_length": _SEQUENCE, "max_length": _SEQUENCE,
    "context_length": _SEQUENCE, "context": _SEQUENCE, "n_ctx": _SEQUENCE, "cutoff_len": _SEQUENCE,
    "batch_size": _MICRO, "device_batch_size": _MICRO, "micro_batch_size": _MICRO, "per_device_train_batch_size": _MICRO,
    "per_device_batch_size": _MICRO, "train_batch_size": _BATCH, "total_batch_size": _BATCH, "global_batch_size": _BATCH,
    "grad_accum": _BATCH, "gradient_accumulation": _BATCH, "gradient_accumulation_steps": _BATCH, "grad_accum_steps": _BATCH,
    "max_iters": _STEPS, "max_steps": _STEPS, "num_iterations": _STEPS, "iterations": _STEPS, "num_steps": _STEPS,
    "train_steps": _STEPS, "iters": _STEPS, "lr_decay_iters": _STEPS,
    "training_hours": ("budget.hours", ""), "max_hours": ("budget.hours", ""), "hours": ("budget.hours", ""),
    "dollars": ("budget.dollars", ""), "max_cost": ("budget.dollars", ""), "cost": ("budget.dollars", ""),
    "epochs": ("budget.epochs", ""), "num_epochs": ("budget.epochs", ""), "num_train_epochs": ("budget.epochs", ""),
    "max_tokens": ("budget.tokens", ""), "train_tokens": ("budget.tokens", ""), "target_param_data_ratio": (
        f"{STAGE}.tokens_per_parameter", "counts when the budget names no limit"),
    "lr": _RATE, "learning_rate": _RATE, "max_lr": _RATE, "muon_lr": _RATE,
    "embed_lr": (f"{STAGE}.optimizer.embedding_lr", ""), "embedding_lr": (f"{STAGE}.optimizer.embedding_lr", ""),
    "matrix_lr": (f"{STAGE}.optimizer.matrix_lr", ""), "unembedding_lr": (f"{STAGE}.optimizer.unembedding_lr", ""),
    "weight_decay": (f"{STAGE}.optimizer.weight_decay", ""),
    "min_lr": _FINAL, "final_lr_frac": _FINAL, "warmup": _WARMUP, "warmup_iters": _WARMUP, "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP, "warmdown_ratio": (f"{STAGE}.schedule.warmdown", "a share of the run"),
    "grad_clip": _CLIP, "max_grad_norm": _CLIP, "gradient_clip": _CLIP, "clip_grad": _CLIP,
    "eval_interval": _EVERY, "eval_every": _EVERY, "eval_steps": _EVERY, "val_every": _EVERY, "eval_tokens": _SEEN,
    "eval_iters": _SEEN, "save_every": _SAVE, "save_steps": _SAVE, "save_interval": _SAVE, "checkpoint_every": _SAVE,
    "save_total_limit": ("checkpoints.keep_last", ""),
    "dtype": _DTYPE, "torch_dtype": _DTYPE, "bf16": _DTYPE, "fp16": _DTYPE, "fp8": _DTYPE, "mixed_precision": _DTYPE,
    "vocab_size": _VOCAB, "n_vocab": _VOCAB,
    "n_loops": ("trm.loops", ""), "n_sup": ("trm.supervision", ""), "n_supervision": ("trm.supervision", ""),
    "supervision_steps": ("trm.supervision", ""), "supervision_weight_base": ("trm.weight_base", ""),
    "improvement_reward_scale": ("trm.improvement_reward", ""), "detach_threshold": ("trm.detach_from", ""),
    "preset": ("trm.preset", ""),
    "lora_r": _LORA, "lora_rank": _LORA, "r": _LORA, "lora_alpha": ("model.adapter.alpha", ""),
    "target_modules": ("model.adapter.targets", "attention or all"),
    "load_in_4bit": ("model.weights", "int4"), "load_in_8bit": ("model.weights", "int8"),
    "model_name_or_path": ("model.config", "of kind huggingface"), "base_model": ("model.config", "of kind huggingface"),
    "zero_stage": ("layout.shard", "none, optimizer (1, 2) or full (3)"), "fsdp": ("layout.shard", "full"),
    "sharding": _SHARD, "sharding_strategy": _SHARD, "shard_strategy": _SHARD,
    "tensor_parallel_size": ("layout.tensor", ""), "pipeline_parallel_size": ("layout.pipeline", ""), "tp": ("layout.tensor", ""),
    "pp": ("layout.pipeline", ""), "ep": ("layout.expert", ""),
    "gradient_checkpointing": _AGAIN, "activation_checkpointing": _AGAIN,
    "nproc_per_node": _GPUS, "num_gpus": _GPUS, "gpus": _GPUS, "n_gpus": _GPUS, "devices": _GPUS,
    "dataset": _FILES, "data_dir": _FILES, "data_path": _FILES, "train_file": _FILES,
    "val_fraction": ("data.validation", "a share"),
    "val_split": ("data.validation", "a share"), "validation_split": ("data.validation", "a share"),
    "random_seed": ("seed", ""), "early_stopping_patience": ("bands.overfit_patience", "validations"),
    "early_stopping": ("bands.overfit_patience", "validations"), "window_pattern": ("model.window", ""),
    "wandb": _TRACK, "wandb_run": _TRACK, "wandb_log": _TRACK, "report_to": _TRACK, "wandb_project": ("notify.project", ""),
    "out_dir": _FOLDER, "output_dir": _FOLDER, "save_dir": _FOLDER, "checkpoint_dir": _FOLDER,
}  # fmt: skip
"""Another's word, in small letters -> the key that means the same, and what to know about it."""

PATHS: dict[str, tuple[str, str]] = {
    "layout.precision": _DTYPE,
    **dict.fromkeys(("base", "inherits", "parent", "inherit", "include"), ("extends", "a recipe's name or file")),
}  # fmt: skip
"""Whole paths of keys that mean something else elsewhere -> the key, and what to know about it."""

ABSENT = {
    "dropout": "there is none: data that repeat too often are told of, and a run that overfits ends (bands.overfit_patience)",
    "bias": "linear layers have none",
    "num_workers": "data are prepared before the run, and one thread of each rank copies them ahead",
    "tie_weights": "embedding and head are two matrices",
}
"""Words for what a recipe does not have -> why."""

VALUES: dict[str, dict[str, str]] = {
    "shard": {
        "zero3": "full", "zero-3": "full", "fsdp": "full", "fsdp2": "full", "3": "full", "full_shard": "full",
        "zero2": "optimizer", "zero-2": "optimizer", "zero1": "optimizer", "zero-1": "optimizer", "zero": "optimizer",
        "ddp": "none", "no": "none",
    },
    "weights": {
        "4bit": "int4", "4-bit": "int4", "nf4": "int4", "qlora": "int4", "8bit": "int8", "8-bit": "int8", "fp16": "bf16",
        "bfloat16": "bf16", "float8": "fp8", "mxfp4": "int4", "none": "bf16",
    },
    "precision": {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "half": "bf16", "float32": "fp32",
        "fp32": "auto",  # fine-tuning has it on a CPU alone
        "float8": "fp8", "tf32": "fp32", "8bit": "fp8", "8-bit": "fp8", "int8": "fp8", "4bit": "fp8", "4-bit": "fp8",
        "int4": "fp8", "nf4": "fp8", "fp4": "fp8"},  # the least that is computed in; weights alone may be int4
    "states": {"8bit": "int8", "8-bit": "int8", "float32": "fp32", "bfloat16": "bf16", "paged_adamw_8bit": "int8"},
    "recompute": {"full": "block", "true": "block", "on": "block", "selective": "block", "false": "none", "off": "none"},
    "offload": {"cpu": "optimizer", "true": "optimizer", "false": "none"},
    "mlp": {"relu^2": "relu2", "squared_relu": "relu2", "silu": "swiglu", "llama": "swiglu"},
    "kind": {"char": "character", "characters": "character", "jsonl": "text", "hf": "huggingface", "transformers": "huggingface"},
    "targets": {"all-linear": "all", "qkv": "attention"},
}  # fmt: skip
"""Last part of a key -> what others write there -> the value that means the same."""
NOTHING = frozenset({"none", "nil", "off", "no", "n/a", "unlimited", "inf", "infinite", "false", "-1"})
# Of a sequence or a vocabulary, where powers of two are meant.
_THOUSANDS = {"k": 1024, "m": 1024**2}


def same_key(path: str, value: Any = None, stage: str = "pretrain") -> str:
    """Say which key means what an unknown one says, or those that stand in an unknown section; '' where nothing is known.

    Args:
        path: the whole key, or its last part.
        value: what stands there: of a section, its keys are looked up where its name is not known.
        stage: the name to put where the key is one of a stage's.
    """
    word = path.rpartition(".")[2]
    if path in PATHS:
        return _told(word, PATHS[path], stage)
    told = list(_known([word], stage)) or (list(_known(value, stage)) if isinstance(value, dict) else [])
    return "; ".join(dict.fromkeys(told))


def _known(words: Iterable[Any], stage: str) -> Iterator[str]:
    for word in words:
        name = str(word).lower().replace("-", "_")
        if name in ABSENT:
            yield f"{word}: {ABSENT[name]}"
        elif name in KEYS:
            yield _told(str(word), KEYS[name], stage)


def _told(word: str, meant: tuple[str, str], stage: str) -> str:
    key, note = meant
    return f"{word} is {key.replace('NAME', stage)} here" + (f" ({note})" if note else "")


def same_value(key: str, value: Any, *, nullable: bool) -> str:
    """Return the value that means the same as one that is refused, as it is written in a recipe; '' where none is known.

    Args:
        key: the last part of the key's path.
        value: the refused one, as YAML gave it.
        nullable: whether the key may be null.
    """
    text = str(value).strip().lower()
    known = VALUES.get(key, {}).get(text)
    if known is not None:
        return known
    # After the key's own table: of some keys 'none' is a value.
    if nullable and text in NOTHING:
        return "null"
    if isinstance(value, str) and text[-1:] in _THOUSANDS and text[:-1].replace(".", "", 1).isdigit():
        count = float(text[:-1]) * _THOUSANDS[text[-1]]  # 4k of a sequence are 4,096 tokens
        return str(int(count)) if count.is_integer() else ""
    return ""
