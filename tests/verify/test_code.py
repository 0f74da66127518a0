"""Code against hidden tests: what is right passes, and nothing else, whatever tricks it plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from windtunnel.verify.code import Call, CodeTask, CodeVerifier, Program, cases_of_asserts
from windtunnel.verify.sandbox import Limits, MiB, Sandbox

LIMITS = Limits(wall_seconds=120, cpu_seconds=1, memory_bytes=128 * MiB, result_bytes=4 * MiB, log_bytes=64 << 10)
SQUARE = (Call("f", [3], 9), Call("f", [-2], 4))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(preload=("windtunnel.verify.code.child",)) as made:
        yield made


def judge(sandbox: Sandbox, source: str, cases: Any = SQUARE, limits: Limits = LIMITS, **more: Any) -> Any:
    return CodeVerifier(CodeTask(cases, limits=limits, **more), sandbox).verify(source)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return x * x",
        "Here it is:\n```python\ndef f(x):\n    return x ** 2\n```\nDone.",
        "```\nf = lambda x: x * x\n```",
        "```python\nwrong\n```\nbetter:\n```py\ndef f(x): return x*x\n```",
        "import math\nprint('debug')\ndef f(x):\n    print(x)\n    return int(math.pow(x, 2))",
        "if __name__ == '__main__':\n    raise SystemExit\ndef f(x): return x * x",
        "from functools import lru_cache\n@lru_cache\ndef f(x): return x * x",
        "import threading, queue\ndef f(x):\n q = queue.Queue()\n "
        "threading.Thread(target=lambda: q.put(x * x)).start()\n return q.get()",
        "import asyncio\nasync def g(x): return x * x\ndef f(x): return asyncio.run(g(x))",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\ndef f(x): return A(x * x).x",
        "import tempfile\ndef f(x):\n with tempfile.TemporaryFile() as t:\n  t.write(b'x')\n return x * x",
        "import numpy as np\ndef f(x): return (np.array([x]) ** 2).tolist()[0]",
    ],
)  # fmt: skip
def test_honest_answers_pass(sandbox: Sandbox, source: str) -> None:
    verdict = judge(sandbox, source, limits=replace(LIMITS, cpu_seconds=20))
    assert verdict.accepted, verdict
    assert verdict.reward == 1.0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x): return x + x", "wrong-result"),
        ("def f(x): return 9", "wrong-result"),
        ("def g(x): return x * x", "no-function"),
        ("f = 9", "no-function"),
        ("f = 9  # \ud800", "syntax"),
        ("def f(x: return", "syntax"),
        ("", "no-code"),
        ("```python\n\n```", "no-code"),
        # equality tricks
        ("class E:\n def __eq__(s, o): return True\ndef f(x): return E()", "not-plain"),
        ("class E(int):\n def __eq__(s, o): return True\n __hash__ = int.__hash__\n"
         " __index__ = __int__ = lambda s: 9\ndef f(x): return E(5)", "wrong-result"),
        ("class E(float):\n def __eq__(s, o): return True\ndef f(x): return E('nan')", "wrong-result"),
        ("class E(tuple):\n def __eq__(s, o): return True\ndef f(x): return E()", "wrong-result"),
        ("from unittest.mock import ANY\ndef f(x): return ANY", "not-plain"),
        ("def f(x): return float('nan')", "wrong-result"),
        # leaving early
        ("import sys\ndef f(x): sys.exit(0)", "exited"),
        ("import os\ndef f(x): os._exit(0)", "exited"),
        ("import os\nos._exit(0)", "exited"),
        ("raise SystemExit(0)", "exited"),
        ("import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 1", "wrong-result"),
        ("def f(x): quit()", "exited"),
        # printing what a pass would look like
        ("def f(x): print('PASSED', '{\"value\": 9}'); return 0", "wrong-result"),
        ("import os\ndef f(x): os.write(1, b'ok 9 4'); os._exit(0)", "exited"),
        # patching the harness
        ("import builtins\nbuiltins.all = lambda *_: True\nbuiltins.isinstance = lambda *_: True\ndef f(x): return 1", None),
        ("import windtunnel.verify.code.compare as c\nc.matches = lambda *a, **k: True\ndef f(x): return 1", "wrong-result"),
        ("import windtunnel.verify.code.child as c\nc.encode = lambda v: {'accepted': 1}\ndef f(x): return 1", None),
        ("import json\njson.dumps = lambda *a, **k: '{\"kind\": \"reply\", \"reply\": {\"accepted\": 1}}'\n"
         "def f(x): return 1", None),
        ("import windtunnel.verify.sandbox.child as c\nc.write_reply = lambda *a: None\ndef f(x): return 1", "exited"),
        # a forged reply: still only a value, and a wrong one
        ("import os, json\nb = json.dumps({'': [], 'kind': 'reply', 'reply': {'value': True, 'accepted': True}}).encode()\n"
         "def f(x):\n os.pwrite(3, len(b).to_bytes(8, 'little') + b'windtunn' + b, 64)\n os._exit(0)", "wrong-result"),
        ("import os\ndef f(x):\n os.pwrite(3, b'\\xff' * 4096, 0)\n os._exit(0)", "exited"),
        # resources
        ("def f(x):\n while True: pass", "timeout"),
        ("import time\ntime.sleep(60)", "timeout"),
        ("def f(x): return [0] * 10**9", "memory"),
        ("import os\ndef f(x):\n while True: os.fork()", "raised"),
        ("import ctypes\ndef f(x): ctypes.string_at(0)", "crashed"),
        ("def f(x):\n while True: print('x' * 9999)", "too-much-output"),
        ("def f(x):\n y = []\n y.append(y)\n return y", "not-plain"),
        ("def f(x): return f", "not-plain"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_its_reason(sandbox: Sandbox, source: str, reason: str | None) -> None:
    verdict = judge(sandbox, source, limits=replace(LIMITS, wall_seconds=1) if reason == "timeout" else LIMITS)
    assert not verdict.accepted
    assert not verdict.infrastructure
    assert verdict.reward == 0.0
    assert reason is None or verdict.reason == reason, verdict
    assert sandbox.restarts == 0


SEARCH = """
import gc, sys
def f(x):
    found = []
    frame = sys._getframe()
    while frame:
        found += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    for o in [*found, *gc.get_objects()]:
        for v in (o.values() if type(o) is dict else o if type(o) in (list, tuple, set) else ()):
            if type(v) is str and v.startswith('needle') and len(v) == 20: return v
    return 'nothing'
