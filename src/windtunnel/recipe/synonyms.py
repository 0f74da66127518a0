"""What others call a recipe's keys and values: nanoGPT's and nanochat's words, Hugging Face's, DeepSpeed's.

Nothing here is accepted in a recipe. A refusal names the key or value that means the same, and how it differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STAGE = "stages.NAME"
"""A stage of the recipe that trains; NAME is put in by `same_key`."""
_RL = "stages.rl"
_WIDTH = ("model.aspect", "the width is aspect x model.depth")
_DEPTH = ("model.depth", "")
_SEQUENCE = ("model.sequence", "tokens")
_MICRO = (f"{STAGE}.micro_batch", "sequences per rank and forward pass; all of a step: batch_tokens")
_BATCH = (f"{STAGE}.batch_tokens", "tokens of a step over all ranks: accumulation and ranks follow from it")
_STEPS = ("budget.steps", "optimizer steps")
_EPOCHS = ("budget.epochs", "")
_RATE = (f"{STAGE}.optimizer.matrix_lr", "others are derived from it")
_WARMUP = (f"{STAGE}.schedule.warmup_steps", "steps, not a share")
_FINAL = (f"{STAGE}.schedule.final", "a share of the peak")
_SCHEDULE = (f"{STAGE}.schedule", "linear warm-up, constant, linear warm-down to `final`")
_CLIP = (f"{STAGE}.optimizer.clip", "")
_DECAY = (f"{STAGE}.optimizer.weight_decay", "")
_EVERY = (f"{STAGE}.validate_every", "with its unit: '250 steps' or '10 min'")
_SAVE = ("checkpoints.every", "with its unit: '250 steps' or '1 h'")
_KEEP = ("checkpoints.keep_last", "")
_SEEN = (f"{STAGE}.validation_tokens", "")
_DTYPE = (f"{STAGE}.precision", "auto, fp32, bf16 or fp8")
_ATTENTION = (f"{STAGE}.deterministic", "the kernels are chosen; false: the fastest")
_MASTER = f"{STAGE}.master"
_COMPILE = (f"{STAGE}.compile", "")
_VOCAB = ("data.tokenizer.vocab_size", "of kind bpe; characters count themselves")
_KV = ("model.kv_heads", "")
_HEADS = ("model.head_dim", "there are aspect x depth / head_dim heads")
_LORA = ("model.adapter.rank", "")
_ADAPTER = ("model.adapter", "its rank, alpha and targets")
_TARGETS = ("model.adapter.targets", "attention or all")
_MODEL = ("model.config", "of kind huggingface")
_GPUS = ("--gpus, or the rig of plan --on", "the machine's GPUs are found")
_AGAIN = ("layout.recompute", "none or block")
_SHARD = ("layout.shard", "none, optimizer or full")
_TENSOR, _PIPELINE, _EXPERT = ("layout.tensor", ""), ("layout.pipeline", ""), ("layout.expert", "")
_TRACK = ("notify.track", "[wandb], [mlflow] or [trackio]")
_PROJECT = ("notify.project", "")
_NAME = ("name", "runs are named after it")
_FOLDER = ("--root, or $WINDTUNNEL_RUNS", "the folder of all runs")
_FILES = ("data.corpus.files", "of data.corpus.kind text, conversations or prompts")
_HELD_OUT = ("data.validation", "a share")
_LEARNED = ("data.corpus.loss", "answers, last or all")
_PATIENCE = ("bands.overfit_patience", "validations")
_ANSWER = (f"{_RL}.answer_tokens", "")
_SAMPLES, _PROMPTS = (f"{_RL}.samples", "answers per prompt"), (f"{_RL}.prompts", "per round")
_UPDATES = (f"{_RL}.updates", "optimizer steps per round")
_KL, _LOWER, _HIGHER = (f"{_RL}.kl", ""), (f"{_RL}.clip", ""), (f"{_RL}.clip_higher", "")
_REWARD = (f"{_RL}.reward", "'file.py:function'")
_ENGINE = (f"{_RL}.engine", "")


def _all(meant: tuple[str, str], words: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(words.split(), meant)


KEYS: dict[str, tuple[str, str]] = {
    **_all(_WIDTH, "n_embd d_model dim hidden_size width model_dim"),
    **_all(_DEPTH, "n_layer n_layers num_layers num_hidden_layers layers"),
    **_all(_HEADS, "n_head n_heads num_heads num_attention_heads heads"),
    **_all(_KV, "n_kv_head num_key_value_heads num_kv_heads"),
    **_all(_SEQUENCE, "block_size seq_len seq_length sequence_length sequence_len max_seq_len max_seq_length max_length"),
    **_all(_SEQUENCE, "context_length context n_ctx cutoff_len"),
    **_all(_MICRO, "batch_size device_batch_size micro_batch_size per_device_train_batch_size per_device_batch_size"),
    **_all(_MICRO, "local_batch_size per_device_eval_batch_size ppo_micro_batch_size_per_gpu"),
    **_all(_BATCH, "train_batch_size total_batch_size global_batch_size grad_accum gradient_accumulation"),
    **_all(_BATCH, "gradient_accumulation_steps grad_accum_steps"),
    **_all(_STEPS, "max_iters max_steps num_iterations iterations num_steps train_steps iters lr_decay_iters steps"),
    **_all(_STEPS, "total_training_steps"),
    **_all(("budget.hours", ""), "training_hours max_hours hours"),
    **_all(("budget.dollars", ""), "dollars max_cost cost"),
    **_all(_EPOCHS, "epochs num_epochs num_train_epochs total_epochs"),
    **_all(("budget.tokens", ""), "max_tokens train_tokens"),
    "target_param_data_ratio": (f"{STAGE}.tokens_per_parameter", "counts when the budget names no limit"),
    **_all(_RATE, "lr learning_rate max_lr muon_lr"),
    **_all((f"{STAGE}.optimizer.embedding_lr", ""), "embed_lr embedding_lr"),
    "matrix_lr": (f"{STAGE}.optimizer.matrix_lr", ""), "unembedding_lr": (f"{STAGE}.optimizer.unembedding_lr", ""),
    "weight_decay": _DECAY,
    **_all(_FINAL, "min_lr final_lr_frac learning_rate_decay_frac min_lr_factor min_lr_ratio cosine_min_lr_ratio"),
    **_all(_WARMUP, "warmup warmup_iters warmup_ratio warmup_steps lr_warmup_steps lr_warmup_steps_ratio"),
    **_all((f"{STAGE}.schedule.warmdown", "a share of the run"), "warmdown_ratio decay_ratio"),
    **_all(_SCHEDULE, "lr_scheduler lr_scheduler_type lr_scheduler_kwargs lr_schedule scheduler decay_lr decay_type"),
    **_all(_CLIP, "grad_clip max_grad_norm gradient_clip clip_grad max_norm"),
    **_all(_EVERY, "eval_interval eval_every eval_steps val_every val_loss_every test_freq eval_freq eval_strategy"),
    **_all(_EVERY, "evals_per_epoch validation.freq"),
    **_all(_SEEN, "eval_tokens eval_iters val_max_steps validation.steps"),
    **_all(_SAVE, "save_every save_steps save_interval checkpoint_every save_freq save_strategy saves_per_epoch"),
    **_all(_SAVE, "always_save_checkpoint checkpoint.interval checkpoint.enable"),
    **_all(_KEEP, "save_total_limit keep_latest_k max_actor_ckpt_to_keep"),
    **_all(_DTYPE, "precision dtype torch_dtype bf16 fp16 fp8 tf32 mixed_precision mixed_precision_param fp8_recipe float8"),
    **_all(_VOCAB, "vocab_size n_vocab"),
    **_all(("trm.supervision", ""), "n_sup n_supervision supervision_steps"),
    "n_loops": ("trm.loops", ""), "supervision_weight_base": ("trm.weight_base", ""),
    "improvement_reward_scale": ("trm.improvement_reward", ""), "detach_threshold": ("trm.detach_from", ""),
    "preset": ("trm.preset", ""),
    **_all(_LORA, "lora_r lora_rank r"), "lora_alpha": ("model.adapter.alpha", ""),
    **_all(_ADAPTER, "adapter use_peft lora peft"),
    **_all(_TARGETS, "target_modules lora_target_modules lora_target_linear"),
    **_all(("model.weights", "int4"), "load_in_4bit bnb_4bit_quant_type"), "load_in_8bit": ("model.weights", "int8"),
    **_all(_MODEL, "model_name_or_path base_model model.name model.path model.flavor hf_assets_path model_name model_id"),
    "zero_stage": ("layout.shard", "none, optimizer (1, 2) or full (3)"), "fsdp": ("layout.shard", "full"),
    **_all(_SHARD, "sharding sharding_strategy shard_strategy deepspeed fsdp_config data_parallel_shard_degree"),
    **_all(("layout.offload", "optimizer"), "optimizer_offload param_offload cpu_offload"),
    **_all(_TENSOR, "tensor_parallel_size tp tensor_parallel_degree"),
    **_all(_PIPELINE, "pipeline_parallel_size pp pipeline_parallel_degree"),
    **_all(_EXPERT, "ep expert_parallel_degree expert_parallel_size"),
    **_all(_AGAIN, "gradient_checkpointing activation_checkpointing enable_gradient_checkpointing activation_checkpoint.mode"),
    "use_master_weights": (_MASTER, "true: fp32"),
    **_all(_COMPILE, "compile.enable torch_compile training.compile"),
    **_all(_ATTENTION, "flash_attention attn_implementation xformers_attention flash_attn"),
    **_all(_GPUS, "nproc_per_node num_gpus gpus n_gpus devices n_gpus_per_node nnodes ngpu data_parallel_replicate_degree"),
    **_all(_FILES, "dataset data_dir data_path train_file datasets dataset_name dataset_path train_files input_bin"),
    **_all(_FILES, "data_files file"),
    **_all(_HELD_OUT, "val_fraction val_split validation_split val_set_size val_files input_val_bin eval_dataset test_size"),
    "dataset_text_field": ("data.corpus.text_key", ""),
    **_all(_LEARNED, "train_on_inputs assistant_only_loss completion_only_loss roles_to_train"),
    **_all(("data.corpus.template", ""), "chat_template chat_template_path"),
    "special_tokens": ("data.tokenizer.add", ""), "truncation": ("data.corpus.overlong", ""),
    "filter_overlong_prompts": ("data.corpus.prompt_tokens", ""),
    "random_seed": ("seed", ""), "window_pattern": ("model.window", ""), "aspect_ratio": ("model.aspect", ""),
    **_all(_PATIENCE, "early_stopping_patience early_stopping"),
    **_all(_TRACK, "wandb wandb_run wandb_log report_to logger enable_wandb wandb_watch"),
    **_all(_PROJECT, "wandb_project project_name"),
    **_all(_NAME, "wandb_run_name wandb_name run_name experiment_name model_tag run"),
    **_all(_FOLDER, "out_dir output_dir save_dir checkpoint_dir dump_folder default_local_dir checkpoint.folder"),
    **_all(_SAMPLES, "num_generations rollout.n n_samples_per_prompt group_size"),
    **_all(_PROMPTS, "generation_batch_size rollout_batch_size"),
    **_all(_UPDATES, "steps_per_generation ppo_mini_batch_size ppo_epochs"),
    **_all(_ANSWER, "max_completion_length max_response_length max_new_tokens eval_max_new_tokens"),
    "max_prompt_length": (f"{_RL}.prompt_tokens", ""), "temperature": (f"{_RL}.temperature", ""),
    **_all(_KL, "beta kl_coef kl_loss_coef use_kl_loss use_kl_in_reward init_kl_coef"),
    **_all(_LOWER, "epsilon clip_ratio clip_ratio_low cliprange eps_clip"), **_all(_HIGHER, "epsilon_high clip_ratio_high"),
    **_all((f"{_RL}.loss", ""), "loss_type loss_agg_mode"),
    **_all((f"{_RL}.scale", ""), "scale_rewards norm_adv_by_std_in_grpo"), "adv_estimator": (f"{_RL}.advantages", ""),
    "reward_weights": (f"{_RL}.rewards.weight", ""),
    **_all(_REWARD, "reward_funcs reward_function custom_reward_function.path"),
    "mask_truncated_completions": (f"{_RL}.mask_truncated", ""),
    **_all(_ENGINE, "use_vllm vllm_mode rollout.name"),
    **_all((f"{_RL}.engine_memory", ""), "gpu_memory_utilization vllm_gpu_memory_utilization"),
    **_all((f"{_RL}.engine_tensor", ""), "tensor_model_parallel_size vllm_tensor_parallel_size"),
    **_all((f"{_RL}.mismatch", ""), "vllm_importance_sampling_correction calculate_log_probs"),
}  # fmt: skip
"""Another's word, in small letters, or the last two parts of its path -> the key that means the same, and what to know of it."""

