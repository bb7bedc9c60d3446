"""A seccomp filter for the system calls of a container's code.

It adds to namespaces and limits. It refuses calls that take memory which counts for no process, that access other
processes, or that ordinary programs do not need but kernel exploits do. Most fail as if the kernel did not implement
them, so that programs fall back. Sockets are allowed only between the container's processes (AF_UNIX): others, such as
AF_VSOCK, leave its network namespace or reach large parts of the kernel. A container with a network may also use TCP
over IPv4, in its own network namespace, without options that select other parts of the kernel. The buffer sizes of
pipes and sockets cannot be changed, and memory shared without a file is refused: no limit of a process covers them.
Disk space cannot be reserved, since a limit on file sizes does not cover that. All threads of a process share its open
files, so that pipes can be counted. A thread or call that would separate them (clone(2), close_range(2)) is refused,
and so is clone3(2), whose flags a filter cannot read; the C library then uses clone(2). Delayed signals of the kernel
(timer_create(2), F_SETSIG) are refused: a SIGCONT would resume a stopped process after its call. Locks on files that
belong to no process (F_OFD_SETLK) are refused, so that those of a container can be counted. The same calls by the
numbers of another ABI (x32, 32 bits) are refused too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from ....process_pool.filter_assembly import (
    ALLOW,
    AND,
    ARCHITECTURES,
    ARGUMENTS,
    ERROR,
    JUMP_IF_AT_LEAST,
    JUMP_IF_EQUAL,
    LOAD,
    NOT_PERMITTED,
    RETURN,
    Step,
    assembled,
    number_of_call,
)

_NO_SUCH_CALL: Final = ERROR | 38
_NO_SUCH_FAMILY: Final = ERROR | 97
_NOT_SUPPORTED: Final = ERROR | 95
"""Actions that fail a call with ENOSYS, EAFNOSUPPORT and EOPNOTSUPP."""

_REFUSED_FCNTL: Final = (10, 37, 38, 1024, 1026, 1031)
_BUFFER_SIZES: Final = (7, 8, 32, 33)
_SHARED_WITHOUT_FILE: Final = 0x01 | 0x20
"""F_SETSIG, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY and F_SETPIPE_SZ of fcntl(2); SO_SNDBUF, SO_RCVBUF and
their FORCE of socket(7); MAP_SHARED and MAP_ANONYMOUS of mmap(2)."""

_TYPE: Final = 0xF
"""The bits of the type of a socket; others are flags."""
_TCP_OPTIONS: Final = (1, 3, 4, 5, 6, 9, 12, 18)
"""TCP_NODELAY, TCP_CORK, the three of keep-alive, TCP_DEFER_ACCEPT, TCP_QUICKACK and TCP_USER_TIMEOUT of tcp(7)."""

_THREAD: Final = 0x10000
_SAME_FILES: Final = 0x400
_OTHER_FILES: Final = 0x2
"""CLONE_THREAD and CLONE_FILES of clone(2); CLOSE_RANGE_UNSHARE of close_range(2)."""

_OTHER_TABLE: Final = 0x40000000
"""On x86-64, numbers from here on are the x32 ABI's numbers of the same calls."""

_REFUSED_EVERYWHERE: Final[dict[str, int]] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
}
"""Refused calls with the same number on every architecture: numbers from 424 on are uniform."""

