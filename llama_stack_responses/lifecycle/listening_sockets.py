"""Closes listening sockets without losing a connection.

The kernel accepts connections before the server does. It resets those that wait when a socket is closed, and with them
requests that a load balancer has sent, which it may not send again. So first no more connections are let in, then those
that wait are taken, and then the socket is closed: a load balancer whose later connections are refused takes another
server.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

_ATTACH_FILTER: Final = 26
"""`SO_ATTACH_FILTER` of Linux."""
_SYN: Final = 0x02
_FLAGS_OFFSET: Final = 13
"""Offset of the flags in the header of TCP, which the filter of a listening socket sees."""
_NO_SYN: Final = (
    (0x30, 0, 0, _FLAGS_OFFSET),  # load the byte
    (0x45, 0, 1, _SYN),  # if the bit is set
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # otherwise keep it
)
"""A program for the kernel's packet filter: it drops the packets that open a connection."""


def is_shared() -> bool:
    """Return whether the listening sockets belong to a parent process, whose other workers accept connections too."""
    return multiprocessing.parent_process() is not None


def call_if_parent_ends(call: Callable[[], object]) -> None:
    """Call this in the running event loop if the parent process ends, whose socket this process would keep open."""
    if parent := multiprocessing.parent_process():
        loop, sentinel = asyncio.get_running_loop(), parent.sentinel

        def ended() -> None:
            loop.remove_reader(sentinel)
            call()

        loop.add_reader(sentinel, ended)


def drop_new_connections(servers: Sequence[Any]) -> None:
    """Have the kernel drop packets that open a connection; their senders repeat them after a second.

    Elsewhere than on Linux, nothing is done.

    Args:
        servers: the asyncio servers of the process.
    """
    if sys.platform != "linux":
        return
    instructions = b"".join(struct.pack("HBBI", *each) for each in _NO_SYN)
    program = ctypes.create_string_buffer(instructions)
    described = struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
    for each in (each for server in servers for each in server.sockets):
        with suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)
