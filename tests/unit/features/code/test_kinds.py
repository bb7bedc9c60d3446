"""The declarations of the tools, and the item of the interpreter's calls, as clients send them."""

from __future__ import annotations

import json
import re
from typing import Any, Final, get_type_hints

import pytest
from openai.types.responses import (
    ContainerNetworkPolicyAllowlistParam,
    ContainerNetworkPolicyDomainSecretParam,
    InlineSkillParam,
    SkillReferenceParam,
)
from openai.types.responses.inline_skill_source_param import InlineSkillSourceParam

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import schema_of
from llama_stack_responses.features.code.kinds import KINDS
from llama_stack_responses.features.code.skills.shapes import skills
from llama_stack_responses.items.view import CallView, Printed
from llama_stack_responses.requests.declared_tools import echoed_tool
from llama_stack_responses.requests.request import parse_create
from tests.support.skills import skill

Json = dict[str, Any]


def tools(*declared: Json) -> list[Json]:
    return parse_create({"model": "m", "input": "hi", "tools": list(declared)}).tools


def refused(declared: Json) -> ApiError:
    with pytest.raises(ApiError) as raised:
        tools(declared)
    return raised.value


def container_with(*skills: Any) -> Json:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}


def test_inline_skill_with_every_declared_key_stays_unchanged() -> None:
    declared = skill()
    assert declared.keys() == get_type_hints(InlineSkillParam).keys()
    assert declared["source"].keys() == get_type_hints(InlineSkillSourceParam).keys()
    both = [container_with(declared), {"type": "code_interpreter", "container": {"type": "auto", "skills": [declared]}}]
    assert tools(*both) == both


@pytest.mark.parametrize(
    ("kind", "field", "container"),
    [("code_interpreter", "container", "auto"), ("shell", "environment", "container_auto")],
)
def test_network_policy_is_echoed_without_values_of_secrets(kind: str, field: str, container: str) -> None:
    secret = dict.fromkeys(get_type_hints(ContainerNetworkPolicyDomainSecretParam), "name")
    policy = {"type": "allowlist", "allowed_domains": ["name"], "domain_secrets": [secret]}
    assert policy.keys() == get_type_hints(ContainerNetworkPolicyAllowlistParam).keys()
    declared: Json = {"type": kind, field: {"type": container, "network_policy": policy}}
    [checked] = tools(declared)
    assert checked == declared
    hidden = {**policy, "domain_secrets": [{**secret, "value": ""}]}
    assert echoed_tool(checked) == {"type": kind, field: {"type": container, "network_policy": hidden}}
    item = {"type": "additional_tools", "role": "developer", "tools": [declared]}
    with pytest.raises(ApiError, match="it contains credentials, and items are stored") as raised:
        parse_create({"model": "m", "input": [item]})
    assert raised.value.param == "input[0].tools[0]"


REFERENCE: Final[Json] = {"type": "skill_reference", "skill_id": "skill_1"}


@pytest.mark.parametrize("version", [{}, {"version": "latest"}, {"version": "12"}, {"version": 3}, {"version": None}])
def test_reference_to_skill_is_accepted(version: Json) -> None:
    assert (REFERENCE | {"version": ""}).keys() == get_type_hints(SkillReferenceParam).keys()
    kept = REFERENCE | ({"version": str(version["version"])} if version.get("version") else {})
    both = [
        container_with(skill(), REFERENCE | version, REFERENCE),
        {"type": "code_interpreter", "container": {"type": "auto", "skills": [REFERENCE | version]}},
    ]
    assert [each["skills"] for each in (tools(*both)[0]["environment"], tools(*both)[1]["container"])] == [
        [skill(), kept, REFERENCE],
        [kept],
    ]


def test_published_pattern_of_version_accepts_what_the_server_accepts() -> None:
    [pattern] = re.findall('"pattern": "([^"]*latest[^"]*)"', json.dumps(schema_of(skills)))
    versions = ["latest", "12", "latest1", "a1", "01"]
    assert [each for each in versions if re.search(pattern, each)] == ["latest", "12"]


@pytest.mark.parametrize(
    ("skills", "place", "code"),
    [
        ([skill() | {"name": "../a"}], "[0].name", "invalid_value"),
        ([skill() | {"name": ".."}], "[0].name", "invalid_value"),
        ([skill() | {"name": "a" * 65}], "[0].name", "string_above_max_length"),
        ([skill() | {"name": ""}], "[0].name", "empty_string"),
        ([skill() | {"description": "a" * 1025}], "[0].description", "string_above_max_length"),
        ([skill("a"), skill("b"), skill("a")], "[2].name", "invalid_value"),
        ([skill() | {"source": {"type": "url"}}], "[0].source.type", "invalid_value"),
        ([skill() | {"source": skill()["source"] | {"media_type": "a/b"}}], "[0].source.media_type", "invalid_value"),
        ([skill() | {"source": {"type": "base64", "media_type": "application/zip"}}], "[0].source.data", None),
        ([{"type": "skill_reference"}], "[0].skill_id", None),
        ([{"type": "skill_reference", "skill_id": "s"}], "[0].skill_id", "invalid_value"),
        ([{"type": "skill_reference", "skill_id": 1}], "[0].skill_id", "invalid_type"),
        ([REFERENCE | {"version": "0"}], "[0].version", "invalid_value"),
        ([REFERENCE | {"version": "newest"}], "[0].version", "invalid_value"),
        ([REFERENCE | {"version": "1234567"}], "[0].version", "string_above_max_length"),
        ([REFERENCE | {"version": 0}], "[0].version", "integer_below_min_value"),
        ([REFERENCE | {"version": True}], "[0].version", "invalid_type"),
        ([{"type": "other"}], "[0].type", "invalid_value"),
        ([skill(str(number)) for number in range(33)], "", "array_above_max_length"),
    ],
)
def test_invalid_skill_is_refused_with_its_position(skills: list[Json], place: str, code: str | None) -> None:
    error = refused(container_with(*skills))
    assert error.param == f"tools[0].environment.skills{place}"
    assert error.code == (code or "missing_required_parameter")


def test_skills_are_echoed_without_their_archives() -> None:
    settings: dict[str, Any] = {"type": "container_auto", "file_ids": ["f"], "skills": [skill()]}
    local = {"type": "local", "skills": [{"name": "s", "description": "d", "path": "/s"}]}
    declared: list[Json] = [
        {"type": "shell", "environment": settings},
        {"type": "shell", "environment": local},
        {"type": "code_interpreter", "container": settings | {"type": "auto"}},
        {"type": "code_interpreter", "container": "cntr_1"},
        {"type": "shell"},
    ]
    empty = settings | {"skills": [skill(zipped=b"")]}
    assert list(map(echoed_tool, declared)) == [
        {"type": "shell", "environment": empty},
        declared[1],
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}},
        *declared[3:],
    ]
    assert settings["skills"] == [skill()]


def test_view_of_call_has_its_code_and_what_it_printed_and_drew() -> None:
    [kind] = KINDS.items
    outputs = [{"type": "logs", "logs": "2"}, {"type": "image", "url": "data:a"}, {"type": "image"}, "3", {}]
    call = {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": outputs}
    assert isinstance(kind.view, CallView)
    assert kind.view.printed
    assert list(kind.view.printed(call)) == [
        Printed("2"),
        Printed(image_url="data:a"),
        Printed(image_url=""),
        Printed(None),
    ]
    assert (kind.view.text, kind.view.language, kind.view.run_by) == ("code", "python", "server")
