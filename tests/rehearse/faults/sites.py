"""Healthy sites: recipes with small data of their own, on which every check passes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from planting import Site

WORDS = """
the of a to in is was he for it with as his on be at by had not are but from or have an they which one you were her all she
there would their we him been has when who will more no if out so said what up its about into than them can only other new
some could time these two may then do first any my now such like our over man me even most made after also did many before
must through years where much your way well down should because each just those people how too little state good very make
world still own see men work long get here between both life being under never day same another know while last might us
great old year off come since against go came right used take three
"""


def sentences(number: int, seed: int, words: int = 40) -> list[str]:
    """Paragraphs of random words, none like another."""
    draw, known = random.Random(seed), WORDS.split()
    return [
        " ".join(draw.choice(known) for _ in range(draw.randint(words // 2, words * 2))).capitalize() + "." for _ in range(number)
    ]


def text_recipe(files: list[str], **data: Any) -> dict[str, Any]:
    """A small GPT on text files whose documents are separated by blank lines."""
    return {
        "name": "mine",
        "model": {"depth": 4, "sequence": 256},
        "data": {"corpus": {"kind": "text", "files": files, "separator": "\n\n"}, "validation": 0.05, **data},
        "stages": {"pretrain": {"batch_tokens": 8192, "validate_every": "50 steps", "schedule": {"warmup_steps": 20}}},
        "budget": {"steps": 400},
        "checkpoints": {"every": "100 steps"},
    }


def charlm(site: Site) -> None:
    """charlm with so many documents that none is repeated often."""
    site.set("data.corpus.documents=100M")


def text(site: Site) -> None:
    """A GPT on two files of text."""
    site.on = "1xH100"
    documents = sentences(3000, seed=1)
    site.file("books/a.txt", "\n\n".join(documents[:1500]))
    site.file("books/b.txt", "\n\n".join(documents[1500:]))
    site.recipe = text_recipe(["books/*.txt"])


def rewrite(site: Site, change: Any) -> None:
    """Change the documents of both files: `change` takes the list and gives another."""
    for name in ("books/a.txt", "books/b.txt"):
        path = site.folder / name
        path.write_bytes("\n\n".join(change(path.read_text().split("\n\n"))).encode())


def question(number: int) -> dict[str, str]:
    """A record whose input and answer belong to it alone."""
    left, right = 100 + number, 7 * number % 97
    return {"prompt": f"What is {left} plus {right}?", "answer": f"It is {left + right}, of course."}


def records(site: Site) -> None:
    """Supervised fine-tuning of a Hugging Face model on JSON lines."""
    site.lines("train.jsonl", [question(i) for i in range(300)])
    model(site)
    site.recipe = {
        "name": "tuned",
        "model": {"kind": "huggingface", "config": str(site.folder / "model"), "sequence": 512, "adapter": {"rank": 8}},
        "data": {"corpus": {"kind": "text", "files": ["train.jsonl"]}},
        "stages": {"sft": {"batch_tokens": 8192}},
        "budget": {"steps": 8},
    }
    site.on = "1xH100"


CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
    "max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


def model(site: Site) -> None:
    """A folder with config.json, a byte-level tokenizer and a ChatML template."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(sentences(200, seed=3), trainer)
    site.file("model/config.json", json.dumps(CONFIG))
    inner.save(str(site.folder / "model" / "tokenizer.json"))
    settings = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>", "chat_template": TEMPLATE}
    site.file("model/tokenizer_config.json", json.dumps(settings))


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


REWARD = """
import re

def reward(prompt, answer, truth):
    found = re.findall(r"<answer>([^<]{0,100})</answer>", answer)
    return 1.0 if truth is not None and len(found) == 1 and found[0].strip() == truth else 0.0
"""


def example(left: int, right: int) -> dict[str, Any]:
    """A sum with a right answer and wrong ones, as the reward expects them."""
    total = left + right
    return {
        "prompt": f"What is {left} + {right}?",
        "good": f"<answer>{total}</answer>",
        "bad": [f"<answer>{total + 1}</answer>", str(total)],
        "truth": str(total),
    }


def rewarded(site: Site) -> None:
    """Reinforcement learning with a sound reward and examples for it."""
    site.file("reward.py", REWARD)
    site.lines("examples.jsonl", [example(12, 30), example(7, 8), example(250, 1)])
    site.recipe = {
        "name": "rewarded",
        "model": {"kind": "huggingface", "config": "qwen2.5-0.5b", "sequence": 4096},
        "data": {"corpus": {"kind": "counted", "tokens": "1M"}},
        "stages": {"rl": {"prompts": 16, "samples": 4, "reward": "reward.py:reward", "reward_examples": "examples.jsonl"}},
        "budget": {"steps": 50},
    }
