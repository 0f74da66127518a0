"""The filter on system calls: what a candidate has no business calling answers 'operation not permitted'."""

from __future__ import annotations

import ctypes
import errno
import struct

from .syscalls import SET_NO_NEW_PRIVS, SET_SECCOMP, column, prctl

# (x86_64, aarch64); None where the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # looking into other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "lookup_dcookie": (212, 18),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    # the kernel itself
    "bpf": (321, 280), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116), "acct": (163, 89),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "vhangup": (153, 58), "personality": (135, 92),
    "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None), "uselib": (134, None), "ustat": (136, None),
    "sysfs": (139, None), "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162), "capset": (126, 91),
    # memory that outlives the process or hides from its limits
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "memfd_secret": (447, 447),
    # other processes' share of the machine
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}  # fmt: skip
NETWORK: dict[str, tuple[int | None, int | None]] = {"connect": (42, 203), "accept": (43, 202), "accept4": (288, 242)}
# CUDA listens on a local socket and does not start where it may not (error 304; driver 580). Nobody can connect to it.
WITHOUT_DEVICES: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "bind": (49, 200), "listen": (50, 201), "memfd_create": (319, 279),
}  # fmt: skip
# Landlock says nothing about these; a file system of one's own does, read-only as it is.
METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
EXEC: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
}  # fmt: skip
CLONE, CLONE3, KILL, TKILL, TGKILL = (56, 220), 435, (62, 129), (200, 130), (234, 131)
PRCTL, PRLIMIT, IOCTL, FCNTL = (157, 167), (302, 261), (16, 29), (72, 25)
SOCKET, AF_UNIX, AF_NETLINK = (41, 198), 1, 16
NEWEST = 462  # mseal; younger calls are unknown here and do not exist for the candidate
CLONE_THREAD, CLONE_NAMESPACES = 0x10000, 0x7E020000
IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
FCNTLS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by another road
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
# linux/bpf_common.h, linux/seccomp.h
LOAD, EQUAL, GREATER, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCH_AT, NUMBER_AT, ARGUMENT_AT = 4, 0, (16, 24)

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(*, processes: bool, devices: bool, alone: bool, mounts: bool, pid: int) -> list[Instruction]:
    """Return the filter as instructions (code, jump if true, jump if false, operand).

    Args:
        processes: whether fork and exec are allowed.
        devices: whether a GPU is used, whose driver may want local sockets and memory files.
        alone: whether the child is in a process namespace of its own, so that it can signal nobody else; otherwise only itself.
        mounts: whether it has a file system of its own.
        pid: its own number.
    """
    machine = column()
    refused = (
        REFUSED | NETWORK | ({} if devices else WITHOUT_DEVICES) | ({} if processes else EXEC) | ({} if mounts else METADATA)
    )
    code: list[Instruction] = [(LOAD, 0, 0, ARCH_AT), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL_PROCESS)]
    code += [(LOAD, 0, 0, NUMBER_AT), (GREATER, 0, 1, NEWEST), _error(errno.ENOSYS)]
    for numbers in refused.values():
        number = numbers[machine]
        if number is not None:
            code += [(EQUAL, 0, 1, number), _error(errno.EPERM)]
    # Its flags lie in memory, where a filter cannot read; the C library falls back to clone.
    code += [(EQUAL, 0, 1, CLONE3), _error(errno.ENOSYS)]
    if processes:
        code += _on(CLONE[machine], 0, [(ANY_BIT, 0, 1, CLONE_NAMESPACES), _error(errno.EPERM)])
    else:
        code += _on(CLONE[machine], 0, [(ANY_BIT, 1, 0, CLONE_THREAD), _error(errno.EPERM)])
        code += _on(CLONE[machine], 0, [(ANY_BIT, 0, 1, CLONE_NAMESPACES), _error(errno.EPERM)])
    if devices:
        local = [(EQUAL, 2, 0, AF_UNIX), (EQUAL, 1, 0, AF_NETLINK), _error(errno.EPERM)]
        code += _on(SOCKET[machine], 0, local)
    code += _on(PRCTL[machine], 0, [(EQUAL, 0, 1, 1), _error(errno.EPERM)])  # PR_SET_PDEATHSIG
    code += _on(PRLIMIT[machine], 0, [(EQUAL, 1, 0, 0), _error(errno.EPERM)])  # its own limits only
    for number in IOCTLS:
        code += _on(IOCTL[machine], 1, [(EQUAL, 0, 1, number), _error(errno.EPERM)])
    for number in FCNTLS:
        code += _on(FCNTL[machine], 1, [(EQUAL, 0, 1, number), _error(errno.EPERM)])
    if not alone:
        code += _on(TKILL[machine], 0, [_error(errno.EPERM)])
        for call in (KILL, TGKILL):
            code += _on(call[machine], 0, [(EQUAL, 1, 0, pid), _error(errno.EPERM)])
    return [*code, (RETURN, 0, 0, ALLOW)]


def restrict(*, processes: bool, devices: bool, alone: bool, mounts: bool, pid: int) -> None:
    """Put the filter on this process and all that it will start, for good.

    Raises:
        OSError: the kernel has no filters, or this architecture is unknown.
    """
    code = program(processes=processes, devices=devices, alone=alone, mounts=mounts, pid=pid)
    packed = b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    prctl(SET_NO_NEW_PRIVS, 1)
    prctl(SET_SECCOMP, 2, _Program(len(code), ctypes.addressof(buffer)))


def _on(number: int, argument: int, then: list[Instruction]) -> list[Instruction]:
    """For this call: look at an argument's lower half; then whatever is said; then the call's number again."""
    body = [(LOAD, 0, 0, ARGUMENT_AT[argument]), *then, (LOAD, 0, 0, NUMBER_AT)]
    return [(EQUAL, 0, len(body), number), *body]


def _error(number: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | number)
