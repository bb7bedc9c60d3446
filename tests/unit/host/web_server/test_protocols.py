"""uvicorn creates the protocols of this package, also with classes that it has chosen before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from llama_stack_responses.host.web_server.http_protocol import HttpProtocol
from llama_stack_responses.host.web_server.protocols import use_protocols
from llama_stack_responses.host.web_server.websocket_protocol import WebSocketProtocol


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    """Begin with uvicorn's classes as they are, and leave them so for other tests."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    for kind in (HttpToolsProtocol, WebSocketsSansIOProtocol):
        # Without one, Python would pass the arguments to that of `object`, which takes none.
        setattr(kind, "__new__", _plain)  # noqa: B010 - mypy takes it for a method


def _plain(kind: Any, *_: Any, **__: Any) -> Any:
    return object.__new__(kind)


async def _serve(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_uvicorn_creates_extended_protocols_once_they_are_used(times: int) -> None:
    config = Config(_serve, interface="asgi3", lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    chosen: Any = [config.http_protocol_class, config.ws_protocol_class]
    for _ in range(times):
        use_protocols()
    made = [type(kind(config=config, server_state=ServerState(), app_state={})) for kind in chosen]
    assert made == ([HttpProtocol, WebSocketProtocol] if times else chosen)


async def test_another_subclass_of_uvicorns_protocol_stays_as_it_is() -> None:
    class Other(HttpToolsProtocol):
        pass

    use_protocols()
    config = Config(_serve, interface="asgi3", lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    assert type(Other(config, ServerState(), {})) is Other
