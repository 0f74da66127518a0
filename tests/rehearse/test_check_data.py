"""What the checks of data, tokenizers and rewards compute: overlaps, profiles, templates of known families."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from windtunnel.check import CheckFailed, Evidence, Findings, all_checks
from windtunnel.data.checks import files
from windtunnel.data.checks_conversations import judge_template
from windtunnel.data.checks_splits import overlap
from windtunnel.data.checks_text import profile
from windtunnel.data.subwords import Folder
from windtunnel.data.survey import sample_documents
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rehearse import Context, run_checks, select
from windtunnel.verify.reward_process import Reward, RewardFailed, RewardProcess

BOS = 0


def split(documents: list[list[int]]) -> np.ndarray:
    return np.array([token for document in documents for token in (BOS, *document)], dtype=np.uint16)


documents = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=30)


@given(train=documents, held_out=documents)
@settings(max_examples=60)
def test_documents_in_both_splits_are_those_that_a_plain_comparison_finds(
    train: list[list[int]], held_out: list[list[int]]
) -> None:
    seen = overlap(split(train), split(held_out), BOS, 1.0)
    assert seen.documents == len(held_out)
    assert seen.same == sum(document in train for document in held_out)
    for first, last in seen.examples:
        assert split(held_out)[first:last].tolist() in train


def test_copies_with_small_changes_are_found_and_other_text_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.data import windows as data_windows

    monkeypatch.setattr(data_windows, "CHUNK", 50_000)  # documents go over the seams
    draw = random.Random(1)
    held_out = [[draw.randint(1, 200) for _ in range(draw.randint(300, 900))] for _ in range(60)]
    other = [[draw.randint(1, 200) for _ in range(600)] for _ in range(300)]
    copies = [[*document[:3], 7, *document[4:]] for document in held_out[:40]]
    seen = overlap(split([*other, *copies]), split(held_out), BOS, 1.0)
    assert (seen.same, seen.copied) == (0, 40)
    assert seen.judged == 60
    assert overlap(split(other), split(held_out), BOS, 1.0).copied == 0


def test_a_profile_counts_what_is_there(tmp_path: Path) -> None:
    texts = ["one two", "one two", "caf\ufffd\r\nline", " \n", "x" * 500]
    (tmp_path / "a.txt").write_bytes("\n---\n".join(texts).encode())
    recipe = load_recipe(
        "charlm", ["data.corpus.kind=text", f"data.corpus.files=[{tmp_path / 'a.txt'}]", 'data.corpus.separator="\\n---\\n"']
    )
    seen = profile(sample_documents(recipe, 10**6))
    assert (seen.documents, seen.bytes) == (5, sum(len(text.encode()) for text in texts))
    assert (seen.shortest, seen.longest, seen.blank) == (2, 500, 1)
    assert (seen.repeated, seen.copies, seen.most_repeated) == (pytest.approx(0.2), 2, "one two")
    assert (seen.replacements, seen.carriage_returns, seen.control) == (1, 1, 0)
    assert seen.common_line == "x" * 60 or seen.common_line == "one two"


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
def test_files_are_looked_at_unpacked(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    def look(content: bytes) -> Evidence:
        path = tmp_path / "a.packed"
        path.write_bytes(content)
        recipe = load_recipe("charlm", [f"data.corpus={{kind: text, files: [{path}]}}"])
        return files(cast("Context", SimpleNamespace(recipe=recipe)), lambda text: None)

    text = b"some words of a text\n" * 400
    assert "1 file" in look(packed(text)).text
    with pytest.raises(CheckFailed, match="within gzip or zstd"):
        look(packed(packed(text)))
    with pytest.raises(UserError, match="damaged"):
        look(packed(text)[:-9])


def test_a_sample_of_generated_sums_is_spread_over_the_corpus() -> None:
    recipe = load_recipe("charlm")
    batches = list(sample_documents(recipe, 10**9))
    assert sum(len(batch) for batch in batches) == 4 * 65_536
    assert len(np.unique(np.concatenate([batch.keys for batch in batches]))) > 200_000
    few = load_recipe("charlm", ["data.corpus.documents=1000"])
    assert sum(len(batch) for batch in sample_documents(few, 10**9)) == 1000


def test_the_users_text_is_read_whole_and_the_scale_model_gets_an_excerpt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    draw = random.Random(2)
    for name in "ab":
        lines = (" ".join(str(draw.randrange(10**6)) for _ in range(12)) for _ in range(25_000))
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    sets = ("data.corpus.kind=text", f"data.corpus.files=[{tmp_path}/*.txt]", 'data.corpus.separator="\\n\\n"')
    context = Context("charlm", (*sets, "data.tokenizer.alphabet=auto"), folder=tmp_path)
    made = {o.check: o for o in run_checks(select(all_checks(), ["data-splits", "data-amount"]), context, isolate=False)}
    facts = made["data"].facts
    assert facts["whole"]["documents"] == facts["profile"]["documents"] == 50_000
    assert facts["whole"]["train_tokens"] > 3_000_000 > facts["scale"]["train_tokens"]
    assert "counted" in made["data-amount"].evidence
    assert made["data-splits"].status == "ok"


# Chat templates as the families publish them, shortened where that changes nothing here.
LLAMA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role != 'system' %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
SMOLLM = (
    "{%- for message in messages -%}{%- if message.role == 'assistant' -%}{% generation %}"
    "{{- '<|im_start|>assistant\n' + message.content + '<|im_end|>\n' -}}{% endgeneration %}{%- else -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
SPECIAL = {
    LLAMA: ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
    QWEN: ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
    MISTRAL: ["<s>", "</s>"],
    SMOLLM: ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
}


def tokenizer(special: list[str]) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator([], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return inner


@pytest.mark.parametrize("template", [LLAMA, QWEN, MISTRAL, SMOLLM], ids=["llama", "qwen", "mistral", "smollm"])
def test_templates_of_known_families_pass(template: str) -> None:
    bos, eos, *_ = SPECIAL[template]
    inner, found = tokenizer(SPECIAL[template]), Findings()
    told = {"bos_token": bos, "eos_token": eos, "chat_template": template}
    judge_template(Folder(inner, {"tokenizer_config.json": json.dumps(told)}), {inner.token_to_id(eos)}, found, chats=True)
    made = found.evidence("fine")
    assert isinstance(made, Evidence)
    assert not made.warnings


def test_a_base_model_whose_template_ends_otherwise_is_named_where_it_chats() -> None:
    inner = tokenizer(SPECIAL[QWEN])
    for chats in (True, False):
        found = Findings()
        told = {"eos_token": "<|endoftext|>", "chat_template": QWEN}
        folder = Folder(inner, {"tokenizer_config.json": json.dumps(told)})
        judge_template(folder, {inner.token_to_id("<|endoftext|>")}, found, chats=chats)
        if chats:
            with pytest.raises(CheckFailed, match="never learns to stop"):
                found.evidence("")
        else:
            assert "never learns to stop" in found.evidence("").warnings[0]


def test_a_trained_bpe_gives_back_odd_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    sets = ("data.corpus.kind=stdlib", "data.corpus.megabytes=0.3", "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=400")
    context = Context("charlm", sets, folder=tmp_path)
    made = {o.check: o for o in run_checks(select(all_checks(), ["tokenizer"]), context, isolate=False)}["tokenizer"]
    assert made.status == "ok", made.evidence
    from windtunnel.data import BPE

    monkeypatch.setattr(BPE, "decode", lambda self, ids: "something else")
    again = {o.check: o for o in run_checks(select(all_checks(), ["tokenizer"]), context, isolate=False)}["tokenizer"]
    assert "comes back from the tokenizer as" in again.evidence


REWARD = """
import os, time

