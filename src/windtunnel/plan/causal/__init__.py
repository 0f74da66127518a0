"""Plans for Hugging Face causal language models: fine-tuning and GRPO. No torch."""

from .constants import HFConstants, load_hf_constants
from .entry import plan_hf

__all__ = ["HFConstants", "load_hf_constants", "plan_hf"]
