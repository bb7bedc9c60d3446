"""Code in a real container: what it can do, what it cannot, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from llama_stack_responses.sandbox import as_user
from llama_stack_responses.sandbox.census import resident_bytes
from llama_stack_responses.sandbox.container import Bounds, Container
from llama_stack_responses.sandbox.jail import DATA, Jail, find_bwrap, plain_python
from tests.support.waiting import until

MIB = 2**20
BOUNDS = Bounds(seconds=20, memory_bytes=512 * MIB, processes=32, file_bytes=16 * MIB, shown_bytes=2_000)


def jail() -> Jail:
    bwrap = find_bwrap(None)
    assert bwrap
    return Jail(bwrap, plain_python(), 8 * MIB)


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    made = Container(jail(), tmp_path, BOUNDS)
    yield made
    await made.kill()


# What it can do


async def test_variables_are_kept_and_the_value_of_the_last_line_is_shown(container: Container) -> None:
    assert (await container.run("x = 41")).printed == ""
    ran = await container.run("print('hi')\nx + 1")
    assert (ran.printed, ran.failed, ran.stopped) == ("hi\n42\n", False, None)


async def test_an_error_is_shown_from_the_code_on(container: Container) -> None:
    ran = await container.run("def f():\n    return 1 / 0\nf()")
    assert ran.failed
    assert ran.printed.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 3, in <module>\n    f()')
    assert ran.printed.endswith("ZeroDivisionError: division by zero\n")
    assert "interpreter.py" not in ran.printed


@pytest.mark.parametrize(("code", "failed"), [("def", True), ("import sys; sys.exit(0)", False), ("exit(3)", True)])
async def test_code_that_is_none_and_code_that_leaves(container: Container, code: str, failed: bool) -> None:
    await container.run("x = 1")
    assert (await container.run(code)).failed == failed
    assert (await container.run("x")).printed == "1\n"


async def test_files_go_in_and_out(container: Container) -> None:
    (container.folder / "in.txt").write_text("from outside")
    ran = await container.run(f"open('out.txt', 'w').write(open('{DATA}/in.txt').read().upper())")
    assert not ran.failed
    assert (container.folder / "out.txt").read_text() == "FROM OUTSIDE"


async def test_the_standard_output_opened_anew(container: Container) -> None:
    assert (await container.run("print('hi', file=open('/dev/stdout', 'w'))")).printed == "hi\n"


async def test_processes_of_its_own(container: Container) -> None:
    ran = await container.run("import multiprocessing as m; m.Pool(2).map(abs, [-1, 2])")
    assert ran.printed == "[1, 2]\n"


async def test_a_shell_command(container: Container) -> None:
    done = await container.command("echo out; echo err >&2; exit 3", 10, 1000)
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert (await container.command("sleep 60", 0.2, 1000)).exit_code is None
    assert (await container.command("yes | head -c 5000", 10, 100)).stdout == "y\n" * 50


async def test_what_was_printed_before_a_command_ended_it_all(container: Container) -> None:
    done = await container.command("echo last > /proc/$PPID/fd/1; kill -9 $PPID", 10, 1000)
    assert (done.stderr, done.exit_code) == ("last\n", None)
    assert done.stopped


# What it cannot do


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import socket; socket.create_connection(('1.1.1.1', 53), 2)", "OSError"),
        ("open('/etc/passwd').read()", "FileNotFoundError"),
        ("import os; os.listdir('/home')", "FileNotFoundError"),
        ("open('/usr/x', 'w')", "OSError"),
        ("open('/x', 'w')", "OSError"),
        ("open('/dev/x', 'w')", "OSError"),
        ("import os; os.unshare(os.CLONE_NEWUSER)", "OSError"),
        ("import os; os.memfd_create('x')", "OSError"),
        ("bytearray(100 * 2**30)", "MemoryError"),
        ("import os; os.kill(1, 9); os.setuid(0)", "OSError"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "ValueError"),
        ("input()", "EOFError"),
    ],
)
async def test_it_cannot(container: Container, code: str, error: str) -> None:
    ran = await container.run(code)
    assert ran.failed
    assert ran.stopped is None
    assert error in ran.printed.splitlines()[-1]


async def test_the_servers_files_environment_and_processes_are_not_there(
    container: Container, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path_factory.mktemp("secret") / "key"
    secret.write_text("canary")
    monkeypatch.setenv("SECRET", "canary")
    code = f"""
