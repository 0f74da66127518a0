"""Which part of an answer is the candidate."""

from __future__ import annotations

import pytest

from windtunnel.verify.kernel import candidate_of

CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
DOCUMENTED = '"""Used so:\n```python\nModelNew()(x)\n```\n"""\n' + CODE
ANSWERS = {
    "bare": (CODE, CODE),
    "a fence inside of it": (DOCUMENTED, DOCUMENTED),
    "prose around it": (f"So:\n```python\n{CODE}```\nIt is fused.", CODE),
    "an example behind it": (f"```python\n{CODE}```\nUse:\n```python\nModelNew()(x)\n```", CODE),
    "no code": ("Not today.", "Not today."),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_candidate_is_found_in_an_answer(name: str) -> None:
    answer, code = ANSWERS[name]
    assert candidate_of(answer) == code
