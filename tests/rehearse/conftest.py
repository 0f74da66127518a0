"""A tiny model that chats, in a folder as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from windtunnel.data.bpe import CHATML_END, CHATML_START, train_bpe

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Llama with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    texts = [f"What is {i}+{3 * i}? Answer with the number alone.\nuser assistant" for i in range(300)]
    train_bpe(texts, 400, (CHATML_START, CHATML_END)).save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": CHATML_END, "bos_token": CHATML_START, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
