"""Requests for containers and their files that are accepted, and those that are refused."""

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.code.containers.container_bodies import NewContainer, copied_file, new_container
from tests.support.skills import skill

SKILL = skill()
ALLOWED = {"type": "allowlist", "allowed_domains": ["example.com"]}


def with_secret(**changed: Any) -> dict[str, Any]:
    """Return a policy with a secret."""
    return {**ALLOWED, "domain_secrets": [{"domain": "example.com", "name": "KEY", "value": "v", **changed}]}


@pytest.mark.parametrize(
    ("body", "minutes", "file_ids"),
    [
        ({}, None, ()),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 5}}, 5, ()),
        ({"expires_after": {"minutes": 5}, "file_ids": [], "skills": None}, 5, ()),
        ({"memory_limit": "4g", "network_policy": None, "unknown": None}, None, ()),
        ({"file_ids": ["file-2", "file-1"]}, None, ("file-2", "file-1")),
    ],
)
def test_container_request_is_accepted(body: dict[str, Any], minutes: int | None, file_ids: tuple[str, ...]) -> None:
    assert new_container({"name": "notes", **body}) == NewContainer("notes", minutes, file_ids)


def test_container_without_a_network_is_accepted() -> None:
    disabled = {"type": "disabled"}
    assert new_container({"name": "notes", "network_policy": disabled}).network_policy == disabled


def test_container_with_a_network_is_accepted_and_does_not_show_its_secrets() -> None:
    new = new_container({"name": "notes", "network_policy": with_secret(value="sk-1")})
    assert new.network_policy == with_secret(value="sk-1")
    assert "sk-1" not in repr(new)


def test_container_with_skills_is_accepted() -> None:
    more = skill("more")
    assert new_container({"name": "notes", "skills": [SKILL, more]}).skills == (SKILL, more)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"name": None}, "name", "invalid_type"),
        ({"expires_after": {"anchor": "birth", "minutes": 5}}, "expires_after.anchor", "invalid_value"),
        ({"expires_after": {"minutes": 0}}, "expires_after.minutes", "integer_below_min_value"),
        ({"memory_limit": "3g"}, "memory_limit", "invalid_value"),
        ({"unknown": 1}, "unknown", "unknown_parameter"),
        (
            {"network_policy": {**ALLOWED, "type": "disabled"}},
            "network_policy.allowed_domains",
            "unknown_parameter",
        ),
        ({"file_ids": ["file-1", 2]}, "file_ids[1]", "invalid_type"),
        ({"file_ids": ["file-1"] * 51}, "file_ids", "array_above_max_length"),
        ({"skills": [{"type": "skill_reference", "skill_id": "s"}]}, "skills[0].skill_id", "invalid_value"),
        ({"skills": [SKILL, SKILL]}, "skills[1].name", "invalid_value"),
        ({"network_policy": {"type": "open"}}, "network_policy.type", "invalid_value"),
        ({"network_policy": {"type": "allowlist"}}, "network_policy.allowed_domains", "missing_required_parameter"),
        ({"network_policy": {**ALLOWED, "allowed_domains": []}}, "network_policy.allowed_domains", "empty_array"),
        ({"network_policy": {**ALLOWED, "domain_secrets": []}}, "network_policy.domain_secrets", "empty_array"),
        ({"network_policy": with_secret(value=None)}, "network_policy.domain_secrets[0].value", "invalid_type"),
        ({"network_policy": with_secret(value="")}, "network_policy.domain_secrets[0].value", "empty_string"),
        ({"network_policy": with_secret(value="a\r\nb")}, "network_policy.domain_secrets[0].value", "invalid_value"),
        ({"network_policy": with_secret(name="A-B")}, "network_policy.domain_secrets[0].name", "invalid_value"),
    ],
)
def test_unsupported_container_is_refused(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        new_container({"name": "notes", **body})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)


def test_request_to_copy_a_file_has_its_id() -> None:
    assert copied_file({"file_id": "file-1"}) == "file-1"
    with pytest.raises(ApiError) as refused:
        copied_file({})
    assert (refused.value.param, refused.value.code) == ("file_id", "missing_required_parameter")
