"""A task that has taken control of its process and tries what a program must not do."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

from llama_stack_responses.features.programs.confinement import confine, lower_limits

LIBC = ctypes.CDLL(None, use_errno=True)


def read(content: bytes, options: dict[str, Any]) -> dict[str, str]:
    """Return what each deed comes to, confined or not."""
    if options.get("limits"):
        lower_limits(5)
        names = ("RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_CPU")
        return {name: str(resource.getrlimit(getattr(resource, name))) for name in names}
    here, there = socket.socketpair()
    page = mmap.mmap(-1, mmap.PAGESIZE)
    os.environ["SECRET"] = "x"
    if options["confined"] and not confine(5):
        return {"problem": "unconfined"}
    executable = mmap.PROT_READ | mmap.PROT_EXEC
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    deeds: dict[str, Callable[[], object]] = {
        "open": lambda: _called(LIBC.open, b"/etc/passwd", os.O_RDONLY),
        "socket": lambda: _called(LIBC.socket, socket.AF_INET, socket.SOCK_STREAM, 0),
        "fork": lambda: os._exit(0) if os.fork() == 0 else None,
        "execve": lambda: _called(LIBC.execve, b"/nowhere", None, None),
        "kill": lambda: os.kill(os.getppid(), 0),
        "ptrace": lambda: _called(LIBC.prctl, 4, 1),
        "write": lambda: os.write(here.fileno(), b"x"),
        "read": lambda: there.recv(1),
        "pass a descriptor": lambda: socket.send_fds(here, [b"x"], [0]),
        "map executable": lambda: mmap.mmap(-1, mmap.PAGESIZE, prot=executable),
        "make executable": lambda: _called(LIBC.mprotect, ctypes.c_void_p(address), mmap.PAGESIZE, executable),
        "sleep": lambda: time.sleep(0.001),
        "environment": lambda: _missing(os.environ.get("SECRET")),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)),
    }
    return {name: _outcome(deed) for name, deed in deeds.items()}


def _outcome(deed: Callable[[], object]) -> str:
    try:
        deed()
    except OSError as failure:
        return errno.errorcode[failure.errno or 0]
    except ValueError:  # of `setrlimit`
        return "EPERM"
    return "done"


def _called(function: Callable[..., int], *arguments: Any) -> None:
    if function(*arguments) < 0 and ctypes.get_errno() != errno.ENOENT:
        raise OSError(ctypes.get_errno(), "")


def _missing(value: str | None) -> None:
    if value is None:
        raise OSError(errno.EPERM, "")
