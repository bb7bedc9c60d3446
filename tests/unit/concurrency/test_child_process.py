"""Child processes start whatever libraries do in a fork."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from llama_stack_responses.concurrency.child_process import ChildProcess

PROGRAM: Final = """
import asyncio, os, sys, time
import uvloop
from llama_stack_responses.concurrency.child_process import PIPE, ChildProcess

os.register_at_fork(after_in_child=lambda: time.sleep(3600))

async def main():
    print(await ChildProcess([sys.executable, "-c", "print(1)"], stdout=PIPE).output())

uvloop.run(main())
"""


def test_program_starts_although_a_hook_of_forks_never_returns() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=240, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"b'1\\n'\n"), ran.stderr


async def test_killed_program_has_ended_with_the_signal() -> None:
    process = ChildProcess([sys.executable, "-c", "import time; time.sleep(3600)"])
    before = process.returncode
    process.kill()
    status = await process.wait()
    process.kill()
    assert (before, status, process.returncode) == (None, -9, -9)


async def test_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/no/such/program"])
