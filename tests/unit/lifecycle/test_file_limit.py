"""The limit of a server's process on open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Final

import pytest

from llama_stack_responses.lifecycle.file_limit import raise_file_limit

PROGRAM: Final = """
import resource
from llama_stack_responses.lifecycle.file_limit import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
raise_file_limit(1)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_limit_on_open_files_is_raised_to_what_the_process_may() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(hard), str(hard)]


def test_limit_that_cannot_be_raised_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_file_limit(2048)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("could not raise the limit on open files from 1024 to 4096")


@pytest.mark.parametrize(("hard", "warned"), [(8191, True), (8192, False), (resource.RLIM_INFINITY, False)])
def test_limit_that_is_too_low_for_streams_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hard: int, warned: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    raise_file_limit(4096)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    start = f"the hard limit on open files is too low for 4096 streams, which need 8192: raise it from {hard} "
    assert [message.startswith(start) for message in messages] == [True] * warned