_ONE_RATE = (f"{STAGE}.learning_rate", "of all weights that are trained")
OF_KIND: dict[str, dict[str, tuple[str, str] | str]] = {
    "pretrain": {_MASTER: "weights that learn are fp32, and cast where they are multiplied"},
    "sft": {
        **dict.fromkeys((_RATE[0], f"{STAGE}.optimizer.embedding_lr", f"{STAGE}.optimizer.unembedding_lr"), _ONE_RATE),
        _CLIP[0]: "gradients are scaled down to a norm of 1",
        _DECAY[0]: "there is none when fine-tuning",
        _ATTENTION[0]: (f"{STAGE}.attention", ""),
        f"{STAGE}.tokens_per_parameter": _EPOCHS,
    },
    "rl": {
        **dict.fromkeys((_RATE[0], f"{STAGE}.optimizer.embedding_lr", f"{STAGE}.optimizer.unembedding_lr"), _ONE_RATE),
        f"{STAGE}.tokens_per_parameter": _STEPS,
        _CLIP[0]: "gradients are scaled down to a norm of 1",
        _DECAY[0]: "there is none in reinforcement learning",
        _BATCH[0]: (f"{STAGE}.prompts", "each with `samples` answers, over `updates` steps"),
        _EVERY[0]: (f"{STAGE}.answers.every", "with its unit: '5 steps'"),
        _SEEN[0]: (f"{STAGE}.answers.prompts", ""),
        _ATTENTION[0]: (f"{STAGE}.attention", ""),
        _DTYPE[0]: "learners compute in bf16, on a CPU in fp32",
    },
}
"""What a key is in stages of a kind that has it under another name: a key, or why there is none."""

