"""Code is found in an answer as Markdown has it."""

from __future__ import annotations

import pytest

from windtunnel.verify.code.fences import source_of

CODE = "def f(x):\n    return x * x\n"
IN_LIST = "".join(f"   {line}\n" for line in CODE.splitlines())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (f"1. So:\n   ```python\n{IN_LIST}   ```\n2. Done.", CODE),
        (f"1. So:\n   ```python\n{CODE}   ```", CODE),
        ("- ```py\n  def f(x):\n      return x * x\n  ```", CODE),
        ("- a\n\t```py\n\tdef f():\n\t    pass\n\t```", "def f():\n    pass\n"),
        (f"~~~python\n{CODE}~~~\n", CODE),
        (f"~~~~ python\n{CODE}~~~\n~~~~\n", f"{CODE}~~~\n"),
        (f"````python\n{CODE}```\n````\nIt prints:\n```\n9\n```\n", f"{CODE}```\n"),
        (f"```` ``` ````\n```python\n{CODE}```", CODE),
        (f"```{{.python}}\n{CODE}```", CODE),
        (f"```{{python}}\n{CODE}```\n```{{r}}\nno\n```", CODE),
        (f"```{{ .python .numberLines }}\n{CODE}```", CODE),
        (f"```python\n{CODE}", CODE + "\n"),
        (f"```python\nno\n```\n```\nno\n```\n```python\n{CODE}", CODE + "\n"),
        (f"```\n{CODE}", CODE + "\n"),
        (f"```python\nno\n```python\n{CODE}```", CODE),
        (f"```python\n{CODE}```Done.\n```\n9\n```", CODE),
        (f"```python\n{CODE}```\n```", CODE),
        (f"```\n{CODE}```\n```\nDone", CODE),
        (f"```markdown\nSo:\n```python\n{CODE}```\n```", CODE),
        (f"```python\r\n{CODE}```\r\n", CODE),
        ("```python\nno\n```\nand\n```python\n", "\n"),
        ("```ruby\nno", "```ruby\nno"),
    ],
)  # fmt: skip
def test_fences_are_read_as_markdown_has_them(answer: str, code: str) -> None:
    assert source_of(answer) == code


@pytest.mark.parametrize(
    "code",
    [
        'def f(x):\n    """Square.\n\n    ```python\n    f(3)\n    ```\n    """\n    return x * x\n',
        'def f(x):\n  """Square.\n\n  ```\n  f(3)\n  ```\n  """\n  return x * x\n',
        '"""\nSquares\n~~~~~~~\n"""\ndef f(x): return x * x\n',
        'def f(x): return x * x\nTEXT = """\n~~~python\n"""\n',
    ],
)
def test_fences_in_the_text_of_code_are_a_part_of_it(code: str) -> None:
    assert source_of(code) == code
    assert source_of(f"So:\n```python\n{code}```\nDone.") == code
    assert source_of(f"````\n{code}````") == code
