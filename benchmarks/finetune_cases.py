"""What benchmarks/finetune_peers.py has both sides train: models by their configs, batches, and generated conversations."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMOLLM2 = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"},
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "bos_token_id": 1,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
TINY = SMOLLM2 | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "initializer_range": 0.2,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What both sides train.

    Attributes:
        config: a config.json. batch: sequences of a step. lora: rank of the adapters on all linear layers, None: all weights.
        recompute: blocks are computed again in the backward pass. master: fp32 weights; False: bf16 weights in place.
        whole: every sample fills a sequence; else conversations of many lengths are packed.
        attention: transformers' name of the attention that TRL uses.
    """

    config: dict[str, Any]
    batch: int
    sequence: int
    lora: int | None = None
    recompute: bool = False
    master: bool = True
    whole: bool = False
    steps: int = 30
    warm: int = 10
    rate: float = 1e-4
    attention: str = "sdpa"


CASES = {
    "tiny": Case(TINY, 4, 256, steps=5, warm=0, rate=1e-2),
    "smollm2-whole": Case(SMOLLM2, 16, 2048, whole=True, steps=160, warm=80),
    "smollm2-packed": Case(SMOLLM2, 16, 2048, steps=160, warm=80, attention="flash_attention_4"),
    "qwen-lora-whole": Case(QWEN, 4, 4096, lora=16, recompute=True, whole=True, steps=14, warm=4),
    "qwen-lora-packed": Case(QWEN, 4, 4096, lora=16, recompute=True, steps=14, warm=4, attention="flash_attention_4"),
    "qwen-full-whole": Case(QWEN, 4, 4096, recompute=True, master=False, whole=True, steps=14, warm=4),
    "qwen-full-packed": Case(QWEN, 4, 4096, recompute=True, master=False, steps=14, warm=4, attention="flash_attention_4"),
}


def write_samples(case: Case, folder: Path, seed: int = 7) -> None:
    """Write conversations, a tokenizer and a config: what both sides read.

    Lengths are log-normal as those of instruction data are (median 300 tokens, a tenth above 900); a word is a token, so that
    lengths are what they are drawn to be. A third of a conversation is its question.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    draw = random.Random(seed)
    words = [f"w{i}" for i in range(min(case.config["vocab_size"], 30_000) - 10)]
    vocab = {token: i for i, token in enumerate(["<unk>", "<|im_start|>", "<|im_end|>", *words])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    (folder / "model").mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "model" / "tokenizer.json"))
    (folder / "model" / "config.json").write_text(json.dumps(case.config))
    special = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<|im_end|>", "unk_token": "<unk>"}
    template = (
        "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
        "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **special}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    if case is CASES["tiny"]:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(seed)
        config = {k: v for k, v in case.config.items() if k != "architectures"}
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder / "model")
    wanted = case.batch * case.sequence * (1 if case is CASES["tiny"] else case.steps + 2)
    with open(folder / "talks.jsonl", "w", encoding="utf-8") as out:
        total = 0
        while total < wanted:
            length = case.sequence + 8 if case.whole else int(min(case.sequence - 12, max(16, draw.lognormvariate(5.7, 0.85))))
            asked = 4 if case.whole else length // 3
            text = [draw.choice(words) for _ in range(length)]
            talk = [("user", text[:asked]), ("assistant", text[asked:])]
            out.write(json.dumps({"messages": [{"role": r, "content": " ".join(t)} for r, t in talk]}) + "\n")
            total += min(length + 6, case.sequence)
