"""Code in a real container: its abilities, its limits, and what remains after it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.features.code.sandbox import DATA, launcher, pipes
from llama_stack_responses.features.code.sandbox.container import Bounds, Container
from llama_stack_responses.features.code.sandbox.jail import Jail, find_bwrap, plain_python
from llama_stack_responses.features.code.sandbox.volume import LAUNCHER, Capacity, DiskVolume, MemoryVolume, Volumes
from tests.support.clock import LoopClock
from tests.support.descendants import descendants
from tests.support.waiting import until

MIB = 2**20
BOUNDS = Bounds(seconds=120, memory_bytes=512 * MIB, processes=32, processors=1.0, shown_bytes=2_000)


def jail() -> Jail:
    bwrap = find_bwrap(None)
    assert bwrap
    return Jail(bwrap, plain_python(), 8 * MIB)


def admission(total: int, per_user: int) -> Admission:
    """Return a count of containers with these maximums."""
    return Admission(Quota("containers", total, per_user, authenticated_only=True))


def volumes(*, in_memory: bool = True, most_files: int = 300, launcher: Path = LAUNCHER) -> Volumes:
    return Volumes(jail(), Capacity(16 * MIB, most_files), in_memory=in_memory, launcher=launcher)


@asynccontextmanager
async def container_in(folder: Path, *, in_memory: bool) -> AsyncIterator[Container]:
    container = Container(jail(), volumes(in_memory=in_memory).make(folder), BOUNDS)
    assert isinstance(container.volume, MemoryVolume) == in_memory
    yield container
    await container.kill()


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    async with container_in(tmp_path, in_memory=True) as container:
        yield container


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Container]:
    """A container whose files are on disk."""
    async with container_in(tmp_path, in_memory=False) as container:
        yield container


# Abilities


async def test_variables_persist_and_last_value_is_printed(container: Container) -> None:
    assert (await container.run("x = 41")).printed == ""
    ran = await container.run("print('hi')\nx + 1")
    assert (ran.printed, ran.failed, ran.stopped) == ("hi\n42\n", False, None)


async def test_traceback_begins_at_code(container: Container) -> None:
    ran = await container.run("def f():\n    return 1 / 0\nf()")
    assert ran.failed
    assert ran.printed.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 3, in <module>\n    f()')
    assert ran.printed.endswith("ZeroDivisionError: division by zero\n")
    assert "interpreter.py" not in ran.printed


@pytest.mark.parametrize(("code", "failed"), [("def", True), ("import sys; sys.exit(0)", False), ("exit(3)", True)])
async def test_invalid_or_exiting_code_keeps_interpreter(container: Container, code: str, failed: bool) -> None:
    await container.run("x = 1")
    assert (await container.run(code)).failed == failed
    assert (await container.run("x")).printed == "1\n"


async def test_files_can_be_read_and_written(container: Container) -> None:
    (container.folder / "in.txt").write_text("from outside")
    ran = await container.run(f"open('out.txt', 'w').write(open('{DATA}/in.txt').read().upper())")
    assert not ran.failed
    assert (container.folder / "out.txt").read_text() == "FROM OUTSIDE"


async def test_stdout_can_be_reopened(container: Container) -> None:
    assert (await container.run("print('hi', file=open('/dev/stdout', 'w'))")).printed == "hi\n"


async def test_code_can_start_processes(container: Container) -> None:
    ran = await container.run("import multiprocessing as m; m.Pool(2).map(abs, [-1, 2])")
    assert ran.printed == "[1, 2]\n"


async def test_shell_command_runs(container: Container) -> None:
    done = await container.command("echo out; echo err >&2; exit 3", 60, 1000)
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert (await container.command("sleep 60", 0.2, 1000)).exit_code is None
    assert (await container.command("yes | head -c 5000", 60, 100)).stdout == "y\n" * 50


async def test_output_before_killed_interpreter_is_kept(container: Container) -> None:
    done = await container.command("echo last > /proc/$PPID/fd/1; kill -9 $PPID", 60, 1000)
    assert (done.stderr, done.exit_code) == ("last\n", None)
    assert done.stopped


# Limits


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
async def test_forbidden_operations_fail(container: Container, code: str, error: str) -> None:
    ran = await container.run(code)
    assert ran.failed
    assert ran.stopped is None
    assert error in ran.printed.splitlines()[-1]


async def test_files_environment_and_processes_of_server_are_hidden(
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
        ("import os; os._exit(3)", "The Python process exited"),
    ],
    ids=["memory", "exit"],
)
async def test_container_over_limit_is_stopped(container: Container, code: str, why: str) -> None:
    await container.run("x = 1")
    ran = await container.run(code)
    assert ran.stopped
    assert why in ran.stopped
    assert (await container.run("'x' in dir()")).printed == "False\n"


# Not a fork bomb: if the kernel's limit failed, that would take down the machine.
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


async def test_process_limit_is_enforced_and_container_survives(container: Container) -> None:
    first, second = [await container.run(FORKS) for _ in range(2)]
    assert first.printed.startswith("refused after ")
    assert 0 < int(first.printed.split()[-1]) < BOUNDS.processes
    assert second == first


async def test_code_and_its_files_do_not_belong_to_root(container: Container) -> None:
    await container.run("open('out', 'w')")
    assert container._running
    running = [Path(f"/proc/{pid}") for pid in descendants(container._running.process.pid)]
    assert len(running) >= 3
    assert 0 not in {place.stat().st_uid for place in (*running, container.folder / "out")}


async def test_failed_change_of_user_is_reported() -> None:
    program = Path(launcher.__file__)
    plan = json.dumps({"user": 65534, "places": [], "namespaces": [], "group": None})
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, "start", plan, "/no/such/program", stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    assert re.fullmatch(
        r"This server runs as root and could not .* user 65534: .* Run it as an ordinary user, .*\n", error.decode()
    )


@pytest.mark.extended
@pytest.mark.parametrize("place", [DATA, "/tmp", "/dev/shm"])
@pytest.mark.parametrize(
    "code",
    [
        "for n in range(99): open(f'{place}/{n}', 'wb').write(bytes(2**20))",
        "for n in range(99): os.posix_fallocate(os.open(f'{place}/{n}', 64 | 2), 0, 2**20)",
        "held = []\nfor n in range(99):\n"
        "    held.append(open('{place}/x', 'wb', 0)); held[-1].write(bytes(2**20)); os.unlink('{place}/x')",
        "for n in range(10**6): open(f'{place}/{n}', 'w')",
        "for n in range(10**6): os.mkdir(f'{place}/{n}')",
        "open('{place}/x', 'w')\nfor n in range(10**6): os.link('{place}/x', f'{place}/{n}')",
        "for n in range(10**6): os.symlink('x' * 1000, f'{place}/{n}')",
    ],
    ids=["written", "reserved", "removed but open", "empty", "folders", "links", "symbolic links"],
)
async def test_kernel_refuses_files_over_limit(container: Container, code: str, place: str) -> None:
    ran = await container.run("import os\n" + code.replace("{place}", place))
    assert ran.stopped is None
    assert ran.printed.splitlines()[-1].startswith("OSError: [Errno 28] No space left on device")
    taken, files = container.volume.used()
    assert taken <= container.volume.capacity.bytes
    assert files <= container.volume.capacity.files + 4


async def test_kernel_refuses_single_file_over_limit(container: Container) -> None:
    assert "[Errno 27] File too large" in (await container.run("open('x', 'wb').truncate(2**30)")).printed


def namespaces() -> set[str]:
    """Return the namespaces that this process holds descriptors of."""
    names = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(str(each.readlink()))
    return {each for each in names if each.startswith(("mnt:", "user:"))}


async def test_memory_files_survive_stop_and_are_removed_with_container(tmp_path: Path) -> None:
    before = namespaces()
    container = Container(jail(), volumes().make(tmp_path), BOUNDS)
    await container.run("open('kept', 'w').write('x')")
    assert (await container.run("import os; os._exit(3)")).stopped
    assert (await container.run("open('kept').read()")).printed == "'x'\n"
    assert not any((tmp_path / name).exists() for name in ("kept", "data"))
    held = namespaces() - before
    assert held
    await container.kill()
    del container.volume
    assert not held & namespaces()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True:\n    n += 1; open(str(n), 'wb').write(bytes(2**19)); time.sleep(.01)", "took more than 16 MiB."),
        ("while True:\n    n += 1; open(str(n), 'w'); time.sleep(.001)", "It had more than 300 files."),
        (
            "for n in range(99): os.mkdir('x'); os.chdir('x')\ntime.sleep(99)",
            "Its folders are too deep.",
        ),
    ],
    ids=["bytes", "files", "depth"],
)
async def test_disk_files_over_limit_stop_container(on_disk: Container, code: str, why: str) -> None:
    ran = await on_disk.run(f"import os, time\nn = 0\n{code}")
    assert ran.stopped
    assert ran.stopped.endswith(why)
    tidied = await on_disk.run("import os\nfor each in os.listdir(): os.path.isfile(each) and os.remove(each)")
    assert tidied.stopped == (f"{why} Use a new container." if "deep" in why else None)


async def test_disk_files_slightly_over_limit_may_be_removed(on_disk: Container) -> None:
    """Otherwise each call could add as many files as are written between two checks."""
    for number in range(400):
        (on_disk.folder / str(number)).touch()
    assert (await on_disk.run("import os; os.remove('399')")).stopped is None
    assert (await on_disk.run("[open(f'more {n}', 'w') for n in range(9)]")).stopped == "It had more than 300 files."
    for number in range(700):
        (on_disk.folder / str(number)).touch()
    ran = await on_disk.run("os.remove('1')")
    assert ran.stopped == "It had more than 300 files. Use a new container."
    assert (on_disk.folder / "1").exists()


async def test_disk_space_cannot_be_reserved_but_written(on_disk: Container) -> None:
    """The kernel would reserve any amount of space at once, whatever the limit of a file's size."""
    code = "import ctypes, os\nx = os.open('x', 64 | 2)\nos.posix_fallocate(x, 0, 2**20)\nos.stat('x').st_size"
    assert (await on_disk.run(code)).printed == f"{MIB}\n"
    code = "libc = ctypes.CDLL(None, use_errno=True)\nlibc.fallocate(x, 1, 0, ctypes.c_long(2**24)), ctypes.get_errno()"
    assert (await on_disk.run(code)).printed == "(-1, 95)\n"


