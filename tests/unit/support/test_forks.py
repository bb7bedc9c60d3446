"""A forked server differs from a new process in nothing that it can see, and a fork that would differ is refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import fork_server
from tests.support.forks import Forks
from tests.support.proc import has_ended
from tests.support.process import Child, StartError
from tests.support.stack import REPOSITORY
from tests.support.waiting import wait_until

type Json = dict[str, Any]

SCRIPT: Final = f"""#!{sys.executable}
import ctypes, json, multiprocessing.process, os, random, resource, signal, sys, threading, time
from warm import COLOUR

def link(number):
    return os.readlink(f"/proc/self/fd/{{number}}")

def death_signal():
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(found))
    return found.value

def main():
    main = sys.modules["__main__"]
    fds = [int(each) for each in os.listdir("/proc/self/fd")]
    open_fds = {{each: link(each) for each in fds if os.path.exists(f"/proc/self/fd/{{each}}")}}
    said = {{
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ), "flags": str(sys.flags),
        "group": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getpid(), "fds": open_fds,
        "signals": [str(signal.getsignal(each)) for each in signal.valid_signals()],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "death": death_signal(), "umask": os.umask(0o22),
        "limits": [resource.getrlimit(each) for each in range(16)], "nice": os.nice(0), "argv0": sys.orig_argv[0],
        "threads": len(os.listdir("/proc/self/task")), "main": [main.__name__, main.__file__, str(main.__spec__)],
        "is_main": main.main is globals()["main"], "first": threading.current_thread() is threading.main_thread(),
        "thread_id": threading.get_native_id() == os.getpid(), "folder": multiprocessing.process.ORIGINAL_DIR,
        "out": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.isatty(), sys.stdout.errors],
        "inherited": os.environ.get("COLOUR"), "modules": sorted(each for each in sys.modules if "fork_server" in each),
        "children": open(f"/proc/self/task/{{os.getpid()}}/children").read(),
    }}
    print(json.dumps(said))
    print("random", random.random())
    print("up", flush=True)
    if "sleep" in sys.argv:
        time.sleep(600)
    return 3

if __name__ == "__main__":
    sys.exit(main())
