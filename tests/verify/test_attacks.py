"""Cheating candidates: each works against a naive checker, and none gets through."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.suite import KINDS, Attack, suite
from honest.suite import suite as honest_suite
from warm import kernel_box

from windtunnel.recipe import UserError
from windtunnel.verify.kernel import KernelVerifier
from windtunnel.verify.sandbox import Sandbox
from windtunnel.verify.tasks import catalogue

pytestmark = pytest.mark.end_to_end

SUITE = suite()
HERE = [attack for attack in SUITE if attack.where == "cpu"]
LATE = "a48_clock_branch"  # accepted within a second of its import, which a busy machine may take longer for
UNREAD_PLACES = ("a47_class_subscript", "a47_decorator_argument", "a47_super_argument", "a47_with_keyword")
LONG = ("a15_factors_never_move", "a15_first_block_of_a_row")  # right while a dimension is no longer than a block
NAIVE = ("fooled", "fast", "one-trial", "order", "exit-code")
SHOWN = [attack for attack in SUITE if attack.naive in NAIVE]


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


def outcome(attack: Attack, box: Sandbox) -> tuple[bool, str]:
    """(accepted, reason). A task whose answer is constant is refused with all its candidates."""
    try:
        verdict = KernelVerifier(attack.task, box).verify(attack.source)
    except UserError as error:
        return False, "flat-task" if "constant" in error.message else error.message
    assert verdict.reward == (1.0 if verdict.accepted else 0.0)
    return verdict.accepted, verdict.reason


def misses(attacks, box: Sandbox) -> dict[str, tuple[bool, str]]:
    """Those accepted though their plan is not right, or refused for a reason that does not fit."""
    found = {attack.name: outcome(attack, box) for attack in attacks}
    reasons = {a.name: {"accepted"} if a.right_plan else a.reasons for a in attacks} | {LATE: {"accepted", "never-launched"}}
    return {a.name: found[a.name] for a in attacks if found[a.name][1] not in reasons[a.name]}


def beaten(attacks) -> dict[str, dict]:
    """What a naive checker says of each."""
    script = Path(__file__).parent / "naive.py"
    done = subprocess.run(
        [sys.executable, str(script), *(attack.name for attack in attacks)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=True,
    )
    return {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}


def unbeaten(attacks) -> list[str]:
    """Those that the naive checker does not fall for."""
    said = beaten(attacks)
    calm = [a for a in attacks if a.naive == "fast"]
    slow = [a.name for a in calm if said[a.name]["later"] > said[a.name]["first"] / 3]
    return [a.name for a in attacks if not said[a.name]["correct"]] + slow


def test_two_of_every_kind():
    counts = Counter(attack.number for attack in SUITE)
    assert set(counts) == set(KINDS) == set(range(1, 49))
    assert min(counts.values()) >= 2
    assert len(SUITE) >= 100
    assert len({attack.source for attack in SUITE}) == len(SUITE)
    assert {attack.naive for attack in SUITE} <= {*NAIVE, "gpu", "chance"}


def test_one_attack_of_every_third_kind_is_stopped(box):
    """`test_all_are_refused` tries all."""
    some = {attack.number: attack for attack in reversed(HERE) if attack.number % 3 == 0}
    some |= {attack.name: attack for attack in HERE if attack.name in LONG}
    assert len(some) >= 16
    assert misses(some.values(), box) == {}


def test_code_hidden_from_a_list_of_names_is_seen_when_it_is_recorded(box):
    """Places that a list of allowed names is likely to leave out, each with PyTorch's answer."""
    some = [attack for attack in HERE if attack.name in UNREAD_PLACES]
    assert len(some) == len(UNREAD_PLACES)
    assert {outcome(attack, box) for attack in some} == {(False, "host-compute")}


def test_a_kernel_is_to_the_interpreter_what_it_is_to_a_compiler(box):
    """Else the interpreter would accept a kernel that computes something else on a GPU."""
    some = [
        attack for attack in HERE if attack.name.startswith(("a48_none_of", "a48_text_with", "a48_text_of_const", "a48_text_by"))
    ]
    assert len(some) == 4
    assert misses(some, box) == {}
    (honest,) = [one for one in honest_suite() if one.name.endswith("/constants_asked_for")]
    assert KernelVerifier(catalogue()[honest.task], box).verify(honest.source).accepted


def test_some_beat_a_naive_checker():
    some = [attack for attack in SHOWN if attack.number in (1, 14, 20, 28, 44)][::2]
    assert unbeaten(some + [attack for attack in SHOWN if attack.name in UNREAD_PLACES]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_are_refused(box):
    assert misses(HERE, box) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_beat_a_naive_checker():
    assert len(SHOWN) >= 130
    assert unbeaten(SHOWN) == []
