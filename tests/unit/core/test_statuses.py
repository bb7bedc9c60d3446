"""The statuses are those of OpenAI's type."""

from typing import get_args

from openai.types.responses import ResponseStatus

from llama_stack_responses.core.statuses import STATUSES, UNFINISHED


def test_statuses_are_openais() -> None:
    assert set(STATUSES) == set(get_args(ResponseStatus))
    assert set(UNFINISHED) == set(STATUSES) - {"completed", "incomplete", "failed", "cancelled"}
