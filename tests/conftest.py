"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support import parallel, selection
from tests.support.failures import print_failures
from tests.support.leaks import report_leaks
from tests.support.loopback import LoopbackWatch

# Compiled modules are kept, whatever the environment says: a stack that compiles all that it imports takes twice the
# processor time to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with the signal ignored, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, which may take their time on a busy machine.
hypothesis.settings.load_profile("ci")

_watch = LoopbackWatch()
# A hook stays until the process ends.
sys.addaudithook(_watch)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select tests by the day, and that take files from a queue."""
    selection.add_option(parser)
    parallel.add_option(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures as they happen, and report leaks. Last, since pytest's own reporter has to be there."""
    print_failures(config)
    report_leaks(config)
    selection.select_by_day(config)
    parallel.run_queue(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the imported modules and the collected tests out of garbage collections, which would visit them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the programs that tests start have their temporary files in a folder that pytest removes.

    OGX, for example, writes its configuration to one, and leaves it there if a signal ends it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(autouse=True)
def only_loopback() -> Iterator[None]:
    """Fails a test that would reach something beyond the loopback, though the code has dealt with being refused."""
    _watch.found.clear()
    yield
    found, _watch.found = _watch.found, []
    assert not found, f"beyond the loopback: {found}"
