"""What a line ends with is the answer that its request would have got."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError, UnusableAnswerError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.batches.ends import LineEnds, Tries
from llama_stack_responses.features.batches.rows import Line, Result, Retry
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.records import Put
from llama_stack_responses.telemetry.instrumentation import Telemetry

LINE = Line("batch_" + "0" * 24, 1)


def put_by(error: ApiError | None, status: str = "failed", attempt: int = 1) -> Put:
    """Return the first row that the end of a response writes."""
    response: dict[str, Any] = {"id": LINE._replace(attempt=attempt).response_id, "status": status, "store": True}
    response["error"] = error.response_error() if error else None
    first, *_ = LineEnds(Tries(2, 10.0), Telemetry()).ops(Ended(response, Owner("ada"), None, 1000.0, error=error))
    assert isinstance(first, Put)
    return first


@pytest.mark.parametrize("error", [ApiError(404, "No.", code="model_not_found", param="model"), ApiError(502, "No.")])
def test_failed_line_has_the_error_of_its_request(error: ApiError) -> None:
    put = put_by(error, attempt=2)
    expected = Result(LINE._replace(attempt=2).response_id, True, error.status, error.body())
    assert (put.key, Result.decode(put.value)) == (LINE.key("d"), expected)


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (None, "completed", 200),
        (None, "incomplete", 200),
        (None, "cancelled", 0),
        (UnusableAnswerError("No JSON."), "failed", 200),
    ],
)
def test_line_whose_answer_is_its_response_has_no_other(error: ApiError | None, status: str, expected: int) -> None:
    put = put_by(error, status)
    assert Result.decode(put.value) == Result(LINE.response_id, True, expected)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_busy_line_is_tried_again_no_sooner_than_the_model_server_says(status: int) -> None:
    plain, later = (
        Retry.decode(put_by(ApiError(status, "Busy.", retry_after=seconds)).value) for seconds in (None, 60.0)
    )
    assert plain.attempt == later.attempt == 2
    assert 1008.0 <= plain.due <= 1012.0
    assert later.due == 1060.0
