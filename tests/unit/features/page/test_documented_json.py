"""The JSON of the reference fits the OpenAPI description of the page's routes."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import jsonschema
import pytest

from tests.support.stack import REPOSITORY
from tests.unit.features.page.test_page_routes import operations

REFERENCE: Final = (REPOSITORY / "docs" / "reference" / "ui.md").read_text()
ROUTES: Final = [
    "session",
    "tools",
    "cards",
    "responses",
    "refused/{id}",
    "responses/{id}",
    "responses/{id}/events",
    "responses/{id}/requests",
    "chain/{id}",
    "conversations/{id}",
]


def documented(route: str) -> Any:
    """Return the first JSON block of a route, with examples instead of words."""
    section = REFERENCE.partition(f"## `GET /v1/ui/{route}`\n")[2].partition("\n## ")[0]
    found = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert found, route
    return whole(json.loads(found[1]))


def whole(value: Any) -> Any:
    """Fill in the rows of the list that the examples refer to; items that they refer to are left out."""
    if isinstance(value, list):
        return [created for each in value if not isinstance(each, str) and (created := whole(each)) != {}]
    if not isinstance(value, dict):
        return value
    if value.get("...") == "a row of the list":
        return documented("responses")["data"][0]
    return {name: whole(each) for name, each in value.items() if name != "..."}


@pytest.mark.relatives
@pytest.mark.parametrize("route", ROUTES)
def test_documented_json_fits_the_openapi_description(route: str) -> None:
    path = "/v1/ui/" + re.sub(r"(\w+)/\{id\}", _parameter, route)
    content = operations()[path]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(documented(route), content["schema"], jsonschema.Draft202012Validator)


def _parameter(found: re.Match[str]) -> str:
    names = {"conversations": "conversation_id", "refused": "refused_id"}
    return f"{found[1]}/{{{names.get(found[1], 'response_id')}}}"
