"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from tests.support.failures import print_failures
from tests.support.loopback import LoopbackWatch
from tests.support.selection import add_option, select_by_day

# Compiled modules are kept, whatever the environment says: a stack that compiles all that it imports takes twice the
# processor time to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with the signal ignored, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, which may take their time on a busy machine.
hypothesis.settings.load_profile("ci")

LIVE: Final = (Path(__file__).parent / "integration", Path(__file__).parent / "demo")
"""The folders of live tests."""
LIVE_END: Final = 0.9
"""The part of a run in which live tests begin."""

_watch = LoopbackWatch()
# A hook stays until the process ends.
sys.addaudithook(_watch)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects tests by the day."""
    add_option(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures as they happen. Last, since pytest's own reporter has to be there."""
    print_failures(config)
    select_by_day(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process have all tests that drive a browser."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.distribution import FileScheduling

    return FileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the imported modules and the collected tests out of garbage collections, which would visit them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files of live tests, which wait for servers, with the other ones, which compute, so that no core idles."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    live = {path: is_live(path) for path in files}
    kinds = [[path for path in files if live[path] is kind] for kind in (True, False)]
    positions = {path: index / len(paths) for paths in kinds for index, path in enumerate(paths)}
    # The last files are short: no process then works alone on a long one.
    positions |= {path: LIVE_END * position for path, position in positions.items() if live[path]}
    items[:] = [item for path in sorted(files, key=positions.__getitem__) for item in files[path]]


def is_live(path: Path) -> bool:
    """Whether the tests of a file start servers."""
    return any(path.is_relative_to(folder) for folder in LIVE)


@pytest.fixture(autouse=True)
def only_loopback() -> Iterator[None]:
    """Fails a test that would reach something beyond the loopback, though the code has dealt with being refused."""
    _watch.found.clear()
    yield
    found, _watch.found = _watch.found, []
    assert not found, f"beyond the loopback: {found}"
