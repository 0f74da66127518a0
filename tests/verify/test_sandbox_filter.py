"""The filter on system calls, run by a small interpreter of its instructions, for both architectures; one of them is not here."""

from __future__ import annotations

import errno

import pytest

from windtunnel.verify.sandbox import seccomp
from windtunnel.verify.sandbox.layers import PROTECTIONS, Layers

ALLOWED = seccomp.ALLOW
REFUSED = seccomp.ERRNO | errno.EPERM
UNKNOWN = seccomp.ERRNO | errno.ENOSYS


def decide(code: list[seccomp.Instruction], architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would answer to a call."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = {seccomp.ARCH_AT: architecture, seccomp.NUMBER_AT: number} | {16 + 8 * at: value for at, value in enumerate(given)}
    at = accumulator = 0
    while True:
        operation, jump_true, jump_false, operand = code[at]
        at += 1
        if operation == seccomp.LOAD:
            accumulator = data[operand] & 0xFFFFFFFF
        elif operation == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.EQUAL: accumulator == operand,
                seccomp.GREATER: accumulator > operand,
                seccomp.ANY_BIT: bool(accumulator & operand),
            }
            at += jump_true if holds[operation] else jump_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    column = ["x86_64", "aarch64"].index(request.param)
    monkeypatch.setattr(seccomp, "column", lambda: column)
    return column


# read, write, mmap, munmap, brk, futex, exit_group, getrandom, pipe2, openat
HARMLESS = [(0, 63), (1, 64), (9, 222), (11, 215), (12, 214), (202, 98), (231, 94), (318, 278), (293, 59), (257, 56)]


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_what_it_decides(machine: int, processes: bool, devices: bool, alone: bool) -> None:
    code = seccomp.program(processes=processes, devices=devices, alone=alone, mounts=alone, pid=77)
    assert len(code) < 4096
    assert all(0 <= jump < 256 for instruction in code for jump in instruction[1:3])
    architecture = seccomp.AUDIT_ARCH[machine]

    def answer(numbers: tuple[int | None, int | None] | int, *arguments: int) -> int:
        number = numbers if isinstance(numbers, int) else numbers[machine]
        return ALLOWED if number is None else decide(code, architecture, number, *arguments)

    assert all(answer(numbers) == ALLOWED for numbers in HARMLESS)
    assert all(answer(n) == REFUSED for n in (*seccomp.REFUSED.values(), *seccomp.NETWORK.values()) if n[machine] is not None)
    assert not devices or all(answer(n) == ALLOWED for n in ((49, 200), (50, 201)))  # bind, listen: CUDA needs them
    assert devices or all(answer(n) == REFUSED for n in seccomp.WITHOUT_DEVICES.values())
    assert decide(code, seccomp.AUDIT_ARCH[1 - machine], 1) == seccomp.KILL_PROCESS
    assert decide(code, 0x40000003, 1) == seccomp.KILL_PROCESS  # 32-bit calls have other numbers
    assert answer(seccomp.NEWEST + 1) == answer(0x40000000 + 1) == answer(seccomp.CLONE3) == UNKNOWN
    allowed_if = {True: ALLOWED, False: REFUSED}
    assert answer(seccomp.CLONE, 17) == allowed_if[processes]  # fork
    assert answer(seccomp.CLONE, 0x3D0F00) == ALLOWED  # a thread
    assert answer(seccomp.CLONE, 0x3D0F00 | 0x10000000) == REFUSED  # with a user namespace
    assert all(answer(n) == allowed_if[processes] for n in seccomp.EXEC.values() if n[machine] is not None)
    assert all(answer(n) == allowed_if[alone] for n in seccomp.METADATA.values() if n[machine] is not None)
    assert answer(seccomp.SOCKET, 2) == REFUSED
    assert answer(seccomp.SOCKET, 1) == allowed_if[devices]
    assert answer(seccomp.KILL, 77) == answer(seccomp.TGKILL, 77, 78) == ALLOWED
    assert answer(seccomp.KILL, 78) == answer(seccomp.KILL, 0xFFFFFFFF) == answer(seccomp.TKILL, 77) == allowed_if[alone]
    assert answer(seccomp.PRCTL, 1) == REFUSED
    assert answer(seccomp.PRCTL, 15) == ALLOWED
    assert answer(seccomp.PRLIMIT, 0) == ALLOWED
    assert answer(seccomp.PRLIMIT, 1) == REFUSED
    assert answer(seccomp.IOCTL, 0, 0x5412) == answer(seccomp.FCNTL, 0, 8) == REFUSED
    assert answer(seccomp.IOCTL, 0, 0x5401) == answer(seccomp.FCNTL, 0, 3) == ALLOWED


def test_numbers_agree_with_the_running_kernels_headers() -> None:
    """Where the C headers are installed every number of this architecture is looked up in them."""
    import platform
    import re
    from pathlib import Path

    if platform.machine() != "x86_64":
        pytest.skip("the table of another architecture")
    header = next(Path("/usr/include").glob("**/asm/unistd_64.h"), None)
    if header is None:
        pytest.skip("no C headers here")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text())}
    tables = seccomp.REFUSED | seccomp.NETWORK | seccomp.WITHOUT_DEVICES | seccomp.EXEC | seccomp.METADATA
    wrong = {name: numbers for name, numbers in tables.items() if name in known and numbers[0] != known[name]}
    assert wrong == {}


def test_hardened_needs_every_protection_and_a_trial() -> None:
    every = {layer for ways in PROTECTIONS.values() for way in ways for layer in way}
    assert Layers(dict.fromkeys(every, ""), ()).hardened
    assert not Layers(dict.fromkeys(every, ""), None).hardened
    assert not Layers(dict.fromkeys(every, ""), ("reads /etc/passwd",)).hardened
    for layer in ("seccomp", "resource limits", "no capabilities"):
        assert not Layers(dict.fromkeys(every, "") | {layer: "not here"}, ()).hardened
    bare = Layers(dict.fromkeys(every, "no"), ())
    assert set(bare.missing) == set(PROTECTIONS)
