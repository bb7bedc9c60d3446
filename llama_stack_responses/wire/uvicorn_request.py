"""uvicorn's state of a request, behind the `receive` that it passes to the application."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any, Final

from starlette.types import Receive

_TELEMETRY: Final = "fastapi.telemetry._asgi"
"""The module of the middleware that makes FastAPI's own spans, which is not one of the application's middlewares."""


def server_cycle(receive: Receive, needed: Iterable[str]) -> Any:
    """Return uvicorn's state of the request; None if the server or a middleware is not known.

    Args:
        receive: what the server passed for it. A middleware that wraps it is not known, except FastAPI's telemetry and
            the decompression of bodies (`wire/content_encoding.py`), whose object has it as `server_receive`.
        needed: the attributes that the caller uses.
    """
    cycle: Any = getattr(_without_telemetry(receive), "__self__", None)
    if decoded := getattr(cycle, "server_receive", None):
        cycle = getattr(decoded, "__self__", None)
    return cycle if cycle is not None and all(hasattr(cycle, name) for name in needed) else None


def _without_telemetry(receive: Any) -> Any:
    """Return what FastAPI's telemetry wraps, if it wraps `receive`: it passes messages on unchanged and counts none."""
    if getattr(receive, "__module__", None) != _TELEMETRY or not isinstance(receive, FunctionType):
        return receive
    held = dict(zip(receive.__code__.co_freevars, receive.__closure__ or (), strict=True))
    return held["receive"].cell_contents if "receive" in held else receive
