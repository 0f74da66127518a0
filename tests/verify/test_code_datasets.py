"""Code as people have it: tests in the forms of public data sets, programs of contests, values of derived classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from windtunnel.recipe import UserError
from windtunnel.verify.code import CodeTask, CodeVerifier, cases_of_asserts
from windtunnel.verify.sandbox import Sandbox
from windtunnel.verify.types import Verdict


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(preload=("windtunnel.verify.code.child",)) as made:
        yield made


def judge(sandbox: Sandbox, spec: dict[str, Any], source: str) -> Verdict:
    return CodeVerifier(CodeTask.of({"seconds": 20, **spec}), sandbox).verify(source)


CHECK = """
METADATA = {'author': 'x'}


def check(candidate):
    assert True, "This prints if this assert fails"
    assert candidate([1.0, 2.0], 0.3) == False, "why"
    assert abs(candidate([1.0], 1 / 3) - 1) < 1e-6
"""
HEAD = 'def f(x, y):\n    """Doc."""\n'
SUM = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
SOLUTION = "class Solution:\n def f(self, *x): return "
PAIRS: dict[str, Any] = {"inputs": [[1, 2], [3, 4]], "outputs": [3, [7]], "fn_name": "f"}
RECORDS = [{"input": "1 2", "output": "3", "testtype": "stdin"}, {"input": "3 4", "output": "7"}]
FUNCTIONAL = [{"input": '[1, 2]\n"a"\n', "output": "[2, 1]", "testtype": "functional"}]


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ({"asserts": CHECK, "entry_point": "f", "preface": HEAD}, "    return len(x) == 1"),
        ({"asserts": CHECK, "entry_point": "f", "preface": HEAD}, "def f(x, y):\n return len(x) == 1"),
        ({"asserts": f"{CHECK}\ncheck(f)"}, "def f(x, y): return len(x) == 1"),
        ({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]], "fn_name": None}, SUM),
        (PAIRS, "def f(x, y): return x + y"),
        (PAIRS, f"{SOLUTION}sum(x)"),
        ({"inputs": [[[1, 2]], [[3]]], "outputs": [[1, 2], [3]], "fn_name": "f"}, f"{SOLUTION}x[0]"),
        ({"cases": RECORDS}, SUM),
        ({"cases": FUNCTIONAL, "fn_name": "f"}, f"{SOLUTION}x[0][::-1]"),
        ({"cases": [{"args": [2], "expected": 4}], "entry_point": "Solution().f"}, f"{SOLUTION}x[0] * 2"),
    ],
)
def test_tests_are_taken_as_public_data_sets_write_them(sandbox: Sandbox, spec: dict[str, Any], source: str) -> None:
    verdict = judge(sandbox, spec, source)
    assert verdict.accepted, verdict
    wrong = f"def f(*args): return 5\nif __name__ == '__main__': print(5)\n{SOLUTION}5"
    assert judge(sandbox, {**spec, "preface": ""}, wrong).reason == "wrong-result"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": ["1"]}, "outputs is not a list"),
        ({"inputs": [1], "outputs": ["1"]}, r"inputs\[0\] is not text"),
        ({"inputs": [1], "outputs": ["1"], "fn_name": "f"}, r"inputs\[0\] is not a list"),
        ({**PAIRS, "fn_name": "f("}, r"fn_name is 'f\('"),
        ({**PAIRS, "fn_name": 3}, "fn_name is not text"),
        ({**PAIRS, "entry_point": "g"}, "twice"),
        ({"cases": FUNCTIONAL}, r"cases\[0\] tests a function without a name"),
        ({"cases": [{**FUNCTIONAL[0], "input": "{"}], "fn_name": "f"}, r"cases\[0\].input is not JSON"),
        ({"cases": [{**FUNCTIONAL[0], "testtype": "x"}]}, r"cases\[0\].testtype is not stdin or functional"),
        ({"asserts": CHECK}, r"check\(candidate\) is given nothing"),
        ({"cases": [{"function": "f", "args": [], "expected": "x" * 5_000_000}]}, "test 1: expected has 5,000,002 bytes"),
    ],
)
def test_what_is_wrong_with_a_data_sets_tests_is_named(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        CodeTask.of(spec)
    assert error.value.fix


@pytest.mark.parametrize(
    ("asserted", "source", "right"),
    [
        ("assert set(f((3, 4), (4, 5))) == set((4,))", "def f(a, b): return [4, 4]", True),
        ("assert set(f((3, 4), (4, 5))) == set((4,))", "def f(a, b): return [3, 4]", False),
        ("assert sorted(set(f(1))) == [1, 2]", "def f(a): return (2, 1, 1)", True),
        ("assert round(f(1), 2) == 0.33", "def f(a): return 1 / 3", True),
        ("assert round(f(1), 2) == 0.33", "def f(a): return 0.34", False),
        ("assert len(f(1)) == 2", "def f(a): return 'ab'", True),
        ("import math\nassert math.isclose(f(1), 2 * math.pi, rel_tol=0.001)", "def f(a): return 6.283", True),
        ("import math\nassert math.isclose(f(1), 2 * math.pi, rel_tol=0.001)", "def f(a): return 6.29", False),
        ("assert math.isclose(0.5, f(1))", "def f(a): return 0.5 + 1e-12", True),
        ("assert math.isclose(0.0, f(1))", "def f(a): return 1e-12", False),
        ("assert math.isclose(f(1), 1)", "def f(a): return 10 ** 400", False),
        ("assert math.isclose(f(1), 1)", "def f(a): return '1'", False),
        ("assert abs(f(1) - 2.0 / 3.0) < 1e-6", "def f(a): return 0.6666667", True),
        ("assert abs(f(1) - 5) < 1", "def f(a): return 6", False),
        ("assert abs(f(1) - 5) <= 1", "def f(a): return 6", True),
        ("assert abs(3 - f(1)) < 1e-6", "def f(a): return float('nan')", False),
        ("assert [1, 2] == f(1)", "def f(a): return [1, 2]", True),
        ("assert f(2 ** 10, [0] * 3) == float('inf')", "def f(a, b): return a * b[0] + float('inf')", True),
        ("assert f({1: -2}, x=set()) == list(range(2))", "def f(a, x): return [len(x), -a[1] - 1]", True),
    ],
)
def test_what_assertions_of_data_sets_have_around_a_call(sandbox: Sandbox, asserted: str, source: str, right: bool) -> None:
    assert judge(sandbox, {"asserts": asserted}, source).accepted is right


@pytest.mark.parametrize(
    "asserted",
    [
        "assert f('%9999999999d' % 1)",
        "assert f(2 ** 10 ** 10) == 1",
        "assert f('a' * 10 ** 9)",
        "assert f([[0] * 10 ** 4] * 10 ** 4)",
        "assert f(list(range(10 ** 9)))",
        "assert f([] * 10 ** 20)",
        f"assert f({' * '.join(['9 ** 30000'] * 400)})",
        "assert f(10 ** 30000 % 10 ** 10 ** 9)",
        "assert f(1 << 10 ** 9)",
        "assert f({**{1: 2}})",
        "assert f(open('x'))",
        "assert abs(f(1) - 'a') < 1",
        "assert len([1]) < 2",
        "assert f(1 / 0)",
        "def check(candidate):\n  for x in [1]:\n    assert candidate(x)\ncheck(f)",
    ],
)
def test_what_cannot_be_read_or_grows_is_bad_input_at_once(asserted: str) -> None:
    with pytest.raises(UserError) as error:
        cases_of_asserts(asserted)
    assert error.value.fix


CONTEST = """
import os, sys
from io import BytesIO, IOBase
class Fast(IOBase):
    def __init__(self, file):
        self.fd, self.buffer = file.fileno(), BytesIO()
        self.write = self.buffer.write if "x" in file.mode or "r" not in file.mode else None
    def readline(self):
        self.buffer = self.buffer if self.buffer.getvalue() else BytesIO(os.read(self.fd, os.fstat(self.fd).st_size))
        return self.buffer.readline()
    def flush(self):
        if self.write:
            os.write(self.fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class Wrapped(IOBase):
    def __init__(self, file):
        self.buffer = Fast(file)
        self.flush, self.write = self.buffer.flush, lambda s: self.buffer.write(s.encode("ascii"))
        self.readline = lambda: self.buffer.readline().decode("ascii")
sys.stdin, sys.stdout = Wrapped(sys.stdin), Wrapped(sys.stdout)
input = lambda: sys.stdin.readline().rstrip()
print(sum(map(int, input().split())))
"""


@pytest.mark.parametrize(
    "source",
    [
        CONTEST,
        "import sys, io\nsys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding='utf-8')\nprint(sum(map(int, input().split())))",
        "import sys, codecs\nsys.stdin = codecs.getreader('utf8')(sys.stdin.buffer)\nprint(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.__stdin__.read().split())))",
        "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))",
        "import sys\nsys.stdin.read()\nsys.stdin.seek(0)\nprint(sum(map(int, input().split())))",
        "import time\nfrom concurrent.futures import ThreadPoolExecutor as T\nwith T(32) as t:\n"
        " n = [*t.map(lambda x: time.sleep(0.05) or x, [*map(int, input().split()), *[0] * 40])]\nprint(sum(n))",
    ],
)
def test_programs_may_wrap_their_standard_input_as_contests_do(sandbox: Sandbox, source: str) -> None:
    verdict = judge(sandbox, {"cases": [{"stdin": "2 3\n", "stdout": "5\n"}]}, source)
    assert verdict.accepted, verdict


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from collections import Counter\ndef f(): return Counter('aab')", "{'a': 2, 'b': 1}"),
        ("from collections import defaultdict\ndef f(): return {1: defaultdict(list, a=[3])}", "{1: {'a': [3]}}"),
        ("from collections import OrderedDict\ndef f(): return OrderedDict(b=1, a=2)", "{'a': 2, 'b': 1}"),
        ("from typing import NamedTuple\nclass P(NamedTuple):\n a: int\n b: int\ndef f(): return P(3, 1)", "(3, 1)"),
        (
            "from enum import Enum, IntEnum\nclass A(IntEnum): X = 1\nclass B(str, Enum): X = 'b'\ndef f(): return [A.X, B.X]",
            "[1, 'b']",
        ),
        (
            "import numpy as np\ndef f(): return [np.int64(3), np.mean([3]), np.all([3]), np.str_('s')]",
            "[3, 3.0, True, 's']",
        ),
    ],
)
def test_what_derives_from_a_plain_class_is_the_value_that_it_holds(sandbox: Sandbox, source: str, expected: str) -> None:
    verdict = judge(sandbox, {"asserts": f"assert f() == {expected}"}, source)
    assert verdict.accepted, verdict


def test_a_bare_name_may_be_a_method_of_solution(sandbox: Sandbox) -> None:
    spec = {"asserts": "assert f(3) == 9"}
    assert judge(sandbox, spec, "class Solution:\n def f(self, x): return x * x").accepted
    assert judge(sandbox, spec, "class Solution:\n def f(self, x): return 0\ndef f(x): return x * x").accepted
    verdict = judge(sandbox, spec, "class Solution:\n def g(self, x): return x * x")
    assert verdict.reason == "no-function"
    assert "defines no function f" in verdict.message


def test_long_output_that_is_asked_for_may_be_printed_and_returned(sandbox: Sandbox) -> None:
    long = "x" * 3_000_000
    spec: dict[str, Any] = {"cases": [{"stdin": "", "stdout": long}, {"function": "f", "args": [], "expected": long}]}
    verdict = judge(sandbox, spec, "def f(): return 'x' * 3_000_000\nif __name__ == '__main__': print(f())")
    assert verdict.accepted, verdict
    verdict = judge(sandbox, {"asserts": "assert f() == 1"}, "def f(): return 'x' * 6_000_000")
    assert verdict.reason == "too-much-output"
    assert "too much came out: the reply" in verdict.message
