"""What a background response is queued as follows from its request."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.jobs.work_class import BACKGROUND, Work, WorkClass
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.service.detached_responses import work_of


@pytest.mark.parametrize(
    ("fields", "work"),
    [
        ({}, BACKGROUND),
        ({"service_tier": "auto"}, BACKGROUND),
        ({"service_tier": "priority"}, Work(WorkClass.PRIORITY)),
        ({"background_options": {"completion_window": "soonest"}}, BACKGROUND),
        ({"background_options": {"completion_window": "2h"}}, Work(WorkClass.WINDOW, 7_200.0)),
        ({"background_options": {"completion_window": "8h"}}, Work(WorkClass.WINDOW, 28_800.0)),
        (
            {"background_options": {"completion_window": "2h", "continuation_id": "c"}},
            Work(WorkClass.WINDOW, 7_200.0, "2h m c"),
        ),
        ({"background_options": {"continuation_id": "c"}}, BACKGROUND),
        ({"service_tier": "flex"}, Work(WorkClass.FLEX)),
    ],
)
def test_work_of_request_is_its_window_or_its_tier(fields: dict[str, Any], work: Work) -> None:
    assert work_of(parse_create({"model": "m", "input": "hi", "background": True, **fields})) == work