async def test_temporary_folders_are_limited_with_files_on_disk(on_disk: Container) -> None:
    ran = await on_disk.run("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(2**20))")
    assert "No space left" in ran.printed


async def test_system_without_memory_volumes_uses_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    created = volumes(launcher=tmp_path / "none")
    assert [isinstance(created.make(tmp_path), DiskVolume) for _ in range(2)] == [True, True]
    assert "container files are on disk without a quota" in caplog.text


async def test_endless_output_is_cut_and_code_stopped(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    await container.run("1")  # start the interpreter
    clock = LoopClock(monkeypatch)
    code = "for _ in range(100): print('y' * 1000)\nopen('begun', 'w').close()\nwhile True: print('y' * 1000)"
    running = asyncio.create_task(container.run(code))
    await until((container.folder / "begun").exists)
    await clock.passes_until(running.done)
    ran = await running
    assert ran.stopped == "It did not end within 120 seconds."
    assert ran.printed.startswith("y" * 1000 + "\n")
    assert len(ran.printed) < 2_100
    assert ran.printed.endswith("more bytes)")


SOCKETS = """
import os, socket, time
for _ in range(4): os.fork()
held = []
for _ in range(200):
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
    try:
        while held[-1][0].send(bytes(2**15)): pass
    except OSError: pass
time.sleep(20)
"""


@pytest.mark.extended
async def test_data_in_sockets_counts_as_memory(container: Container) -> None:
    assert (await container.run(SOCKETS)).stopped == "It used more than 512 MiB of memory."


FILL = """
import os, threading, time
def filled(number):
    held = []
    for _ in range(number):
        outlet, inlet = os.pipe()
        os.set_blocking(inlet, False)
        os.write(inlet, bytes(2**16))
        os.close(inlet)
        held.append(outlet)
    return held
"""
PIPES = {
    "of one process": "held = filled(450)\nwhile True: time.sleep(1)",
    "of several processes": "for _ in range(3): os.fork()\nheld = filled(60)\nwhile True: time.sleep(1)",
    "of a process whose first thread has ended": """
import ctypes
if os.fork() == 0:
    held = filled(450)
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).pthread_exit(None)
while True: time.sleep(1)
""",
    "with a name": """
os.chdir("/tmp")
held = [b"x" * (12 * 2**20)]
for _ in range(250):
    os.mkfifo("pipe")
    held.append(os.open("pipe", os.O_RDWR | os.O_NONBLOCK))
    os.write(held[-1], bytes(2**16))
    os.unlink("pipe")
while True: time.sleep(1)
""",
}
SMALL = replace(BOUNDS, memory_bytes=32 * MIB)
"""Twice the memory of a Python process, and as much as 512 pipes take."""


@pytest.mark.extended
@pytest.mark.parametrize("case", PIPES)
async def test_data_in_pipes_counts_as_memory(container: Container, case: str) -> None:
    assert not (filled := await container.run(FILL)).failed, filled
    container._bounds = SMALL
    assert (await container.run(PIPES[case])).stopped == "It used more than 32 MiB of memory."


async def test_pipe_shared_by_processes_counts_once(container: Container) -> None:
    assert not (filled := await container.run(FILL)).failed, filled
    container._bounds = SMALL
    code = """
held = filled(100)
made = [os.fork() or time.sleep(0.5) or os._exit(0) for _ in range(8)]
[os.waitpid(each, 0)[1] for each in made]
"""
    ran = await container.run(code)
    assert (ran.printed, ran.stopped) == (f"{[0] * 8}\n", None)


@pytest.mark.extended
async def test_memory_shared_by_short_lived_processes_counts_once(container: Container) -> None:
    """They end while they are measured."""
    await container.run(FILL + "held = bytearray(os.urandom(12 * 2**20))")
    container._bounds = SMALL
    code = """
for _ in range(60):
    made = [os.fork() or os._exit(0) for _ in range(16)]
    [os.waitpid(each, 0)[1] for each in made]
"""
    assert (await container.run(code)).stopped is None


async def test_pipes_hidden_by_kernel_count_by_open_files(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hides them from root without CAP_SYS_PTRACE."""

    def forbidden(proc: int, process: str) -> list[str]:
        raise PermissionError

    assert not (filled := await container.run(FILL)).failed, filled
    monkeypatch.setattr(pipes, "_descriptors", forbidden)
    container._bounds = SMALL
    assert (await container.run("import os; held = [os.open('.', 0) for _ in range(20)]")).stopped is None
    assert (await container.run(PIPES["of one process"])).stopped == "It used more than 32 MiB of memory."


async def test_pseudoterminals_cannot_be_opened(container: Container) -> None:
    assert "FileNotFoundError" in (await container.run("import os; os.openpty()")).printed
    assert (await container.run("os.listdir('/dev/pts'), os.access('/dev/pts', os.W_OK)")).printed == "([], False)\n"


async def test_open_files_are_limited(container: Container) -> None:
    assert "Too many open files" in (await container.run("[open('/dev/null') for _ in range(600)]")).printed


async def test_commands_run_without_room_for_files(container: Container) -> None:
    await container.run("for n in range(400): open(str(n), 'w')")
    assert (await container.command("echo x > new; echo done; rm 1", 60, 1000)).stdout == "done\n"
    assert (await container.command("echo x > new; cat new", 60, 1000)).stdout == "x\n"


async def test_command_that_cannot_start_is_its_own_error(container: Container) -> None:
    await container.run("x = 1")
    done = await container.command(": " + "x" * 200_000, 60, 1000)
    assert (done.exit_code, done.stopped) == (126, None)
    assert "Argument list too long" in done.stderr
    assert (await container.run("x")).printed == "1\n"


async def test_endless_command_output_is_cut(container: Container) -> None:
    done = await container.command("(sleep 100; echo late) & echo early; yes | head -c 3000000", 60, 100)
    assert (done.stdout, done.exit_code) == ("early\n" + "y\n" * 47, 0)
    assert (await container.command("yes", 0.3, 100)).exit_code is None


async def test_lone_surrogate_in_code_is_replaced(container: Container) -> None:
    assert (await container.run("print('\ud800')")).printed == "?\n"
    assert (await container.command("echo '\ud800'", 60, 100)).stdout == "?\n"


# After a call

LEFT = """
import subprocess
left = subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sh", "-c", "(setsid sleep 1000 &); (sleep 1000 &); exit 0"]).wait()
"""


def living(container: Container) -> set[int]:
    """Return the processes of a container, by their ids on this machine."""
    assert container._running
    return descendants(container._running.process.pid)


async def test_background_processes_end_with_call_and_variables_persist(container: Container) -> None:
    await container.run("x = 41")
    own = living(container)
    assert (await container.run(LEFT)).printed == "0\n"
    assert living(container) == own
    assert (await container.run("x + 1, left.poll()")).printed == "(42, -9)\n"


async def test_background_processes_end_with_command(container: Container) -> None:
    await container.run("1")
    own = living(container)
    done = await container.command("(setsid sleep 1000 &) ; sleep 1000 & echo done", 60, 1000)
    assert (done.stdout, done.exit_code) == ("done\n", 0)
    assert living(container) == own


# It forks and exits repeatedly, so that a scan of the process list may miss it.
HOPPING = """
import os, time
if os.fork() == 0:
    for _ in range(100_000):
        while True:
            try:
                leaves = os.fork()
                break
            except BlockingIOError:
                time.sleep(.01)
        if leaves:
            os._exit(0)
    os._exit(0)
"""


async def test_process_that_keeps_forking_is_killed(container: Container) -> None:
    await container.run("1")
    own = living(container)
    assert (await container.run(HOPPING)).stopped is None
    assert living(container) == own


HEADLESS = """
import ctypes, os, threading, time
if os.fork() == 0:
    def hold():
        time.sleep(.3)
        held = bytearray({held})
        time.sleep(1000)
    threading.Thread(target=hold, daemon=True).start()
    ctypes.CDLL(None).syscall({exit}, 0)
time.sleep({seconds})
"""
EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


async def test_process_without_main_thread_is_killed(container: Container) -> None:
    await container.run("1")
    own = living(container)
    ran = await container.run(HEADLESS.format(held=1, exit=EXIT_OF_A_THREAD, seconds=0.5))
    assert (ran.failed, ran.stopped) == (False, None)
    assert living(container) == own


@pytest.mark.extended
async def test_memory_of_process_without_main_thread_counts(container: Container) -> None:
    code = HEADLESS.format(held=300 * MIB, exit=EXIT_OF_A_THREAD, seconds=20)
    ran = await container.run(f"{code.replace('if os.fork() == 0', 'if not (os.fork() and os.fork())')}")
    assert ran.stopped == "It used more than 512 MiB of memory."


@pytest.mark.extended
async def test_memory_shared_by_processes_counts_once(container: Container) -> None:
    ran = await container.run(
        "import os, time\nx = bytearray(300 * 2**20)\nfor _ in range(3): os.fork() or (time.sleep(5), os._exit(0))\n"
        "time.sleep(1); print('done')"
    )
    assert (ran.printed, ran.stopped) == ("done\n", None)


TICKING = """
import threading, time
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(.001)
threading.Thread(target=tick, daemon=True).start()
time.sleep(.1)
"""


def states(container: Container) -> set[str]:
    """Return the states of the processes inside, as in proc(5)."""
    assert container._running
    inside = living(container) - {container._running.process.pid}
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in inside}


async def test_processes_are_stopped_between_calls(container: Container) -> None:
    await container.run(TICKING)
    assert states(container) == {"T"}
    first = int((await container.run("ticks")).printed)
    await container.run("time.sleep(.5)")
    assert int((await container.run("ticks")).printed) > first > 0


WAKING = """
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
event = (ctypes.c_byte * 64)()
struct.pack_into("=Qii", event, 0, 0, 18, 0)
print(libc.timer_create(1, event, ctypes.byref(ctypes.c_void_p())), errno.errorcode[ctypes.get_errno()])
for command in (10, 1024, 1026):
    try:
        fcntl.fcntl(os.pipe()[0], command, 18)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


async def test_code_cannot_schedule_wakeup_after_call(container: Container) -> None:
    assert (await container.run(WAKING)).printed == "-1 ENOSYS\nEPERM\nEPERM\nEPERM\n"


async def test_container_resumed_between_calls_is_killed(container: Container) -> None:
    await container.run(TICKING)
    running = container._running
    assert running
    assert running.processes
    running.processes.resume()
    await until(lambda: running.process.returncode is not None)
    assert (await container.run("'ticks' in dir()")).printed == "False\n"


async def test_background_processes_run_as_long_as_configured(container: Container) -> None:
    container._bounds = replace(BOUNDS, background_seconds=1000)
    await container.run("import subprocess; left = subprocess.Popen(['sleep', '1000'])")
    assert (await container.run("left.poll()")).printed == ""
    container._bounds = replace(BOUNDS, background_seconds=0.1)
    assert (await container.run("left.poll()")).printed == ""
    await until(lambda: states(container) == {"T"})
    assert (await container.run("left.poll()")).printed == "-9\n"


async def test_background_process_over_limit_ends_container(container: Container) -> None:
    container._bounds = replace(BOUNDS, background_seconds=1000)
    await container.run("import threading, time")
    running = container._running
    assert running
    for _ in range(2):
        await container.run(
            "import os\nif os.fork() == 0:\n    time.sleep(.2); x = bytearray(300 * 2**20); time.sleep(99)"
        )
    await until(lambda: running.process.returncode is not None)
    assert (await container.run("'time' in dir()")).printed == "False\n"


async def test_background_processes_end_with_container(container: Container) -> None:
    before = descendants()
    container._bounds = replace(BOUNDS, background_seconds=1000)
    await container.run(LEFT)
    assert len(descendants() - before) >= 6
    await container.kill()
    await until(lambda: descendants() <= before)


async def test_limits_apply_to_first_process_too(container: Container) -> None:
    printed = (await container.run("print(open('/proc/1/limits').read() == open('/proc/self/limits').read())")).printed
    assert printed == "True\n"


async def test_cancelled_run_is_stopped(container: Container) -> None:
    before = descendants()
    task = asyncio.create_task(container.run("open('begun', 'w')\nwhile True: pass"))
    await until((container.folder / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: descendants() <= before)
    assert (await container.run("1")).printed == "1\n"


def forged(sent: str) -> str:
    """Return code that sends forged data on the connection to the server."""
    return f"import json, os, struct, sys, time\nos.write(int(sys.argv[2]), {sent}); time.sleep(20)"


@pytest.mark.relatives
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ("struct.pack('!I', 2**31)", "It drew more figures than can be shown."),
        ("struct.pack('!I', 2) + b'[]'", "The Python process exited"),
        ("struct.pack('!I', 2) + b'{]'", "The Python process exited"),
        ("struct.pack('!I', 4000) + b'[' * 4000", "The Python process exited"),
        ("struct.pack('!I', 14) + b'{\"parts\":[-1]}'", "The Python process exited"),
        ("struct.pack('!I', 22) + b'{\"parts\":[99999999999]}'[:22]", "The Python process exited"),
        ("struct.pack('!I', 23) + b'{\"parts\":[99999999999]}'", "It drew more figures than can be shown."),
        (
            "(b := b'{\"parts\":[' + b'0,' * 40 + b'0]}') and struct.pack('!I', len(b)) + b",
            "It drew more figures than can be shown.",
        ),
    ],
)
async def test_forged_answer_stops_only_its_container(container: Container, sent: str, why: str) -> None:
    ran = await container.run(forged(sent))
    assert ran.stopped
    assert why in ran.stopped
    assert (await container.run("1")).printed == "1\n"


async def test_too_many_figures_are_left_out(container: Container) -> None:
    pyplot = """
import sys, types
made = list(range(40))
class Figure:
    def savefig(self, file, format): file.write(bytes(2**20))
sys.modules["matplotlib.pyplot"] = types.SimpleNamespace(
    get_fignums=lambda: list(made), figure=lambda number: Figure(), close=lambda _: made.clear())
"""
    ran = await container.run(pyplot)
    assert (ran.printed, len(ran.images)) == ("32 figures are too many or too large, and are not shown.\n", 8)
    assert (await container.run("1")).images == []


LOCKS = """
import fcntl
files = [open(f"/tmp/{number}", "w") for number in range(50)]
for number in range(10**9):
    fcntl.lockf(files[number % 50], fcntl.LOCK_EX, 1, 2**60 - 2 * number)
"""


async def test_too_many_file_locks_stop_container(container: Container) -> None:
    ran = await container.run(LOCKS)
    assert ran.stopped == "It held more than 10,000 locks on files."
    assert (await container.run("1 + 1")).printed == "2\n"


async def test_file_locks_of_databases_work(container: Container) -> None:
    code = "import sqlite3; db = sqlite3.connect('a.db'); db.execute('create table t (a)'); db.commit(); print('made')"
    assert (await container.run(code)).printed == "made\n"


async def test_locks_that_belong_to_no_process_are_refused(container: Container) -> None:
    code = "import fcntl; fcntl.fcntl(open('a', 'w'), 37, b'\\1\\0' + bytes(30))"  # F_OFD_SETLK
    assert "PermissionError" in (await container.run(code)).printed
