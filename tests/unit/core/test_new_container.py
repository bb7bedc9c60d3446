"""Requests for containers that are accepted, and those that are refused."""

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.schema.new_container import new_container


@pytest.mark.parametrize(
    ("body", "minutes"),
    [
        ({}, None),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 5}}, 5),
        ({"expires_after": {"minutes": 5}, "file_ids": [], "skills": None}, 5),
        ({"memory_limit": "4g", "network_policy": {"type": "disabled"}, "unknown": 1}, None),
    ],
)
def test_container_request_is_accepted(body: dict[str, Any], minutes: int | None) -> None:
    assert new_container({"name": "notes", **body}) == ("notes", minutes)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"name": None}, "name", "invalid_type"),
        ({"expires_after": {"anchor": "birth", "minutes": 5}}, "expires_after.anchor", "invalid_value"),
        ({"expires_after": {"minutes": 0}}, "expires_after.minutes", "integer_below_min_value"),
        ({"memory_limit": "3g"}, "memory_limit", "invalid_value"),
        ({"file_ids": ["file-1"]}, "file_ids", "unsupported_parameter"),
        ({"skills": [{"type": "skill_reference", "skill_id": "s"}]}, "skills", "unsupported_parameter"),
        ({"network_policy": {"type": "allowlist"}}, "network_policy", "unsupported_value"),
    ],
)
def test_unsupported_container_is_refused(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        new_container({"name": "notes", **body})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
