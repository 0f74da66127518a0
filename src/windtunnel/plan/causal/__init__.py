"""Plans for Hugging Face causal language models: fine-tuning and GRPO. No torch."""

from .constants import CausalConstants, load_causal_constants
from .entry import plan_causal

__all__ = ["CausalConstants", "load_causal_constants", "plan_causal"]
