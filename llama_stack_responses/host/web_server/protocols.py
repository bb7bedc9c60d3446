"""Makes uvicorn handle connections with the protocols of this package, which are subclasses of its own.

uvicorn has chosen the classes of its protocols before a stack imports its providers. So the classes that it chose
create objects of the subclasses.
"""

from __future__ import annotations

from typing import Any, Final

from ...logs import get_logger, leave_out

logger = get_logger(__name__)

_CAUSED_BY_CLIENTS: Final = ("Invalid HTTP request received.", "Invalid UTF-8 sequence received from client.")
"""Messages of uvicorn that a client can cause without end, the second one with a traceback."""


def use_protocols() -> None:
    """Use the subclasses for all connections that are made from now on."""
    try:
        from .http_protocol import HttpProtocol
    except ImportError:
        logger.debug("httptools is not installed: h11 bounds the heads of requests")
    else:
        _create(HttpProtocol)
    try:
        from .websocket_protocol import WebSocketProtocol
    except ImportError:
        logger.debug("unsupported uvicorn version: WebSocket frames are not checked before they are decoded")
    else:
        _create(WebSocketProtocol)
    for message in _CAUSED_BY_CLIENTS:
        leave_out("uvicorn.error", message)


def _create(protocol: Any) -> None:
    """Create objects of this class wherever uvicorn creates one of its base class."""
    base = protocol.__base__

    def create(asked: Any, *_: Any, **__: Any) -> Any:
        return object.__new__(protocol if asked is base else asked)

    base.__new__ = create
