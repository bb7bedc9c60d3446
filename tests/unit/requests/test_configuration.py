"""Items that change settings of the responses after them."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.requests.configuration_updates import configured, without_updates
from llama_stack_responses.requests.request import CreateRequest, parse_create

Json = dict[str, Any]

TEXT: Json = {"type": "text"}
SCHEMA: Json = {"type": "json_schema", "name": "n", "schema": {}}
MESSAGE: Json = {"type": "message", "role": "user", "content": []}


def request(**fields: Any) -> CreateRequest:
    return parse_create({"model": "m", "input": "hi", **fields})


def effort(value: str) -> Json:
    return {"type": "configuration_update", "reasoning": {"effort": value}}


def answer_format(value: Json) -> Json:
    return {"type": "configuration_update", "text": {"format": value}}


def test_request_without_updates_is_unchanged() -> None:
    bare = request()
    items = [MESSAGE]
    request_of_response, shown = configured(bare, items)
    assert request_of_response is bare
    assert shown is items


@pytest.mark.parametrize(
    ("items", "reasoning", "text"),
    [
        ([effort("high")], {"effort": "high", "summary": "auto"}, {"verbosity": "low"}),
        ([effort("high"), MESSAGE, effort("none")], {"effort": "none", "summary": "auto"}, {"verbosity": "low"}),
        (
            [effort("high"), MESSAGE, answer_format(SCHEMA), MESSAGE],
            {"effort": "high", "summary": "auto"},
            {"verbosity": "low", "format": SCHEMA},
        ),
        (
            [answer_format(SCHEMA), answer_format(TEXT)],
            {"effort": "low", "summary": "auto"},
            {"verbosity": "low", "format": TEXT},
        ),
        (
            [{"type": "configuration_update", "reasoning": {}}],
            {"effort": "low", "summary": "auto"},
            {"verbosity": "low"},
        ),
    ],
)
def test_last_update_of_each_setting_replaces_the_request_s_own(items: list[Json], reasoning: Json, text: Json) -> None:
    base = request(reasoning={"effort": "low", "summary": "auto"}, text={"verbosity": "low"})
    changed, shown = configured(base, items)
    assert (changed.reasoning, changed.text) == (reasoning, text)
    assert shown == [item for item in items if item == MESSAGE]
    assert base.reasoning == {"effort": "low", "summary": "auto"}


def test_update_of_one_setting_leaves_the_other_absent() -> None:
    changed, _ = configured(request(), [effort("high")])
    assert (changed.reasoning, changed.text) == ({"effort": "high"}, None)


def test_model_sees_no_update() -> None:
    assert without_updates([effort("high"), MESSAGE, answer_format(TEXT)]) == [MESSAGE]