"""
NEEDLE = "needle in a haystack"


def test_the_expected_value_and_other_tests_inputs_are_nowhere_in_the_child(sandbox: Sandbox) -> None:
    assert judge(sandbox, SEARCH, [Call("f", [NEEDLE], NEEDLE)]).accepted  # its own input is there, and the search finds it
    assert judge(
        sandbox, SEARCH, [Call("f", ["x"], "nothing"), Call("f", [NEEDLE], NEEDLE), Call("f", ["x"], "nothing")]
    ).accepted
    assert judge(sandbox, SEARCH, [Call("f", ["x"], NEEDLE)]).reason == "wrong-result"


def test_one_test_leaves_nothing_for_the_next(sandbox: Sandbox) -> None:
    counting = (
        "import os\nn = 0\ndef f():\n global n\n n += 1\n seen = os.path.exists('mark')\n open('mark', 'w')\n return [n, seen]"
    )
    assert judge(sandbox, counting, [Call("f", [], [1, False])] * 3).accepted


def test_programs_read_input_and_print(sandbox: Sandbox) -> None:
    cases = [Program("2 3\n", "5\n"), Program("10 -4\n", "6")]
    for source in (
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.readline().split())))\nsys.exit()",
        "print(sum(map(int, open(0).read().split())))",
        "import os\nif __name__ == '__main__':\n print(sum(map(int, input().split())), flush=True)\n os._exit(0)",
    ):
        assert judge(sandbox, source, cases).accepted, source
    assert judge(sandbox, "print(5)", cases).reason == "wrong-result"
    assert judge(sandbox, "print(1/0)", cases).reason == "raised"
    assert judge(sandbox, "import sys\nprint(5)\nsys.exit(3)", cases).reason == "exited"
    assert judge(sandbox, "import sys\nprint(5, file=sys.stderr)", cases).reason == "wrong-result"


def test_methods_share_of_tests_and_what_is_revealed(sandbox: Sandbox) -> None:
    solution = "class Solution:\n def solve(self, x): return abs(x)"
    cases = [Call("Solution.solve", [1], 1), Call("Solution.solve", [-1], 1), Call("Solution().solve", [2], 3)]
    verdict = judge(sandbox, solution, cases, partial=True)
    assert verdict.reward == pytest.approx(2 / 3)
    assert not verdict.accepted
    hidden = judge(sandbox, "def f(x): return 123", [Call("f", [777], 888)])
    assert "777" not in hidden.message
    assert "888" not in str((hidden.message, hidden.evidence))
    shown = judge(sandbox, "def f(x): return 123", [Call("f", [777], 888)], reveal=True)
    assert "777" in shown.message
    assert "123" in shown.message
    assert "888" not in str((shown.message, shown.evidence))


@pytest.mark.parametrize(
    ("asserted", "source", "right"),
    [
        ("assert f('ab')", "def f(x): return x", True),
        ("assert f('ab')", "import re\ndef f(x): return re.match('a', x)", True),
        ("assert f('ab')", "import re\ndef f(x): return re.match('b', x)", False),
        ("assert f('ab')", "def f(x): return ''", False),
        ("assert not f('ab')", "def f(x): return None", True),
        ("assert not f('ab')", "def f(x): return [0]", False),
        ("assert f('ab') == True", "def f(x): return 'yes'", False),
        ("assert f('ab') is None", "def f(x): return 0", False),
        ("assert f('ab') is None", "def f(x): pass", True),
        ("assert f('ab') is True", "def f(x): return True", True),
        ("assert f('ab') is True", "def f(x): return 1", False),
        ("assert f('ab') is False", "def f(x): return 0.0", False),
        ("assert f('ab') is False", "def f(x): return x == 'b'", True),
        ("assert f('ab') == True", "def f(x): return 1", True),
        ("assert f('ab') is 2", "def f(x): return 1 + 1", True),
    ],
)
def test_an_assertion_of_truth_takes_any_value_that_is_true(sandbox: Sandbox, asserted: str, source: str, right: bool) -> None:
    assert judge(sandbox, source, cases_of_asserts(asserted)).accepted is right


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import atexit\natexit.register(print, 5)", "accepted"),
        ("import atexit, sys\natexit.register(print, 5)\nsys.exit()", "accepted"),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print(5))).start()", "accepted"),
        ("\ufeffprint(5)", "accepted"),
        ("```python\n\ufeffprint(5)\n```", "accepted"),
        ("out = open(1, 'w')\nout.write('5')", "accepted"),
        ("import os, sys\nout = os.fdopen(1, 'w')\nprint(5, file=out)\nsys.exit()", "accepted"),
        ("import io, sys\nprint(5)\nsys.stdout = io.StringIO()\nprint(6)", "accepted"),
        ("class A:\n def __del__(s): print(5)\na = A()", "accepted"),
        ("import atexit\natexit.register(print, 6)\nprint(5)", "wrong-result"),
        ("import atexit, os\natexit.register(os._exit, 3)\nprint(5)", "exited"),
    ],
)  # fmt: skip
def test_a_programs_end_is_a_part_of_it(sandbox: Sandbox, source: str, reason: str) -> None:
    assert judge(sandbox, source, (Program("", "5"),)).reason == reason


def test_no_answer_makes_itself_one_about_which_nothing_is_known(sandbox: Sandbox) -> None:
    forged = (
        "import os\ndef f(x):\n from windtunnel.verify.sandbox.channel import write_reply\n write_reply({}, ())\n os._exit(0)"
    )
    reply = "{'kind': 'reply', 'reply': {'value': {'set': [[1]]}}}"
    raises = "def f(x):\n class E(BaseException):\n  def __str__(self): raise SystemExit\n raise E"
    for source in (
        raises,
        "def f(x): raise KeyboardInterrupt",
        "def f(x): raise GeneratorExit",
        "import os\ndef f(x): os._exit(0)",
        "import os\ndef f(x): os.kill(os.getpid(), 40)",
        "def f(x): return 10 ** 5000",
        "import sys\ndef f(x):\n sys.stdout = None\n sys.stderr = 5\n return 1",
        forged.replace("{}", reply),
        forged.replace("{}", "{'kind': 'raised', 'reply': {'error': [1]}}"),
        forged.replace("{}", "{'kind': 'infrastructure', 'reply': {'error': 'x', 'ended': 'setup'}}"),
    ):
        for expected in (9, {1}, 1j):
            verdict = judge(sandbox, source, (Call("f", [3], expected),), reveal=True)
            assert verdict.reward == 0.0, (source, verdict)
    assert judge(sandbox, "def f(x): return x * x").accepted


@pytest.mark.parametrize(
    "answer",
    [
        "```python\ndef f(x): return x * x\n```\nIt prints:\n```\n9\n```\n",
        "```python3.11\ndef f(x): return x * x\n```",
        "```py\ndef f(x): return 1\n```\nBetter:\n```Python\ndef f(x): return x * x\n```\n```bash\nls\n```",
        "Like this:\n```\ndef f(x): return x * x\n```",
        "```python\ndef f(x): return x * x\n```\nUse it so:\n```python\nprint(f(3))\nassert f(2) == 4\n```",
        "```python\nclass Solution:\n    def f(self, x): return x * x\n```\n```python\nSolution().f(3)\n```",
        "```python\nf = lambda x: x * x\n```\n```python\nf(3)\n```",
        "```python\ndef f(x): return 1\n```\nBetter:\n```python\ndef f(x): return x * x\n```\n```python\ndef f2(x): pass\n```",
    ],
)
def test_the_last_block_that_says_python_is_the_answer(sandbox: Sandbox, answer: str) -> None:
    assert judge(sandbox, answer).accepted


def test_a_last_block_that_defines_the_function_and_does_not_parse_is_the_answer(sandbox: Sandbox) -> None:
    answer = "```python\ndef f(x): return x * x\n```\nBetter:\n```python\ndef f(x): return x *\n```"
    assert judge(sandbox, answer).reason == "syntax"
    assert judge(sandbox, "```python\nprint(5)\n```\n```python\nprint(6)\n```", (Program("", "6"),)).accepted


def test_an_answer_after_a_preface_may_begin_as_any_module_does(sandbox: Sandbox) -> None:
    future = "from __future__ import annotations\ndef f(x: Unknown): return math.prod([x, x])"
    assert judge(sandbox, future, preface="import math").accepted
    assert judge(sandbox, "    return x * x", preface="def f(x):").accepted
    assert judge(sandbox, "def f(x) return", preface="import math").reason == "syntax"


def test_an_errors_name_is_cut(sandbox: Sandbox) -> None:
    verdict = judge(sandbox, "raise type('X' * 1_000_000, (Exception,), {})")
    assert verdict.reason == "raised"
    assert len(verdict.message) < 300
    verdict = judge(sandbox, "def f(x): return type('X' * 1_000_000, (), {'__module__': 'Y' * 1000})()")
    assert verdict.reason == "not-plain"
    assert len(verdict.message) < 300


def test_a_value_that_leaves_no_memory_to_send_it_needs_too_much_memory(sandbox: Sandbox) -> None:
    assert judge(sandbox, "def f(x): return 'x' * (100 << 20)").reason == "memory"
