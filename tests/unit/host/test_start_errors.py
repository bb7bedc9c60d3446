"""What a process prints that ends because of the user's configuration."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest

from llama_stack_responses.logs import SentenceOfTraceback


def output_of(raised: str) -> tuple[int, str]:
    """Return the exit status and the error output of a program that raises in a `sentence_last`."""
    program = f"""
        from llama_stack_responses.core.setting_values import WrongConfiguration
        from llama_stack_responses.host.start_errors import sentence_last
        with sentence_last():
            raise {raised}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_program_that_ends_by_a_wrong_configuration_prints_its_sentence_last() -> None:
    assert output_of("WrongConfiguration('Set it.')") == (1, "\nSet it.\n")


def test_program_that_ends_by_another_error_prints_its_traceback() -> None:
    status, output = output_of("ValueError('a defect')")
    assert status == 1
    assert output.startswith("Traceback")
    assert output.endswith("ValueError: a defect\n")


def test_worker_process_of_the_host_prints_the_sentence_only() -> None:
    program = """
        import multiprocessing
        from llama_stack_responses.core.setting_values import WrongConfiguration
        from llama_stack_responses.host.start_errors import sentence_last
        def start():
            with sentence_last():
                raise WrongConfiguration("Set it.")
        worker = multiprocessing.get_context("fork").Process(target=start)
        worker.start()
        worker.join()
        raise SystemExit(worker.exitcode)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Set it.\n")


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
