"""Generated kernel tasks: the same for a seed, held out by combination of operators, as conversations and as prompts."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.data import PromptFile, conversation_files, draw_tasks, prepare
from windtunnel.data.kernels import KernelTask, combinations, describe
from windtunnel.data.kernels_write import write_task
from windtunnel.recipe import BPETokenizer, ConversationCorpus, KernelTasks, PromptCorpus, Recipe, UserError, load_recipe
from windtunnel.verify import KernelVerifier, compiler_sandbox, kernel_sandbox, load_task

SHARE = 0.1


def recipe(corpus: Any, share: float = SHARE) -> Recipe:
    charlm = load_recipe("charlm")
    data = charlm.data.model_copy(update={"corpus": corpus, "tokenizer": BPETokenizer(vocab_size=600), "validation": share})
    return charlm.model_copy(update={"data": data})


def drawn(tasks: int = 600, seed: int = 5, **more: Any) -> list[KernelTask]:
    return list(draw_tasks(KernelTasks(tasks=tasks, **more), seed))


def operators_in(source: str) -> int:
    """Calls and arithmetic on x in `forward`, and the layers' own biases."""
    forward = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "forward")
    return sum(isinstance(node, ast.Call | ast.BinOp) for node in ast.walk(forward))


def test_the_seed_decides_everything():
    first, again, other = drawn(), drawn(), drawn(seed=6)
    assert first == again
    assert len({task.written.reference for task in first}) == len(first) == 600
    assert sum(a.written == b.written for a, b in zip(first, other, strict=True)) < 60


def test_levels_are_shared_out_and_have_as_many_operators_as_they_say():
    tasks = drawn()
    for level, least, most in ((1, 1, 1), (2, 2, 3), (3, 2, 5)):
        found = [task for task in tasks if task.level == level]
        assert len(found) == 200
        assert {len(task.combination.split("+")) for task in found} <= set(range(least, most + 1))
    assert all(operators_in(task.written.reference) == 1 for task in tasks if task.level == 1)
    assert [task.level for task in drawn(30, levels=[2])] == [2] * 30


def test_one_combination_is_on_one_side_and_every_level_has_both():
    tasks = drawn(900)
    held = [task.key < SHARE * 2**64 for task in tasks]
    for level in (1, 2, 3):
        names = {
            side: {t.combination for t, h in zip(tasks, held, strict=True) if h is side and t.level == level}
            for side in (True, False)
        }
        assert all(names.values())
        share = len(names[True]) / len(names[True] | names[False])
        assert share == pytest.approx(SHARE, abs=0.05)
    sides: dict[str, set[bool]] = {}
    for task, side in zip(tasks, held, strict=True):
        sides.setdefault(task.combination, set()).add(side)
    assert all(len(side) == 1 for side in sides.values())


def test_few_tasks_have_held_out_ones_of_every_level_too():
    tasks = drawn(20)
    assert {task.level for task in tasks if task.key < 0.02 * 2**64} == {1, 2, 3}


def test_every_text_is_a_task_of_the_verifier(tmp_path: Path):
    for task in drawn(90):
        path = tmp_path / "task.py"
        path.write_text(task.written.source)
        read = load_task(path)
        assert (read.level, set(read.sizes)) == (task.level, {"tiny", "tiny_ragged", "full", "full_ragged"})
        assert "TASK" not in task.written.reference


MISH = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < total
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    e = tl.exp(LIMITED)
    x = x * e * (e + 2.0) / (e * (e + 2.0) + 2.0)
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        mish_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
"""


def test_a_kernel_that_overflows_for_large_inputs_is_refused(tmp_path: Path):
    # It is right for all that the task itself draws, and a model that was rewarded for it learned it.
    mish = next(one for one in combinations(1) if one.name == "mish")
    path = tmp_path / "task.py"
    path.write_text(write_task(describe(mish, 1, np.random.default_rng(1))).source)
    with kernel_sandbox() as box, compiler_sandbox() as compiler:
        verifier = KernelVerifier(load_task(path), box, compiler=compiler)
        right, wrong = (verifier.verify(MISH.replace("LIMITED", text)) for text in ("tl.minimum(x, 20.0)", "x"))
    assert right.accepted
    assert not wrong.accepted
    assert "large" in wrong.message


def test_every_combination_can_be_written():
    for level in (1, 2, 3):
        names = [one.name for one in combinations(level)]
        assert len(names) == len(set(names)) > 25
    assert "batchnorm+conv2d+relu" in names


def test_conversations_and_prompts_are_split_alike(tmp_path: Path):
    asked = KernelTasks(tasks=150)
    talks = prepare(recipe(ConversationCorpus(kernels=asked)), tmp_path)
    prompts = prepare(recipe(PromptCorpus(kernels=asked)), tmp_path)
    assert isinstance(prompts.train, PromptFile)
    assert isinstance(prompts.validation, PromptFile)
    assert sum(file.samples for file in conversation_files(talks)) == prompts.train.samples
    train, held = ([file.prompt(i) for i in range(file.samples)] for file in (prompts.train, prompts.validation))
    assert not {"+".join(p.data["operators"]) for p in train} & {"+".join(p.data["operators"]) for p in held}
    told = {task.name: task for task in drawn(150, recipe(None).seed)}
    for prompt in (*train[:5], *held[:5]):
        task = told[prompt.data["task"]["name"]]
        assert prompt.data["task"]["source"] == task.written.source
        assert task.written.reference.strip() in prompt.prompt
        assert task.written.answer not in prompt.prompt
    ids, learned = conversation_files(talks)[0].sample(0)
    said = talks.tokenizer.decode(ids[learned])
    assert said.startswith("Plan: ")
    assert "```python\nimport torch" in said


def test_without_a_plan_the_answer_is_code_alone(tmp_path: Path):
    talks = prepare(recipe(ConversationCorpus(kernels=KernelTasks(tasks=40, plan=False))), tmp_path)
    ids, learned = conversation_files(talks)[0].sample(0)
    assert talks.tokenizer.decode(ids[learned]).startswith("```python\nimport torch")


def test_kernels_stand_alone():
    for corpus in (ConversationCorpus, PromptCorpus):
        with pytest.raises(ValueError, match="kernels"):
            corpus(kernels=KernelTasks(), files=["a.jsonl"])


def test_a_share_too_small_for_the_tasks_is_refused(tmp_path: Path):
    few = KernelTasks(tasks=20, levels=[1])
    with pytest.raises(UserError, match="held out"):
        prepare(recipe(ConversationCorpus(kernels=few), share=0.001), tmp_path)
