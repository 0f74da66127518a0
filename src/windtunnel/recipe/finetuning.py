"""The parts of a recipe that deal with Hugging Face models: the model, its adapter, its layout, fine-tuning and RL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section
from .units import Count


class LoRA(Section):
    """Low-rank adapters on the linear layers of the blocks (Hu et al. 2021); the base weights are frozen."""

    rank: int = Field(16, ge=1, le=1024)
    alpha: float = Field(32.0, gt=0, description="the adapter's output is scaled by alpha / rank")
    targets: Literal["attention", "all"] = Field("all", description="attention's projections, or those of the MLPs too")


class HuggingFaceModel(Section):
    """A causal language model as its config.json describes it."""

    kind: Literal["huggingface"] = "huggingface"
    config: str = Field(min_length=1, description="a built-in name such as qwen2.5-7b, a config.json, or a folder with one")
    sequence: int = Field(4096, ge=8, description="tokens per packed training sequence")
    adapter: LoRA | None = Field(None, description="null: every weight is trained")
    weights: Literal["bf16", "fp8", "int8", "int4"] = Field(
        "bf16", description="how the base weights are held; less than bf16 is for frozen weights under an adapter"
    )


class LayoutChoice(Section):
    """How the work is spread. null: the plan searches."""

    shard: Literal["none", "optimizer", "full"] | None = Field(
        None, description="over data-parallel ranks: nothing (DDP), optimizer states (ZeRO-1/2), weights too (FSDP2, ZeRO-3)"
    )
    tensor: int | None = Field(None, ge=1, description="ranks that share each matrix")
    expert: int | None = Field(None, ge=1, description="ranks that share the experts of a layer")
    pipeline: int | None = Field(None, ge=1, description="ranks that share the layers")
    recompute: Literal["none", "step", "block"] | None = Field(
        None,
        description="'block' keeps only the input of each block and computes the rest again; "
        "'step' (recursive models) the states between supervision steps",
    )
    offload: Literal["none", "optimizer"] | None = Field(None, description="'optimizer' keeps optimizer states in CPU memory")


class FineTune(Section):
    """Train a Hugging Face model on packed sequences: all weights, or the adapter's."""

    batch_tokens: Count = Field(131_072, ge=1, description="tokens per optimizer step over all ranks")
    micro_batch: int | None = Field(None, ge=1, description="sequences per rank per forward pass; null: the plan's")
    precision: Literal["auto", "bf16", "fp8"] = "auto"
    compile: bool = Field(True, description="torch.compile of each block")
    states: Literal["fp32", "bf16", "int8"] = Field("fp32", description="precision of AdamW's two moments")
    master: bool = Field(True, description="fp32 master weights; false: bf16 weights are updated in place")
    learning_rate: float | None = Field(None, gt=0, description="null: 1e-5 for all weights, 2e-4 for an adapter")


class GRPO(Section):
    """Reinforcement learning: engines answer, verifiers reward, learners update; one optimizer step or more per round."""

    prompts: int = Field(64, ge=1, description="prompts per round")
    samples: int = Field(8, ge=2, description="answers per prompt")
    prompt_tokens: Count = Field(512, ge=1, description="most tokens of a prompt")
    answer_tokens: Count = Field(4096, ge=1, description="most tokens of an answer")
    mean_answer: float = Field(0.5, gt=0, le=1, description="expected mean length of an answer as a share of the most")
    updates: int = Field(1, ge=1, description="optimizer steps per round")
    reference: bool = Field(False, description="a frozen reference policy for a KL penalty")
    learners: int | None = Field(None, ge=1, description="GPUs that learn; null: the plan's")
    engines: int | None = Field(None, ge=1, description="GPUs that generate; null: the rest")
    engine_tensor: int | None = Field(None, ge=1, description="GPUs that share one engine's weights; null: the fewest that do")
    engine_memory: float = Field(0.9, gt=0, lt=1, description="share of an engine's GPU for weights and KV cache")
    engine_weights: Literal["bf16", "fp8"] = "bf16"
    overlap: bool = Field(False, description="engines generate the next round while learners update (one round stale)")
    micro_batch: int | None = Field(None, ge=1, description="packed sequences per learner per forward pass; null: the plan's")
    states: Literal["fp32", "bf16", "int8"] = Field("fp32", description="precision of AdamW's two moments")
    master: bool = Field(True, description="fp32 master weights")
    compile: bool = True
    learning_rate: float = Field(1e-6, gt=0)
    reward: str | None = Field(None, pattern=r"^.+:[A-Za-z_]\w*$", description="the user's reward: 'file.py:function'")
    reward_examples: str | None = Field(
        None,
        min_length=1,
        description="JSON lines with prompt, good, bad and perhaps truth: answers that the reward must tell apart",
    )