"""
WARM: Final = "import multiprocessing.process, os\nCOLOUR = os.environ.get('COLOUR')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program that prints what a process can see of itself, with a module that reads a variable at its import."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "warm.py").write_text(WARM)
    script = folder / "host"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return script


@pytest.fixture
def forks(script: Path) -> Iterator[Forks]:
    with Forks(script, ["warm"], os.environ, script.with_name("forks.log")) as forks:
        yield forks


def forked(forks: Forks, script: Path, log: Path, *arguments: str, env: Mapping[str, str] = os.environ) -> Child | None:
    return forks.start([str(script), *arguments], log=log, env=env, cwd=log.parent)


def ended(child: Child | None) -> int:
    assert child is not None
    wait_until(lambda: child.returncode is not None)
    status = child.returncode
    assert status is not None
    assert child.kill() == status
    return status


def up(child: Child | None, log: Path) -> Child:
    assert child is not None
    child.wait_ready(lambda: "up" in log.read_text().splitlines() or None, seconds=60, every=0.01)
    return child


def seen(log: Path) -> Json:
    found: Json = json.loads(log.read_text().splitlines()[0])
    return found


def test_forked_process_equals_a_new_one(forks: Forks, script: Path, tmp_path: Path) -> None:
    command, env, log = [str(script), "run", "a b"], os.environ | {"ADDED": "ä"}, tmp_path / "log"
    assert ended(Child(command, log=log, env=env, cwd=tmp_path)) == 3
    new = seen(log)
    log.unlink()
    assert ended(forked(forks, script, log, "run", "a b", env=env)) == 3
    assert seen(log) == new


def test_forked_processes_have_random_numbers_of_their_own(forks: Forks, script: Path, tmp_path: Path) -> None:
    logs = [tmp_path / name for name in "ab"]
    for log in logs:
        assert ended(forked(forks, script, log)) == 3
    first, second = (log.read_text().splitlines()[1] for log in logs)
    assert first != second


def test_output_is_appended_to_the_log(forks: Forks, script: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    ended(forked(forks, script, log))
    assert log.read_text().startswith("before\n{")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signal_is_reported_as_exit_status(forks: Forks, script: Path, tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    child = up(forked(forks, script, log, "sleep"), log)
    assert child.returncode is None
    child.signal(number)
    assert ended(child) == -number


def test_stop_terminates_forked_process(forks: Forks, script: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = up(forked(forks, script, log, "sleep"), log)
    assert child.stop() == -signal.SIGTERM
    assert not Path(f"/proc/{child.pid}").exists()


def test_several_forked_processes_run_and_end_each_alone(forks: Forks, script: Path, tmp_path: Path) -> None:
    logs = [tmp_path / name for name in "abc"]
    children = [up(forked(forks, script, log, "sleep"), log) for log in logs]
    assert children[1].kill() == -signal.SIGKILL
    assert children[0].returncode is children[2].returncode is None
    assert [children[2].stop(), children[0].stop()] == [-signal.SIGTERM] * 2


def test_variable_that_an_import_reads_prevents_a_fork(forks: Forks, script: Path, tmp_path: Path) -> None:
    assert forked(forks, script, tmp_path / "log", env=os.environ | {"COLOUR": "blue"}) is None
    assert forked(forks, script, tmp_path / "log", env=os.environ | {"PYTHONUTF8": "1"}) is None
    assert forks.refusals == ["differing variables: COLOUR", "differing variables: PYTHONUTF8"]


@pytest.mark.parametrize("name", fork_server.DONE_LATER)
def test_variable_without_which_an_import_does_nothing_is_followed_after_the_fork(
    name: str, script: Path, tmp_path: Path
) -> None:
    module, function = fork_server.DONE_LATER[name]
    file = script.parent.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    follow = f"import os\ndef {function}():\n    print('followed', os.environ.get({name!r}))\n{function}()\n"
    file.write_text(follow)
    log, env = tmp_path / "log", os.environ | {name: "http://collector"}
    with Forks(script, ["warm", module], os.environ, tmp_path / "forks.log") as forks:
        assert ended(forked(forks, script, log, env=env)) == 3
    assert log.read_text().startswith("followed http://collector\n{")
    with Forks(script, ["warm", module], env, tmp_path / "forks.log") as forks:
        assert forked(forks, script, log, env=os.environ) is None


def test_import_that_goes_through_all_variables_prevents_a_fork(forks: Forks, script: Path, tmp_path: Path) -> None:
    script.with_name("warm.py").write_text("import os\nlist(os.environ)\n")
    assert forked(forks, script, tmp_path / "log", env=os.environ | {"ADDED": "1"}) is None


def test_import_that_starts_a_thread_prevents_a_fork(forks: Forks, script: Path, tmp_path: Path) -> None:
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    script.with_name("warm.py").write_text(program)
    assert forked(forks, script, tmp_path / "log") is None
    assert forks.refusals == ["threads"]


def test_import_that_fails_is_reported(forks: Forks, script: Path, tmp_path: Path) -> None:
    script.with_name("warm.py").write_text("raise ValueError('canary')")
    with pytest.raises(StartError, match="canary"):
        forked(forks, script, tmp_path / "log")


def test_other_program_is_not_forked(forks: Forks, tmp_path: Path) -> None:
    assert forked(forks, tmp_path / "other", tmp_path / "log") is None


def test_forked_process_dies_with_killed_test_run(script: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import os, sys, time; from pathlib import Path; from tests.support.forks import Forks\n"
        f"script, log = Path({str(script)!r}), Path({str(log)!r})\n"
        "forks = Forks(script, ['warm'], os.environ, log.with_name('forks.log'))\n"
        "child = forks.start([str(script), 'sleep'], log=log, env=os.environ, cwd=log.parent)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        wait_until(lambda: log.exists() and "up" in log.read_text().splitlines())
        run.kill()
    wait_until(lambda: has_ended(pid))
