"""Tokenizers and chat templates as transformers reads them from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .bpe import BOS_TEXT
from .subwords import Folder, Subwords
from .templates import ChatTemplate, end_of_answer
from .tokenizer import Characters, Tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
    """Write a tokenizer, and the template that a model was trained with if any, as transformers reads them."""
    end = end_of_answer(tokenizer, template)
    if isinstance(tokenizer, Folder):
        tokenizer.export(folder)
        if template is None or template.name == "model":
            return
        # What is trained ends its answers by this template, not by the one that came with the tokenizer.
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if name in tokenizer.files or name == "tokenizer_config.json":
                settings = json.loads(tokenizer.files.get(name, '{"tokenizer_class": "PreTrainedTokenizerFast"}'))
                settings.pop("chat_template", None)
                _write_json(folder / name, settings | {"eos_token": tokenizer.text_of(end)})
    else:
        (folder / "tokenizer.json").write_text(_hub_tokenizer(tokenizer), encoding="utf-8")
        ends = BOS_TEXT if end == tokenizer.bos or not isinstance(tokenizer, Subwords) else tokenizer.text_of(end)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS_TEXT, "eos_token": ends}
        _write_json(folder / "tokenizer_config.json", settings | {"clean_up_tokenization_spaces": False})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template.alone, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _hub_tokenizer(tokenizer: Tokenizer) -> str:
    """Return a tokenizer that was made here as a tokenizer.json: BOS stands before every text."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    if isinstance(tokenizer, Subwords):
        inner = tokenizers.Tokenizer.from_str(tokenizer.content)
    else:
        assert isinstance(tokenizer, Characters)
        vocab = {BOS_TEXT: tokenizer.bos} | {character: i + 1 for i, character in enumerate(tokenizer.alphabet)}
        inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=BOS_TEXT))
        inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        inner.add_special_tokens([BOS_TEXT])
    # In training BOS stands before every document, so it has to stand before what is asked.
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BOS_TEXT} $A", pair=f"{BOS_TEXT} $A $B", special_tokens=[(BOS_TEXT, tokenizer.bos)]
    )
    return str(inner.to_str(pretty=False))
