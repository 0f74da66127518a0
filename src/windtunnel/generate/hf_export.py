"""A fine-tuned Hugging Face run written as a folder: the whole model, or peft's folder of its adapter alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from windtunnel.checkpoint import DTYPES, Exported, export_folder, write_export
from windtunnel.model import NewRows, holds_experts
from windtunnel.recipe import UserError

from .hf_run import ROWS, A, HubRun, Named, Rounding


def export_hub(run: HubRun, to: Path, *, dtype: str | None = None, adapter: bool = False) -> Exported:
    """Write a folder that transformers, vLLM and `windtunnel serve` load; an earlier export there is replaced.

    Args:
        run: the checkpoint.
        to: the folder, or model.safetensors in it.
        dtype: fp32, bf16 or fp16; None: bf16, of an adapter alone fp32.
        adapter: write peft's folder of the adapter alone, without the model beneath.

    Raises:
        UserError: `to` holds something else or cannot be written, weights are missing, or there is no adapter.
    """
    # Looked at before any weight is read: a wrong place should cost no minutes.
    target = export_folder(to)
    if adapter and run.base is None:
        raise UserError(f"--adapter: {run.run.path} trained every weight and has no adapter", "leave --adapter out")
    warnings, dtype, rounding = run.warnings, dtype or ("fp32" if adapter else "bf16"), Rounding()
    facts = {
        "run": run.run.path.name, "step": run.checkpoint.step, "validation_loss": run.checkpoint.validation_loss,
        "dtype": dtype,
    }  # fmt: skip
    if adapter:
        about, tensors = peft_adapter(run)
        config, stem = {"adapter_config.json": about}, "adapter_model"
        # Cast one by one as they are written: a whole adapter in two dtypes need not fit memory.
        wanted = getattr(torch, DTYPES[dtype])
        tensors = ((name, tensor.to(wanted)) for name, tensor in tensors)
        if run.model.weights.startswith("fp8"):
            warnings += (f"the adapter was trained beside fp8 weights: over {run.base} as it is it computes a little else",)
    else:
        config, stem = {"config.json": run.config(dtype), "generation_config.json": run.generation_config()}, "model"
        tensors = run.tensors(dtype, rounding)
    with tempfile.TemporaryDirectory() as text:
        run.write_text(Path(text))
        # config.json is there only by which AutoTokenizer knows the family; the model's own has more in it.
        beside = [path for path in sorted(Path(text).iterdir()) if path.name != "config.json"]
        made = write_export(target, tensors, config=config, beside=beside, facts=facts, stem=stem)
    files = tuple(sorted(set(made.files.values())))
    return Exported(target, run.checkpoint.step, made.bytes, files, dtype, warnings, rounding.share)


def peft_adapter(run: HubRun) -> tuple[dict[str, Any], Named]:
    """Return peft's adapter_config.json and its tensors, in fp32, by peft's names."""
    from peft import LoraConfig

    lora, part = run.model.adapter, run.checkpoint.part()
    assert lora is not None
    layers = sorted(name.removesuffix(A) for name in part.entries if name.endswith(A))
    if any(holds_experts(module) for module in run.hollow.modules()) and any(".mlp." in layer for layer in layers):
        raise UserError(
            f"--adapter: {run.run.path} adapts dense layers beside experts, and peft would take them for the experts",
            "leave --adapter out: the adapter is merged; or train with --set model.adapter.targets=attention",
        )
    # peft takes the ends of names too, if no other layer has them.
    short = {layer.rsplit(".", 1)[-1] for layer in layers}
    # Ends of names are shorter and what others write; but they must not match layers that have no adapter.
    linear = [name for name, module in run.hollow.named_modules() if isinstance(module, nn.Linear)]
    alike = sorted(name for name in linear if name.rsplit(".", 1)[-1] in short)
    new = NewRows.of(run.tokenizer)
    rows = sorted(name.removesuffix(ROWS) for name in part.entries if name.endswith(ROWS))
    alpha: Any = int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha  # peft says int and takes any number
    config = LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=sorted(short) if alike == layers else layers, lora_dropout=0.0,
        task_type="CAUSAL_LM", base_model_name_or_path=str(run.base), inference_mode=True,
        trainable_token_indices={name: list(range(new.first, new.end)) for name in rows} if new is not None else None,
    )  # fmt: skip
    content = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    named = (
        (f"base_model.model.{name.replace('.default.', '.').removesuffix('.default')}", tensor) for name, tensor in part.tensors()
    )
    # peft's enums and paths as the text that its own file has.
    return json.loads(json.dumps(content, default=str)), named
