"""The routes of the page exist unless it is turned off, and only its files need no token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.feature import Feature, Stack
from llama_stack_responses.features.page.feature import open_feature
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.wire.response_routes import create_router
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference
from tests.unit.service.test_short_requests import server


class Gate:
    """Admits no WebSocket."""

    async def admit(self, scope: Any, method: str) -> Any:
        raise NotImplementedError


def router(**settings: Any) -> APIRouter:
    config = ResponsesConfig(**settings)
    impl = server(MemoryRecords(), FakeInference(), SingleUserAccess(), config=config)
    return create_router(impl, Gate(), "x-public", [opened(config)])


def opened(config: ResponsesConfig) -> Feature:
    """Return the page of a stack, of which it needs only the configuration and the store."""
    return open_feature(cast("Stack", SimpleNamespace(config=config, records=MemoryRecords(), operators=None)))


def files(**settings: Any) -> list[APIRoute]:
    """Return the routes of the page's files."""
    found = [route for route in router(**settings).routes if isinstance(route, APIRoute)]
    return [route for route in found if route.path.startswith("/ui")]


def operations(**settings: Any) -> dict[str, Any]:
    """Return the descriptions of the routes of the page's data, by path."""
    app = FastAPI()
    app.include_router(router(**settings))
    paths = {path: each for path, each in app.openapi()["paths"].items() if path.startswith("/v1/ui")}
    return {path: operation for path, each in paths.items() for operation in each.values()}


def test_only_files_need_no_token() -> None:
    assert all((route.openapi_extra or {}).get("x-public") for route in files())
    assert len(operations()) == 19
    assert not [path for path, operation in operations().items() if "x-public" in operation]


def test_of_the_data_only_what_has_a_link_needs_no_token() -> None:
    found = [route for route in router().routes if isinstance(route, APIRoute) and route.path.startswith("/v1/ui")]
    assert [route.path for route in found if (route.openapi_extra or {}).get("x-public")] == ["/v1/ui/shared"]


@pytest.mark.parametrize("off", [False, {"enabled": False}])
def test_page_can_be_turned_off(off: Any) -> None:
    assert files(ui=True)
    assert operations(ui=True)
    assert files(ui=off) == []
    assert operations(ui=off) == {}


@pytest.mark.parametrize(
    ("settings", "kept"), [(True, True), (False, False), ({"refused_per_user": 0}, False), ({"refused_days": 1}, True)]
)
def test_refused_requests_are_kept_only_for_a_page_that_shows_them(settings: Any, kept: bool) -> None:
    assert (opened(ResponsesConfig.model_validate({"ui": settings})).on_refused is not None) == kept


@pytest.mark.parametrize(
    ("settings", "kept"),
    [(True, False), ({"record_requests": True}, True), ({"enabled": False, "record_requests": True}, False)],
)
def test_chat_requests_are_kept_only_for_a_page_that_is_on(settings: Any, kept: bool) -> None:
    assert opened(ResponsesConfig.model_validate({"ui": settings})).keeps_chat_requests == kept