_REFUSED: Final[Mapping[str, dict[str, int]]] = {
    "x86_64": {
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "ptrace": 101,
        "syslog": 103,
        "modify_ldt": 154,
        "pivot_root": 155,
        "chroot": 161,
        "acct": 163,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "init_module": 175,
        "quotactl": 179,
        "timer_create": 222,
        "remap_file_pages": 216,
        "mbind": 237,
        "set_mempolicy": 238,
        "mq_open": 240,
        "kexec_load": 246,
        "io_setup": 206,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "migrate_pages": 256,
        "unshare": 272,
        "vmsplice": 278,
        "move_pages": 279,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "memfd_create": 319,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "io_setup": 0,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "chroot": 51,
        "quotactl": 60,
        "vmsplice": 75,
        "acct": 89,
        "unshare": 97,
        "timer_create": 107,
        "kexec_load": 104,
        "init_module": 105,
        "syslog": 116,
        "ptrace": 117,
        "mq_open": 180,
        "msgget": 186,
        "semget": 190,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "remap_file_pages": 234,
        "mbind": 235,
        "set_mempolicy": 237,
        "migrate_pages": 238,
        "move_pages": 239,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
"""Refused calls whose numbers depend on the architecture."""

_EXAMINED: Final[Mapping[str, Mapping[str, Mapping[str, int]]]] = {
    "x86_64": {
        "family": {"socket": 41, "socketpair": 53},
        "pipe": {"fcntl": 72},
        "option": {"setsockopt": 54},
        "memory": {"mmap": 9},
        "thread": {"clone": 56},
        "files": {"close_range": 436},
        "unsupported": {"fallocate": 285},
    },
    "aarch64": {
        "family": {"socket": 198, "socketpair": 199},
        "pipe": {"fcntl": 25},
        "option": {"setsockopt": 208},
        "memory": {"mmap": 222},
        "thread": {"clone": 220},
        "files": {"close_range": 436},
        "unsupported": {"fallocate": 47},
    },
}
"""Calls that fail with another error or depend on arguments, by the label in the filter that decides."""

_WITHOUT_NETWORK: Final[Sequence[str | Step]] = [
    "family",
    (LOAD, ARGUMENTS[0], ""),
    (JUMP_IF_EQUAL, socket.AF_UNIX, "allow"),
    (RETURN, _NO_SUCH_FAMILY, ""),
    "option",
    (LOAD, ARGUMENTS[1], ""),
    (JUMP_IF_EQUAL, socket.SOL_SOCKET, "option of a socket"),
    (RETURN, ALLOW, ""),
]

_WITH_NETWORK: Final[Sequence[str | Step]] = [
    "family",
    (LOAD, ARGUMENTS[0], ""),
    (JUMP_IF_EQUAL, socket.AF_UNIX, "allow"),
    (JUMP_IF_EQUAL, socket.AF_INET, "type"),
    (RETURN, _NO_SUCH_FAMILY, ""),
    "type",
    (LOAD, ARGUMENTS[1], ""),
    (AND, _TYPE, ""),
    (JUMP_IF_EQUAL, socket.SOCK_STREAM, "protocol"),
    (RETURN, _NO_SUCH_FAMILY, ""),
    "protocol",
    (LOAD, ARGUMENTS[2], ""),
    (JUMP_IF_EQUAL, 0, "allow"),
    (JUMP_IF_EQUAL, socket.IPPROTO_TCP, "allow"),
    (RETURN, _NO_SUCH_FAMILY, ""),
    "option",
    (LOAD, ARGUMENTS[1], ""),
    (JUMP_IF_EQUAL, socket.SOL_SOCKET, "option of a socket"),
    (JUMP_IF_EQUAL, socket.IPPROTO_TCP, "option of a connection"),
    (RETURN, NOT_PERMITTED, ""),
    "option of a connection",
    (LOAD, ARGUMENTS[2], ""),
    *((JUMP_IF_EQUAL, each, "allow") for each in _TCP_OPTIONS),
    (RETURN, NOT_PERMITTED, ""),
]
"""The decisions about sockets: only between processes of the container, or TCP over IPv4 too."""

_DECISIONS: Final[Sequence[str | Step]] = [
    "pipe",
    (LOAD, ARGUMENTS[1], ""),
    *((JUMP_IF_EQUAL, each, "forbid") for each in _REFUSED_FCNTL),
    (RETURN, ALLOW, ""),
    "option of a socket",
    (LOAD, ARGUMENTS[2], ""),
    *((JUMP_IF_EQUAL, each, "forbid") for each in _BUFFER_SIZES),
    (RETURN, ALLOW, ""),
    "memory",
    (LOAD, ARGUMENTS[3], ""),
    (AND, _SHARED_WITHOUT_FILE, ""),
    (JUMP_IF_EQUAL, _SHARED_WITHOUT_FILE, "forbid"),
    (RETURN, ALLOW, ""),
    "thread",
    (LOAD, ARGUMENTS[0], ""),
    (AND, _THREAD | _SAME_FILES, ""),
    (JUMP_IF_EQUAL, _THREAD, "forbid"),
    (RETURN, ALLOW, ""),
    "files",
    (LOAD, ARGUMENTS[2], ""),
    (AND, _OTHER_FILES, ""),
    (JUMP_IF_EQUAL, _OTHER_FILES, "forbid"),
    (RETURN, ALLOW, ""),
    "allow",
    (RETURN, ALLOW, ""),
    "forbid",
    (RETURN, NOT_PERMITTED, ""),
    "unsupported",
    (RETURN, _NOT_SUPPORTED, ""),
    "refuse",
    (RETURN, _NO_SUCH_CALL, ""),
]
"""The part after the comparison of call numbers: instructions, and the labels to jump to."""


def filter_program(machine: str, *, network: bool = False) -> bytes | None:
    """Return the filter for an architecture, by its name in uname(2); None for an unknown one.

    Args:
        network: whether TCP over IPv4 is allowed.
    """
    if machine not in ARCHITECTURES:
        return None
    refused = [(number, "refuse") for number in (_REFUSED[machine] | _REFUSED_EVERYWHERE).values()]
    examined = [(number, label) for label, calls in _EXAMINED[machine].items() for number in calls.values()]
    return assembled(
        [
            *number_of_call(machine),
            (JUMP_IF_AT_LEAST, _OTHER_TABLE, "refuse"),
            *((JUMP_IF_EQUAL, number, label) for number, label in sorted(refused + examined)),
            (RETURN, ALLOW, ""),
            *(_WITH_NETWORK if network else _WITHOUT_NETWORK),
            *_DECISIONS,
        ]
    )


def open_filter(*, network: bool) -> int | None:
    """Return a descriptor from which this machine's filter can be read. The caller closes it."""
    program = filter_program(os.uname().machine, network=network)
    if program is None:
        return None
    outlet, inlet = os.pipe()
    with os.fdopen(inlet, "wb") as pipe:
        pipe.write(program)
    return outlet