import os, pathlib
print(pathlib.Path({str(secret)!r}).exists(), os.environ.get("SECRET"))
print(sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()) == [1, os.getpid()])
print(any("canary" in open(f"/proc/{{name}}/environ").read() for name in (1, os.getpid())))
"""
    assert (await container.run(code)).printed == "False None\nTrue\nFalse\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\nfor _ in range(3): os.fork()\nx = bytearray(400 * 2**20)\nwhile True: pass", "MiB of memory"),
        (
            "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(bytes(2**20))\n    import time; time.sleep(.01)",
            "files took more than 16 MiB",
        ),
        ("import os; os._exit(3)", "Its Python ended"),
    ],
    ids=["memory", "disk", "exit"],
)
async def test_what_takes_too_much_is_stopped_whole(container: Container, code: str, why: str) -> None:
    await container.run("x = 1")
    ran = await container.run(code)
    assert ran.stopped
    assert why in ran.stopped
    assert (await container.run("'x' in dir()")).printed == "False\n"


# No bomb: if the kernel did not hold it, it would take the machine along.
FORKS = """
import os, signal
made = []
try:
    while len(made) < 99:
        made.append(os.fork() or signal.pause())
except BlockingIOError:
    print("refused after", len(made))
for each in made:
    os.kill(each, signal.SIGKILL)
    os.waitpid(each, 0)
"""


async def test_the_kernel_refuses_a_process_too_many_and_the_container_lives_on(container: Container) -> None:
    first, second = [await container.run(FORKS) for _ in range(2)]
    assert first.printed.startswith("refused after ")
    assert 0 < int(first.printed.split()[-1]) < BOUNDS.processes
    assert second == first


async def test_neither_the_code_nor_what_it_writes_is_roots(container: Container) -> None:
    await container.run("open('out', 'w')")
    assert container._running
    running = [Path(f"/proc/{pid}") for pid in resident_bytes(container._running.process.pid)]
    assert len(running) >= 3
    assert 0 not in {place.stat().st_uid for place in (*running, container.folder / "out")}


async def test_why_another_user_cannot_be_become_is_said() -> None:
    program = Path(as_user.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, "65534", "[]", "/no/such/program", stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert re.fullmatch(
        r"This server is root, and could not .* user 65534: .* Run it as an ordinary user, .*\n", said.decode()
    )


async def test_the_temporary_folder_is_bounded(container: Container) -> None:
    ran = await container.run("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(2**20))")
    assert "No space left" in ran.printed


async def test_output_without_end_is_cut_and_the_code_stopped(container: Container) -> None:
    await container.run("1")  # it is there already
    container._bounds = replace(BOUNDS, seconds=1)
    ran = await container.run("while True: print('y' * 1000)")
    assert ran.stopped == "It did not end within 1 seconds."
    assert ran.printed.startswith("y" * 1000 + "\n")
    assert len(ran.printed) < 2_100
    assert ran.printed.endswith("more bytes)")


LEFT = "import subprocess; subprocess.Popen(['sh', '-c', '(setsid sleep 1000 &) ; (sleep 1000 &)']).wait()"


def descendants() -> set[int]:
    """The processes below this one; those of servers that other tests need come and go."""
    return set(resident_bytes(os.getpid()))


async def test_what_it_leaves_running_ends_with_it(container: Container) -> None:
    before = descendants()
    await container.run(LEFT)
    await until(lambda: len(descendants() - before) >= 4)
    await container.kill()
    await until(lambda: descendants() <= before)


async def test_a_run_that_nobody_waits_for_is_stopped(container: Container) -> None:
    before = descendants()
    task = asyncio.create_task(container.run("open('begun', 'w')\nwhile True: pass"))
    await until((container.folder / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: descendants() <= before)
    assert (await container.run("1")).printed == "1\n"


async def test_an_answer_that_the_code_made_up_is_only_its_own(container: Container) -> None:
    forged = "import json, os, struct, sys\nbody = b'[]'\nos.write(int(sys.argv[2]), struct.pack('!I', 2**31))"
    ran = await container.run(forged)
    assert ran.stopped == "It drew more than can be shown."
    assert (await container.run("1")).printed == "1\n"
