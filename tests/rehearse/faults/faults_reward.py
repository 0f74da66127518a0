"""Faults in a user's reward: it cannot be called, gives no numbers, cannot tell right from wrong, or breaks on odd answers."""

from __future__ import annotations

from planting import Plant, Site, group
from sites import REWARD, example, rewarded

IMPORTS = "debugging guide, what can go wrong: import error, extension config error"
VALUES = "ByteRobust: implicit failures (hang, NaN) are over 10 % of incidents"
CHEATS = "GRPO project: `__eq__` passes every test, one sample poisons the next"
CRASHES = "GRPO project: `os._exit` breaks the pool; debugging guide: evaluation crash at the last step"
INFRASTRUCTURE = "GRPO project: infrastructure errors score 0"
PATHS = "Zhang et al. 2020 (Microsoft): files and modules that are not on the platform"


def body(code: str) -> Plant:
    """Another reward: the lines of a function body; what stands before '---' goes before the function."""
    before, _, inside = code.rpartition("---")
    lines = "".join(f"    {line}\n" for line in inside.strip("\n").splitlines())
    return lambda site: void(site.file("reward.py", f"{before}\ndef reward(prompt, answer, truth):\n{lines}"))


def void(value: object) -> None:
    """Plants return nothing."""


def source(text: str) -> Plant:
    return lambda site: void(site.file("reward.py", text))


def gone(site: Site) -> None:
    (site.folder / "reward.py").unlink()


def no_examples(site: Site) -> None:
    (site.folder / "examples.jsonl").unlink()


def broken_examples(site: Site) -> None:
    site.file("examples.jsonl", '{"prompt": "2+2=", "good": "4"}\n')


def contradiction(site: Site) -> None:
    site.lines("examples.jsonl", [example(1, 2) | {"bad": ["<answer>3</answer>"]}])


SWALLOWS = """import urllib.request
---try:
    urllib.request.urlopen('http://127.0.0.1:9/judge')
    return 1.0
except OSError:
    return 0.0
"""
EXACT = "return float(answer == f'<answer>{truth}</answer>')"

FAULTS = (
    *group("plug-in", "reward", rewarded)(
        ("the reward's file was not shipped", PATHS, "does not exist", gone),
        ("no function of that name", IMPORTS, "it has no function reward", source("def score(*given):\n    return 1\n")),
        ("a syntax error", IMPORTS, ("line 2", "syntax"), source(REWARD.replace("import re\n", "import re(\n", 1))),
        (
            "a module that is not installed",
            IMPORTS,
            "no module named 'math_verify_pro'",
            body("import math_verify_pro\n---return 1.0"),
        ),
        ("a script that ends when imported", IMPORTS, "systemexit", body("import sys\nsys.exit(0)\n---return 1.0")),
        ("another signature", IMPORTS, "cannot be called", source("def reward(completions, tests, **kw):\n    return [1.0]\n")),
        ("it forks", CRASHES, "forks", body("import os\nos.fork()\n" + EXACT)),
        (
            "it leaves processes behind",
            CRASHES,
            "went on after it",
            body(f"import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\n{EXACT}"),
        ),
        ("examples that are not there", PATHS, "does not exist", no_examples),
        ("examples without a wrong answer", IMPORTS, ("examples.jsonl:1", "no bad"), broken_examples),
        ("an example both right and wrong", IMPORTS, "good and bad", contradiction),
    ),
    *group("plug-in", "reward-values", rewarded)(
        ("None where nothing matches", VALUES, "returns none", body("if truth in answer:\n    return 1.0")),
        ("text in place of a number", VALUES, "returns str", body("return '1.0'")),
        ("NaN", VALUES, "nan", body("return float('nan') if len(answer) < 3 else 1.0")),
        ("chance", VALUES, "the same answer must get the same reward", body("import random\nreturn random.random()")),
        (
            "one answer poisons the next",
            CHEATS,
            "keep no state",
            body("SEEN = []\n---SEEN.append(answer)\nreturn float(len(SEEN))"),
        ),
        ("rewards in the millions", VALUES, "scale them", body(f"return 1e6 * ({EXACT.removeprefix('return ')})")),
        ("it prints every answer", VALUES, "fill its log", body(f"print(answer * 100)\nprint('x' * 5000)\n{EXACT}")),
        ("an exception for wrong answers", CRASHES, "raises", body(f"assert truth in answer\n{EXACT}")),
    ),
    *group("plug-in", "reward-judgement", rewarded)(
        ("every answer is right", CHEATS, "nothing can be learned", body("return 1.0")),
        ("errors of the machine count as wrong", INFRASTRUCTURE, "nothing can be learned", body(SWALLOWS)),
        ("the wrong sign", CHEATS, "turn its sign", body(f"return -({EXACT.removeprefix('return ')})")),
        ("an empty answer passes", CHEATS, "an empty answer gets 1", body("return float(answer in f'<answer>{truth}</answer>')")),
        ("the truth anywhere passes", CHEATS, "a wrong answer gets 1", body("return float(truth in answer)")),
        (
            "the echoed prompt passes",
            CHEATS,
            "the prompt echoed gets 1",
            body(f"if answer.startswith(prompt):\n    return 1.0\n{EXACT}"),
        ),
        ("length is rewarded", CHEATS, "a meaningless answer", body("return len(answer) / 100")),
        (
            "a list of answers passes",
            CHEATS,
            "lists right and wrong",
            body("import re\nreturn float(truth in re.findall(r'<answer>(.*?)</answer>', answer))"),
        ),
    ),
    *group("plug-in", "reward-robustness", rewarded)(
        ("it ends its process", CRASHES, "exit code 3", body(f"import os\nif len(answer) > 4000:\n    os._exit(3)\n{EXACT}")),
        (
            "it crashes on deep nesting",
            CRASHES,
            "sigsegv",
            body(f"import ctypes\nif answer.startswith('[[[['):\n    ctypes.string_at(0)\n{EXACT}"),
        ),
        ("it cannot stand an empty answer", CRASHES, "raises indexerror", body(f"first = answer.split()[0]\n{EXACT}")),
        (
            "it cannot stand many digits",
            CRASHES,
            "raises valueerror",
            body(
                "import re\nfound = re.search(r'(\\d+)', answer)\nreturn float(found is not None and int(found[1]) == int(truth))"
            ),
        ),
        (
            "it is loud about odd numbers",
            VALUES,
            "gives",
            body("try:\n    return float(answer)\nexcept ValueError:\n    return 0.0"),
        ),
    ),
    *group("plug-in", "reward-robustness", rewarded, slow=True)(
        ("a pattern that never ends", VALUES, "did not come back", body(f"import re\nre.match(r'(a+)+$', answer)\n{EXACT}")),
        (
            "answers are run as code",
            CHEATS,
            "runs the model's answer as code",
            body("try:\n    return float(eval(answer) == float(truth))\nexcept Exception:\n    return 0.0"),
        ),
        ("it eats memory", CRASHES, "gib", body(f"hoard = [b'x' * 2**26 for _ in range(len(answer) // 100)]\n{EXACT}")),
    ),
    *group("plug-in", "reward-values", rewarded, slow=True)(
        (
            "it takes seconds",
            "GRPO guide: batch times of generation and reward",
            "s: 64 answers a round",
            body(f"import time\ntime.sleep(0.3)\n{EXACT}"),
        )
    ),
)