def reward(prompt, answer, truth):
    if answer == "exit":
        os._exit(7)
    if answer == "hang":
        time.sleep(60)
    print(answer)
    return len(answer)
"""


def test_a_reward_goes_on_after_it_crashed_or_hung(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(REWARD)
    with RewardProcess(tmp_path / "r.py", "reward", tmp_path, call_seconds=2.0) as reward:
        assert reward.call("p", "abc", None).value == 3.0
        died = reward.call("p", "exit", None)
        assert (died.value, died.ended) == (None, "died")
        assert "exit code 7" in died.problem
        hung = reward.call("p", "hang", "t")
        assert hung.ended == "hung"
        assert "did not come back within 2 s" in hung.problem
        assert reward.call("p", "x" * 300_000, None).value == 300_000.0
        assert reward.starts == 3
        assert reward.printed > 300_000
        first = reward.pid()
    assert not Path(f"/proc/{first}").exists()


def test_a_reward_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("x = 1\nimport nothing_like_this\n")
    with pytest.raises(RewardFailed, match=r"nothing_like_this.*line 2"):
        RewardProcess(tmp_path / "r.py", "reward", tmp_path)


@pytest.mark.parametrize(
    ("text", "says", "fix"),
    [
        ("def reward(p, a, t):\n    return 1.0\n  print(3\n", "r.py: line 3: unindent", "python -m py_compile {file}"),
        ("import broken\n", "line 1 of {folder}/broken.py: ", "python -m py_compile {folder}/broken.py"),
        ("import nothing_like_this\n", "nothing_like_this", "python {file} has to run to its end"),
        ("def score(p, a, t):\n    return 1.0\n", "it has no function reward; it has score", "after the colon: score"),
        ("reward = 3\n", "reward is a int, not a function", "define reward(prompt, answer, truth)"),
        ("import os\nos._exit(3)\n", "exit code 3", "importing the file should only define functions"),
    ],
)
def test_a_reward_that_cannot_be_loaded_says_what_to_do(tmp_path: Path, text: str, says: str, fix: str) -> None:
    file = tmp_path / "r.py"
    file.write_text(text)
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(RewardFailed) as failed:
        Reward(file, "reward", "stages.rl.reward").open(tmp_path)
    assert says.format(folder=tmp_path) in failed.value.message
    assert fix.format(file=file, folder=tmp_path) in failed.value.fix


def test_modules_beside_a_reward_can_be_imported_and_names_of_ours_do_not_get_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 0.25\n")
    (tmp_path / "r.py").write_text(
        "import types\nfrom helper import VALUE\n\ndef reward(p, a, t):\n    assert types.SimpleNamespace\n    return VALUE\n"
    )
    with RewardProcess(tmp_path / "r.py", "reward", tmp_path) as reward:
        assert reward.call("p", "a", None).value == 0.25
