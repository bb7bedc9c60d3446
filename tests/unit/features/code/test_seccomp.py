"""The filter of system calls, in a real container."""

from __future__ import annotations

import os
import re

import pytest

from llama_stack_responses.features.code.sandbox.container import Container
from llama_stack_responses.features.code.sandbox.seccomp import filter_program
from tests.unit.features.code.test_container import container

__all__ = ["container"]

FAMILIES = """
import errno, socket
opened, refused = [], set()
for family in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            opened.append(family)
        except OSError as error:
            refused.add((family, error.errno))
print(set(opened), {error for family, error in refused if family != socket.AF_UNIX} == {errno.EAFNOSUPPORT})
"""

PAIRS = """
import socket
socket.socketpair()[0].close()
socket.socketpair(30)
"""

CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def tried(number):
    ctypes.set_errno(0)
    return libc.syscall(number, 0, 0, 0, 0, 0), errno.errorcode.get(ctypes.get_errno())
print({name: tried(number) for name, number in NUMBERS.items()})
"""

NUMBERS = {
    "clone3": 435,
    "keyctl": 250,
    "perf_event_open": 298,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "unshare": 272,
    "getpid, x32": 0x40000000 + 39,
    "socket, x32": 0x40000000 + 41,
}

OLD_ABI = """
import ctypes, mmap, os
code = bytes.fromhex("b814000000cd80c3")  # mov eax, getpid of 32 bits; int 0x80; ret
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
child = os.fork()
if not child:
    call()
    os._exit(0)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


async def test_sockets_of_every_family_but_unix_are_refused(container: Container) -> None:
    assert (await container.run(FAMILIES)).printed == "{1} True\n"
    assert "Address family not supported" in (await container.run(PAIRS)).printed.splitlines()[-1]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
async def test_dangerous_system_calls_are_missing_under_every_number(container: Container) -> None:
    ran = await container.run(f"NUMBERS = {NUMBERS}\n{CALLS}")
    assert ran.printed == f"{dict.fromkeys(NUMBERS, (-1, 'ENOSYS'))}\n"
    assert (await container.run(OLD_ABI)).printed == "31\n"


UNCOUNTED = {
    "a larger pipe": "fcntl.fcntl(os.pipe()[0], 1031, 2**20)",
    "a larger buffer to send from": "socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)",
    "a larger buffer to receive in": "socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 9)",
    "shared memory": "mmap.mmap(-1, 4096)",
    "memory of a device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
}


@pytest.mark.parametrize("name", UNCOUNTED)
async def test_memory_charged_to_no_process_is_refused(container: Container, name: str) -> None:
    ran = await container.run(f"import fcntl, mmap, os, socket\n{UNCOUNTED[name]}")
    assert re.match(r"(PermissionError: \[Errno 1\]|OSError: \[Errno 19\])", ran.printed.splitlines()[-1])


OWN_FILES = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD = 0x100, 0x200, 0x400, 0x800, 0x10000
def tried(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments, *[0] * (5 - len(arguments))), errno.errorcode.get(ctypes.get_errno())
# Without CLONE_SIGHAND, which a thread needs, the kernel itself says EINVAL.
print(tried(56, CLONE_THREAD), tried(56, CLONE_THREAD | CLONE_FILES), tried(436, 900, 901, 2), tried(436, 900, 901, 0))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
async def test_threads_with_separate_file_tables_are_refused(container: Container) -> None:
    assert (await container.run(OWN_FILES)).printed == "(-1, 'EPERM') (-1, 'EINVAL') (-1, 'EPERM') (0, None)\n"


async def test_memory_and_sockets_of_ordinary_programs_are_allowed(container: Container) -> None:
    code = """
import asyncio, mmap, multiprocessing, os, socket
mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[0] = 1
with open("x", "wb+") as file:
    file.write(bytes(4096)); file.flush()
    mmap.mmap(file.fileno(), 4096)[0] = 1
socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
value = multiprocessing.Value("i", 0)
def add():
    with value: value.value += 1
started = [multiprocessing.Process(target=add) for _ in range(2)]
for each in started: each.start()
for each in started: each.join()
asyncio.run(asyncio.sleep(0))
print(value.value, open("/dev/zero", "rb").read(2))
"""
    assert (await container.run(code)).printed == "2 b'\\x00\\x00'\n"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_jumps_of_filter_stay_inside_and_reach_return(machine: str) -> None:
    program = filter_program(machine)
    assert program
    steps = [program[place : place + 8] for place in range(0, len(program), 8)]
    jumps = {place: step[2] for place, step in enumerate(steps) if step[0] in (0x15, 0x35)}
    assert {steps[place + 1 + jump][0] for place, jump in jumps.items()} <= {0x06, 0x20}
    assert filter_program("riscv64") is None