PATHS: dict[str, tuple[str, str]] = {
    "layout.precision": _DTYPE,
    **dict.fromkeys(("base", "inherits", "parent", "inherit", "include"), ("extends", "a recipe's name or file")),
}  # fmt: skip
"""Whole paths of keys that mean something else elsewhere -> the key, and what to know about it."""

_DRAWN = "answers are drawn from all that the policy would say, since it learns from their probabilities"
_PACKED = "sequences are packed without padding, whatever their lengths"
_SINGLE = "sequences are not split over GPUs"
_FOUND = "GPUs are used where there are some, with NCCL; CUDA_VISIBLE_DEVICES hides them"
_FIXED = "AdamW's betas and epsilon are fixed; Muon's momentum is stages.pretrain.optimizer.momentum"
_KEPT = "every step is kept, in metrics.sqlite and tensorboard/ of the run's folder"
_RESUMED = "`windtunnel train --resume RUN` goes on with a run"
_WRITTEN = "`windtunnel export RUN --to FOLDER` writes safetensors"
_OPTIMIZER = "matrices are trained by Muon, the rest by AdamW; when fine-tuning all by AdamW"
_DROPOUT = "there is none: data that repeat too often are told of, and a run that overfits ends (bands.overfit_patience)"
ABSENT = {
    **dict.fromkeys(("dropout", "lora_dropout", "attention_dropout"), _DROPOUT),
    "bias": "linear layers have none",
    "tie_weights": "embedding and head are two matrices",
    "entropy_coeff": "there is no bonus for entropy",
    "sync_ref_model": "the reference is the policy that the stage began with, and stays it",
    "wandb_entity": "it is wandb's own variable, WANDB_ENTITY",
    "target_flops": "a run is limited by its tokens, steps, epochs, hours or dollars",
    **dict.fromkeys(("label_smoothing_factor", "neftune_noise_alpha"), "there is none"),
    **dict.fromkeys(
        ("num_workers", "dataloader_num_workers", "dataset_num_proc"),
        "data are prepared before the run, and one thread of each rank copies them ahead",
    ),
    **dict.fromkeys(("top_p", "top_k"), _DRAWN),
    **dict.fromkeys(
        ("packing", "sample_packing", "padding_free", "group_by_length", "pad_to_sequence_len", "use_remove_padding"), _PACKED
    ),
    **dict.fromkeys(("context_parallel_degree", "ulysses_sequence_parallel_size", "cp"), _SINGLE),
    **dict.fromkeys(("device", "device_type", "backend", "accelerator"), _FOUND),
    **dict.fromkeys(("beta1", "beta2", "adam_beta1", "adam_beta2", "betas", "eps", "adam_epsilon"), _FIXED),
    **dict.fromkeys(("log_interval", "logging_steps", "log_freq", "log_every", "enable_tensorboard"), _KEPT),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "resume_from_step", "resume_mode"), _RESUMED),
    **dict.fromkeys(("eval_only", "do_eval", "inference_only"), "`windtunnel evaluate RUN` measures a run"),
    **dict.fromkeys(("push_to_hub", "hub_model_id", "save_safetensors", "save_hf"), _WRITTEN),
    **dict.fromkeys(("load_best_model_at_end", "metric_for_best_model"), "the best checkpoint by validation loss is taken"),
    **dict.fromkeys(("async_mode", "async_save"), "checkpoints are written beside the training"),
    **dict.fromkeys(("optim", "optimizer", "optimizer_type", "optimizer.name", "matrix_optimizer"), _OPTIMIZER),
}
"""Words for what a recipe does not have -> why."""

