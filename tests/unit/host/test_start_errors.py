"""What a process prints that ends because of the user's configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from uvicorn.config import STARTUP_FAILURE

from llama_stack_responses.logs import SentenceOfTraceback
from tests.support.forks import Forks

PROGRAM: Final = """
import multiprocessing, os, sys
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.host.start_errors import sentence_last
from llama_stack_responses.lifecycle.siblings import shared_folder

def start(raised):
    with sentence_last():
        raise eval(raised)

if "worker" not in sys.argv[1]:
    start(sys.argv[1])
others = shared_folder(os.getpid())
if sys.argv[1] == "late worker":
    others.mkdir()
worker = multiprocessing.get_context("fork").Process(target=start, args=["WrongConfiguration('Set it.')"])
worker.start()
worker.join()
if others.exists():
    others.rmdir()
raise SystemExit(worker.exitcode)
"""
"""What raises the argument in a `sentence_last`, or in one of a worker process."""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes of the program that have imported the host, which takes four seconds of processor time."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "program.py").write_text(PROGRAM)
    with Forks(folder / "program.py", ["llama_stack_responses.host.start_errors"], os.environ, folder / "log") as forks:
        yield forks


def output_of(forks: Forks, argument: str, folder: Path) -> tuple[int, str]:
    """Return the exit status and the error output of the program."""
    errors = folder / "errors"
    child = forks.start([forks.script, argument], log=folder / "log", env=forks.env, cwd=folder, errors=errors)
    assert child, forks.refusals
    return child.wait(240), errors.read_text()


def test_program_that_ends_by_a_wrong_configuration_prints_its_sentence_last(forks: Forks, tmp_path: Path) -> None:
    assert output_of(forks, "WrongConfiguration('Set it.')", tmp_path) == (1, "\nSet it.\n")


def test_program_that_ends_by_another_error_prints_its_traceback(forks: Forks, tmp_path: Path) -> None:
    status, output = output_of(forks, "ValueError('a defect')", tmp_path)
    assert status == 1
    assert output.startswith("Traceback")
    assert output.endswith("ValueError: a defect\n")


def test_worker_process_of_the_host_prints_the_sentence_and_ends_the_others(forks: Forks, tmp_path: Path) -> None:
    assert output_of(forks, "worker", tmp_path) == (STARTUP_FAILURE, "Set it.\n")


def test_worker_process_that_is_started_later_leaves_the_others_alone(forks: Forks, tmp_path: Path) -> None:
    """The configuration has become wrong since they were started."""
    assert output_of(forks, "late worker", tmp_path) == (1, "Set it.\n")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Traceback (most recent call last):\n  File x\nWrongConfiguration: Set it.\n", "Set it."),
        ("Traceback (most recent call last):\n  File x\nValueError: a defect\n", None),
        ("Application startup failed. Exiting.", None),
    ],
)
def test_traceback_of_the_error_is_replaced_in_the_log_of_uvicorn(
    message: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[tuple[object, ...]] = []
    monkeypatch.setattr("atexit.register", lambda *called: at_exit.append(called))
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, message, None, None)
    assert SentenceOfTraceback("Set it.").filter(record)
    assert record.getMessage() == (shown or message)
    assert [text for _, text in at_exit] == (["\nSet it.\n"] if shown else [])
