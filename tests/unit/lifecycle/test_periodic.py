import asyncio

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.lifecycle.periodic import Periodic
from llama_stack_responses.logs import get_logger


class Work:
    """Raises the given errors, one with each call, and records the pauses after them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []
        self.done = asyncio.Event()
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def __call__(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self.errors:
            self.done.set()
            await asyncio.Event().wait()


async def repeat(work: Work, retry_seconds: float | None = None) -> None:
    periodic = Periodic(work, "could not look", get_logger("tests.periodic"), 60.0, retry_seconds)
    periodic.start()
    await work.done.wait()
    await periodic.stop()


async def test_same_failure_of_the_store_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away, other = ApiError(503, "The store is away."), ApiError(503, "The store is full.")
    await repeat(Work(monkeypatch, away, away, other))
    assert caplog.messages == ["could not look: The store is away.", "could not look: The store is full."]


async def test_defect_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await repeat(Work(monkeypatch, ValueError("a defect")))
    [record] = caplog.records
    assert (record.message.splitlines()[0], record.levelname) == ("could not look", "ERROR")
    assert "ValueError: a defect" in caplog.text


@pytest.mark.parametrize(
    ("retry_seconds", "error", "seconds"),
    [(None, ApiError(503, "away"), 60.0), (1.0, ApiError(503, "away"), 1.0), (1.0, ValueError("a defect"), 60.0)],
)
async def test_pause_after_a_failure_depends_on_its_kind(
    monkeypatch: pytest.MonkeyPatch, retry_seconds: float | None, error: Exception, seconds: float
) -> None:
    work = Work(monkeypatch, error)
    await repeat(work, retry_seconds)
    assert work.pauses[0] == seconds


async def test_time_until_the_next_work_is_known_while_it_waits() -> None:
    done = asyncio.Event()

    async def work() -> None:
        assert periodic.seconds_left is None
        done.set()

    periodic = Periodic(work, "could not look", get_logger("tests.periodic"), 60.0)
    known = [periodic.seconds_left]
    periodic.start()
    await done.wait()
    await asyncio.sleep(0)
    known.append(periodic.seconds_left)
    await periodic.stop()
    before, waiting = known
    assert before is None
    assert waiting is not None
    assert 0 < waiting <= 60