VALUES: dict[str, dict[str, str]] = {
    "shard": {
        "zero3": "full", "zero-3": "full", "fsdp": "full", "fsdp2": "full", "3": "full", "full_shard": "full",
        "hybrid_shard": "full", "shard_grad_op": "optimizer", "no_shard": "none", "2": "optimizer", "1": "optimizer", "0": "none",
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
    "states": {
        "8bit": "int8", "8-bit": "int8", "float32": "fp32", "bfloat16": "bf16", "paged_adamw_8bit": "int8",
        "adamw_8bit": "int8",
    },
    "recompute": {"full": "block", "true": "block", "on": "block", "selective": "block", "false": "none", "off": "none"},
    "offload": {"cpu": "optimizer", "true": "optimizer", "false": "none"},
    "mlp": {"relu^2": "relu2", "squared_relu": "relu2", "silu": "swiglu", "llama": "swiglu", "geglu": "swiglu", "gelu": "relu2"},
    "kind": {
        "char": "character", "characters": "character", "jsonl": "text", "json": "text", "parquet": "text", "csv": "text",
        "txt": "text", "chat": "conversations", "sharegpt": "conversations", "alpaca": "conversations", "hf": "huggingface",
        "transformers": "huggingface", "llama": "huggingface", "transformer": "gpt", "gpt2": "folder", "sentencepiece": "folder",
        "tiktoken": "folder", "bytes": "bpe", "grpo": "rl", "ppo": "rl", "finetune": "sft", "pretraining": "pretrain",
    },
    "targets": {"all-linear": "all", "qkv": "attention"},
    "attention": {
        "flash_attention_2": "varlen", "flash_attention_3": "flash4", "sdpa": "auto", "eager": "mask",
        "flex_attention": "flex",
    },
    "loss": {
        "assistant": "answers", "assistant_only": "answers", "completion": "answers", "full": "all", "bnpo": "dapo",
        "ppo": "grpo",
    },
    "overlong": {"delete": "drop", "error": "refuse"},
    "format": {"openai": "messages", "chatml": "messages", "instruction": "alpaca", "csv": "auto", "json": "jsonl"},
    "scale": {"std": "group", "true": "group", "batch": "group", "false": "none", "off": "none"},
    "engine": {"hf": "transformers", "sglang": "vllm", "colocate": "in-turn", "server": "vllm"},
    "advantages": {"rloo": "leave-one-out", "loo": "leave-one-out", "grpo": "group", "gae": "group"},
    "mismatch": {"tis": "truncate", "icepop": "mask", "none": "ignore", "off": "ignore"},
}  # fmt: skip
"""Last part of a key -> what others write there -> the value that is the same or the nearest to it."""
NOTHING = frozenset({"none", "nil", "off", "no", "n/a", "unlimited", "inf", "infinite", "false", "-1"})
# Of a sequence or a vocabulary, where powers of two are meant.
_THOUSANDS = {"k": 1024, "m": 1024**2}
_OF_TOKENS = ("sequence", "vocab_size", "prompt_tokens", "answer_tokens", "tokens")


def same_key(path: str, value: Any = None, stages: Mapping[str, str] | None = None) -> str:
    """Say which key means what an unknown one says, or those that stand in an unknown section; '' where nothing is known.

    Args:
        path: the whole key, or its last part.
        value: what stands there: of a section, its keys are looked up before its name.
        stages: names of the stages that train and their kinds; a stage's key is told of those it may stand in.
    """
    stages = stages or {"pretrain": "pretrain"}
    if path in PATHS:
        return _told(path.rpartition(".")[2], PATHS[path], stages)
    before, _, word = path.rpartition(".")
    owner = before.rpartition(".")[2]
    # `stages.pretrain.x`: the stage's own name says nothing of what x is.
    owner = "" if before.startswith("stages.") and before.count(".") == 1 else owner
    told = list(_below(word, value, stages)) if isinstance(value, dict) else []
    return "; ".join(dict.fromkeys(told or _known(owner, word, stages)))


def _below(owner: str, section: dict[Any, Any], stages: Mapping[str, str]) -> Iterator[str]:
    """Yield what is known of the keys of a section, and of those below."""
    for word, value in section.items():
        if isinstance(value, dict):
            yield from _below(str(word), value, stages)
        else:
            yield from _known(owner, str(word), stages)


def _known(owner: str, word: str, stages: Mapping[str, str]) -> Iterator[str]:
    name = word.lower().replace("-", "_")
    for known in (f"{owner.lower()}.{name}", name):
        if known in ABSENT:
            yield f"{word}: {ABSENT[known]}"
        elif known in KEYS:
            yield _told(word, KEYS[known], stages)
        else:
            continue
        return


def _told(word: str, meant: tuple[str, str], stages: Mapping[str, str]) -> str:
    """Write one key for each kind of stage that the recipe has, under the names that it gives them."""
    if not meant[0].startswith("stages."):
        return _line(word, [meant[0]], meant[1])
    rl = [name for name, kind in stages.items() if kind == "rl"]
    if meant[0].startswith(f"{_RL}."):
        rest = meant[0].removeprefix(_RL)
        note = meant[1] if rl else "of a stage of kind rl"
        return _line(word, [f"stages.{name}{rest}" for name in rl] or [meant[0]], note)
    found: dict[tuple[str, str] | str, list[str]] = {}
    for name, kind in stages.items():
        found.setdefault(OF_KIND.get(kind, {}).get(meant[0], meant), []).append(name)
    lines = [
        f"{word}: {known}"
        if isinstance(known, str)
        else _line(word, [known[0].replace("NAME", name) for name in names], known[1])
        for known, names in found.items()
    ]
    return "; ".join(lines)


def _line(word: str, keys: Sequence[str], note: str) -> str:
    return f"{word} is {' or '.join(keys[:2])} here" + (f" ({note})" if note else "")


def same_value(key: str, value: Any, *, nullable: bool) -> str:
    """Return the value that is nearest to one that is refused, as it is written in a recipe; '' where none is known.

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
    if key in _OF_TOKENS and isinstance(value, str) and text[-1:] in _THOUSANDS and text[:-1].replace(".", "", 1).isdigit():
        count = float(text[:-1]) * _THOUSANDS[text[-1]]  # 4k of a sequence are 4,096 tokens
        return str(int(count)) if count.is_integer() else ""
    return ""
